"""What does a glossary cost, and what does it give? No glossary against each way to obey one.

    python benchmarks/glossary.py MODEL PAIRS.tsv [GLOSSARY.tsv] [--beam 4]

Without a glossary one is made of the pairs: for each word that is not common, its commonest translation there
(found by a dictionary of words), so that references have most of the terms. Terms: share of the terms of all
sources that are in the translations; BLEU and chrF against the references; time as a ratio to no glossary.
"inline alone" is what the model makes of inline terms, unchecked; the rows "inline" and "constrain" fall back
on the ways after them, as users get it. One core, after a first round that is not counted.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from heedful.api import load
from heedful.corpora.filters import Pair, cleaned_pairs
from heedful.corpora.terms import read_glossary
from heedful.decoding.config import SearchConfig
from heedful.engines.segmented import Job, SegmentedEngine
from heedful.engines.terms import TermSearch
from heedful.evaluation import corpus_scores
from heedful.text.glossary import Glossary, missing_terms
from heedful.training.terms import Finder

Side = Callable[[], list[str]]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("pairs", type=Path)
    parser.add_argument("glossary", type=Path, nargs="?")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--engine", default="exact")
    told = parser.parse_args()
    pairs = list(cleaned_pairs(told.pairs))
    glossary = read_glossary(told.glossary) if told.glossary else glossary_of(pairs)
    engine = load(told.model, engine=told.engine, workers=1)
    wanted = [glossary.terms(pair.source) for pair in pairs]
    with_terms = sum(map(bool, wanted))
    print(
        f"{told.model}, {engine.name}, beam {told.beam}; {len(pairs):,} pairs, {with_terms:,} of them with "
        f"{sum(map(len, wanted)):,} terms of a glossary of {len(glossary.entries):,}"
    )
    base = engine.bundle.config.search.model_dump() | {"beam": told.beam, "n_best": 1}
    first = 0.0
    for name, side in sides(engine, pairs, glossary, base).items():
        side()
        begun = time.perf_counter()
        texts = side()
        seconds = time.perf_counter() - begun
        first = first or seconds
        lost = sum(len(missing_terms(text, terms)) for text, terms in zip(texts, wanted, strict=True))
        scores = corpus_scores(texts, [pair.target for pair in pairs])
        print(
            f"{name:14} terms {1 - lost / max(1, sum(map(len, wanted))):7.1%}   "
            f"BLEU {scores['BLEU'].value:5.1f}   chrF {scores['chrF'].value:5.1f}   "
            f"{seconds:6.1f} s   {seconds / first:5.2f}x"
        )


def sides(
    engine: SegmentedEngine, pairs: Sequence[Pair], glossary: Glossary, base: dict[str, object]
) -> dict[str, Side]:
    """Each way, and how it translates all sources."""
    sources = [pair.source for pair in pairs]

    def translated(mode: str, terms: Glossary | None) -> Side:
        search = SearchConfig.checked({**base, "glossary_mode": mode})
        return lambda: [each.text for each in engine.translate(sources, search, glossary=terms)]

    def inline_alone() -> list[str]:
        search = SearchConfig.checked({**base, "glossary_mode": "inline"})
        terms = TermSearch(engine, glossary, search, details=False)
        jobs = [
            terms._inline(Job(number, engine._encoded(text, search), []), each)
            for number, (text, each) in enumerate(zip(sources, terms.wanted(sources), strict=True))
        ]
        return [terms.target.decode(each[0].tokens) for each in engine._searched(jobs, search, False)]

    found = {
        "no glossary": translated("auto", None),
        "split": translated("split", glossary),
        "constrain": translated("constrain", glossary),
    }
    if engine.bundle.config.inline_terms:
        found |= {"inline alone": inline_alone, "inline": translated("inline", glossary)}
    return found


def glossary_of(pairs: Sequence[Pair]) -> Glossary:
    """The commonest translation of each word or two that is found in the pairs."""
    finder = Finder(pairs, longest=2)
    seen: dict[str, Counter[str]] = defaultdict(Counter)
    for pair in pairs:
        for match in finder.matches(pair.source, pair.target):
            source, target = pair.source[slice(*match.source)], pair.target[slice(*match.target)]
            if source == source.lower() and target == target.lower():
                seen[source][target] += 1
    return Glossary.of({source: targets.most_common(1)[0][0] for source, targets in seen.items()})


if __name__ == "__main__":
    main()
