"""What the verbs translate, evaluate and corpus do, as functions that a test or a script can call."""

import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from heedful.api import load
from heedful.config import merged, parsed_overrides
from heedful.corpora.filters import CleaningConfig, CleaningReport, Pair, clean, cleaned_pairs
from heedful.corpora.formats import check_inputs, read_pairs, write_tsv
from heedful.corpora.lines import STANDARD_INPUT, read_lines
from heedful.corpora.split import split
from heedful.decoding.config import SearchConfig
from heedful.engines.base import Translation
from heedful.engines.lines import translate_lines
from heedful.engines.native import NativeEngine
from heedful.errors import HeedfulError
from heedful.evaluation import corpus_scores
from heedful.files import write_text
from heedful.progress import Reporter

FORMATS = ("text", "tsv", "jsonl")


@dataclass(frozen=True, slots=True)
class TranslateOptions:
    """The command line of ``heedful translate``."""

    model: Path
    texts: tuple[str, ...] = ()
    source: Path | None = None
    output: Path | None = None
    form: str = ""
    prefix: str = ""
    stream: bool = False
    device: str = "auto"
    search: Mapping[str, Any] | None = None
    settings: tuple[str, ...] = ()


def translate_command(options: TranslateOptions, report: Reporter) -> None:
    """Translate what is given; to standard output or a file."""
    if options.form and options.form not in FORMATS:
        raise HeedfulError(f"there is no format {options.form!r}", hint=f"formats: {', '.join(FORMATS)}")
    if options.texts and options.source:
        raise HeedfulError("both texts and --input were given", hint="give one of them")
    if options.source:
        check_readable(options.source)
    engine = load(options.model, device=options.device)
    search = _search(engine, options.search or {}, options.settings)
    lines = iter(options.texts) if options.texts else _lines(options.source or STANDARD_INPUT, report)
    if options.stream:
        _stream(engine, lines, search, options.prefix)
        return
    form = options.form or ("tsv" if search.n_best > 1 else "text")
    if options.prefix:
        texts = list(lines)
        found: Iterable[Translation] = engine.translate(texts, search, [options.prefix] * len(texts))
    else:
        found = translate_lines(engine, lines, search)
    incomplete = 0
    with _opened(options.output) as file:
        if options.output or not sys.stdout.isatty():  # a bar would mingle with the translations
            found = report.track(found, "translating", unit="lines")
        for number, translation in enumerate(found, start=1):
            file.write(_written(number, translation, form))
            file.flush()
            incomplete += not translation.complete
    if incomplete:
        report.say(
            f"warning: {incomplete:,} translations stopped at the longest length "
            "(source + search.extra_length tokens) before they ended"
        )


def check_readable(path: Path) -> None:
    """A missing input is an error before the model is loaded."""
    if path != STANDARD_INPUT and not path.is_file():
        raise HeedfulError(f"no such file: {path}")


def evaluate_command(
    model: Path,
    pairs: Sequence[Path],
    output: Path | None,
    each: Path | None,
    search: Mapping[str, Any],
    settings: Sequence[str],
    *,
    device: str,
    report: Reporter,
) -> list[str]:
    """Scores of a model on pairs, as lines to print."""
    from heedful.training.validation import pairs_loss

    check_inputs(pairs)
    engine = load(model, device=device)
    settled = _search(engine, search, settings)
    test = _usable(pairs, engine.bundle.config.languages, report)
    found = list(
        report.track(
            translate_lines(engine, (pair.source for pair in test), settled),
            "translating",
            len(test),
            "lines",
        )
    )
    texts = [translation.text for translation in found]
    loss = pairs_loss(engine.model, engine.bundle.tokenizer, test)
    if output:
        write_text(output, "".join(f"{_one_line(text)}\n" for text in texts))
    if each:
        _write_each(each, engine, test, found)
    scores = corpus_scores(texts, [pair.target for pair in test])
    return [
        f"{len(test):,} pairs, beam {settled.beam}, length penalty {settled.length_penalty:g}",
        *(f"{score.name:5} {score.value:6.2f}   {score.signature}" for score in scores.values()),
        f"loss  {loss:6.3f}   perplexity {math.exp(min(loss, 100)):.3f}",
    ]


def _usable(
    paths: Sequence[Path], languages: tuple[str, str] | None, report: Reporter, most: int = 10**9
) -> list[Pair]:
    """All pairs with both sides, duplicates and all: a test set is scored as it is."""
    counts = CleaningReport()
    as_it_is = CleaningConfig(max_characters=0, max_ratio=0, deduplicate=False)
    records = read_pairs(paths, fields=languages or ("source", "target"))
    pairs = list(clean(records, as_it_is, counts))
    if counts.dropped:
        for line in counts.lines():
            report.say(line)
    if not pairs:
        raise HeedfulError(f"no usable pair in {' and '.join(map(str, paths))}")
    return pairs


def _write_each(
    path: Path, engine: NativeEngine, pairs: Sequence[Pair], found: Sequence[Translation]
) -> None:
    references = engine.score([pair.source for pair in pairs], [pair.target for pair in pairs])
    rows = ["source\treference\ttranslation\treference log-probability\ttranslation log-probability\n"]
    for pair, reference, translation in zip(pairs, references, found, strict=True):
        best = translation.alternatives[0]
        rows.append(
            f"{pair.source}\t{pair.target}\t{_one_line(best.text)}"
            f"\t{reference.log_probability:.4f}\t{best.log_probability:.4f}\n"
        )
    write_text(path, "".join(rows))


