"""The full model: against PyTorch, parameter counts, and invariances."""

import pytest
import torch
from torch import Tensor, nn

from heedful.errors import HeedfulError
from heedful.models.attention import causal_mask
from heedful.models.config import ArchitectureConfig, ModelConfig
from heedful.models.transformer import Transformer
from heedful.tokenization.special_tokens import PAD
from tests.models.pytorch_weights import as_pytorch

SMALL = ModelConfig(
    source_vocab_size=19,
    target_vocab_size=23,
    share_embeddings=False,
    d_model=26,
    heads=2,
    encoder_layers=3,
    decoder_layers=2,
    d_ff=37,
    dropout=0.0,
)


def new_model(seed: int, **changes: object) -> Transformer:
    """A float64 model without weights of zero or one, so that a missing one is detected."""
    torch.manual_seed(seed)
    model = Transformer(ModelConfig.from_settings({**SMALL.model_dump(), **changes})).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
        for table in (model.encoder.embedding.table, model.decoder.embedding.table, model.output):
            table.weight[PAD] = 0
    return model


def padded_ids(lengths: list[int], vocabulary: int, start: bool = False) -> Tensor:
    """Random ids from 1 on, padded; a target read by the decoder starts with PAD."""
    ids = torch.randint(1, vocabulary, (len(lengths), max(lengths)))
    ids[torch.arange(max(lengths)) >= torch.tensor(lengths)[:, None]] = PAD
    return torch.nn.functional.pad(ids, (1, 0), value=PAD)[:, :-1] if start else ids


