"""One update: however it is split, only when it is sound, and enough of them learn."""

import copy
import math
import random
from collections.abc import Callable, Sequence

import pytest
import torch

from heedful.data.collate import Batch, collate
from heedful.generation.config import GenerationConfig
from heedful.generation.search import search
from heedful.models.config import ModelConfig
from heedful.models.transformer import Transformer
from heedful.tokenization.special_tokens import END, PAD
from heedful.training.config import TrainingConfig
from heedful.training.lr_schedule import compute_learning_rate
from heedful.training.step import compute_batch_loss, new_optimizer, run_update

CONFIG = TrainingConfig(label_smoothing=0.1, precision="float32")


def new_model(seed: int, dropout: float = 0.0) -> Transformer:
    """Without attention biases: the true gradient of a key's is zero, and Adam would blow up the rounding."""
    torch.manual_seed(seed)
    config = ModelConfig(
        source_vocab_size=17,
        target_vocab_size=17,
        d_model=22,
        heads=2,
        encoder_layers=1,
        decoder_layers=1,
        d_ff=13,
        dropout=dropout,
        attention_bias=False,
    )
    return Transformer(config).double()


def pairs(count: int) -> tuple[list[list[int]], list[list[int]]]:
    draw = random.Random(5)
    sides = [[[draw.randrange(2, 17) for _ in range(draw.randint(1, 7))] for _ in range(count)] for _ in "12"]
    return sides[0], sides[1]


def split(sources: Sequence[list[int]], targets: Sequence[list[int]], parts: int) -> list[Batch]:
    return [collate(sources[part::parts], targets[part::parts]) for part in range(parts)]


def weights(model: Transformer) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def updated(batches: list[Batch], config: TrainingConfig = CONFIG) -> tuple[float, dict[str, torch.Tensor]]:
    """The loss, and the weights after two updates of the same model on these batches."""
    model = new_model(1)
    optimizer = new_optimizer(model, config)
    run_update(model, optimizer, batches, config, 0.01)
    return run_update(model, optimizer, batches, config, 0.01).loss, weights(model)


# ---- batches


def test_collate_adds_start_end_and_padding() -> None:
    batch = collate([[7, 8], [9]], [[5], [6, 3, 4]])
    assert batch.source.tolist() == [[7, 8, END], [9, END, PAD]]
    assert batch.decoder_input.tolist() == [[PAD, 5, END, PAD], [PAD, 6, 3, 4]]
    assert batch.target.tolist() == [[5, END, PAD, PAD], [6, 3, 4, END]]
    assert batch.tokens == 6


def test_collate_empty_sentences_end_with_end_token() -> None:
    batch = collate([[]], [[]])
    assert batch.source.tolist() == batch.target.tolist() == [[END]]
    assert batch.decoder_input.tolist() == [[PAD]]


