"""``heedful inspect --alignments``: which word comes from which, a line of links for every pair."""

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from heedful.bundle import Bundle
from heedful.corpora.filters import spaced_words
from heedful.corpora.formats import check_inputs, has_lines, read_pairs
from heedful.corpora.lines import count_lines, read_lines
from heedful.corpora.reading import Reading
from heedful.errors import HeedfulError
from heedful.files import check_writable, whole_file
from heedful.inspection.alignment import (
    Aligner,
    alignment_error_rate,
    best_aligner,
    parsed_links,
    usual_aligner,
)
from heedful.inspection.arithmetic import check_place
from heedful.inspection.trace import Trace, in_words, trace
from heedful.loading import load
from heedful.progress import Reporter
from heedful.text.links import Link, pharaoh
from heedful.text.trees import heads_fault, with_heads

CLEARLY = 0.02
"""By how much another aligner must agree more with the dictionary, itself a guess, to be taken."""
EXAMINED, FEWEST = 300, 50
"""Pairs on which the aligner is chosen, when none is named; with fewer than the second it is not chosen."""


class Words(NamedTuple):
    """Those of a pair, and the heads of the source's if the model reads trees and they are given."""

    source: list[str]
    target: list[str]
    heads: str = ""

    def traced(self, bundle: Bundle) -> Trace:
        """The pass of the pair."""
        return trace(bundle, with_heads(" ".join(self.source), self.heads), " ".join(self.target))


def alignments_command(
    model: Path,
    pairs: Sequence[Path],
    output: Path | None,
    gold: Path | None,
    place: tuple[int | None, int | None],
    *,
    reads: bool,
    to: str = "",
    device: str,
    report: Reporter,
) -> Iterator[str]:
    """A Pharaoh line for each pair, in order, to print or into ``output``; words stand between spaces.

    ``place`` is the layer and the head to look at, from 1, and ``reads`` whether in the row that reads a
    word, not writes it; without them the best is found on the pairs.
    """
    check_inputs(pairs)
    if output is not None:
        check_writable(output)
    bundle = load(model, device=device, engine="pytorch").bundle.writing(to)
    named = _named(bundle, *place, reads=reads)
    answers = _read_gold(gold) if gold else None
    if answers is not None and all(path.is_file() for path in pairs) and has_lines(pairs):
        _check_gold(answers, count_lines(pairs[0]), gold)
    given = read_words(pairs, bundle)
    some = list(islice(given, 0 if named else EXAMINED))
    if not some and not named:
        raise HeedfulError(
            f"no pairs in {' and '.join(map(str, pairs))}", hint="a pair a line, source TAB target"
        )
    aligner = named or _found(bundle, some, report)
    links = _aligned(bundle, aligner, report.track(chain(some, given), "aligning", unit="pairs"))
    kept: list[list[Link]] = []
    if answers is not None:
        links = _kept(links, kept)
    if output is None:
        yield from map(pharaoh, links)
    else:
        with whole_file(output) as file:
            file.writelines(f"{pharaoh(each)}\n".encode() for each in links)
        report.say(f"alignments written to {output}")
    if answers is not None:
        report.say(_judged(kept, answers, gold))


def _named(bundle: Bundle, layer: int | None, head: int | None, *, reads: bool) -> Aligner | None:
    if layer is None:
        if head is not None or reads:
            alone = "--reads" if head is None else "--head"
            raise HeedfulError(f"{alone} alone names no head", hint="give --layer too")
        return None
    check_place(bundle, "cross", layer - 1, None if head is None else head - 1)
    return Aligner(layer - 1, None if head is None else head - 1, reads)


def read_words(paths: Sequence[Path], bundle: Bundle) -> Iterator[Words]:
    """The words of every pair; both lists are empty where a line holds no pair, so that lines keep step.

    So they are where heads do not fit; without any, the model reads the sentence without a tree.
    """
    for record in read_pairs(paths, Reading(bundle.config.languages)):
        source, target = (
            spaced_words(side or "", bundle.config.normalize) for side in (record.source, record.target)
        )
        heads = " ".join(record.heads.split()) if bundle.config.model.trees else ""
        fits = source and target and not (heads and heads_fault(" ".join(source), heads))
        yield Words(source, target, heads) if fits else Words([], [])


def seen_in_words(bundle: Bundle, words: Words) -> Trace:
    """The pass of a pair, in the words between spaces."""
    return in_words(bundle, words.traced(bundle).only_cross(), words.source, words.target)


def _found(bundle: Bundle, some: Sequence[Words], report: Reporter) -> Aligner:
    usable = [words for words in some if words.source]
    if not usable:
        raise HeedfulError("no pair has words on both sides", hint="a pair a line, source TAB target")
    traces = [
        seen_in_words(bundle, words)
        for words in report.track(usable, "looking for the best aligner", len(usable), "pairs")
    ]
    aligner, reason = chosen_aligner(bundle, traces)
    report.say(f"aligned by {aligner.name} ({reason})")
    return aligner


def chosen_aligner(bundle: Bundle, traces: Sequence[Trace]) -> tuple[Aligner, str]:
    """The usual aligner, or another that is clearly better on some pairs; and why it was taken."""
    usual = usual_aligner(bundle.config.model)
    if len(traces) < FEWEST:
        return usual, f"{len(traces)} pairs are too few to choose by"
    best, agreement = best_aligner(traces)
    aligner = best if agreement[best] >= agreement[usual] + CLEARLY else usual
    return aligner, f"agrees {agreement[aligner]:.0%} with a dictionary of {len(traces)} pairs"


def _aligned(bundle: Bundle, aligner: Aligner, given: Iterator[Words]) -> Iterator[list[Link]]:
    for words in given:
        yield aligner.links(seen_in_words(bundle, words)) if words.source else []


def _kept(links: Iterator[list[Link]], kept: list[list[Link]]) -> Iterator[list[Link]]:
    for each in links:
        kept.append(each)
        yield each


def _judged(
    found: Sequence[list[Link]], answers: Sequence[tuple[list[Link], list[Link]]], gold: Path | None
) -> str:
    _check_gold(answers, len(found), gold)
    sure, possible = [each[0] for each in answers], [each[1] for each in answers]
    rate = alignment_error_rate(found, sure, possible)
    return f"alignment error rate {rate:.2%}, on {len(found):,} pairs"


def _check_gold(answers: Sequence[object], pairs: int, gold: Path | None) -> None:
    if len(answers) != pairs:
        raise HeedfulError(
            f"{gold} has {len(answers)} lines for {pairs} pairs", hint="it has a line of links for every pair"
        )


def _read_gold(path: Path) -> list[tuple[list[Link], list[Link]]]:
    """Sure and possible links of every line; counted from 1 if no line has a word 0."""
    lines = [line.text for line in read_lines(path)]
    try:
        counted = [link for line in lines for part in parsed_links(line) for link in part]
        first = 1 if counted and min(map(min, counted)) > 0 else 0
        return [parsed_links(line, first) for line in lines]
    except HeedfulError as error:
        raise HeedfulError(f"{path}: {error.problem}", hint=error.hint) from None
