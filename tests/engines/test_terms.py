"""A glossary in the engines: every term is there, whatever the model would say; the rest stays as it is."""

from pathlib import Path

import pytest

from heedful.api import load
from heedful.decoding.config import SearchConfig
from heedful.engines.segmented import SegmentedEngine
from heedful.engines.terms import joined_tokens, spelled
from heedful.errors import HeedfulError
from heedful.text.glossary import Glossary, missing_terms
from heedful.text.tokenizer import PAD
from tests.conftest import run_heedful

TEXTS = [
    "The dog is tired.",
    "I am a student.",
    "",
    " The animal didn't cross the street.\n\nThe dog sees the dog. ",
    "Dog!",
    "你好 👋",
]
GLOSSARY = {"dog": "caniche royal", "street": "كلب", "animal": "猫", "你好": "bonjour", "tired": "C++"}
SHORT = {"extra_length": 20}


@pytest.fixture(scope="module", params=["pytorch", "ctranslate2"])
def engine(request: pytest.FixtureRequest, quick_model: Path) -> SegmentedEngine:
    return load(quick_model, engine=request.param, workers=1)


@pytest.mark.parametrize("mode", ["auto", "constrain", "split"])
@pytest.mark.parametrize("beam", [1, 3])
def test_every_term_is_there(engine: SegmentedEngine, mode: str, beam: int) -> None:
    search = SearchConfig.checked({"beam": beam, "n_best": beam, "glossary_mode": mode, **SHORT})
    free = engine.translate(TEXTS, search)
    found = engine.translate(TEXTS, search, glossary=GLOSSARY)
    glossary = Glossary.of(GLOSSARY)
    for text, plain, translation in zip(TEXTS, free, found, strict=True):
        assert translation.source == text
        assert not translation.missing
        for alternative in translation.alternatives:
            assert not missing_terms(alternative.text, glossary.terms(text))
        if not glossary.terms(text):
            assert translation == plain
    assert any(missing_terms(each.text, glossary.terms(each.source)) for each in free)


def test_the_score_is_the_models_own(engine: SegmentedEngine) -> None:
    text = "The dog is tired."
    pieces = engine.bundle.tokenizer.target.vocabulary.pieces
    for mode in ("constrain", "split"):
        search = SearchConfig.checked({"glossary_mode": mode, **SHORT})
        (found,) = engine.translate([text], search, details=True, glossary=GLOSSARY)
        best = found.alternatives[0]
        [gained] = engine._scored([engine._encoded(text, search)], [[*map(pieces.index, best.tokens)]])
        assert best.token_log_probabilities == pytest.approx(
            gained[: len(best.token_log_probabilities)], abs=2e-3
        )
        assert best.alignment


def test_what_has_its_terms_already_is_left_alone(engine: SegmentedEngine) -> None:
    search = SearchConfig.checked(SHORT)
    (free,) = engine.translate(["The dog is tired."], search)
    word = next(word for word in free.text.split() if word.isalpha())
    (found,) = engine.translate(["The dog is tired."], search, glossary={"dog": word})
    assert found == free


def test_a_prefix_is_kept_beside_the_terms(engine: SegmentedEngine) -> None:
    search = SearchConfig.checked(SHORT)
    (found,) = engine.translate(["The dog is tired."], search, ["Le chat"], glossary={"dog": "caniche"})
    assert found.text.startswith("Le chat")
    assert "caniche" in found.text.split() or found.missing == ("caniche",)


def test_no_room_for_a_term_is_told(engine: SegmentedEngine) -> None:
    """With a prefix nothing is put together from parts, and the longest length leaves no room."""
    search = SearchConfig(extra_length=1)
    long = " ".join(["caniche"] * 30)
    (found,) = engine.translate(["The dog."], search, ["Le"], glossary={"dog": long})
    assert found.missing == (long,)
    assert not found.complete


def test_sampling_obeys_too(engine: SegmentedEngine) -> None:
    search = SearchConfig(method="sample", seed=3, extra_length=20)
    found = engine.translate(TEXTS, search, glossary=GLOSSARY)
    assert not any(each.missing for each in found)
    with pytest.raises(HeedfulError, match="drawn at random"):
        engine.translate(TEXTS, SearchConfig(method="sample", glossary_mode="constrain"), glossary=GLOSSARY)


def test_a_model_without_inline_terms_says_so(engine: SegmentedEngine) -> None:
    with pytest.raises(HeedfulError, match="has not learned to read inline terms"):
        engine.translate(TEXTS, SearchConfig(glossary_mode="inline"), glossary=GLOSSARY)


def test_terms_are_spelled_with_and_without_a_space(engine: SegmentedEngine) -> None:
    tokenizer = engine.bundle.tokenizer.target
    joined = joined_tokens(tokenizer)
    for text in ("chien", "maison rouge", "猫", "C++", "(a)"):
        spellings = spelled(tokenizer, [text])
        assert {tokenizer.decode(spelling) for spelling in spellings} == {text}
        assert any(tokenizer.spelled(spelling).decode().startswith("▁") for spelling in spellings)
    spaced, unspaced = spelled(tokenizer, ["chien"])
    assert tokenizer.spelled(unspaced).decode() == "chien"
    [apostrophe] = [token for token in tokenizer.encode("l'") if tokenizer.spelled([token]).endswith(b"'")]
    assert not joined(apostrophe, unspaced[0])
    assert joined(spaced[-1], unspaced[0])
    assert not joined(spaced[-1], spaced[0])
    assert not joined(PAD, unspaced[0])


def test_command_line(quick_model: Path, tmp_path: Path) -> None:
    terms = tmp_path / "terms.tsv"
    terms.write_text("# ours\ndog\tcaniche\n", encoding="utf-8")
    lines = tmp_path / "in.txt"
    lines.write_text("The dog is tired.\n\nI am a student.\n", encoding="utf-8")
    out = tmp_path / "out.txt"
    done = run_heedful("translate", quick_model, "--glossary", terms, "-i", lines, "-o", out)
    assert done.status == 0, done.err
    written = out.read_text(encoding="utf-8").split("\n")
    assert len(written) == 4
    assert "caniche" in written[0]
    done = run_heedful("translate", quick_model, "The dog.", "--glossary", terms, "--glossary-mode", "split")
    assert "caniche" in done.out
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("The dog is tired.\tLe chien est fatigué.\n", encoding="utf-8")
    done = run_heedful("evaluate", quick_model, pairs, "--glossary", terms)
    assert "terms 1 of 1   in the references 0" in done.out


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--glossary", "missing.tsv"], "missing.tsv"),
        (["--glossary-mode", "split"], "--glossary-mode says how a glossary is used"),
        (["--glossary", "TERMS", "--glossary-mode", "inline"], "has not learned to read inline terms"),
        (["--glossary", "TERMS", "--glossary-mode", "force"], "glossary_mode"),
        (["--glossary", "TERMS", "--stream"], "--glossary is for whole translations"),
    ],
)
def test_mistakes_on_the_command_line(
    quick_model: Path, tmp_path: Path, words: list[str], problem: str
) -> None:
    terms = tmp_path / "terms.tsv"
    terms.write_text("dog\tcaniche\n", encoding="utf-8")
    given = [str(terms) if word == "TERMS" else word for word in words]
    done = run_heedful("translate", quick_model, "The dog.", *given)
    assert done.status != 0
    assert problem in done.err
