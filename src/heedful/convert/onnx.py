"""A model as two ONNX graphs, verified with ONNX Runtime; usable without PyTorch and Heedful.

encoder.onnx encodes the source once; decoder.onnx appends one token and returns keys and values for the next
step. Batch size and lengths are dynamic.
"""

import copy
import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from heedful.convert.compatibility import (
    SHAPE_SETTINGS,
    SupportedValues,
    find_incompatibility,
    incompatibility_error,
    sample_sentences,
    sample_texts,
)
from heedful.errors import HeedfulError, check_extras
from heedful.files import write_bytes, write_json, write_text
from heedful.model_folder import ModelFolder, ModelFolderConfig
from heedful.models.base import pad_with_end
from heedful.models.embeddings import SinusoidalPositions
from heedful.models.relative_positions import RotaryAttention, rotate_by, rotation_table
from heedful.models.transformer import DecoderCache, LayerCache, Transformer
from heedful.tokenization.sentencepiece import segmentation_warning, sentencepiece_bytes
from heedful.tokenization.special_tokens import END, PAD, UNK

OPSET = 18
"""Operator set version; needs ONNX Runtime 1.14 or newer."""

_README = """# {title}

A translation model as ONNX graphs (opset {opset}), exported by Heedful.

- `encoder.onnx` reads `source` (rows, source length): ids, each row ending with {end} and padded by {pad}.
  It returns `memory_key_N` and `memory_value_N` for every decoder layer N.
- `decoder.onnx` reads `tokens` (rows), `source`, all `memory_...`, and `past_key_N` and `past_value_N`
  (rows, {heads}, past length, {channels}), initially empty. It returns `logits` (rows, {vocabulary}) and
  `present_...`, the `past_...` of the next step.
- `source.spm` and `target.spm` are SentencePiece models, `source_vocabulary.json` and
  `target_vocabulary.json` list the pieces by id, `generation.json` holds special ids, sizes and limits.

Decoding starts with {pad}, which is never generated (logit -inf), and stops at {end}. For beam search,
repeat the rows of `source` and `memory_...`, and select the rows of `present_...` of the chosen hypotheses.

`pip install onnxruntime sentencepiece numpy`, then in this folder:

```python
import json
from pathlib import Path

import numpy
import onnxruntime
import sentencepiece

def read(name):
    return json.loads(Path(name).read_text(encoding="utf-8"))

settings = read("generation.json")
source_ids = {{piece: i for i, piece in enumerate(read("source_vocabulary.json"))}}
target_pieces = read("target_vocabulary.json")
source = sentencepiece.SentencePieceProcessor(model_file="source.spm")
target = sentencepiece.SentencePieceProcessor(model_file="target.spm")
encoder = onnxruntime.InferenceSession("encoder.onnx")
decoder = onnxruntime.InferenceSession("decoder.onnx")

def translate(text):
    pieces = source.encode(text, out_type=str)
    ids = numpy.array([[source_ids.get(piece, settings["unknown"]) for piece in pieces] + [settings["end"]]])
    inputs = {{"source": ids}}
    inputs |= zip([output.name for output in encoder.get_outputs()], encoder.run(None, inputs))
    empty = numpy.zeros((1, settings["heads"], 0, settings["channels"]), numpy.float32)
    past = {{node.name: empty for node in decoder.get_inputs() if node.name.startswith("past_")}}
    token, output = settings["start"], []
    for _ in range(len(pieces) + settings["max_length_offset"]):
        logits, *present = decoder.run(None, {{"tokens": numpy.array([token]), **inputs, **past}})
        past = dict(zip(past, present))
        token = int(logits[0].argmax())
        if token == settings["end"] or len(output) == settings["max_length"]:
            break
        output.append(target_pieces[token])
    return target.decode(output)

for sentence in [{sentence!r}]:
    print(translate(sentence))
```

Translate sentences of up to {max_source_length} pieces{form}; split longer text.
"""


def _generation_settings(config: ModelFolderConfig) -> dict[str, Any]:
    """Contents of generation.json: what a program needs besides the graphs."""
    model = config.model
    return {
        "format": 1,
        "opset": OPSET,
        "languages": config.languages,
        "start": PAD,
        "pad": PAD,
        "end": END,
        "unknown": UNK,
        "decoder_layers": model.decoder_layers,
        "heads": model.heads,
        "channels": model.channels,
        "source_vocab_size": model.source_vocab_size,
        "target_vocab_size": model.target_vocab_size,
        "max_length_offset": config.generation.max_length_offset,
        "beam_size": config.generation.beam_size,
        "length_penalty": config.generation.length_penalty,
        "max_length": model.max_length if model.has_max_length else None,
        "max_source_length": config.max_source_length,
        "unicode_normalization": config.unicode_normalization,
    }


