"""``heedful evaluate``: a model's scores on given pairs."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from heedful.bundle import Bundle, BundleConfig
from heedful.commands.options import engine_name, one_line, reading_settings, search_settings
from heedful.corpora.filters import CleaningConfig, CleaningReport, Pair, clean
from heedful.corpora.formats import check_inputs, check_room_for_heads, languages_of, read_pairs
from heedful.corpora.reading import Languages, Reading, ReadingConfig, Record
from heedful.corpora.terms import read_glossary
from heedful.decoding.config import SearchConfig
from heedful.engines.base import Engine, Translation
from heedful.engines.lines import translate_lines
from heedful.errors import HeedfulError
from heedful.evaluation import corpus_scores
from heedful.files import check_writable, write_text
from heedful.loading import load
from heedful.progress import Reporter
from heedful.text.glossary import Glossary, missing_terms
from heedful.text.tags import tagged
from heedful.training.validation import pairs_loss


def evaluate_command(
    models: Sequence[Path],
    pairs: Sequence[Path],
    output: Path | None,
    each: Path | None,
    search: Mapping[str, Any],
    settings: Sequence[str],
    *,
    read: str = "",
    languages: Languages | None = None,
    engine: str,
    device: str,
    report: Reporter,
    glossary: Path | None = None,
) -> list[str]:
    """Scores of a model, or of several together, as lines to print; ``read`` is the sources' language."""
    check_inputs(pairs)
    told, others = reading_settings(settings)
    for path in (output, each):
        if path is not None:
            check_writable(path)
    terms = read_glossary(glossary) if glossary else None
    loaded = load(models, device=device, engine=engine_name(engine))
    settled = search_settings(loaded.bundle.config.search, search, others)
    bundle = _directed(loaded.bundle, settled.language, languages, read, pairs, told)
    config = bundle.config
    settled = settled.model_copy(update={"language": config.search.language})
    reading = Reading(languages or config.languages, told)
    if config.model.trees:
        check_room_for_heads(pairs)
    test = usable_pairs(pairs, reading, config.normalize, report, trees=config.model.trees)
    found = list(
        report.track(
            translate_lines(loaded, (pair.read for pair in test), settled, waiting=False, glossary=terms),
            "translating",
            len(test),
            "lines",
        )
    )
    texts = [translation.text for translation in found]
    if len(models) > 1:
        loss = _loss_together(loaded, test, settled)
    else:
        asked = [pair._replace(source=tagged(pair.source, bundle.language_tag())) for pair in test]
        loss = pairs_loss(bundle.model, bundle.tokenizer, asked)
    if output:
        write_text(output, "".join(f"{one_line(text)}\n" for text in texts))
    if each:
        _write_each(each, loaded, test, found, settled)
    languages = config.languages
    scores = corpus_scores(texts, [pair.target for pair in test], language=languages[1] if languages else "")
    return [
        *_direction(config),
        f"{len(test):,} pairs, beam {settled.beam}, length penalty {settled.length_penalty:g}, {loaded.name}",
        *(f"{score.name:5} {score.value:6.2f}   {score.signature}" for score in scores.values()),
        f"loss  {loss:6.3f}   perplexity {math.exp(min(loss, 100)):.3f}",
        *([_terms_line(terms, test, found)] if terms else []),
    ]


def _directed(
    bundle: Bundle,
    language: str,
    languages: Languages | None,
    read: str,
    paths: Sequence[Path],
    reading: ReadingConfig,
) -> Bundle:
    """The model for the languages of these files: as told, or as the files say, or the usual ones."""
    config = bundle.config
    named_target = languages[1] if languages and config.targets else ""
    told = language or named_target or (config.languages or ("", ""))[1]
    told = bundle.language_tag(told) or told
    if read and not told:
        raise HeedfulError("this model does not say its languages: --from has no effect", hint="leave it out")
    if read or sum(target == told for _, target in config.offered) < 2:
        return bundle.writing(told, read)
    named = languages or languages_of(paths, reading)
    return bundle.writing(told, named[0] if named and named[1] == told and named in config.offered else "")


def _direction(config: BundleConfig) -> list[str]:
    """A line that says what was translated, of a model that writes several languages."""
    if not config.targets:
        return []
    source, target = config.languages or ("", config.search.language)
    if not source:
        return [f"into {target}"]
    return [f"{source} to {target}{', never learned from (zero-shot)' * config.is_zero_shot(source, target)}"]


def _loss_together(engine: Engine, pairs: Sequence[Pair], search: SearchConfig) -> float:
    """Negative log-likelihood a target token, by what several models predict together."""
    scored = engine.score([pair.read for pair in pairs], [pair.target for pair in pairs], search)
    tokens = sum(len(each.token_log_probabilities) for each in scored)
    return -sum(each.log_probability for each in scored) / tokens


def _terms_line(glossary: Glossary, pairs: Sequence[Pair], found: Sequence[Translation]) -> str:
    """How many of the glossary's terms are in the translations, and how many are in the references."""
    wanted = [glossary.terms(pair.source) for pair in pairs]
    there = [
        sum(len(terms) - len(missing_terms(text, terms)) for text, terms in zip(texts, wanted, strict=True))
        for texts in ([each.text for each in found], [pair.target for pair in pairs])
    ]
    total = sum(map(len, wanted))
    return f"terms {there[0]:,} of {total:,}   in the references {there[1]:,}"


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


def _write_each(
    path: Path, engine: Engine, pairs: Sequence[Pair], found: Sequence[Translation], search: SearchConfig
) -> None:
    references = engine.score([pair.read for pair in pairs], [pair.target for pair in pairs], search)
    rows = ["source\treference\ttranslation\treference log-probability\ttranslation log-probability\n"]
    for pair, reference, translation in zip(pairs, references, found, strict=True):
        best = translation.alternatives[0]
        rows.append(
            f"{pair.source}\t{pair.target}\t{one_line(best.text)}"
            f"\t{reference.log_probability:.4f}\t{best.log_probability:.4f}\n"
        )
    write_text(path, "".join(rows))
