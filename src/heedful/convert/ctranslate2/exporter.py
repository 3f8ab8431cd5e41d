"""A CTranslate2 model for other programs: tokens are subwords, with SentencePiece models beside it.

Every export is verified against the original model.
"""

from pathlib import Path
from typing import Any

import torch

from heedful.convert.compatibility import sample_sentences, sample_texts
from heedful.convert.ctranslate2.weights import export_ctranslate2
from heedful.errors import HeedfulError, has_extra
from heedful.files import write_bytes, write_text
from heedful.generation.config import GenerationConfig
from heedful.generation.search import max_output_lengths, search
from heedful.model_folder import ModelFolder
from heedful.models.base import pad_with_end
from heedful.tokenization.sentencepiece import segmentation_warning, sentencepiece_bytes

TOLERANCE = 1e-3
"""Maximum difference of log-probabilities in single precision."""

_GREEDY = GenerationConfig(beam_size=1, max_length_offset=20)

_README = """# {title}

A translation model for CTranslate2 (weights: {quantization}), exported by Heedful. `source.spm` and
`target.spm` are SentencePiece models; their pieces are the tokens of the model, which appends `</s>` itself.

`pip install ctranslate2 sentencepiece`, then in this folder:

```python
import ctranslate2
import sentencepiece

source = sentencepiece.SentencePieceProcessor(model_file="source.spm")
target = sentencepiece.SentencePieceProcessor(model_file="target.spm")
translator = ctranslate2.Translator(".")

sentences = [{sentence!r}]
subwords = source.encode(sentences, out_type=str)
for result in translator.translate_batch(subwords, beam_size={beam_size}, max_decoding_length={max_length}):
    print(target.decode(result.hypotheses[0]))
```

Translate sentences of up to {max_source_length} pieces{form}; split longer text.
"""


def export_ctranslate2_folder(model_folder: ModelFolder, folder: Path, quantization: str = "float32") -> list[str]:
    """Write and verify the export; return messages for the user."""
    source = sentencepiece_bytes(model_folder.tokenizer.source)
    target = sentencepiece_bytes(model_folder.tokenizer.target)
    export_ctranslate2(model_folder, folder, quantization, token_naming="subwords")
    write_bytes(folder / "source.spm", source)
    write_bytes(folder / "target.spm", target)
    config = model_folder.config
    readme = _README.format(
        title=" to ".join(config.languages) if config.languages else "A translation model",
        quantization=quantization,
        sentence=sample_texts(model_folder)[0],
        beam_size=config.generation.beam_size,
        max_length=max_output_length(model_folder),
        max_source_length=config.max_source_length,
        form=" in Unicode form NFC" if config.unicode_normalization == "nfc" else "",
    )
    write_text(folder / "README.md", readme)
    return verify_export(model_folder, folder, quantization)


def max_output_length(model_folder: ModelFolder) -> int:
    """Maximum tokens of a translation: CTranslate2's default, or the learned positions."""
    model = model_folder.config.model
    return min(256, model.max_length) if model.has_max_length else 256


def verify_export(model_folder: ModelFolder, folder: Path, quantization: str) -> list[str]:
    """Compare the exported model with the original; return messages, or raise an error if they differ."""
    import ctranslate2 as library  # type: ignore[import-untyped]

    compute_type = "int8" if quantization.startswith("int8") else "float32"  # supported by every CPU
    translator = library.Translator(str(folder), compute_type=compute_type, inter_threads=1, intra_threads=1)
    difference = _max_difference(model_folder, translator)
    if not difference <= (TOLERANCE if quantization == "float32" else float("inf")):
        raise HeedfulError(
            f"the exported model is wrong: its log-probabilities differ by up to {difference:.2g}",
            hint="nothing was written; please report this bug",
        )
    message = f"verified with CTranslate2 {library.__version__}: log-probabilities agree to {difference:.1g}"
    if not has_extra("marian"):
        message += " (.spm files not verified: pip install 'heedful[marian]')"
    else:
        matching, total = _count_same_translations(model_folder, translator)
        rounding_note = "" if quantization == "float32" else f" ({quantization} rounds)"
        message += f", {matching} of {total} translations are identical{rounding_note}"
    return [message, *filter(None, [segmentation_warning(model_folder.tokenizer.source)])]


def _max_difference(model_folder: ModelFolder, translator: Any) -> float:
    """Maximum difference of the log-probabilities of the sample targets."""
    tokenizer = model_folder.tokenizer
    sources, targets = sample_sentences(tokenizer.source), sample_sentences(tokenizer.target)
    with torch.inference_mode():
        our_scores = model_folder.translation_model.score(pad_with_end(sources), pad_with_end(targets))
    results = translator.score_batch(
        list(map(tokenizer.source.ids_to_tokens, sources)), list(map(tokenizer.target.ids_to_tokens, targets))
    )
    return max(
        abs(float(their_score) - float(our_score))
        for result, row in zip(results, our_scores.tolist(), strict=True)
        for their_score, our_score in zip(result.log_probs, row, strict=False)
    )


def _count_same_translations(model_folder: ModelFolder, translator: Any) -> tuple[int, int]:
    """Translate the sample sentences with both models: identical greedy translations, and all."""
    import sentencepiece

    source = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_bytes(model_folder.tokenizer.source))
    target = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_bytes(model_folder.tokenizer.target))
    texts, matching = sample_texts(model_folder), 0
    model = model_folder.translation_model
    source_ids = pad_with_end([model_folder.source_ids(text) for text in texts]).to(model.output.weight.device)
    n_best_lists = search(
        model, source_ids, _GREEDY, max_lengths=max_output_lengths(source_ids, _GREEDY, model.max_length)
    )
    for text, [best, *_] in zip(texts, n_best_lists, strict=True):
        subwords = source.encode(text, out_type=str)
        max_length = min(len(subwords) + _GREEDY.max_length_offset, max_output_length(model_folder))
        [result] = translator.translate_batch([subwords], beam_size=1, max_decoding_length=max_length)
        matching += target.decode(result.hypotheses[0]) == model_folder.tokenizer.target.decode(best.tokens)
    return matching, len(texts)
