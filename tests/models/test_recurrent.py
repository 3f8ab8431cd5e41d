"""The recurrent model: attention by its formula, cells by hand, the same invariances as the Transformer."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.generation.config import GenerationConfig
from heedful.generation.search import search
from heedful.models.config import ModelConfig
from heedful.models.recurrent import AdditiveAttention, RecurrentModel
from heedful.tokenization.special_tokens import PAD
from tests.models.test_transformer import close, padded_ids

both_architectures = pytest.mark.parametrize("architecture", ["gru", "lstm"])


def new_model(architecture: str, **changes: object) -> RecurrentModel:
    torch.manual_seed(3)
    settings = {
        "architecture": architecture,
        "source_vocab_size": 19,
        "target_vocab_size": 23,
        "share_embeddings": False,
        "d_model": 12,
        "heads": 1,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "dropout": 0.0,
        **changes,
    }
    model = RecurrentModel(ModelConfig.from_settings(settings)).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
        for table in (model.encoder.table, model.decoder.table):
            table.weight[PAD] = 0
    return model


def test_additive_attention_matches_formula() -> None:
    torch.manual_seed(1)
    module = AdditiveAttention(6).double()
    state, memory = torch.randn(2, 3, 6).double(), torch.randn(2, 5, 6).double()
    attention_mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    actual = module.weights(state, module.key(memory), attention_mask)
    for sentence in range(2):
        for row in range(3):
            scores = [
                module.score @ torch.tanh(module.query(state[sentence, row]) + module.key(memory[sentence, j]))
                for j in range(5)
                if attention_mask[sentence, j]
            ]
            expected = F.pad(torch.stack(scores).softmax(0), (0, 5 - len(scores)))
            close(actual[sentence, row], expected)


@both_architectures
def test_recurrent_model_one_sentence_by_hand(architecture: str) -> None:
    """The forward pass recomputed from the weights, one token at a time."""
    model = new_model(architecture)
    source, target = padded_ids([5], 19), padded_ids([4], 23, start=True)
    x = model.encoder.table(source) * 12**0.5
    for layer in model.encoder.layers:
        x = layer(x)[0]
    decoder, memory = model.decoder, x[0]
    hidden = torch.tanh(decoder.first(memory.mean(0))).view(2, -1)
    for position in range(4):
        word = decoder.table(target[0, position]) * 12**0.5
        scores = torch.tanh(decoder.attention.query(hidden[-1, :12]) + decoder.attention.key(memory))
        context = (scores @ decoder.attention.score).softmax(0) @ memory
        below, states = torch.cat([word, context]), []
        for number, cell in enumerate(decoder.cells):
            if architecture == "gru":
                below = cell(below, hidden[number])
                states.append(below)
            else:
                below, cell_state = cell(below, tuple(hidden[number].view(2, 12)))
                states.append(torch.cat([below, cell_state]))
        hidden = torch.stack(states)
        expected = torch.tanh(decoder.readout(torch.cat([below, context, word])))
        close(model(source, target)[0, position], expected)


@both_architectures
def test_padding_batch_and_order_change_nothing(architecture: str) -> None:
    model, lengths = new_model(architecture), [7, 4, 1]
    source, target = padded_ids(lengths, 19), padded_ids([5, 5, 5], 23, start=True)
    expected = model(source, target)
    wider = F.pad(source, (0, 3), value=PAD)
    close(model(wider, F.pad(target, (0, 2), value=PAD))[:, :5], expected)
    permutation = torch.tensor([2, 0, 1])
    close(model(source[permutation], target[permutation]), expected[permutation])
    for row, length in enumerate(lengths):
        close(model(source[row : row + 1, :length], target[row : row + 1])[0], expected[row])


@both_architectures
def test_step_matches_teacher_forcing_and_hides_the_future(architecture: str) -> None:
    model = new_model(architecture)
    source, target = padded_ids([7, 4, 1], 19), padded_ids([9, 9, 9], 23, start=True)
    states = model(source, target)
    expected, state = model.logits(states).log_softmax(-1), model.start(source)
    for position in range(9):
        actual, state = model.step(target[:, position], state)
        close(actual, expected[:, position])
        changed = target.clone()
        changed[:, position] = changed[:, position] % 22 + 1
        assert torch.equal(model(source, changed)[:, :position], states[:, :position])


@both_architectures
def test_reorder_moves_beams_and_drops_sentences(architecture: str) -> None:
    model, source = new_model(architecture), padded_ids([7, 4, 2], 19)
    actual, state = model.step(torch.full((3,), PAD), model.start(source))
    first = actual.topk(2).indices  # two beams of each sentence
    state = state.reorder(torch.tensor([[0, 0], [1, 1], [2, 2]]))
    _, state = model.step(first.flatten(), state)
    state = state.reorder(torch.tensor([[1, 1], [5, 4]]))  # the second sentence is finished
    tokens = torch.tensor([5, 6, 7, 8])
    actual, _ = model.step(tokens, state)
    histories = [(0, first[0, 1], 5), (0, first[0, 1], 6), (2, first[2, 1], 7), (2, first[2, 0], 8)]
    for row, (sentence, first_token, second_token) in enumerate(histories):
        sentence_source = source[sentence][source[sentence] != PAD][None]
        forced = model(sentence_source, torch.tensor([[PAD, int(first_token), second_token]]))
        close(actual[row], model.logits(forced[0, -1]).log_softmax(-1))


@both_architectures
@pytest.mark.long
def test_recurrent_model_learns_and_reports_weights(architecture: str) -> None:
    torch.manual_seed(1)
    model = new_model(architecture, d_model=24, share_embeddings=True, source_vocab_size=23).float()
    source = torch.stack([torch.randperm(7) + 2 for _ in range(10)])
    target = F.pad(source.flip(1), (0, 1), value=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    first = float(-model.score(source, target).detach().mean())
    for _ in range(150):
        optimizer.zero_grad()
        loss = -model.score(source, target).mean()
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.25 * first
    observed: dict[str, Tensor] = {}
    decoder_input = F.pad(target, (1, 0))[:, :-1]
    assert torch.equal(model(source, decoder_input, observed.__setitem__), model(source, decoder_input))
    weights = observed["decoder.0.cross.weights"]
    assert weights.shape == (10, 1, 8, 7)
    torch.testing.assert_close(weights.sum(-1), torch.ones(10, 1, 8))
    results = search(model, source, GenerationConfig(beam_size=3), max_lengths=[9] * 10)
    assert (
        sum(list(hypotheses[0].tokens) == row.tolist()[:-1] for hypotheses, row in zip(results, target, strict=True))
        >= 6
    )
