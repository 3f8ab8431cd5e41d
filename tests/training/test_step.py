"""One update: independent of the batch split, skipped if not finite; and a model learns simple tasks."""

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
    """Without attention biases: the true gradient of key biases is zero, and Adam would amplify the rounding."""
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
    rng = random.Random(5)
    sides = [[[rng.randrange(2, 17) for _ in range(rng.randint(1, 7))] for _ in range(count)] for _ in "12"]
    return sides[0], sides[1]


def split(sources: Sequence[list[int]], targets: Sequence[list[int]], count: int) -> list[Batch]:
    return [collate(sources[index::count], targets[index::count]) for index in range(count)]


def weights(model: Transformer) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def run_two_updates(batches: list[Batch], config: TrainingConfig = CONFIG) -> tuple[float, dict[str, torch.Tensor]]:
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
    smoothed, nll = compute_batch_loss(model, batch, 0.0)
    expected = -model.score(batch.source, batch.target).sum()
    torch.testing.assert_close(smoothed, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(nll, expected.detach(), rtol=0, atol=1e-10)


# ---- batch split


@pytest.mark.parametrize("batch_count", [2, 5, 23])
def test_run_update_is_invariant_to_batch_split(batch_count: int) -> None:
    sources, targets = pairs(23)
    expected_loss, expected = run_two_updates([collate(sources, targets)])
    loss, actual = run_two_updates(split(sources, targets, batch_count))
    assert loss == pytest.approx(expected_loss, abs=1e-12)
    for name, weight in expected.items():
        torch.testing.assert_close(actual[name], weight, rtol=0, atol=1e-12)


def test_run_update_returns_the_loss_before_the_update() -> None:
    model, batches = new_model(1), split(*pairs(23), 5)
    tokens = sum(batch.tokens for batch in batches)
    expected = sum(float(compute_batch_loss(model, batch, 0.0)[1]) for batch in batches) / tokens
    optimizer = new_optimizer(model, CONFIG)
    assert run_update(model, optimizer, batches, CONFIG, 0.01).loss == pytest.approx(expected, abs=1e-12)
    assert run_update(model, optimizer, batches, CONFIG, 0.01).loss < expected


def test_run_update_is_invariant_to_order() -> None:
    sources, targets = pairs(23)
    _, expected = run_two_updates(split(sources, targets, 5))
    _, backwards = run_two_updates(split(sources[::-1], targets[::-1], 5)[::-1])
    for name, weight in expected.items():
        torch.testing.assert_close(backwards[name], weight, rtol=0, atol=1e-12)


# ---- finite gradients


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_optimizer_step_non_finite_loss_changes_nothing(value: float) -> None:
    model, batch = new_model(3), collate(*pairs(11))
    optimizer = new_optimizer(model, CONFIG)
    run_update(model, optimizer, [batch], CONFIG, 0.01)
    with torch.no_grad():
        model.encoder.embedding.table.weight[batch.source[0, 0], 5] = value
    before, optimizer_state = weights(model), copy.deepcopy(optimizer.state_dict()["state"])
    assert math.isnan(run_update(model, optimizer, [batch], CONFIG, 0.01).loss)
    for name, weight in weights(model).items():
        assert torch.equal(weight.nan_to_num(7.0), before[name].nan_to_num(7.0))
    for number, state in optimizer.state_dict()["state"].items():
        assert all(torch.equal(state[kind], optimizer_state[number][kind]) for kind in state)


def test_run_update_one_non_finite_batch_skips_the_step() -> None:
    model = new_model(4)
    with torch.no_grad():
        model.encoder.embedding.table.weight[16] = torch.nan
    good, bad = collate([[3, 4]], [[5]]), collate([[3, 16]], [[5]])
    before = weights(model)
    assert math.isnan(run_update(model, new_optimizer(model, CONFIG), [bad, good], CONFIG, 0.01).loss)
    for name, weight in weights(model).items():
        assert torch.equal(weight.nan_to_num(7.0), before[name].nan_to_num(7.0))


def gradient_norm(model: Transformer) -> float:
    squares = [float(parameter.grad.pow(2).sum()) for parameter in model.parameters()]
    return float(sum(squares) ** 0.5)


def test_run_update_clips_the_gradient_norm() -> None:
    batch = collate(*pairs(11))
    norms, directions = {}, {}
    for max_norm in (0.0, 0.37, 1000.0):
        model = new_model(5)
        config = CONFIG.model_copy(update={"max_grad_norm": max_norm})
        run_update(model, new_optimizer(model, config), [batch], config, 0.01)
        norms[max_norm] = gradient_norm(model)
        directions[max_norm] = model.encoder.embedding.table.weight.grad / norms[max_norm]
    assert norms[0.0] > 0.5
    assert norms[1000.0] == pytest.approx(norms[0.0], rel=1e-12)
    assert norms[0.37] == pytest.approx(0.37, rel=1e-5)
    torch.testing.assert_close(directions[0.37], directions[0.0], rtol=0, atol=1e-9)


def test_run_update_first_adam_step_by_hand() -> None:
    """The two moments cancel: every weight with a gradient moves by the learning rate, against its sign."""
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
def test_run_update_learns_sequence_tasks(name: str) -> None:
    """Sequences of 3 to 8 out of 12 symbols; the test sequences are not in the training data."""
    task, rng = TASKS[name], random.Random(1)

    def sequences(count: int) -> list[list[int]]:
        return [rng.choices(SYMBOLS, k=rng.randint(3, 8)) for _ in range(count)]

    unseen = sequences(300)
    unseen_set = {tuple(symbols) for symbols in unseen}
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
        training = [symbols for symbols in sequences(64) if tuple(symbols) not in unseen_set]
        batch = collate(training, [task(symbols) for symbols in training])
        run_update(
            model,
            optimizer,
            [batch],
            config,
            compute_learning_rate(step, (step - 1) / updates, config, shape.d_model, updates),
        )
    source = collate(unseen, unseen).source
    results = search(model.eval(), source, GenerationConfig(beam_size=1))
    correct = sum(
        hypotheses[0].complete and list(hypotheses[0].tokens) == task(symbols)
        for hypotheses, symbols in zip(results, unseen, strict=True)
    )
    assert correct >= 0.99 * len(unseen)
