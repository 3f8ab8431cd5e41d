"""One update: however it is split, only when it is sound, and enough of them learn."""

import copy
import math
import random
from collections.abc import Callable, Sequence

import pytest
import torch

from heedful.decoding.config import SearchConfig
from heedful.decoding.search import search
from heedful.model.config import PAD, ModelConfig
from heedful.model.transformer import Transformer
from heedful.text.tokenizer import END
from heedful.training.batch import Batch, new_batch
from heedful.training.config import TrainingConfig
from heedful.training.schedule import learning_rate
from heedful.training.update import batch_loss, new_optimizer, update

CONFIG = TrainingConfig(label_smoothing=0.1, precision="float32")


def new_model(seed: int, dropout: float = 0.0) -> Transformer:
    """Without attention biases: the true gradient of a key's is zero, and Adam would blow up the rounding."""
    torch.manual_seed(seed)
    config = ModelConfig(
        source_vocabulary=17,
        target_vocabulary=17,
        width=22,
        heads=2,
        encoder_layers=1,
        decoder_layers=1,
        feed_forward_width=13,
        dropout=dropout,
        attention_bias=False,
    )
    return Transformer(config).double()


def pairs(count: int) -> tuple[list[list[int]], list[list[int]]]:
    draw = random.Random(5)
    sides = [[[draw.randrange(2, 17) for _ in range(draw.randint(1, 7))] for _ in range(count)] for _ in "12"]
    return sides[0], sides[1]


def split(sources: Sequence[list[int]], targets: Sequence[list[int]], parts: int) -> list[Batch]:
    return [new_batch(sources[part::parts], targets[part::parts]) for part in range(parts)]


def weights(model: Transformer) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def updated(batches: list[Batch], config: TrainingConfig = CONFIG) -> tuple[float, dict[str, torch.Tensor]]:
    """The loss, and the weights after two updates of the same model on these batches."""
    model = new_model(1)
    optimizer = new_optimizer(model, config)
    update(model, optimizer, batches, config, 0.01)
    return update(model, optimizer, batches, config, 0.01), weights(model)


# ---- batches


def test_new_batch_ends_starts_and_pads() -> None:
    batch = new_batch([[7, 8], [9]], [[5], [6, 3, 4]])
    assert batch.source.tolist() == [[7, 8, END], [9, END, PAD]]
    assert batch.before.tolist() == [[PAD, 5, END, PAD], [PAD, 6, 3, 4]]
    assert batch.target.tolist() == [[5, END, PAD, PAD], [6, 3, 4, END]]
    assert batch.tokens == 6


def test_empty_sentences_have_an_end() -> None:
    batch = new_batch([[]], [[]])
    assert batch.source.tolist() == batch.target.tolist() == [[END]]
    assert batch.before.tolist() == [[PAD]]


