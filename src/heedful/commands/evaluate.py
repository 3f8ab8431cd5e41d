"""``heedful evaluate``: a model's scores on given pairs."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from heedful.commands.options import engine_name, one_line, reading_settings, search_settings
from heedful.corpora.filters import CleaningConfig, CleaningReport, Pair, clean
from heedful.corpora.formats import check_inputs, check_room_for_heads, read_pairs
from heedful.corpora.reading import Languages, Reading, Record
from heedful.engines.base import Engine, Translation
from heedful.engines.lines import translate_lines
from heedful.errors import HeedfulError
from heedful.evaluation import corpus_scores
from heedful.files import check_writable, write_text
from heedful.loading import load
from heedful.progress import Reporter
from heedful.training.validation import pairs_loss


def evaluate_command(
    model: Path,
    pairs: Sequence[Path],
    output: Path | None,
    each: Path | None,
    search: Mapping[str, Any],
    settings: Sequence[str],
    *,
    languages: Languages | None = None,
    engine: str,
    device: str,
    report: Reporter,
) -> list[str]:
    """Scores of a model on pairs, as lines to print."""
    check_inputs(pairs)
    told, others = reading_settings(settings)
    for path in (output, each):
        if path is not None:
            check_writable(path)
    loaded = load(model, device=device, engine=engine_name(engine))
    config = loaded.bundle.config
    reading = Reading(languages or config.languages, told)
    settled = search_settings(config.search, search, others)
    if config.model.trees:
        check_room_for_heads(pairs)
    test = usable_pairs(pairs, reading, config.normalize, report, trees=config.model.trees)
    found = list(
        report.track(
            translate_lines(loaded, (pair.read for pair in test), settled, waiting=False),
            "translating",
            len(test),
            "lines",
        )
    )
    texts = [translation.text for translation in found]
    loss = pairs_loss(loaded.bundle.model, loaded.bundle.tokenizer, test)
    if output:
        write_text(output, "".join(f"{one_line(text)}\n" for text in texts))
    if each:
        _write_each(each, loaded, test, found)
    languages = loaded.bundle.config.languages
    scores = corpus_scores(texts, [pair.target for pair in test], language=languages[1] if languages else "")
    return [
        f"{len(test):,} pairs, beam {settled.beam}, length penalty {settled.length_penalty:g}, {loaded.name}",
        *(f"{score.name:5} {score.value:6.2f}   {score.signature}" for score in scores.values()),
        f"loss  {loss:6.3f}   perplexity {math.exp(min(loss, 100)):.3f}",
    ]


def usable_pairs(
    paths: Sequence[Path],
    reading: Reading,
    normalize: str,
    report: Reporter,
    *,
    trees: bool = False,
) -> list[Pair]:
    """All pairs with both sides (and heads), duplicates and all: a test set is scored as it is."""
    records = read_pairs(paths, reading)
    pairs = usable(records, normalize, report, trees=trees)
    if not pairs:
        raise HeedfulError(
            f"no usable pair in {' and '.join(map(str, paths))}",
            hint="give one pair a line, source TAB target TAB heads"
            if trees
            else "the warnings above say why; heedful corpus stats looks at files of pairs",
        )
    return pairs


def usable(records: Iterable[Record], normalize: str, report: Reporter, *, trees: bool = False) -> list[Pair]:
    """What stands in the files, but for faults and empty lines, of which a warning tells."""
    counts = CleaningReport()
    as_it_is = CleaningConfig.checked(
        {"max_characters": 0, "max_ratio": 0, "deduplicate": False, "normalize": normalize}
    )
    pairs = list(clean(records, as_it_is, counts, trees=trees))
    if counts.dropped:
        for line in counts.lines():
            report.warn(line)
    return pairs


def _write_each(path: Path, engine: Engine, pairs: Sequence[Pair], found: Sequence[Translation]) -> None:
    references = engine.score([pair.read for pair in pairs], [pair.target for pair in pairs])
    rows = ["source\treference\ttranslation\treference log-probability\ttranslation log-probability\n"]
    for pair, reference, translation in zip(pairs, references, found, strict=True):
        best = translation.alternatives[0]
        rows.append(
            f"{pair.source}\t{pair.target}\t{one_line(best.text)}"
            f"\t{reference.log_probability:.4f}\t{best.log_probability:.4f}\n"
        )
    write_text(path, "".join(rows))