TOLERANCE = 1e-4
"""Maximum difference of log-probabilities."""

SUPPORTED_VALUES: SupportedValues = {
    **dict.fromkeys((*SHAPE_SETTINGS, "residuals", "norm_placement", "norm", "activation")),
    "architecture": ("transformer",),
    "positions": ("sinusoidal", "learned", "relative", "rotary", "alibi", "none"),  # dependency trees need a parser
    "encoder_attention": ("full",),
    "decoder_attention": ("full",),
}


def export_onnx(model_folder: ModelFolder, folder: Path) -> list[str]:
    """Write and verify the export; return messages for the user."""
    if reason := find_incompatibility("ONNX export", model_folder.config.model, SUPPORTED_VALUES):
        raise incompatibility_error("an ONNX model", reason, model_folder.config.model, SUPPORTED_VALUES)
    check_extras("ONNX export", "onnx")
    folder.mkdir(parents=True)
    write_graphs(model_folder, folder)
    difference = max_difference(model_folder, folder)
    if not difference <= TOLERANCE:
        raise HeedfulError(
            f"the exported graphs are wrong: their log-probabilities differ by up to {difference:.2g}",
            hint="nothing was written; please report this bug",
        )
    for side, tokenizer in (("source", model_folder.tokenizer.source), ("target", model_folder.tokenizer.target)):
        write_bytes(folder / f"{side}.spm", sentencepiece_bytes(tokenizer))
        write_json(folder / f"{side}_vocabulary.json", tokenizer.ids_to_tokens(range(tokenizer.vocab_size)))
    config = model_folder.config
    write_json(folder / "generation.json", _generation_settings(config))
    readme = _README.format(
        title=" to ".join(config.languages) if config.languages else "A translation model",
        opset=OPSET,
        pad=PAD,
        end=END,
        heads=config.model.heads,
        channels=config.model.channels,
        vocabulary=config.model.target_vocab_size,
        sentence=sample_texts(model_folder)[0],
        max_source_length=config.max_source_length,
        form=" in Unicode form NFC" if config.unicode_normalization == "nfc" else "",
    )
    write_text(folder / "README.md", readme)
    return [
        f"verified with ONNX Runtime: log-probabilities agree to {difference:.1g}",
        *filter(None, [segmentation_warning(model_folder.tokenizer.source)]),
    ]


def write_graphs(model_folder: ModelFolder, folder: Path) -> None:
    """encoder.onnx and decoder.onnx."""
    from torch.export import Dim

    assert isinstance(model_folder.translation_model, Transformer)  # others are incompatible
    model = remove_position_caches(model_folder.translation_model)
    config = model.config
    memory_names, past_names, present_names = (
        # Keys and values: "memory" of the source, "past" and "present" of the target.
        [f"{prefix}_{part}_{layer}" for layer in range(config.decoder_layers) for part in ("key", "value")]
        for prefix in ("memory", "past", "present")
    )
    source = torch.ones(3, 5, dtype=torch.int64)
    shape = (3, config.heads, 5, config.channels)
    # Distinct tensors, because a repeated tensor would become a single graph input.
    memory_inputs = [torch.zeros(shape) for _ in memory_names]
    past_inputs = [torch.zeros(shape) for _ in past_names]
    bound = config.max_length if config.has_max_length else None  # learned positions bound the lengths
    rows = Dim("rows", min=1)
    source_length = Dim("source_length", min=1, max=bound)
    past_length = Dim("past_length", min=0, max=bound and bound - 1)
    memory_dims = [{0: rows, 2: source_length} for _ in memory_names]
    past_dims = [{0: rows, 2: past_length} for _ in past_names]
    _write_graph(
        OnnxEncoder(model),
        (source,),
        folder / "encoder.onnx",
        input_names=["source"],
        output_names=memory_names,
        dynamic_shapes=({0: rows, 1: source_length},),
    )
    _write_graph(
        OnnxDecoder(model),
        (source[:, 0].clone(), source, memory_inputs, past_inputs),
        folder / "decoder.onnx",
        input_names=["tokens", "source", *memory_names, *past_names],
        output_names=["logits", *present_names],
        dynamic_shapes=({0: rows}, {0: rows, 1: source_length}, memory_dims, past_dims),
    )


