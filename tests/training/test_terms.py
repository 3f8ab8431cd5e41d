"""Terms inside sources: found in pairs, written with tags, learned, and copied into roles never seen."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from heedful.api import load, train
from heedful.corpora.filters import Pair
from heedful.corpora.formats import write_tsv
from heedful.corpora.grammar import generate
from heedful.decoding.config import SearchConfig
from heedful.engines.segmented import Job, SegmentedEngine
from heedful.engines.terms import TermSearch
from heedful.errors import HeedfulError
from heedful.text.glossary import TERM_TAGS, Glossary
from heedful.text.tags import parts, tagged
from heedful.training.config import TermsConfig
from heedful.training.encoding import Numbered
from heedful.training.terms import Finder, TermWriter, term_notes
from tests.conftest import run_heedful

GRAMMAR = [Pair(pair.source, pair.target) for pair in generate(400)]


def notes_of(writer: TermWriter) -> list[str]:
    return term_notes(writer.config, writer.listed, writer.found)


def written(config: TermsConfig, pairs: list[Pair]) -> tuple[list[Pair], TermWriter]:
    """The pairs that were added."""

    def numbered() -> Iterator[Numbered]:
        return ((0, pair) for pair in pairs)

    writer = TermWriter(config, numbered)
    every = [pair for _, pair in writer.pairs()]
    assert [pair for pair in every if not _tags(pair)] == [pair for pair in pairs if not _tags(pair)]
    return [pair for pair in every if TERM_TAGS[0] in _tags(pair)], writer


def _tags(pair: Pair) -> list[str]:
    return [part for part, is_tag in parts(pair.source) if is_tag]


def _terms(pair: Pair) -> list[tuple[str, str]]:
    """Terms and translations, as they stand inline."""
    found = list(parts(pair.source))
    return [
        (found[i + 1][0], found[i + 3][0]) for i, part in enumerate(found) if part == (TERM_TAGS[0], True)
    ]


def test_words_are_found_by_their_company() -> None:
    finder = Finder(GRAMMAR, longest=3)
    source, target = "The dog is tired.", "Le chien est fatigué."
    found = {
        (source[slice(*match.source)], target[slice(*match.target)])
        for match in finder.matches(source, target)
    }
    assert ("dog", "chien") in found
    assert all(len(one.split()) <= 3 for one, _ in found)
    assert ("Tom", "Tom") in {
        ("Tom saw it"[slice(*match.source)], "Il vit Tom"[slice(*match.target)])
        for match in finder.matches("Tom saw it", "Il vit Tom")
    }


@pytest.mark.parametrize("swapped", [0.0, 1.0])
def test_what_is_inline_stands_in_the_target(swapped: float) -> None:
    added, writer = written(TermsConfig(share=0.5, swapped=swapped), GRAMMAR)
    assert 100 < len(added) < 250
    assert f"{len(added)} pairs once more with terms inline" in notes_of(writer)[0]
    known = {pair.target for pair in GRAMMAR}
    for pair in added:
        terms = _terms(pair)
        assert 1 <= len(terms) <= 2
        assert all(translation in pair.target for _, translation in terms)
        assert (pair.target in known) == (not swapped) or swapped
    assert written(TermsConfig(share=0.5, swapped=swapped), GRAMMAR)[0] == added  # nothing is left to chance


def test_no_share_adds_nothing() -> None:
    added, writer = written(TermsConfig(), GRAMMAR)
    assert not added
    assert not notes_of(writer)


def test_a_glossary_goes_before_what_is_found(tmp_path: Path) -> None:
    path = tmp_path / "terms.tsv"
    path.write_text("the dog\tle chien\nnever\tjamais\n", encoding="utf-8")
    pairs = [
        *GRAMMAR,
        Pair("See the dog run.", "Regarde le chien courir."),
        Pair("I never go.", "Je ne vais pas."),
        Pair(tagged("The dog", "fr"), "Le chien"),
    ]
    added, writer = written(TermsConfig(share=0.01, glossary=str(path)), pairs)
    terms = [_terms(pair) for pair in added]
    assert [("the dog", "le chien")] in terms
    assert not any("never" in source for each in terms for source, _ in each)
    assert any(_tags(pair) == ["fr", *TERM_TAGS] for pair in added)
    assert "of them with those of the glossary" in notes_of(writer)[0]


def test_other_scripts() -> None:
    pairs = [
        Pair(f"我喜欢{c}。", f"أحب {a}") for c, a in [("猫", "القطة"), ("狗", "الكلب"), ("书", "الكتاب")] * 9
    ]
    added, _ = written(TermsConfig(share=1.0, swapped=0.0), pairs)
    assert added
    assert {("猫", "القطة"), ("狗", "الكلب")} & {term for pair in added for term in _terms(pair)}


QUICK = {
    "preset": "demo",
    "tokenizer": {"kind": "bpe", "joint": True, "vocabulary": 700},
    "model": {"width": 16, "heads": 2, "feed_forward_width": 32, "encoder_layers": 1, "decoder_layers": 1},
    "training": {"updates": 6, "held_out": 20, "bleu_sentences": 2, "threads": 1},
}


def test_the_command_makes_a_model_that_reads_terms(grammar_pairs: Path, tmp_path: Path) -> None:
    terms = tmp_path / "terms.tsv"
    terms.write_text("dog\tchien\n", encoding="utf-8")
    words = [
        f"--set={section}.{name}={value}"
        for section, values in QUICK.items()
        if isinstance(values, dict)
        for name, value in values.items()
    ]
    folder = tmp_path / "model"
    done = run_heedful(
        "train",
        grammar_pairs,
        "-o",
        folder,
        "--preset",
        "demo",
        "--languages",
        "en-fr",
        "--glossary",
        terms,
        *words,
    )
    assert done.status == 0, done.err
    assert "once more with terms inline" in done.err + done.out
    for engine in (load(folder, engine="pytorch"), load(folder, engine="ctranslate2", workers=1)):
        assert engine.bundle.config.inline_terms
        search = SearchConfig(glossary_mode="inline", extra_length=10, beam=2)
        (found,) = engine.translate(["The dog is tired."], search, details=True, glossary={"dog": "zorglub"})
        assert "zorglub" in found.text
        assert not found.missing
        sources = {source for source, _ in found.alternatives[0].alignment}
        assert sources <= set(range(4))  # words of the source alone, not of what stood inline


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"terms": {"glossary": "missing.tsv", "share": 0.1}, "tokenizer": {"joint": True}}, "missing.tsv"),
        ({"terms": {"glossary": "x.tsv"}}, "a glossary alone teaches no copying"),
        ({"terms": {"share": 0.1}, "tokenizer": {"joint": False}}, "the same pieces on both sides"),
        ({"terms": {"share": 0.1}, "model": {"positions": "tree"}}, "reads terms inside a source"),
    ],
)
def test_mistakes(grammar_pairs: Path, tmp_path: Path, settings: dict[str, object], problem: str) -> None:
    if problem == "a glossary alone teaches no copying":
        (tmp_path / "x.tsv").write_text("a\tb\n", encoding="utf-8")
        settings = {"terms": {"glossary": str(tmp_path / "x.tsv")}}
    if "model" in settings:
        lines = grammar_pairs.read_text(encoding="utf-8").splitlines()
        heads = [f"{line}\t{' '.join(['0'] * len(line.split(chr(9))[0].split()))}" for line in lines]
        grammar_pairs = tmp_path / "pairs.tsv"
        grammar_pairs.write_text("\n".join(heads) + "\n", encoding="utf-8")
    with pytest.raises(HeedfulError) as caught:
        train(grammar_pairs, tmp_path / "model", settings={"preset": "demo", **settings})
    assert problem in caught.value.problem
    assert not (tmp_path / "model" / "config.json").exists()


NEW_ROLES = {"frog": "boulanger", "rope": "vase", "uncle": "cochon", "horse": "renard", "taxi": "coffre"}
LEARNING = {
    "preset": "tiny",
    "terms": {"share": 1.0, "swapped": 0.8, "longest": 1},
    "tokenizer": {"vocabulary": 500},
    "model": {
        "width": 96,
        "heads": 4,
        "feed_forward_width": 192,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "dropout": 0.05,
    },
    "batches": {"tokens": 1500},
    "training": {
        "updates": 1200,
        "rate": 3e-3,
        "warmup": 100,
        "held_out": 50,
        "bleu_sentences": 20,
        "validate_every": 300,
        "average": 1,
        "precision": "float32",
        "processes": 1,
        "threads": 1,
    },
}


@pytest.mark.slow
def test_a_model_learns_to_copy_translations_that_no_pair_has(tmp_path: Path) -> None:
    """Words in roles that they never had; read inline alone, without search for what is missing."""
    pairs = [(pair.source, pair.target) for pair in generate(6000) if len(pair.source.split()) <= 6]
    write_tsv(pairs, tmp_path / "pairs.tsv")
    engine = train(tmp_path / "pairs.tsv", tmp_path / "model", languages=("en", "fr"), settings=LEARNING)
    assert obeyed_inline(engine, [source for source, _ in pairs[:1000]]) > 0.5


def obeyed_inline(engine: SegmentedEngine, sources: list[str]) -> float:
    """The share of the terms that the model writes because it reads them."""
    search = SearchConfig(glossary_mode="inline")
    terms = TermSearch(engine, Glossary.of(NEW_ROLES), search, details=False)
    wanted = [each for each in terms.wanted(sources) if each.terms]
    jobs = [terms._inline(Job(0, engine._encoded(each.text, search), []), each) for each in wanted]
    found = engine._searched(jobs, search, False)
    missing = sum(len(terms.missing(each, want)) for each, want in zip(found, wanted, strict=True))
    total = sum(len(each.terms) for each in wanted)
    assert total > 20
    return 1 - missing / total
