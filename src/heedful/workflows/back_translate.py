"""Synthetic pairs: back-translation (Sennrich et al. 2016), and the teacher's translations for distillation.

Resumable: out.tsv.translated.partial holds every translated line with its rejection reason, if any; the
accepted pairs become out.tsv at the end, in one atomic step.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any
from uuid import uuid4

from heedful.data.cleaning import Pair, rejection_reason
from heedful.data.config import CleaningConfig
from heedful.data.formats.lines import count_lines, display_name, read_lines
from heedful.data.reader import check_readable, write_tsv
from heedful.errors import HeedfulError
from heedful.files import check_writable
from heedful.generation.config import GenerationConfig, build_generation_config
from heedful.inference.bulk import file_fingerprint, open_resumable, translate_lines
from heedful.inference.loading import load, parse_engine_name
from heedful.inference.translation import Translation
from heedful.inference.translator import Translator
from heedful.model_folder import list_model_files
from heedful.progress import Reporter, format_count
from heedful.tokenization.normalization import clean_sentence

UNLIMITED_LENGTH = CleaningConfig(max_characters=0)
"""Training limits the sentence length."""

MIN_REPETITIONS = 5
"""Reject a translation that repeats a word this often in a row, unless its source does too."""


@dataclass(frozen=True, slots=True)
class SyntheticWriter:
    """The model that writes the missing side, and how."""

    engine: Translator
    models: tuple[Path, ...]
    generation_config: GenerationConfig
    source_side: bool
    """Whether the translations become the sources (back-translation)."""

    def fingerprint(self, input_fingerprint: Any) -> dict[str, Any]:
        """Identifies the job, so that only the same job is resumed."""
        return {
            "input": input_fingerprint,
            "model": [file_fingerprint(path) for model in self.models for path in list_model_files(model)],
            "engine": self.engine.name,
            "generation": self.generation_config.model_dump(mode="json"),
            "source side": self.source_side,
        }

    def format_line(self, translation: Translation) -> str:
        """One TSV line: source, target, rejection reason."""
        unicode_normalization = self.engine.model_folder.config.unicode_normalization
        input_text, output_text = (
            clean_sentence(text, unicode_normalization) for text in (translation.source, translation.text)
        )
        if not input_text:
            reason = "nothing to translate"
        elif not output_text:
            reason = "empty translation"
        elif not translation.complete:
            reason = "incomplete translation"
        elif input_text == output_text:
            reason = "copied"
        elif _max_repetitions(output_text) >= MIN_REPETITIONS > _max_repetitions(input_text):
            reason = "repeated word"
        else:
            reason = rejection_reason(Pair(input_text, output_text), UNLIMITED_LENGTH)
        sides = (output_text, input_text) if self.source_side else (input_text, output_text)
        return "\t".join((*sides, reason)) + "\n"


def _max_repetitions(text: str) -> int:
    """The longest run of one word.

    >>> _max_repetitions("so so so good")
    3
    """
    return max(len(list(run)) for _, run in groupby(text.split()))


def check_can_synthesize(engine: Translator) -> None:
    """Raise an error for a model that needs dependency trees, which plain text does not have."""
    if engine.model_folder.config.model.uses_dependency_trees:
        raise HeedfulError("this model needs dependency trees, and plain text has none", hint="use another model")


def write_synthetic_pairs(
    writer: SyntheticWriter,
    lines: Iterable[str],
    input_fingerprint: Any,
    output: Path,
    report: Reporter,
    total: int | None = None,
) -> list[str]:
    """Translate the lines and write ``output``; returns a summary, as lines to print."""
    partial_path = output.with_name(output.name + ".translated")
    with (
        open_resumable(partial_path, writer.fingerprint(input_fingerprint), "text", report) as (file, done),
        report.task("translating", total, done, "lines") as task,
    ):
        rest = islice(lines, done, None)
        for translation in translate_lines(writer.engine, rest, writer.generation_config, interactive=False):
            file.write(writer.format_line(translation))
            file.flush()
            task.advance()
        rejections: Counter[str] = Counter()
        pair_count = write_tsv(_filter_pairs(Path(file.name), rejections), output)
    partial_path.unlink()
    summary = f"{format_count(pair_count, 'pair')} from {format_count(pair_count + rejections.total(), 'line')}"
    return [summary, *(f"dropped {count:,}: {reason}" for reason, count in rejections.most_common())]


def _filter_pairs(path: Path, rejections: Counter[str]) -> Iterator[Sequence[str]]:
    """The accepted pairs; rejections are counted. Raises an error if there is no pair at all."""
    has_pairs = False
    for line in read_lines(path):
        source, target, rejection = ("", "", line.error) if line.error else line.text.split("\t")
        if rejection:
            rejections[rejection] += 1
        else:
            has_pairs = True
            yield source, target
    if not has_pairs:
        raise HeedfulError(
            f"all {format_count(rejections.total(), 'line')} were rejected",
            hint="; ".join(f"{count:,}: {reason}" for reason, count in rejections.most_common())
            or "the input is empty",
        )


@dataclass(frozen=True, slots=True)
class BackTranslateOptions:
    """What ``heedful corpus back-translate`` translates, and how."""

    models: tuple[Path, ...]
    """A model from the target to the source language, or an ensemble."""
    text: Path
    output: Path
    generation_overrides: Mapping[str, Any]
    settings: tuple[str, ...] = ()
    engine: str = "auto"
    workers: int = 0
    device: str = "auto"


def back_translate_text(options: BackTranslateOptions, report: Reporter) -> Iterator[str]:
    """Write synthetic pairs; yields lines to print."""
    text, output = options.text, options.output
    _check_options(options)
    engine = load(
        options.models, device=options.device, engine=parse_engine_name(options.engine), workers=options.workers
    )
    check_can_synthesize(engine)
    generation_config = build_generation_config(
        engine.model_folder.config.generation, options.generation_overrides, options.settings
    )
    if generation_config.n_best != 1:
        raise HeedfulError("back-translation writes one pair per line", hint="omit generation.n_best")
    languages = engine.model_folder.config.languages
    # A model of the wrong direction would waste hours.
    direction = "the text must be in the source language of this model"
    if languages:
        direction = f"the text must be {languages[0]}; the model translates it to {languages[1]}"
    report.info(f"engine: {engine.name}; {direction}")

    def read_sentences() -> Iterator[str]:
        for line in read_lines(text):
            if line.error:
                report.warning(f"{display_name(text)}:{line.number}: {line.error}; skipped")
            yield line.text

    is_regular_file = text.is_file()
    yield from write_synthetic_pairs(
        SyntheticWriter(engine, options.models, generation_config, source_side=True),
        read_sentences(),
        file_fingerprint(text) if is_regular_file else uuid4().hex,
        output,
        report,
        count_lines(text) if is_regular_file else None,
    )
    yield f"written to {output}; train with it: heedful train pairs.tsv --back-translated {output} -o model"


def _check_options(options: BackTranslateOptions) -> None:
    output, overrides = options.output, options.generation_overrides
    if "method" not in overrides and overrides.keys() & {"temperature", "seed", "top_k"}:
        raise HeedfulError("--temperature, --top-k and --seed need sampling", hint="add --sample")
    if "method" in overrides and "beam_size" in overrides:
        raise HeedfulError("--beam and --sample exclude each other", hint="use one of them")
    check_readable(options.text)
    check_writable(output)
    if not output.name.lower().endswith((".tsv", ".tsv.gz")):
        raise HeedfulError(f"{output} is written as TSV", hint="name it .tsv or .tsv.gz")
    if options.text.exists() and output.exists() and options.text.samefile(output):
        raise HeedfulError(f"{output} is also the input", hint="choose another output file")