def close(ours: Tensor, expected: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(ours, expected, rtol=0, atol=tolerance)


# ---- against PyTorch


def new_pytorch_model(config: ModelConfig) -> nn.Transformer:
    """PyTorch's model of the same shape; our post-norm stack, like the paper's, has no final norm."""
    sizes = (config.d_model, config.heads, config.d_ff, 0.0, config.activation)
    first = config.norm_placement == "pre"
    encoder, decoder = (
        nn.TransformerEncoderLayer(*sizes, batch_first=True, norm_first=first),
        nn.TransformerDecoderLayer(*sizes, batch_first=True, norm_first=first),
    )
    final_norms = [nn.LayerNorm(config.d_model) if first else None for _ in range(2)]
    return nn.Transformer(
        config.d_model,
        config.heads,
        custom_encoder=nn.TransformerEncoder(
            encoder, config.encoder_layers, final_norms[0], enable_nested_tensor=False
        ),
        custom_decoder=nn.TransformerDecoder(decoder, config.decoder_layers, final_norms[1]),
        batch_first=True,
    ).double()


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_transformer_matches_pytorch(norm: str, activation: str, positions: str) -> None:
    ours = new_model(1, norm_placement=norm, activation=activation, positions=positions)
    theirs = new_pytorch_model(ours.config)
    theirs.load_state_dict(as_pytorch(ours))
    source, target = padded_ids([7, 4, 1], 19), padded_ids([5, 2, 3], 23, start=True)
    expected = theirs(
        ours.encoder.embedding(source),
        ours.decoder.embedding(target),
        tgt_mask=~causal_mask(5),
        src_key_padding_mask=source == PAD,
        memory_key_padding_mask=source == PAD,
    )
    states = ours(source, target)
    assert float(states.detach().std()) > 0.1
    close(states, expected, 1e-10)
    expected.pow(2).sum().backward()
    states.pow(2).sum().backward()
    parameter_names = as_pytorch(ours).keys()
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    assert gradients.keys() == parameter_names
    weight = ours.decoder.layers[1].cross_attention.input.weight
    close(weight.grad, gradients["decoder.layers.1.multihead_attn.in_proj_weight"], 1e-9)
    weight = ours.encoder.layers[0].feed_forward.inner.weight
    close(weight.grad, gradients["encoder.layers.0.linear1.weight"], 1e-9)


def test_logits_are_products_except_pad() -> None:
    model = new_model(2)
    states = torch.randn(3, 5, 26).double()
    logits = model.logits(states)
    close(logits[..., 1:], states @ model.output.weight[1:].T)
    assert torch.equal(logits[..., PAD], torch.full((3, 5), -torch.inf).double())


# ---- parameter counts


def count_parameters(**settings: object) -> int:
    with torch.device("meta"):
        return Transformer(
            ModelConfig.from_settings({"source_vocab_size": 37_000, "target_vocab_size": 37_000, **settings})
        ).parameter_count()


BIG = {"d_model": 1024, "heads": 16, "d_ff": 4096}


def test_parameter_counts_match_the_paper() -> None:
    assert count_parameters() == 63_082_496
    assert count_parameters(attention_bias=False) == 63_045_632 == 44_101_632 + 37_000 * 512
    assert count_parameters(attention_bias=False, **BIG) == 214_171_648
    # 18 attentions, each with biases of Q, K, V and the output.
    assert count_parameters(**BIG) == 214_171_648 + 18 * 4 * 1024


def test_parameter_count_of_untied_and_other_shapes() -> None:
    table = 37_000 * 512
    assert count_parameters(share_embeddings=False) == 63_082_496 + table
    assert count_parameters(tie_output_embeddings=False) == 63_082_496 + table
    assert count_parameters(share_embeddings=False, tie_output_embeddings=False) == 63_082_496 + 2 * table
    assert count_parameters(norm_placement="pre") == 63_082_496 + 2 * 2 * 512
    assert count_parameters(positions="learned", max_length=101) == 63_082_496 + 2 * 101 * 512


# ---- tied embeddings


def same_storage(first: nn.Embedding, second: nn.Embedding) -> bool:
    return first.weight.data_ptr() == second.weight.data_ptr()


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_tied_embeddings_are_shared(joint: bool, tied: bool) -> None:
    size = 23 if joint else 19
    model = new_model(3, share_embeddings=joint, tie_output_embeddings=tied, source_vocab_size=size)
    source, target = model.encoder.embedding.table, model.decoder.embedding.table
    assert same_storage(source, target) == joint
    assert same_storage(target, model.output) == tied
    assert source.weight.shape == (size, 26)
    assert target.weight.shape == model.output.weight.shape == (23, 26)
    names = {name for name, _ in model.named_parameters() if "table" in name or name.startswith("output")}
    assert len(names) == 3 - joint - tied


# ---- invariances


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_padding_changes_nothing(norm: str) -> None:
    model = new_model(5, norm_placement=norm)
    source, target = padded_ids([7, 4, 3], 19), padded_ids([5, 5, 5], 23, start=True)
    wider = torch.nn.functional.pad(source, (0, 3), value=PAD)
    longer = torch.nn.functional.pad(target, (0, 2), value=PAD)
    close(model.encode(wider)[:, :7][source != PAD], model.encode(source)[source != PAD])
    close(model(wider, longer)[:, :5], model(source, target))


def test_padding_a_full_source_changes_nothing() -> None:
    model = new_model(6)
    source, target = padded_ids([7, 7], 19), padded_ids([5, 5], 23, start=True)
    assert model.source_attention_mask(source) is None
    wider = torch.nn.functional.pad(source, (0, 3), value=PAD)
    close(model(wider, target), model(source, target))


def test_batch_composition_and_order_change_nothing() -> None:
    model = new_model(7)
    lengths = [7, 4, 1]
    source, target = padded_ids(lengths, 19), padded_ids([5, 5, 5], 23, start=True)
    expected = model(source, target)
    permutation = torch.tensor([2, 0, 1])
    close(model(source[permutation], target[permutation]), expected[permutation])
    for row, length in enumerate(lengths):
        close(model(source[row : row + 1, :length], target[row : row + 1])[0], expected[row])


def test_future_target_tokens_do_not_affect_states() -> None:
    model = new_model(8)
    source, target = padded_ids([7, 4, 1], 19), padded_ids([11, 11, 11], 23, start=True)
    states = model(source, target)
    for position in range(1, 11):
        changed = target.clone()
        changed[:, position] = changed[:, position] % 22 + 1
        other = model(source, changed)
        assert torch.equal(other[:, :position], states[:, :position])
        assert (other[:, position:] - states[:, position:]).abs().amax(-1).min() > 1e-6


def test_every_source_token_reaches_every_state() -> None:
    model = new_model(9)
    source, target = padded_ids([7, 4, 1], 19), padded_ids([5, 5, 5], 23, start=True)
    states = model(source, target)
    for row, position in [(0, 0), (0, 6), (1, 3), (2, 0)]:
        changed = source.clone()
        changed[row, position] = changed[row, position] % 18 + 1
        difference = (model(changed, target) - states).abs().amax(-1)
        assert difference[row].min() > 1e-9
        assert difference[torch.arange(3) != row].max() == 0


def test_score_is_the_log_probability_of_each_token() -> None:
    model = new_model(10)
    source, target = padded_ids([7, 4, 1], 19), padded_ids([5, 2, 3], 23)
    scores = model.score(source, target)
    for row, length in enumerate([5, 2, 3]):
        for position in range(length):
            decoder_input = torch.tensor([[PAD, *target[row, :position].tolist()]])
            state = model(source[row : row + 1], decoder_input)[0, -1]
            expected = model.logits(state).log_softmax(-1)[target[row, position]]
            close(scores[row, position], expected)
    assert (scores[target == PAD] == 0).all()
    assert (scores[target != PAD] < 0).all()


# ---- observers


def test_observer_changes_nothing_and_receives_all_tensors() -> None:
    model = new_model(11)
    source, target = padded_ids([7, 4, 1], 19), padded_ids([5, 2, 3], 23, start=True)
    observed: dict[str, Tensor] = {}
    assert torch.equal(model(source, target, observed.__setitem__), model(source, target))
    heads = ["x", "q", "k", "v", "weights", "heads", "output", "residual"]
    encoder = [f"{n}.self.{name}" for n in range(3) for name in heads]
    decoder = [f"{n}.{kind}.{name}" for n in range(2) for kind in ("self", "cross") for name in heads]
    assert set(observed) == {
        "encoder.embedding",
        "encoder.memory",
        "decoder.embedding",
        "decoder.states",
        *(f"encoder.{name}" for name in encoder),
        *(f"decoder.{name}" for name in decoder),
        *(f"encoder.{n}.feed_forward.residual" for n in range(3)),
        *(f"decoder.{n}.feed_forward.residual" for n in range(2)),
    }
    hidden = {"encoder": (source == PAD)[:, None, None], "self": ~causal_mask(5), "cross": source == PAD}
    hidden["cross"] = hidden["cross"][:, None, None]
    shapes = {"encoder": (3, 2, 7, 7), "self": (3, 2, 5, 5), "cross": (3, 2, 5, 7)}
    for name, weights in observed.items():
        if name.endswith("weights"):
            kind = "encoder" if name.startswith("encoder") else name.split(".")[2]
            assert weights.shape == shapes[kind]
            close(weights.sum(-1), torch.ones(shapes[kind][:-1]).double())
            cells = hidden[kind].expand_as(weights)
            assert (weights[cells] == 0).all()
            assert (weights[~cells] > 0).all()


# ---- PAD is never trained or predicted


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_pad_embedding_stays_zero_in_training(joint: bool, tied: bool) -> None:
    model = new_model(12, share_embeddings=joint, tie_output_embeddings=tied, source_vocab_size=23 if joint else 19)
    before = model.output.weight.detach().clone()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    source, target = padded_ids([7, 4, 1], 19), padded_ids([5, 2, 3], 23)
    for _ in range(5):
        optimizer.zero_grad()
        (-model.score(source, target).sum()).backward()
        optimizer.step()
    for table in (model.encoder.embedding.table, model.decoder.embedding.table, model.output):
        assert not table.weight[PAD].any()
    assert (model.output.weight[1:] != before[1:]).any(-1).all()
    assert (model.logits(model(source, target))[..., PAD] == -torch.inf).all()


# ---- invalid settings


def test_config_indivisible_heads_raises() -> None:
    with pytest.raises(HeedfulError, match="d_model 512 is not divisible by 7 heads") as error:
        ArchitectureConfig.from_settings({"heads": 7})
    assert error.value.hint == "use 1, 2, 4, 8, 16, 32, 64 heads"


def test_config_odd_d_model_with_sinusoids_raises() -> None:
    with pytest.raises(HeedfulError, match="sinusoidal positions need an even d_model, not 15"):
        ArchitectureConfig.from_settings({"d_model": 15, "heads": 3})
    config = ModelConfig.from_settings(
        {**SMALL.model_dump(), "d_model": 15, "heads": 3, "positions": "learned", "max_length": 11}
    )
    assert Transformer(config)(torch.tensor([[3, 4]]), torch.tensor([[0, 5, 6]])).shape == (1, 3, 15)


def test_config_shared_embeddings_unequal_sizes_raises() -> None:
    with pytest.raises(HeedfulError, match="share_embeddings needs equal vocabulary sizes, not 19 and 23"):
        ModelConfig.from_settings({"source_vocab_size": 19, "target_vocab_size": 23})


def test_config_misspelled_or_missing_settings_raise() -> None:
    with pytest.raises(HeedfulError, match="unknown setting 'd_modle'") as error:
        ArchitectureConfig.from_settings({"d_modle": 64})
    assert "d_model" in error.value.hint
    with pytest.raises(HeedfulError, match="'target_vocab_size': missing"):
        ModelConfig.from_settings({"source_vocab_size": 19})
    with pytest.raises(HeedfulError, match="'dropout'"):
        ArchitectureConfig.from_settings({"dropout": 1.0})