def _write_graph(module: Any, inputs: tuple[Any, ...], path: Path, **names: Any) -> None:
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.__trace")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(module.eval(), inputs, dynamo=True, opset_version=OPSET, verbose=False, **names)
            assert program is not None
            program.save(path)
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def max_difference(model_folder: ModelFolder, folder: Path) -> float:
    """Maximum difference of log-probabilities between graphs and model over the sample sentences."""
    tokenizer = model_folder.tokenizer
    source, target = (pad_with_end(sample_sentences(side)) for side in (tokenizer.source, tokenizer.target))
    graphs, difference = OnnxGraphs(folder), 0.0
    onnx_state = graphs.start(source.numpy())
    model = model_folder.translation_model
    device = model.output.weight.device
    with torch.inference_mode():
        model_state = model.start(source.to(device))
        tokens = torch.zeros_like(target[:, 0])
        for next_tokens in target.T:
            expected, model_state = model.step(tokens.to(device), model_state)
            logits, onnx_state = graphs.step(tokens.numpy(), onnx_state)
            actual = torch.from_numpy(logits).log_softmax(-1)
            difference = max(difference, float((actual - expected.cpu())[:, 1:].abs().max()))  # PAD is -inf
            tokens = next_tokens
    return difference


# ---- Running the graphs in ONNX Runtime


class OnnxGraphs:
    """encoder.onnx and decoder.onnx of a folder."""

    def __init__(self, folder: Path) -> None:
        import onnxruntime  # type: ignore[import-untyped]

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        providers = ["CPUExecutionProvider"]
        self.encoder = onnxruntime.InferenceSession(folder / "encoder.onnx", options, providers)
        self.decoder = onnxruntime.InferenceSession(folder / "decoder.onnx", options, providers)

    def start(self, source: np.ndarray) -> dict[str, np.ndarray]:
        """Encode sources (ending with END, padded); returns the other inputs of the decoder."""
        memory = zip(
            (node.name for node in self.encoder.get_outputs()), self.encoder.run(None, {"source": source}), strict=True
        )
        past = {
            node.name: np.zeros((len(source), node.shape[1], 0, node.shape[3]), np.float32)
            for node in self.decoder.get_inputs()
            if node.name.startswith("past_")
        }
        return {"source": source, **dict(memory), **past}

    def step(self, tokens: np.ndarray, state: dict[str, np.ndarray]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Append one token per row; logits of the next token and the new state."""
        logits, *present = self.decoder.run(None, {"tokens": tokens, **state})
        past_names = (name for name in state if name.startswith("past_"))
        return logits, state | dict(zip(past_names, present, strict=True))


# ---- The modules that become graphs
#
# They run the model's own modules, except that cached position tables are replaced by computation: a graph
# cannot branch on the length.


class OnnxEncoder(nn.Module):
    """Source ids to the keys and values of the memory, for every decoder layer."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor) -> list[Tensor]:
        attention_mask = _source_attention_mask(source)
        cache = self.model.decoder.start(self.model.encoder(source, attention_mask), attention_mask)
        return [tensor for layer in cache.layers for tensor in (layer.memory_key, layer.memory_value)]


class OnnxDecoder(nn.Module):
    """One token per row and the caches to the logits of the next token and the new caches."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, tokens: Tensor, source: Tensor, memory: Sequence[Tensor], cache: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """``memory`` and ``cache`` hold one key and one value per layer."""
        layers = tuple(
            LayerCache(*cache[index : index + 2], *memory[index : index + 2]) for index in range(0, len(cache), 2)
        )
        states, new_cache = self.model.decoder.step(
            tokens, DecoderCache(layers, _source_attention_mask(source), length=layers[0].length)
        )
        return self.model.logits(states), [tensor for layer in new_cache.layers for tensor in (layer.key, layer.value)]


class UncachedRotaryAttention(RotaryAttention):
    """Rotary attention without a cached rotation table."""

    def __init__(self, other: RotaryAttention) -> None:
        super().__init__(other.d_model, other.heads)
        self.input, self.output, self.scale = other.input, other.output, other.scale

    def encode_positions(self, x: Tensor, offset: int = 0) -> Tensor:
        length, channels = x.shape[-2:]
        return rotate_by(x, rotation_table(length, channels, offset))


def remove_position_caches(model: Transformer) -> Transformer:
    """A copy of the model on the CPU that computes every position."""
    model = copy.deepcopy(model).cpu().eval()
    for stack in (model.encoder, model.decoder):
        if isinstance(stack.embedding.positions, SinusoidalPositions):
            stack.embedding.positions = SinusoidalPositions(model.config.d_model, cached_length=0)
        for layer in stack.layers:
            if isinstance(layer.attention, RotaryAttention):
                layer.attention = UncachedRotaryAttention(layer.attention)
    return model


def _source_attention_mask(source: Tensor) -> Tensor:
    """Always a mask, because a graph cannot branch on whether there is padding."""
    attention_mask: Tensor = (source != PAD)[:, None, None]
    return attention_mask
