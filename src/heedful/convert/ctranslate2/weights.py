"""Write the weights of a Transformer as a CTranslate2 model. Needs NumPy only.

CTranslate2 does not check its files, so every tensor is checked against config.json before it is converted.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from heedful.convert.compatibility import MAX_SINUSOIDAL_POSITIONS, check_ctranslate2
from heedful.errors import HeedfulError
from heedful.model_folder import WEIGHTS_MISMATCH_HINT, ModelFolder
from heedful.models.config import NORM_EPSILON, RELATIVE_POSITIONS, ModelConfig
from heedful.tokenization.special_tokens import END, PAD, UNK
from heedful.tokenization.tokenizer import Tokenizer

QUANTIZATIONS = ("float32", "float16", "bfloat16", "int16", "int8", "int8_float32", "int8_float16", "int8_bfloat16")

TokenNaming = Literal["ids", "subwords"]
"""Token names in the converted model: ids for Heedful itself, subwords for other programs."""

PAD_BIAS = -1e4
"""Output bias of PAD, which must never be generated."""

Shape = tuple[int, ...]


def export_ctranslate2(
    model_folder: ModelFolder, folder: Path, quantization: str = "float32", token_naming: TokenNaming = "ids"
) -> None:
    """Write a CTranslate2 model: model.bin, config.json and both vocabularies.

    With subwords as tokens, CTranslate2 appends END to sources; with ids, sources must include it.
    """
    if quantization not in QUANTIZATIONS:
        raise HeedfulError(
            f"CTranslate2 has no quantization {quantization!r}",
            hint=f"--quantization is one of {', '.join(QUANTIZATIONS)}",
        )
    check_ctranslate2(model_folder.config.model)
    specification = new_specification(model_folder, token_naming)
    specification.validate()
    specification.optimize(quantization=None if quantization == "float32" else quantization)
    folder.mkdir(parents=True, exist_ok=True)
    specification.save(str(folder))


def new_specification(model_folder: ModelFolder, token_naming: TokenNaming = "ids") -> Any:
    """Build the CTranslate2 specification of a model, with its weights."""
    import ctranslate2  # type: ignore[import-untyped]

    config = model_folder.config.model
    weights = Weights(config, model_folder.read_arrays())
    specs, activations = ctranslate2.specs.transformer_spec, ctranslate2.specs.Activation
    options = {
        "pre_norm": config.norm_placement == "pre",
        "activation": {"relu": activations.RELU, "gelu": activations.GELU, "silu": activations.SWISH}[
            config.activation
        ],
        "ffn_glu": config.gated_feed_forward,
        "rms_norm": config.norm == "rmsnorm",
        "relative_position": config.positions == "relative",
        "rotary_dim": config.channels if config.positions == "rotary" else None,
    }
    specification = ctranslate2.specs.TransformerSpec(
        specs.TransformerEncoderSpec(config.encoder_layers, config.heads, **options),
        specs.TransformerDecoderSpec(
            config.decoder_layers,
            config.heads,
            alignment_layer=config.alignment_layer,
            alignment_heads=config.heads,
            **options,
        ),
    )
    specification.encoder.embeddings[0].weight = weights["encoder.embedding.table.weight"]
    specification.decoder.embeddings.weight = weights["decoder.embedding.table.weight"]
    for stack_spec, name in ((specification.encoder, "encoder"), (specification.decoder, "decoder")):
        _fill_stack(stack_spec, name, weights, config)
    specification.decoder.projection.weight = weights["output.weight"]
    bias = weights["output_bias"] if config.output_bias else np.zeros(config.target_vocab_size, dtype=np.float32)
    bias[PAD] = PAD_BIAS
    specification.decoder.projection.bias = bias
    target = _token_names(model_folder.tokenizer.target, token_naming)
    specification.register_source_vocabulary(_token_names(model_folder.tokenizer.source, token_naming))
    specification.register_target_vocabulary(target)
    settings = specification.config
    settings.unk_token, settings.eos_token, settings.bos_token = target[UNK], target[END], target[PAD]
    settings.decoder_start_token = target[PAD]
    settings.add_source_bos, settings.add_source_eos = False, token_naming == "subwords"
    settings.layer_norm_epsilon = NORM_EPSILON
    return specification


class Weights:
    """The tensors of a Transformer by name, with the shapes of its config; shared ones under all their names."""

    def __init__(self, config: ModelConfig, arrays: Mapping[str, np.ndarray]) -> None:
        shapes = _tensor_shapes(config)
        if mismatches := sorted(shapes.keys() ^ arrays.keys()):
            raise HeedfulError(f"weights: {mismatches[0]!r} is missing or unexpected", hint=WEIGHTS_MISMATCH_HINT)
        for name, array in arrays.items():
            if array.shape != shapes[name]:
                problem = f"weights: {name!r} has shape {list(array.shape)}, not {list(shapes[name])}"
                raise HeedfulError(problem, hint=WEIGHTS_MISMATCH_HINT)
        self.arrays = arrays
        self.shared_names = _shared_names(config)

    def __getitem__(self, name: str) -> np.ndarray:
        """A float32 copy, because quantization modifies it in place."""
        return self.arrays[self.shared_names.get(name, name)].astype(np.float32)

    def get(self, name: str) -> np.ndarray | None:
        """The tensor, or None if the model has none of this name."""
        return self[name] if name in self.arrays else None


def _shared_names(config: ModelConfig) -> dict[str, str]:
    """The name in the file of tensors that share their values with an earlier one."""
    source, target, output = "encoder.embedding.table.weight", "decoder.embedding.table.weight", "output.weight"
    names = {target: source} if config.share_embeddings else {}
    return names | ({output: names.get(target, target)} if config.tie_output_embeddings else {})


def _tensor_shapes(config: ModelConfig) -> dict[str, Shape]:
    """The shape of each tensor in the file of a Transformer that CTranslate2 supports."""
    d_model, d_ff = config.d_model, config.d_ff
    shapes: dict[str, Shape] = {}

    def add_linear(name: str, rows: int, columns: int, bias: bool = True) -> None:
        shapes[f"{name}.weight"] = (rows, columns)
        if bias:
            shapes[f"{name}.bias"] = (rows,)

    def add_norm(name: str) -> None:
        shapes[f"{name}.weight"] = (d_model,)
        if config.norm == "layernorm":
            shapes[f"{name}.bias"] = (d_model,)

    def add_attention(name: str, relative: bool) -> None:
        add_linear(f"{name}.input", 3 * d_model, d_model, config.attention_bias)
        add_linear(f"{name}.output", d_model, d_model, config.attention_bias)
        if relative:
            for table in ("distance_keys", "distance_values"):
                shapes[f"{name}.{table}"] = (2 * config.max_relative_distance + 1, config.channels)

    stacks = (("encoder", config.encoder_layers, ()), ("decoder", config.decoder_layers, ("cross",)))
    for stack, layers, cross in stacks:
        if config.positions == "learned":
            shapes[f"{stack}.embedding.positions.table"] = (config.max_length, d_model)
        for layer in (f"{stack}.layers.{index}" for index in range(layers)):
            add_attention(f"{layer}.attention", config.positions == "relative")
            if cross:
                add_attention(f"{layer}.cross_attention", relative=False)
            add_linear(f"{layer}.feed_forward.inner", d_ff, d_model)
            add_linear(f"{layer}.feed_forward.outer", d_model, d_ff)
            if config.gated_feed_forward:
                add_linear(f"{layer}.feed_forward.gate", d_ff, d_model)
            for residual in ("attention", *cross, "feed_forward"):
                add_norm(f"{layer}.residual_{residual}.norm")
        if config.norm_placement == "pre":
            add_norm(f"{stack}.norm")
    shapes["encoder.embedding.table.weight"] = (config.source_vocab_size, d_model)
    for name in ("decoder.embedding.table.weight", "output.weight"):
        if name not in _shared_names(config):
            shapes[name] = (config.target_vocab_size, d_model)
    if config.output_bias:
        shapes["output_bias"] = (config.target_vocab_size,)
    return shapes


def _token_names(tokenizer: Tokenizer, token_naming: TokenNaming) -> list[str]:
    """Token names by id. Decimal ids are unique, whatever the subwords are."""
    if token_naming == "subwords":
        return tokenizer.ids_to_tokens(range(tokenizer.vocab_size))
    return [str(token_id) for token_id in range(tokenizer.vocab_size)]


def _fill_stack(spec: Any, stack: str, weights: Weights, config: ModelConfig) -> None:
    spec.scale_embeddings = config.scale_embeddings
    if config.positions in RELATIVE_POSITIONS:
        vars(spec).pop("position_encodings", None)
    elif config.positions == "learned":
        spec.position_encodings.encodings = weights[f"{stack}.embedding.positions.table"]
    elif config.positions == "sinusoidal":  # written explicitly: CTranslate2 orders its own sinusoids differently
        spec.position_encodings.encodings = sinusoidal_table(MAX_SINUSOIDAL_POSITIONS, config.d_model)
    else:
        spec.position_encodings.encodings = np.zeros((MAX_SINUSOIDAL_POSITIONS, config.d_model), dtype=np.float32)
    for index, layer_spec in enumerate(spec.layer):
        layer = f"{stack}.layers.{index}"
        _fill_self_attention(layer_spec.self_attention, f"{layer}.attention", weights, config)
        _fill_norm(layer_spec.self_attention.layer_norm, f"{layer}.residual_attention.norm", weights)
        if stack == "decoder":
            _fill_cross_attention(layer_spec.attention, f"{layer}.cross_attention", weights, config)
            _fill_norm(layer_spec.attention.layer_norm, f"{layer}.residual_cross.norm", weights)
        _fill_linear(layer_spec.ffn.linear_0, f"{layer}.feed_forward.inner", weights)
        _fill_linear(layer_spec.ffn.linear_1, f"{layer}.feed_forward.outer", weights)
        if config.gated_feed_forward:
            _fill_linear(layer_spec.ffn.linear_0_noact, f"{layer}.feed_forward.gate", weights)
        _fill_norm(layer_spec.ffn.layer_norm, f"{layer}.residual_feed_forward.norm", weights)
    if config.norm_placement == "pre":
        _fill_norm(spec.layer_norm, f"{stack}.norm", weights)


def sinusoidal_table(length: int, d_model: int) -> np.ndarray:
    """The encodings of section 3.5, as ``models.embeddings.sinusoids`` computes them in PyTorch."""
    angle = np.arange(length)[:, None] / 10000 ** (np.arange(0, d_model, 2) / d_model)
    return np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(length, d_model).astype(np.float32)


def _fill_self_attention(spec: Any, name: str, weights: Weights, config: ModelConfig) -> None:
    _fill_linear(spec.linear[0], f"{name}.input", weights)
    _fill_linear(spec.linear[1], f"{name}.output", weights)
    _fill_scale(spec, config)
    if config.positions == "relative":
        spec.relative_position_keys = weights[f"{name}.distance_keys"]
        spec.relative_position_values = weights[f"{name}.distance_values"]


def _fill_cross_attention(spec: Any, name: str, weights: Weights, config: ModelConfig) -> None:
    _fill_linear(spec.linear[0], f"{name}.input", weights, slice(None, config.d_model))
    _fill_linear(spec.linear[1], f"{name}.input", weights, slice(config.d_model, None))
    _fill_linear(spec.linear[2], f"{name}.output", weights)
    _fill_scale(spec, config)


def _fill_scale(spec: Any, config: ModelConfig) -> None:
    if not config.scale_attention or config.channels == 1:  # CTranslate2 divides by sqrt(d_k) by default
        spec.queries_scale = np.float32(1.0)


def _fill_linear(spec: Any, name: str, weights: Weights, rows: slice = slice(None)) -> None:
    spec.weight = weights[f"{name}.weight"][rows]
    bias = weights.get(f"{name}.bias")
    if bias is not None:
        spec.bias = bias[rows]


def _fill_norm(spec: Any, name: str, weights: Weights) -> None:
    spec.gamma = weights[f"{name}.weight"]
    bias = weights.get(f"{name}.bias")
    if bias is not None:
        spec.beta = bias
