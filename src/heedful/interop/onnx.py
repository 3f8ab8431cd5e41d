"""A model as two ONNX graphs, for ONNX Runtime and whatever else reads them: no PyTorch, no Heedful.

encoder.onnx reads the source once; decoder.onnx writes a token, the first and every later one alike. What it
gives back of keys and values goes in again at the next token. Batch and lengths are free.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from heedful.bundle import Bundle
from heedful.errors import HeedfulError
from heedful.files import write_bytes, write_json, write_text
from heedful.interop import expressible
from heedful.interop.onnx_readme import generation, readme
from heedful.interop.samples import ended, sample_pairs
from heedful.interop.sentencepiece_model import cut_otherwise, spm_bytes
from heedful.model.config import ModelConfig

OPSET = 18
"""Version of the operators; ONNX Runtime reads it since 1.14."""
TOLERANCE = 1e-4
"""How far a score may be from ours."""
PACKAGES = ("onnx", "onnxruntime", "onnxscript")
CHOICES: dict[str, tuple[str | bool, ...]] = {
    "family": ("transformer",),
    "positions": ("sinusoidal", "learned", "relative", "rotary", "alibi", "none"),  # trees need a parser
    "encoder_attention": ("full",),
    "decoder_attention": ("full",),
}
"""Settings of a model of which only these values can be expressed."""
EXPRESSED = expressible.WITHOUT_EFFECT | frozenset(
    {
        "width",
        "heads",
        "encoder_layers",
        "decoder_layers",
        "feed_forward_width",
        "longest",
        "relative_distance",
        "residuals",
        "norm",
        "normalization",
        "activation",
        "gated",
        "scaled_attention",
        "attention_bias",
        "source_vocabulary",
        "target_vocabulary",
        "tie_output",
        "output_bias",
        "scale_embeddings",
        "joint",
    }
)
"""Settings of which every value can be expressed."""


def why_not(config: ModelConfig) -> str:
    """Why a model cannot be expressed; empty if it can."""
    return expressible.why_not("ONNX export", config, CHOICES, EXPRESSED)


def require() -> None:
    """An error with the command to install what is missing."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise HeedfulError(
            f"ONNX export needs {' and '.join(missing)}, not installed", hint="pip install 'heedful[onnx]'"
        )


def export_onnx(bundle: Bundle, folder: Path) -> list[str]:
    """Write the folder; returns what is to be said of it."""
    reason = why_not(bundle.config.model)
    if reason:
        raise expressible.refusal("an ONNX model", reason, bundle.config.model, CHOICES)
    require()
    folder.mkdir(parents=True)
    write_graphs(bundle, folder)
    apart = largest_difference(bundle, folder)
    if not apart <= TOLERANCE:
        raise HeedfulError(
            f"the exported graphs are wrong: their scores are up to {apart:.2g} away from Heedful's",
            hint="nothing was written; please report this",
        )
    for side, tokenizer in (("source", bundle.tokenizer.source), ("target", bundle.tokenizer.target)):
        write_bytes(folder / f"{side}.spm", spm_bytes(tokenizer))
        write_json(folder / f"{side}_vocabulary.json", tokenizer.pieces(range(tokenizer.size)))
    write_json(folder / "generation.json", generation(bundle, OPSET))
    write_text(folder / "README.md", readme(bundle, OPSET))
    return [
        f"checked with ONNX Runtime: the scores of every word agree to {apart:.1g}",
        *filter(None, [cut_otherwise(bundle.tokenizer.source)]),
    ]


def write_graphs(bundle: Bundle, folder: Path) -> None:
    """encoder.onnx and decoder.onnx."""
    import torch

    from heedful.interop import onnx_graphs
    from heedful.model.transformer import Transformer

    assert isinstance(bundle.model, Transformer)  # why_not has refused all others
    model, count = onnx_graphs.without_tables(bundle.model), bundle.config.model.decoder_layers
    memory, past = onnx_graphs.names("memory", count), onnx_graphs.names("past", count)
    source = torch.ones(3, 5, dtype=torch.int64)
    shape = (3, model.config.heads, 5, model.config.channels)
    # Each tensor its own: the same one twice would become one input of the graph.
    read = [torch.zeros(shape) for _ in memory]
    written = [torch.zeros(shape) for _ in past]
    rows, source_length, past_length = _free_sizes(model.config)
    of_memory = [{0: rows, 2: source_length} for _ in memory]
    of_past = [{0: rows, 2: past_length} for _ in past]
    _write_graph(
        onnx_graphs.SourceReader(model),
        (source,),
        folder / "encoder.onnx",
        input_names=["source"],
        output_names=memory,
        dynamic_shapes=({0: rows, 1: source_length},),
    )
    _write_graph(
        onnx_graphs.TokenWriter(model),
        (source[:, 0].clone(), source, read, written),
        folder / "decoder.onnx",
        input_names=["tokens", "source", *memory, *past],
        output_names=["logits", *onnx_graphs.names("present", count)],
        dynamic_shapes=({0: rows}, {0: rows, 1: source_length}, of_memory, of_past),
    )


def _free_sizes(config: ModelConfig) -> tuple[Any, Any, Any]:
    """The sizes that a graph leaves open, called by name: a learned table of positions bounds the lengths."""
    from torch.export import Dim

    most = {"max": config.longest} if config.ends else {}
    past = {"max": config.longest - 1} if config.ends else {}
    return Dim("rows", min=1), Dim("source_length", min=1, **most), Dim("past_length", min=0, **past)


def _write_graph(module: Any, inputs: tuple[Any, ...], path: Path, **names: Any) -> None:
    import torch

    with _quietly(), torch.no_grad():
        program = torch.onnx.export(
            module.eval(), inputs, dynamo=True, opset_version=OPSET, verbose=False, **names
        )
        assert program is not None
        program.save(path)


@contextmanager
def _quietly() -> Iterator[None]:
    """Without what the exporter says of itself."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.__trace")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def largest_difference(bundle: Bundle, folder: Path) -> float:
    """Between the log-probabilities of all words by the graphs and by our model, over a few sentences."""
    import torch

    from heedful.interop.onnx_run import Graphs

    sources, targets = sample_pairs(bundle)
    source, target = torch.tensor(ended(sources)), torch.tensor(ended(targets))
    graphs, apart = Graphs(folder), 0.0
    theirs = graphs.start(source.numpy())
    with torch.inference_mode():
        ours = bundle.model.start(source.to(bundle.model.output.weight.device))
        tokens = torch.zeros_like(target[:, 0])
        for following in target.T:
            expected, ours = bundle.model.step(tokens.to(bundle.model.output.weight.device), ours)
            logits, theirs = graphs.step(tokens.numpy(), theirs)
            found = torch.from_numpy(logits).log_softmax(-1)
            apart = max(apart, float((found - expected.cpu())[:, 1:].abs().max()))  # padding: -inf
            tokens = following
    return apart
