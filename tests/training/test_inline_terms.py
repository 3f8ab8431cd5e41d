"""Terms inside sources: found in pairs, written with tags, learned, and copied into roles never seen."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from heedful.data.cleaning import Pair
from heedful.data.config import TermsConfig
from heedful.data.corpus import IndexedPair
from heedful.data.demo_corpus.grammar import generate_pairs
from heedful.data.glossary import TERM_TAGS, Glossary, TermFinder, TermWriter, format_term_notes
from heedful.data.reader import write_tsv
from heedful.errors import HeedfulError
from heedful.generation.config import GenerationConfig
from heedful.inference.loading import load
from heedful.inference.terminology import TermSearch
from heedful.inference.translation import SearchInput
from heedful.inference.translator import Translator
from heedful.tokenization.special_tokens import add_tags, split_tags
from heedful.workflows.train import train
from tests.conftest import run_heedful

GRAMMAR = [Pair(pair.source, pair.target) for pair in generate_pairs(400)]


def notes_of(writer: TermWriter) -> list[str]:
    return format_term_notes(writer.config, writer.glossary_term_pairs, writer.extracted_term_pairs)


def written(config: TermsConfig, pairs: list[Pair]) -> tuple[list[Pair], TermWriter]:
    """The pairs that were added."""

    def numbered() -> Iterator[IndexedPair]:
        return ((0, pair) for pair in pairs)

    writer = TermWriter(config, numbered)
    every = [pair for _, pair in writer.iter_pairs()]
    assert [pair for pair in every if not _tags(pair)] == [pair for pair in pairs if not _tags(pair)]
    return [pair for pair in every if TERM_TAGS[0] in _tags(pair)], writer


def _tags(pair: Pair) -> list[str]:
    return [part for part, is_tag in split_tags(pair.source) if is_tag]


def _terms(pair: Pair) -> list[tuple[str, str]]:
    """Terms and translations, as they stand inline."""
    found = list(split_tags(pair.source))
    return [(found[i + 1][0], found[i + 3][0]) for i, part in enumerate(found) if part == (TERM_TAGS[0], True)]


def test_term_finder_aligns_words() -> None:
    finder = TermFinder(GRAMMAR, max_words=3)
    source, target = "The dog is tired.", "Le chien est fatigué."
    found = {
        (source[slice(*match.source)], target[slice(*match.target)]) for match in finder.find_matches(source, target)
    }
    assert ("dog", "chien") in found
    assert all(len(one.split()) <= 3 for one, _ in found)
    assert ("Tom", "Tom") in {
        ("Tom saw it"[slice(*match.source)], "Il vit Tom"[slice(*match.target)])
        for match in finder.find_matches("Tom saw it", "Il vit Tom")
    }


@pytest.mark.parametrize("swapped", [0.0, 1.0])
def test_inline_terms_are_in_the_target(swapped: float) -> None:
    added, writer = written(TermsConfig(fraction=0.5, swap_fraction=swapped), GRAMMAR)
    assert 100 < len(added) < 250
    assert f"{len(added)} pairs repeated with inline terms" in notes_of(writer)[0]
    known = {pair.target for pair in GRAMMAR}
    for pair in added:
        terms = _terms(pair)
        assert 1 <= len(terms) <= 2
        assert all(translation in pair.target for _, translation in terms)
        assert (pair.target in known) == (not swapped) or swapped
    assert written(TermsConfig(fraction=0.5, swap_fraction=swapped), GRAMMAR)[0] == added  # nothing is left to chance


def test_inline_terms_zero_fraction_adds_nothing() -> None:
    added, writer = written(TermsConfig(), GRAMMAR)
    assert not added
    assert not notes_of(writer)


def test_inline_terms_glossary_takes_precedence(tmp_path: Path) -> None:
    path = tmp_path / "terms.tsv"
    path.write_text("the dog\tle chien\nnever\tjamais\n", encoding="utf-8")
    pairs = [
        *GRAMMAR,
        Pair("See the dog run.", "Regarde le chien courir."),
        Pair("I never go.", "Je ne vais pas."),
        Pair(add_tags("The dog", "fr"), "Le chien"),
    ]
    added, writer = written(TermsConfig(fraction=0.01, glossary=str(path)), pairs)
    terms = [_terms(pair) for pair in added]
    assert [("the dog", "le chien")] in terms
    assert not any("never" in source for each in terms for source, _ in each)
    assert any(_tags(pair) == ["fr", *TERM_TAGS] for pair in added)
    assert "of them with glossary terms" in notes_of(writer)[0]


def test_inline_terms_of_other_scripts() -> None:
    pairs = [Pair(f"我喜欢{c}。", f"أحب {a}") for c, a in [("猫", "القطة"), ("狗", "الكلب"), ("书", "الكتاب")] * 9]
    added, _ = written(TermsConfig(fraction=1.0, swap_fraction=0.0), pairs)
    assert added
    assert {("猫", "القطة"), ("狗", "الكلب")} & {term for pair in added for term in _terms(pair)}


QUICK = {
    "preset": "demo",
    "tokenizer": {"model_type": "bpe", "joint_vocabulary": True, "vocab_size": 700},
    "model": {"d_model": 16, "heads": 2, "d_ff": 32, "encoder_layers": 1, "decoder_layers": 1},
    "training": {"max_updates": 6, "validation_size": 20, "bleu_sentences": 2, "threads": 1},
}


def test_train_with_inline_terms_command_end_to_end(grammar_pairs: Path, tmp_path: Path) -> None:
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
        "train", grammar_pairs, "-o", folder, "--preset", "demo", "--languages", "en-fr", "--glossary", terms, *words
    )
    assert done.status == 0, done.err
    assert "repeated with inline terms" in done.err + done.out
    for engine in (load(folder, engine="pytorch"), load(folder, engine="ctranslate2", workers=1)):
        assert engine.model_folder.config.inline_terms
        search = GenerationConfig(glossary_mode="inline", max_length_offset=10, beam_size=2)
        (found,) = engine.translate(["The dog is tired."], search, details=True, glossary={"dog": "zorglub"})
        assert "zorglub" in found.text
        assert not found.missing_terms
        sources = {source for source, _ in found.alternatives[0].alignment}
        assert sources <= set(range(4))  # words of the source alone, not of what stood inline


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            {"inline_terms": {"glossary": "missing.tsv", "fraction": 0.1}, "tokenizer": {"joint_vocabulary": True}},
            "missing.tsv",
        ),
        ({"inline_terms": {"glossary": "x.tsv"}}, "needs inline_terms.fraction"),
        (
            {"inline_terms": {"fraction": 0.1}, "tokenizer": {"joint_vocabulary": False}},
            "the same subwords on both sides",
        ),
        (
            {"inline_terms": {"fraction": 0.1}, "model": {"positions": "dependency"}},
            "need a translation model without dependency trees",
        ),
    ],
)
def test_inline_terms_invalid_settings_are_errors(
    grammar_pairs: Path, tmp_path: Path, settings: dict[str, object], problem: str
) -> None:
    if problem == "needs inline_terms.fraction":
        (tmp_path / "x.tsv").write_text("a\tb\n", encoding="utf-8")
        settings = {"inline_terms": {"glossary": str(tmp_path / "x.tsv")}}
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
    "inline_terms": {"fraction": 1.0, "swap_fraction": 0.8, "max_words": 1},
    "tokenizer": {"vocab_size": 500},
    "model": {"d_model": 96, "heads": 4, "d_ff": 192, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.05},
    "batching": {"max_tokens": 1500},
    "training": {
        "max_updates": 1200,
        "learning_rate": 3e-3,
        "warmup_updates": 100,
        "validation_size": 50,
        "bleu_sentences": 20,
        "validate_every": 300,
        "average_checkpoints": 1,
        "precision": "float32",
        "processes": 1,
        "threads": 1,
    },
}


@pytest.mark.slow
def test_train_with_inline_terms_copies_unseen_translations(tmp_path: Path) -> None:
    """Words in roles that they never had; read inline alone, without search for what is missing."""
    pairs = [(pair.source, pair.target) for pair in generate_pairs(6000) if len(pair.source.split()) <= 6]
    write_tsv(pairs, tmp_path / "pairs.tsv")
    engine = train(tmp_path / "pairs.tsv", tmp_path / "model", languages=("en", "fr"), settings=LEARNING)
    assert obeyed_inline(engine, [source for source, _ in pairs[:1000]]) > 0.5


def obeyed_inline(engine: Translator, sources: list[str]) -> float:
    """Fraction of the inline terms that the model copies."""
    search = GenerationConfig(glossary_mode="inline")
    terms = TermSearch(engine.backend, Glossary.from_mapping(NEW_ROLES), search, engine.translate, with_attention=False)
    wanted = [each for each in terms.find_terms(sources) if each.terms]
    jobs = [
        terms._add_inline_terms(
            SearchInput(engine.model_folder.source_ids(each.text, search.target_language), []), each
        )
        for each in wanted
    ]
    found = engine.backend.search(jobs, search)
    missing = sum(len(terms.find_missing(each, want)) for each, want in zip(found, wanted, strict=True))
    total = sum(len(each.terms) for each in wanted)
    assert total > 20
    return 1 - missing / total
