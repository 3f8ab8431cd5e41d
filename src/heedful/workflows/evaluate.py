"""``heedful evaluate``: BLEU, chrF, TER and loss of a model on sentence pairs."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heedful.data.cleaning import CleaningReport, Pair, clean_pairs
from heedful.data.config import CleaningConfig, ReadingConfig, parse_reading_settings
from heedful.data.formats.base import PairRecord, ReadOptions
from heedful.data.glossary import find_missing_terms, read_glossary
from heedful.data.reader import (
    check_inputs,
    check_plain_text,
    check_supports_heads,
    detect_languages,
    read_pairs,
    read_plain_text,
)
from heedful.errors import HeedfulError, check_extras
from heedful.evaluation.metrics import corpus_scores
from heedful.files import check_writable, write_text
from heedful.generation.config import build_generation_config
from heedful.inference.bulk import to_single_line, translate_lines
from heedful.inference.loading import load, parse_engine_name
from heedful.model_folder import ModelFolder
from heedful.progress import Reporter
from heedful.tokenization.languages import LanguagePair


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateOptions:
    """What ``heedful evaluate`` scores, and how."""

    models: tuple[Path, ...]
    """One model, or an ensemble."""
    pairs: tuple[Path, ...]
    output: Path | None = None
    """Translations, one per line."""
    sentence_scores: Path | None = None
    """TSV with the log-probabilities of every reference and translation."""
    generation_overrides: Mapping[str, Any] = field(default_factory=dict)
    settings: tuple[str, ...] = ()
    source_language: str = ""
    languages: LanguagePair | None = None
    engine: str = "exact"
    device: str = "auto"
    glossary: Path | None = None


def evaluate_model(options: EvaluateOptions, report: Reporter) -> list[str]:
    """Scores of a model or an ensemble on sentence pairs, as lines to print."""
    check_inputs(options.pairs)
    reading_config, other_settings = parse_reading_settings(options.settings)
    for path in (options.output, options.sentence_scores):
        if path is not None:
            check_writable(path)
    glossary = read_glossary(options.glossary) if options.glossary else None
    translator = load(options.models, device=options.device, engine=parse_engine_name(options.engine))
    generation_config = build_generation_config(
        translator.model_folder.config.generation, options.generation_overrides, other_settings
    )
    model_folder = _select_direction(
        translator.model_folder, generation_config.target_language, options, reading_config
    )
    config = model_folder.config
    generation_config = generation_config.model_copy(update={"target_language": config.generation.target_language})
    trees = config.model.uses_dependency_trees
    read_options = ReadOptions(options.languages or config.languages, reading_config)
    test = read_usable_pairs(options.pairs, read_options, config.unicode_normalization, report, trees=trees)
    sources = (pair.source_with_heads for pair in test)
    results = translate_lines(translator, sources, generation_config, interactive=False, glossary=glossary)
    translations = list(report.track(results, "translating", len(test), "lines"))
    texts = [translation.text for translation in translations]
    targets = [pair.target for pair in test]
    references = translator.score([pair.source_with_heads for pair in test], targets, generation_config)
    tokens = sum(len(reference.token_log_probabilities) for reference in references)
    loss = -sum(reference.log_probability for reference in references) / tokens
    if options.output:
        write_text(options.output, "".join(f"{to_single_line(text)}\n" for text in texts))
    if options.sentence_scores:
        rows = ["source\treference\ttranslation\treference log-probability\ttranslation log-probability\n"]
        for pair, reference, translation in zip(test, references, translations, strict=True):
            best = translation.alternatives[0]
            rows.append(
                f"{pair.source}\t{pair.target}\t{to_single_line(best.text)}"
                f"\t{reference.log_probability:.4f}\t{best.log_probability:.4f}\n"
            )
        write_text(options.sentence_scores, "".join(rows))
    target_language = config.languages[1] if config.languages else ""
    scores = corpus_scores(texts, targets, language=target_language)
    term_lines = []
    if glossary:
        expected_terms = [glossary.find_terms(pair.source) for pair in test]
        total = sum(map(len, expected_terms))
        present, in_references = (
            total - sum(len(find_missing_terms(text, terms)) for text, terms in zip(side, expected_terms, strict=True))
            for side in (texts, targets)
        )
        term_lines = [f"terms {present:,} of {total:,}   in the references {in_references:,}"]
    direction = []
    if config.target_languages:
        source, target = config.languages or ("", config.generation.target_language)
        zero_shot = " (zero-shot: not in the training data)" if source and config.is_zero_shot(source, target) else ""
        direction = [f"{source} to {target}{zero_shot}" if source else f"into {target}"]
    return [
        *direction,
        f"{len(test):,} pairs, beam size {generation_config.beam_size}, "
        f"length penalty {generation_config.length_penalty:g}, {translator.name}",
        *(f"{score.name:5} {score.value:6.2f}   {score.signature}" for score in scores.values()),
        f"loss  {loss:6.3f}   perplexity {math.exp(min(loss, 100)):.3f}",
        *term_lines,
    ]


def _select_direction(
    model_folder: ModelFolder, requested_target: str, options: EvaluateOptions, reading_config: ReadingConfig
) -> ModelFolder:
    """The model for the languages of these files: as requested, as the files say, or its default."""
    config, languages = model_folder.config, options.languages
    named_target = languages[1] if languages and config.target_languages else ""
    target_language = requested_target or named_target or (config.languages or ("", ""))[1]
    target_language = model_folder.language_tag(target_language) or target_language
    source_language = options.source_language
    if source_language and not target_language:
        raise HeedfulError("the languages of this model are unknown", hint="omit --from")
    if source_language or sum(target == target_language for _, target in config.supported_directions) < 2:
        return model_folder.for_language(target_language, source_language)
    named = languages or detect_languages(options.pairs, reading_config)
    is_supported = named and named[1] == target_language and named in config.supported_directions
    return model_folder.for_language(target_language, named[0] if named and is_supported else "")


def read_usable_pairs(
    paths: Sequence[Path], reading: ReadOptions, unicode_normalization: str, report: Reporter, *, trees: bool = False
) -> list[Pair]:
    """All pairs with both sides (and heads), including duplicates: a test set is scored as it is."""
    if trees:
        check_supports_heads(paths)
    pairs = filter_usable(read_pairs(paths, reading), unicode_normalization, report, trees=trees)
    if not pairs:
        raise HeedfulError(
            f"no usable pair in {' and '.join(map(str, paths))}",
            hint="write one pair per line: source TAB target TAB heads"
            if trees
            else "the warnings above say why; inspect the files with heedful corpus stats",
        )
    return pairs


def filter_usable(
    records: Iterable[PairRecord], unicode_normalization: str, report: Reporter, *, trees: bool = False
) -> list[Pair]:
    """The pairs of the files without malformed and empty lines, which are reported as warnings."""
    cleaning_report = CleaningReport()
    limits = {"max_characters": 0, "max_length_ratio": 0, "deduplicate": False}
    cleaning = CleaningConfig.from_settings(limits | {"unicode_normalization": unicode_normalization})
    pairs = list(clean_pairs(records, cleaning, cleaning_report, trees=trees))
    if cleaning_report.dropped:
        for line in cleaning_report.summary_lines():
            report.warning(line)
    return pairs


def evaluate_language_model(model: Path, texts: Sequence[Path], device: str, report: Reporter) -> list[str]:
    """How well a language model predicts a text, as lines to print."""
    check_extras("a language model", "train")
    from heedful.devices import select_device
    from heedful.training.validation import score_language_model

    check_plain_text(texts)
    model_folder = ModelFolder.load(model, select_device(device))
    lines = filter_usable(read_plain_text(texts), model_folder.config.unicode_normalization, report)
    if not lines:
        raise HeedfulError(
            f"no text in {' and '.join(map(str, texts))}", hint="write one sentence or paragraph per line"
        )
    scores = score_language_model(model_folder.model.eval(), model_folder.tokenizer, lines)
    masked_label = "masked " if model_folder.config.model.architecture == "masked_lm" else ""
    return [
        f"{len(lines):,} lines, {scores.subwords:,} {masked_label}subwords",
        f"loss       {scores.loss:7.3f}   perplexity {math.exp(min(scores.loss, 100)):,.2f}",
        f"accuracy   {100 * scores.accuracy:6.2f}%   of the subwords are the most probable prediction",
        f"unigram    {100 * scores.unigram_accuracy:6.2f}%   by always predicting the most frequent subword; "
        f"unigram perplexity {math.exp(scores.unigram_loss):,.2f}",
    ]
