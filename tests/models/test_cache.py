"""Incremental decoding with a cache equals teacher forcing, in any order of rows."""

import random

import pytest
import torch
from torch import Tensor

from heedful.models.config import ModelConfig
from heedful.models.transformer import Transformer
from heedful.tokenization.special_tokens import PAD

VOCAB_SIZE = 23


def new_model(norm: str, positions: str) -> Transformer:
    torch.manual_seed(1)
    settings = {
        "source_vocab_size": 19,
        "target_vocab_size": VOCAB_SIZE,
        "share_embeddings": False,
        "d_model": 26,
        "heads": 2,
        "encoder_layers": 1,
        "decoder_layers": 3,
        "d_ff": 37,
        "norm_placement": norm,
        "positions": positions,
        "max_length": 17,
    }
    model = Transformer(ModelConfig.from_settings(settings)).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model


def new_source(lengths: list[int]) -> Tensor:
    torch.manual_seed(2)
    source = torch.randint(1, 19, (len(lengths), max(lengths)))
    source[torch.arange(max(lengths)) >= torch.tensor(lengths)[:, None]] = PAD
    return source


def force_log_probabilities(model: Transformer, source: Tensor, history: list[int]) -> Tensor:
    """Log-probabilities after ``history``, which starts with PAD, by teacher forcing."""
    states = model(source[source != PAD][None], torch.tensor([history]))
    return model.logits(states[0, -1]).log_softmax(-1)


def check_rows(model: Transformer, source: Tensor, actual: Tensor, histories: list[tuple[int, list[int]]]) -> None:
    """Each row against teacher forcing of its own history, in a batch of one."""
    expected = torch.stack(
        [force_log_probabilities(model, source[sentence], history) for sentence, history in histories]
    )
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("lengths", [[7, 4, 1], [5, 5, 5]])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_step_matches_teacher_forcing(norm: str, positions: str, lengths: list[int]) -> None:
    model, source = new_model(norm, positions), new_source(lengths)
    target = torch.randint(1, VOCAB_SIZE, (3, 11))
    target[:, 0] = PAD
    expected = model.logits(model(source, target)).log_softmax(-1)
    state = model.start(source)
    for position in range(11):
        actual, state = model.step(target[:, position], state)
        torch.testing.assert_close(actual, expected[:, position], rtol=0, atol=1e-12)
    assert state.length == 11


@pytest.mark.parametrize("lengths", [[7, 4, 1, 6, 2], [3, 3, 3, 3, 3]])
def test_reorder_moves_beams_and_drops_sentences(lengths: list[int]) -> None:
    """Beam sizes 1, 3, 2, 5 and 3 in turn; each new row continues any old row of its sentence."""
    model, source = new_model("post", "sinusoidal"), new_source(lengths)
    rng = random.Random(3)
    sentences = list(range(5))
    histories = [(sentence, [PAD]) for sentence in sentences]
    actual, state = model.step(torch.full((5,), PAD), model.start(source))
    check_rows(model, source, actual, histories)
    beams = 1
    for next_beams, finished in [(3, None), (3, 1), (2, None), (5, 4), (5, None), (3, 0)]:
        lines = [line for line, sentence in enumerate(sentences) if sentence != finished]
        rows = [[line * beams + rng.randrange(beams) for _ in range(next_beams)] for line in lines]
        state = state.reorder(torch.tensor(rows))
        sentences, beams = [sentences[line] for line in lines], next_beams
        tokens = [rng.randrange(1, VOCAB_SIZE) for _ in range(len(lines) * beams)]
        histories = [
            (histories[row][0], [*histories[row][1], token])
            for row, token in zip((row for line in rows for row in line), tokens, strict=True)
        ]
        actual, state = model.step(torch.tensor(tokens), state)
        check_rows(model, source, actual, histories)
    assert sentences == [2, 3]


def test_step_does_not_modify_the_cache() -> None:
    """Two steps from one cache give the same result: it is not modified."""
    model, source = new_model("post", "sinusoidal"), new_source([7, 4, 1])
    _, state = model.step(torch.full((3,), PAD), model.start(source))
    first, _ = model.step(torch.tensor([3, 5, 8]), state)
    model.step(torch.tensor([4, 4, 4]), state)
    second, _ = model.step(torch.tensor([3, 5, 8]), state)
    assert torch.equal(first, second)
    assert state.length == 1


def test_cache_stores_memory_once_per_sentence() -> None:
    model, source = new_model("post", "sinusoidal"), new_source([7, 4, 1])
    _, state = model.step(torch.full((3,), PAD), model.start(source))
    expanded = state.reorder(torch.tensor([[0, 0], [1, 1], [2, 2]]))
    assert expanded.layers[0].memory_key is state.layers[0].memory_key
    assert expanded.layers[0].memory_key.shape == (3, 2, 7, 13)
    assert expanded.layers[0].key.shape == (6, 2, 1, 13)
    reduced = expanded.reorder(torch.tensor([[1, 0], [5, 5]]))
    assert reduced.layers[0].memory_key.shape == (2, 2, 7, 13)
    assert reduced.attention_mask is not None
    assert reduced.attention_mask.shape == (2, 1, 1, 7)