# ---------------------------------------------------------------------------------------- corpus


def corpus_statistics(paths: Sequence[Path]) -> list[str]:
    """Size of a corpus after cleaning, and what cleaning dropped."""
    check_inputs(paths)
    report = CleaningReport()
    sides: list[dict[str, int]] = [{"words": 0, "characters": 0, "longest": 0} for _ in range(2)]
    for pair in clean(read_pairs(paths), CleaningConfig(), report):
        for side, text in zip(sides, pair, strict=True):
            side["words"] += len(text.split())
            side["characters"] += len(text)
            side["longest"] = max(side["longest"], len(text))
    kept = max(1, report.kept)
    return report.lines() + [
        f"{name}: {side['words']:,} words, {side['characters']:,} characters, "
        f"{side['characters'] / kept:.1f} a sentence, longest {side['longest']:,}"
        for name, side in zip(("source", "target"), sides, strict=True)
    ]


def clean_corpus(paths: Sequence[Path], output: Path, settings: Sequence[str]) -> list[str]:
    """Write the cleaned pairs; returns the report."""
    check_inputs(paths)
    config = CleaningConfig.checked(_section(parsed_overrides(settings), "cleaning"))
    report = CleaningReport()
    write_tsv(clean(read_pairs(paths), config, report), output)
    return [*report.lines(), f"written to {output}"]


def split_corpus(paths: Sequence[Path], folder: Path, held_out: int | None) -> list[str]:
    """Write ``train.tsv`` and ``held-out.tsv``; returns a report."""
    check_inputs(paths)
    folder.mkdir(parents=True, exist_ok=True)
    pairs_path = folder / "pairs.tsv.partial"  # read several times, which standard input could not be
    report = CleaningReport()
    try:
        write_tsv(clean(read_pairs(paths), CleaningConfig(), report), pairs_path)
        parts = split(lambda: cleaned_pairs(pairs_path), held_out)
        write_tsv(parts.training(), folder / "train.tsv")
        write_tsv(parts.held_out, folder / "held-out.tsv")
    finally:
        pairs_path.unlink(missing_ok=True)
    lines = [f"{parts.training_pairs:,} pairs to {folder / 'train.tsv'}"]
    lines.append(f"{len(parts.held_out):,} pairs to {folder / 'held-out.tsv'}")
    if parts.leaks:
        lines.append(f"{parts.leaks:,} in neither: training has their translation")
    return report.lines() + lines


# ---------------------------------------------------------------------------------------- parts


def _search(engine: NativeEngine, options: Mapping[str, Any], settings: Sequence[str]) -> SearchConfig:
    """The model's own search settings with the command line's on top."""
    told = merged(_section(parsed_overrides(settings), "search"), options)
    base = engine.bundle.config.search.model_dump()
    if told.get("n_best", 1) > base["beam"] and "beam" not in told:
        told["beam"] = told["n_best"]
    return SearchConfig.checked(merged(base, told))


def _section(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The one section that matters here; others would be accepted and ignored, so they are refused."""
    other = [key for key in settings if key != name]
    if other:
        raise HeedfulError(f"setting {other[0]!r} has no effect here", hint=f"only {name}.* settings do")
    section: dict[str, Any] = settings.get(name, {})
    return section


def _lines(path: Path, report: Reporter) -> Iterator[str]:
    for line in read_lines(path):
        if line.fault:
            report.say(f"warning: line {line.number:,}: {line.fault}; its translation is left empty")
        yield line.text


def _stream(engine: NativeEngine, lines: Iterable[str], search: SearchConfig, prefix: str) -> None:
    for line in lines:
        for part in engine.stream(line, search, prefix):
            print(part, end="", flush=True)
        print(flush=True)


@contextmanager
def _opened(path: Path | None) -> Iterator[TextIO]:
    """Standard output, or a file that gets its name only when it is complete."""
    if path is None:
        yield sys.stdout
        return
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", encoding="utf-8", newline="\n") as file:
        yield file
    partial.replace(path)


def _written(number: int, translation: Translation, form: str) -> str:
    if form == "text":
        return _one_line(translation.text) + "\n"
    if form == "jsonl":
        return json.dumps(_as_json(number, translation), ensure_ascii=False) + "\n"
    return "".join(
        f"{number}\t{rank}\t{alternative.score:.4f}\t{_one_line(alternative.text)}\n"
        for rank, alternative in enumerate(translation.alternatives, start=1)
    )


def _as_json(number: int, translation: Translation) -> dict[str, Any]:
    return {
        "line": number,
        "source": translation.source,
        "complete": translation.complete,
        "segments": translation.segments,
        "translations": [
            {
                "text": alternative.text,
                "score": alternative.score,
                "log_probability": alternative.log_probability,
                "tokens": alternative.tokens,
                "token_log_probabilities": alternative.token_log_probabilities,
            }
            for alternative in translation.alternatives
        ],
    }


def _one_line(text: str) -> str:
    """A model may write a line break; the output keeps one line for each line."""
    return " ".join(text.split("\n")).replace("\r", " ").replace("\t", " ")
