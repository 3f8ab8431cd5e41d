"""A CTranslate2 model for programs outside Heedful: tokens are real pieces, and the files that cut text into
them lie beside it. Before it is handed over it is tried out against our own model."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from heedful.bundle import Bundle
from heedful.decoding.config import SearchConfig
from heedful.errors import HeedfulError
from heedful.files import write_bytes, write_text
from heedful.interop import ctranslate2
from heedful.interop.expressible import refusal
from heedful.interop.samples import ended, sample_pairs, sample_texts
from heedful.interop.sentencepiece_model import cut_otherwise, spm_bytes

TOLERANCE = 1e-3
"""How far a log-probability may be from ours in single precision."""
_SEARCH = SearchConfig(beam=1, extra_length=20)
_README = """# {title}

A translation model for CTranslate2 (weights: {quantization}), made by Heedful. `source.spm` and `target.spm`
are SentencePiece models; their pieces are the tokens of the model, which adds the end of a sentence itself.

`pip install ctranslate2 sentencepiece`, then in this folder:

```python
import ctranslate2
import sentencepiece

source = sentencepiece.SentencePieceProcessor(model_file="source.spm")
target = sentencepiece.SentencePieceProcessor(model_file="target.spm")
translator = ctranslate2.Translator(".")

sentences = [{sentence!r}]
pieces = source.encode(sentences, out_type=str)
for result in translator.translate_batch(pieces, beam_size={beam}, max_decoding_length={longest}):
    print(target.decode(result.hypotheses[0]))
```

Give it sentences of up to {longest_source} pieces{form}; longer text should be split.
"""


def export_folder(bundle: Bundle, folder: Path, quantization: str = "float32") -> list[str]:
    """Write the folder; returns what is to be said of it."""
    source, target = spm_bytes(bundle.tokenizer.source), spm_bytes(bundle.tokenizer.target)
    export_pieces(bundle, folder, quantization)
    write_bytes(folder / "source.spm", source)
    write_bytes(folder / "target.spm", target)
    write_text(folder / "README.md", _readme(bundle, quantization))
    return [checked(bundle, folder, quantization), *notes(bundle)]


def notes(bundle: Bundle) -> list[str]:
    """What users of SentencePiece should know."""
    return list(filter(None, [cut_otherwise(bundle.tokenizer.source)]))


def export_pieces(bundle: Bundle, folder: Path, quantization: str) -> None:
    """The model alone, whose tokens are pieces."""
    if quantization not in ctranslate2.QUANTIZATIONS:
        raise HeedfulError(
            f"CTranslate2 has no weights of kind {quantization!r}",
            hint=f"--quantization is one of {', '.join(ctranslate2.QUANTIZATIONS)}",
        )
    model = bundle.config.model
    reason = ctranslate2.why_not(model)
    if reason:
        raise refusal("a CTranslate2 model", reason, model, ctranslate2.CHOICES)
    if not ctranslate2.is_installed():
        raise HeedfulError("CTranslate2 is not installed", hint="pip install 'heedful[ctranslate2]'")
    ctranslate2.export(bundle, folder, quantization, tokens="pieces")


def longest_output(bundle: Bundle) -> int:
    """Tokens that a translation may have: CTranslate2's own limit, or the end of a learned table."""
    model = bundle.config.model
    return min(256, model.longest) if model.ends else 256


def checked(bundle: Bundle, folder: Path, quantization: str) -> str:
    """Try the written model: what was found, or an error if its numbers are not ours."""
    import ctranslate2 as library  # type: ignore[import-untyped]

    kind = "int8" if quantization.startswith("int8") else "float32"  # any CPU can compute so
    translator = library.Translator(str(folder), compute_type=kind, inter_threads=1, intra_threads=1)
    apart = _largest_difference(bundle, translator)
    if not apart <= (TOLERANCE if quantization == "float32" else float("inf")):
        raise HeedfulError(
            f"the exported model is wrong: its log-probabilities are up to {apart:.2g} away from Heedful's",
            hint="nothing was written; please report this",
        )
    found = f"checked with CTranslate2 {library.__version__}: log-probabilities agree to {apart:.1g}"
    if find_spec("sentencepiece") is None:
        return f"{found} (its .spm files were not tried: pip install 'heedful[marian]')"
    same, all_of_them = _same_translations(bundle, translator)
    rounded = "" if quantization == "float32" else f" ({quantization} rounds)"
    return f"{found}, {same} of {all_of_them} sentences are translated the same{rounded}"


def _largest_difference(bundle: Bundle, translator: Any) -> float:
    """Between their log-probabilities of a few targets and ours."""
    import torch

    sources, targets = sample_pairs(bundle)
    with torch.inference_mode():
        ours = bundle.model.score(torch.tensor(ended(sources)), torch.tensor(ended(targets)))
    tokenizer = bundle.tokenizer
    results = translator.score_batch(
        list(map(tokenizer.source.pieces, sources)), list(map(tokenizer.target.pieces, targets))
    )
    return max(
        abs(float(theirs) - float(own))
        for result, row in zip(results, ours.tolist(), strict=True)
        for theirs, own in zip(result.log_probs, row, strict=False)
    )


def _same_translations(bundle: Bundle, translator: Any) -> tuple[int, int]:
    """How many sentences come out as from Heedful, going the way of another program, and of how many."""
    import sentencepiece

    from heedful.engines.native import NativeEngine

    source = sentencepiece.SentencePieceProcessor(model_proto=spm_bytes(bundle.tokenizer.source))
    target = sentencepiece.SentencePieceProcessor(model_proto=spm_bytes(bundle.tokenizer.target))
    texts, same = sample_texts(bundle), 0
    for text, ours in zip(texts, NativeEngine(bundle).translate(texts, _SEARCH), strict=True):
        pieces = source.encode(text, out_type=str)
        limit = min(len(pieces) + _SEARCH.extra_length, longest_output(bundle))
        [result] = translator.translate_batch([pieces], beam_size=1, max_decoding_length=limit)
        same += target.decode(result.hypotheses[0]) == ours.text
    return same, len(texts)


def _readme(bundle: Bundle, quantization: str) -> str:
    config = bundle.config
    return _README.format(
        title=" to ".join(config.languages) if config.languages else "A translation model",
        quantization=quantization,
        sentence=sample_texts(bundle)[0],
        beam=config.search.beam,
        longest=longest_output(bundle),
        longest_source=config.longest_source,
        form=" in Unicode form NFC" if config.normalize == "nfc" else "",
    )