def test_batch_loss_is_what_the_model_says_of_its_targets() -> None:
    model, batch = new_model(2).eval(), new_batch(*pairs(11))
    smoothed, likelihood = batch_loss(model, batch, 0.0)
    expected = -model.score(batch.source, batch.target).sum()
    torch.testing.assert_close(smoothed, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(likelihood, expected.detach(), rtol=0, atol=1e-10)


# ---- split


@pytest.mark.parametrize("parts", [2, 5, 23])
def test_an_update_split_into_batches_is_the_same(parts: int) -> None:
    sources, targets = pairs(23)
    whole_loss, whole = updated([new_batch(sources, targets)])
    loss, found = updated(split(sources, targets, parts))
    assert loss == pytest.approx(whole_loss, abs=1e-12)
    for name, weight in whole.items():
        torch.testing.assert_close(found[name], weight, rtol=0, atol=1e-12)


def test_the_loss_is_a_tokens_before_the_update() -> None:
    model, batches = new_model(1), split(*pairs(23), 5)
    tokens = sum(batch.tokens for batch in batches)
    expected = sum(float(batch_loss(model, batch, 0.0)[1]) for batch in batches) / tokens
    optimizer = new_optimizer(model, CONFIG)
    assert update(model, optimizer, batches, CONFIG, 0.01) == pytest.approx(expected, abs=1e-12)
    assert update(model, optimizer, batches, CONFIG, 0.01) < expected


def test_order_of_batches_and_of_sentences_changes_nothing() -> None:
    sources, targets = pairs(23)
    _, expected = updated(split(sources, targets, 5))
    _, backwards = updated(split(sources[::-1], targets[::-1], 5)[::-1])
    for name, weight in expected.items():
        torch.testing.assert_close(backwards[name], weight, rtol=0, atol=1e-12)


# ---- sound


@pytest.mark.parametrize("poison", [float("inf"), float("nan")])
def test_a_loss_that_is_no_number_reaches_no_weight(poison: float) -> None:
    model, batch = new_model(3), new_batch(*pairs(11))
    optimizer = new_optimizer(model, CONFIG)
    update(model, optimizer, [batch], CONFIG, 0.01)
    with torch.no_grad():
        model.encoder.embedding.table.weight[batch.source[0, 0], 5] = poison
    before, moments = weights(model), copy.deepcopy(optimizer.state_dict()["state"])
    assert math.isnan(update(model, optimizer, [batch], CONFIG, 0.01))
    for name, weight in weights(model).items():
        assert torch.equal(weight.nan_to_num(7.0), before[name].nan_to_num(7.0))
    for number, state in optimizer.state_dict()["state"].items():
        assert all(torch.equal(state[kind], moments[number][kind]) for kind in state)


def test_one_bad_batch_of_several_is_enough() -> None:
    model = new_model(4)
    with torch.no_grad():
        model.encoder.embedding.table.weight[16] = torch.nan
    good, bad = new_batch([[3, 4]], [[5]]), new_batch([[3, 16]], [[5]])
    before = weights(model)
    assert math.isnan(update(model, new_optimizer(model, CONFIG), [bad, good], CONFIG, 0.01))
    for name, weight in weights(model).items():
        assert torch.equal(weight.nan_to_num(7.0), before[name].nan_to_num(7.0))


def gradient_length(model: Transformer) -> float:
    squares = [float(parameter.grad.pow(2).sum()) for parameter in model.parameters()]
    return float(sum(squares) ** 0.5)


def test_the_gradient_is_clipped_to_its_longest() -> None:
    batch = new_batch(*pairs(11))
    lengths, directions = {}, {}
    for clip in (0.0, 0.37, 1000.0):
        model = new_model(5)
        config = CONFIG.model_copy(update={"clip": clip})
        update(model, new_optimizer(model, config), [batch], config, 0.01)
        lengths[clip] = gradient_length(model)
        directions[clip] = model.encoder.embedding.table.weight.grad / lengths[clip]
    assert lengths[0.0] > 0.5
    assert lengths[1000.0] == pytest.approx(lengths[0.0], rel=1e-12)
    assert lengths[0.37] == pytest.approx(0.37, rel=1e-5)
    torch.testing.assert_close(directions[0.37], directions[0.0], rtol=0, atol=1e-9)


def test_the_first_step_of_adam_by_hand() -> None:
    """Its two moments then cancel: every weight with a gradient moves by the rate, against the sign."""
    model, batch = new_model(6), new_batch(*pairs(11))
    before = weights(model)
    update(model, new_optimizer(model, CONFIG), [batch], CONFIG, 0.003)
    for name, parameter in model.named_parameters():
        clear = parameter.grad.abs() > 1e-4
        moved = (parameter.detach() - before[name])[clear]
        torch.testing.assert_close(moved, -0.003 * parameter.grad[clear].sign(), rtol=0, atol=1e-6)
        assert torch.equal(parameter.detach()[parameter.grad == 0], before[name][parameter.grad == 0])


def test_adam_is_the_papers() -> None:
    group = new_optimizer(new_model(7), TrainingConfig()).param_groups[0]
    assert (group["betas"], group["eps"], group["weight_decay"]) == ((0.9, 0.98), 1e-9, 0)


def test_dropout_is_drawn_from_the_seed() -> None:
    def after(seed: int) -> torch.Tensor:
        model = new_model(8, dropout=0.3)
        torch.manual_seed(seed)
        update(model, new_optimizer(model, CONFIG), [new_batch(*pairs(11))], CONFIG, 0.01)
        return model.output.weight.detach()

    assert torch.equal(after(1), after(1))
    assert not torch.equal(after(1), after(2))


# ---- learning

Task = Callable[[list[int]], list[int]]
TASKS: dict[str, Task] = {"copy": list, "reverse": lambda symbols: symbols[::-1], "sort": sorted}
SYMBOLS = range(3, 15)


@pytest.mark.parametrize(
    "name", ["copy", *(pytest.param(name, marks=pytest.mark.long) for name in ("reverse", "sort"))]
)
def test_a_model_learns(name: str) -> None:
    """12 symbols, 3 to 8 of them; none of the sequences it is asked for was ever shown to it."""
    task, draw = TASKS[name], random.Random(1)

    def sequences(count: int) -> list[list[int]]:
        return [draw.choices(SYMBOLS, k=draw.randint(3, 8)) for _ in range(count)]

    unseen = sequences(300)
    secret = {tuple(symbols) for symbols in unseen}
    torch.manual_seed(1)
    shape = ModelConfig(
        source_vocabulary=15,
        target_vocabulary=15,
        width=64,
        heads=4,
        encoder_layers=1,
        decoder_layers=1,
        feed_forward_width=128,
        dropout=0.0,
    )
    model = Transformer(shape)
    config = TrainingConfig(schedule="linear", rate=3e-3, warmup=60, label_smoothing=0.0)
    optimizer = new_optimizer(model, config)
    updates = 500
    for step in range(1, updates + 1):
        shown = [symbols for symbols in sequences(64) if tuple(symbols) not in secret]
        batch = new_batch(shown, [task(symbols) for symbols in shown])
        update(
            model,
            optimizer,
            [batch],
            config,
            learning_rate(step, (step - 1) / updates, config, shape.width, updates),
        )
    source = new_batch(unseen, unseen).source
    found = search(model.eval(), source, SearchConfig(beam=1))
    right = sum(
        hypotheses[0].complete and list(hypotheses[0].tokens) == task(symbols)
        for hypotheses, symbols in zip(found, unseen, strict=True)
    )
    assert right >= 0.99 * len(unseen)
