"""Cost and effect of a glossary: no glossary, and each glossary mode.

    python benchmarks/glossary.py MODEL PAIRS.tsv [GLOSSARY.tsv] [--beam 4]

Without a glossary one is made of the pairs: for each word that is not common, its commonest translation there
(found by a dictionary of words), so that references have most of the terms. Terms: share of the terms of all
sources that are in the translations; BLEU and chrF against the references; time as a ratio to no glossary.
"inline alone" is what the model makes of inline terms, unchecked; the rows "inline" and "constrained" fall back
on the ways after them, as users get it. One core, after a first round that is not counted.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from heedful.data.cleaning import Pair, read_cleaned_pairs
from heedful.data.glossary import Glossary, TermFinder, find_missing_terms, read_glossary
from heedful.evaluation.metrics import corpus_scores
from heedful.generation.config import GenerationConfig
from heedful.inference.loading import load
from heedful.inference.terminology import TermSearch
from heedful.inference.translation import SearchInput
from heedful.inference.translator import Translator

Side = Callable[[], list[str]]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("pairs", type=Path)
    parser.add_argument("glossary", type=Path, nargs="?")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--engine", default="exact")
    told = parser.parse_args()
    pairs = list(read_cleaned_pairs(told.pairs))
    glossary = read_glossary(told.glossary) if told.glossary else glossary_of(pairs)
    engine = load(told.model, engine=told.engine, workers=1)
    wanted = [glossary.find_terms(pair.source) for pair in pairs]
    with_terms = sum(map(bool, wanted))
    print(
        f"{told.model}, {engine.name}, beam {told.beam}; {len(pairs):,} pairs, {with_terms:,} of them with "
        f"{sum(map(len, wanted)):,} terms of a glossary of {len(glossary.entries):,}"
    )
    base = engine.model_folder.config.generation.model_dump() | {"beam_size": told.beam, "n_best": 1}
    first = 0.0
    for name, side in sides(engine, pairs, glossary, base).items():
        side()
        begun = time.perf_counter()
        texts = side()
        seconds = time.perf_counter() - begun
        first = first or seconds
        lost = sum(len(find_missing_terms(text, terms)) for text, terms in zip(texts, wanted, strict=True))
        scores = corpus_scores(texts, [pair.target for pair in pairs])
        print(
            f"{name:14} terms {1 - lost / max(1, sum(map(len, wanted))):7.1%}   "
            f"BLEU {scores['BLEU'].value:5.1f}   chrF {scores['chrF'].value:5.1f}   "
            f"{seconds:6.1f} s   {seconds / first:5.2f}x"
        )


def sides(engine: Translator, pairs: Sequence[Pair], glossary: Glossary, base: dict[str, object]) -> dict[str, Side]:
    """Each way, and how it translates all sources."""
    sources = [pair.source for pair in pairs]

    def translated(mode: str, terms: Glossary | None) -> Side:
        search = GenerationConfig.from_settings({**base, "glossary_mode": mode})
        return lambda: [each.text for each in engine.translate(sources, search, glossary=terms)]

    def inline_alone() -> list[str]:
        search = GenerationConfig.from_settings({**base, "glossary_mode": "inline"})
        terms = TermSearch(engine.backend, glossary, search, engine.translate, with_attention=False)
        jobs = [
            terms._add_inline_terms(SearchInput(engine.model_folder.source_ids(text, search.target_language), []), each)
            for text, each in zip(sources, terms.find_terms(sources), strict=True)
        ]
        return [terms.tokenizer.decode(each[0].tokens) for each in engine.backend.search(jobs, search)]

    found = {
        "no glossary": translated("auto", None),
        "split": translated("split", glossary),
        "constrained": translated("constrained", glossary),
    }
    if engine.model_folder.config.inline_terms:
        found |= {"inline alone": inline_alone, "inline": translated("inline", glossary)}
    return found


def glossary_of(pairs: Sequence[Pair]) -> Glossary:
    """The commonest translation of each word or two that is found in the pairs."""
    finder = TermFinder(pairs, max_words=2)
    seen: dict[str, Counter[str]] = defaultdict(Counter)
    for pair in pairs:
        for match in finder.find_matches(pair.source, pair.target):
            source, target = pair.source[slice(*match.source)], pair.target[slice(*match.target)]
            if source == source.lower() and target == target.lower():
                seen[source][target] += 1
    return Glossary.from_mapping({source: targets.most_common(1)[0][0] for source, targets in seen.items()})


if __name__ == "__main__":
    main()