def test_compute_batch_loss_matches_log_probabilities() -> None:
    model, batch = new_model(2).eval(), collate(*pairs(11))
    smoothed, likelihood = compute_batch_loss(model, batch, 0.0)
    expected = -model.score(batch.source, batch.target).sum()
    torch.testing.assert_close(smoothed, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(likelihood, expected.detach(), rtol=0, atol=1e-10)


# ---- split


@pytest.mark.parametrize("parts", [2, 5, 23])
def test_run_update_is_invariant_to_batch_split(parts: int) -> None:
    sources, targets = pairs(23)
    whole_loss, whole = updated([collate(sources, targets)])
    loss, found = updated(split(sources, targets, parts))
    assert loss == pytest.approx(whole_loss, abs=1e-12)
    for name, weight in whole.items():
        torch.testing.assert_close(found[name], weight, rtol=0, atol=1e-12)


def test_run_update_returns_the_loss_before_the_update() -> None:
    model, batches = new_model(1), split(*pairs(23), 5)
    tokens = sum(batch.tokens for batch in batches)
    expected = sum(float(compute_batch_loss(model, batch, 0.0)[1]) for batch in batches) / tokens
    optimizer = new_optimizer(model, CONFIG)
    assert run_update(model, optimizer, batches, CONFIG, 0.01).loss == pytest.approx(expected, abs=1e-12)
    assert run_update(model, optimizer, batches, CONFIG, 0.01).loss < expected


def test_run_update_is_invariant_to_order() -> None:
    sources, targets = pairs(23)
    _, expected = updated(split(sources, targets, 5))
    _, backwards = updated(split(sources[::-1], targets[::-1], 5)[::-1])
    for name, weight in expected.items():
        torch.testing.assert_close(backwards[name], weight, rtol=0, atol=1e-12)


# ---- sound


@pytest.mark.parametrize("poison", [float("inf"), float("nan")])
def test_optimizer_step_non_finite_loss_changes_nothing(poison: float) -> None:
    model, batch = new_model(3), collate(*pairs(11))
    optimizer = new_optimizer(model, CONFIG)
    run_update(model, optimizer, [batch], CONFIG, 0.01)
    with torch.no_grad():
        model.encoder.embedding.table.weight[batch.source[0, 0], 5] = poison
    before, moments = weights(model), copy.deepcopy(optimizer.state_dict()["state"])
    assert math.isnan(run_update(model, optimizer, [batch], CONFIG, 0.01).loss)
    for name, weight in weights(model).items():
        assert torch.equal(weight.nan_to_num(7.0), before[name].nan_to_num(7.0))
    for number, state in optimizer.state_dict()["state"].items():
        assert all(torch.equal(state[kind], moments[number][kind]) for kind in state)


def test_run_update_one_non_finite_batch_skips_the_step() -> None:
    model = new_model(4)
    with torch.no_grad():
        model.encoder.embedding.table.weight[16] = torch.nan
    good, bad = collate([[3, 4]], [[5]]), collate([[3, 16]], [[5]])
    before = weights(model)
    assert math.isnan(run_update(model, new_optimizer(model, CONFIG), [bad, good], CONFIG, 0.01).loss)
    for name, weight in weights(model).items():
        assert torch.equal(weight.nan_to_num(7.0), before[name].nan_to_num(7.0))


def gradient_length(model: Transformer) -> float:
    squares = [float(parameter.grad.pow(2).sum()) for parameter in model.parameters()]
    return float(sum(squares) ** 0.5)


def test_run_update_clips_the_gradient_norm() -> None:
    batch = collate(*pairs(11))
    lengths, directions = {}, {}
    for clip in (0.0, 0.37, 1000.0):
        model = new_model(5)
        config = CONFIG.model_copy(update={"max_grad_norm": clip})
        run_update(model, new_optimizer(model, config), [batch], config, 0.01)
        lengths[clip] = gradient_length(model)
        directions[clip] = model.encoder.embedding.table.weight.grad / lengths[clip]
    assert lengths[0.0] > 0.5
    assert lengths[1000.0] == pytest.approx(lengths[0.0], rel=1e-12)
    assert lengths[0.37] == pytest.approx(0.37, rel=1e-5)
    torch.testing.assert_close(directions[0.37], directions[0.0], rtol=0, atol=1e-9)


def test_run_update_first_adam_step_by_hand() -> None:
    """Its two moments then cancel: every weight with a gradient moves by the rate, against the sign."""
    model, batch = new_model(6), collate(*pairs(11))
    before = weights(model)
    run_update(model, new_optimizer(model, CONFIG), [batch], CONFIG, 0.003)
    for name, parameter in model.named_parameters():
        clear = parameter.grad.abs() > 1e-4
        moved = (parameter.detach() - before[name])[clear]
        torch.testing.assert_close(moved, -0.003 * parameter.grad[clear].sign(), rtol=0, atol=1e-6)
        assert torch.equal(parameter.detach()[parameter.grad == 0], before[name][parameter.grad == 0])


def test_new_optimizer_matches_the_paper() -> None:
    group = new_optimizer(new_model(7), TrainingConfig()).param_groups[0]
    assert (group["betas"], group["eps"], group["weight_decay"]) == ((0.9, 0.98), 1e-9, 0)


def test_run_update_dropout_depends_on_the_seed() -> None:
    def after(seed: int) -> torch.Tensor:
        model = new_model(8, dropout=0.3)
        torch.manual_seed(seed)
        run_update(model, new_optimizer(model, CONFIG), [collate(*pairs(11))], CONFIG, 0.01)
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
def test_run_update_learns(name: str) -> None:
    """Sequences of 3 to 8 out of 12 symbols; the test sequences are not in the training data."""
    task, draw = TASKS[name], random.Random(1)

    def sequences(count: int) -> list[list[int]]:
        return [draw.choices(SYMBOLS, k=draw.randint(3, 8)) for _ in range(count)]

    unseen = sequences(300)
    secret = {tuple(symbols) for symbols in unseen}
    torch.manual_seed(1)
    shape = ModelConfig(
        source_vocab_size=15,
        target_vocab_size=15,
        d_model=64,
        heads=4,
        encoder_layers=1,
        decoder_layers=1,
        d_ff=128,
        dropout=0.0,
    )
    model = Transformer(shape)
    config = TrainingConfig(lr_schedule="linear", learning_rate=3e-3, warmup_updates=60, label_smoothing=0.0)
    optimizer = new_optimizer(model, config)
    updates = 500
    for step in range(1, updates + 1):
        shown = [symbols for symbols in sequences(64) if tuple(symbols) not in secret]
        batch = collate(shown, [task(symbols) for symbols in shown])
        run_update(
            model,
            optimizer,
            [batch],
            config,
            compute_learning_rate(step, (step - 1) / updates, config, shape.d_model, updates),
        )
    source = collate(unseen, unseen).source
    found = search(model.eval(), source, GenerationConfig(beam_size=1))
    right = sum(
        hypotheses[0].complete and list(hypotheses[0].tokens) == task(symbols)
        for hypotheses, symbols in zip(found, unseen, strict=True)
    )
    assert right >= 0.99 * len(unseen)
