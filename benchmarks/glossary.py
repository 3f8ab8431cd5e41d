"""Cost and effect of a glossary: no glossary, and each glossary mode.

    python benchmarks/glossary.py MODEL PAIRS.tsv [GLOSSARY.tsv] [--beam 4]

Without a glossary, one is extracted from the pairs: for each word that is not frequent, its most frequent
translation, so that the references contain most of the terms. Terms: fraction of the terms of all sources that are
in the translations; BLEU and chrF against the references; time as a ratio to no glossary. "inline only" is the output
of the model with inline terms, unchecked; "inline" and "constrained" fall back on the other methods, as for users.
One core, after a warm-up round.
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
from heedful.inference.translation import SearchInput
from heedful.inference.translator import Translator

Run = Callable[[], list[str]]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("pairs", type=Path)
    parser.add_argument("glossary", type=Path, nargs="?")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--engine", default="exact")
    options = parser.parse_args()
    pairs = list(read_cleaned_pairs(options.pairs))
    glossary = read_glossary(options.glossary) if options.glossary else extract_glossary(pairs)
    engine = load(options.model, engine=options.engine, workers=1)
    source_terms = [glossary.find_terms(pair.source) for pair in pairs]
    with_terms = sum(map(bool, source_terms))
    print(
        f"{options.model}, {engine.name}, beam {options.beam}; {len(pairs):,} pairs, {with_terms:,} of them with "
        f"{sum(map(len, source_terms)):,} terms of a glossary of {len(glossary.entries):,}"
    )
    base = engine.model_folder.config.generation.model_dump() | {"beam_size": options.beam, "n_best": 1}
    first = 0.0
    for name, run in new_runs(engine, pairs, glossary, base).items():
        run()
        start_time = time.perf_counter()
        texts = run()
        seconds = time.perf_counter() - start_time
        first = first or seconds
        missing = sum(len(find_missing_terms(text, terms)) for text, terms in zip(texts, source_terms, strict=True))
        scores = corpus_scores(texts, [pair.target for pair in pairs])
        print(
            f"{name:14} terms {1 - missing / max(1, sum(map(len, source_terms))):7.1%}   "
            f"BLEU {scores['BLEU'].value:5.1f}   chrF {scores['chrF'].value:5.1f}   "
            f"{seconds:6.1f} s   {seconds / first:5.2f}x"
        )


def new_runs(engine: Translator, pairs: Sequence[Pair], glossary: Glossary, base: dict[str, object]) -> dict[str, Run]:
    """The modes, and functions that translate all sources."""
    sources = [pair.source for pair in pairs]

    def new_run(mode: str, terms: Glossary | None) -> Run:
        search = GenerationConfig.from_settings({**base, "glossary_mode": mode})
        return lambda: [translation.text for translation in engine.translate(sources, search, glossary=terms)]

    def translate_inline_only() -> list[str]:
        search = GenerationConfig.from_settings({**base, "glossary_mode": "inline"})
        model_folder = engine.model_folder
        inputs = [
            SearchInput(model_folder.source_ids(source, search.target_language, glossary.find_terms(source)), [])
            for source in sources
        ]
        results = engine.backend.search(inputs, search)
        return [model_folder.tokenizer.target.decode(hypotheses[0].tokens) for hypotheses in results]

    runs = {
        "no glossary": new_run("auto", None),
        "split": new_run("split", glossary),
        "constrained": new_run("constrained", glossary),
    }
    if engine.model_folder.config.inline_terms:
        runs |= {"inline only": translate_inline_only, "inline": new_run("inline", glossary)}
    return runs


def extract_glossary(pairs: Sequence[Pair]) -> Glossary:
    """The most frequent translation of each term of one or two words in the pairs."""
    finder = TermFinder(pairs, max_words=2)
    translations: dict[str, Counter[str]] = defaultdict(Counter)
    for pair in pairs:
        for match in finder.find_matches(pair.source, pair.target):
            source, target = pair.source[slice(*match.source)], pair.target[slice(*match.target)]
            if source == source.lower() and target == target.lower():
                translations[source][target] += 1
    return Glossary.from_mapping({source: targets.most_common(1)[0][0] for source, targets in translations.items()})


if __name__ == "__main__":
    main()
