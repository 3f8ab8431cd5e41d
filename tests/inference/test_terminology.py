"""Glossaries: every term is in the translation, whatever the model prefers; other sentences do not change."""

from pathlib import Path

import pytest

from heedful.data.glossary import Glossary, find_missing_terms
from heedful.errors import HeedfulError
from heedful.generation.config import GenerationConfig
from heedful.inference.loading import load
from heedful.inference.terminology import build_same_word_predicate, spell_term
from heedful.inference.translator import Translator
from heedful.tokenization.special_tokens import PAD
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
SHORT = {"max_length_offset": 20}


@pytest.fixture(scope="module", params=["pytorch", "ctranslate2"])
def engine(request: pytest.FixtureRequest, quick_model: Path) -> Translator:
    return load(quick_model, engine=request.param, workers=1)


@pytest.mark.parametrize("mode", ["auto", "constrained", "split"])
@pytest.mark.parametrize("beam", [1, 3])
def test_glossary_every_mode_contains_all_terms(engine: Translator, mode: str, beam: int) -> None:
    search = GenerationConfig.from_settings({"beam_size": beam, "n_best": beam, "glossary_mode": mode, **SHORT})
    unconstrained = engine.translate(TEXTS, search)
    translations = engine.translate(TEXTS, search, glossary=GLOSSARY)
    glossary = Glossary.from_mapping(GLOSSARY)
    for text, plain, translation in zip(TEXTS, unconstrained, translations, strict=True):
        assert translation.source == text
        assert not translation.missing_terms
        for alternative in translation.alternatives:
            assert not find_missing_terms(alternative.text, glossary.find_terms(text))
        if not glossary.find_terms(text):
            assert translation == plain
    assert any(
        find_missing_terms(translation.text, glossary.find_terms(translation.source)) for translation in unconstrained
    )


def test_glossary_score_equals_forced_decoding(engine: Translator) -> None:
    text = "The dog is tired."
    vocabulary = engine.model_folder.tokenizer.target.vocabulary.tokens
    for mode in ("constrained", "split"):
        search = GenerationConfig.from_settings({"glossary_mode": mode, **SHORT})
        (translation,) = engine.translate([text], search, details=True, glossary=GLOSSARY)
        best = translation.alternatives[0]
        [log_probabilities] = engine.backend.score(
            [engine.model_folder.source_ids(text, search.target_language)], [[*map(vocabulary.index, best.tokens)]]
        )
        assert best.token_log_probabilities == pytest.approx(
            log_probabilities[: len(best.token_log_probabilities)], abs=2e-3
        )
        assert best.alignment


def test_glossary_satisfied_terms_change_nothing(engine: Translator) -> None:
    search = GenerationConfig.from_settings(SHORT)
    (unconstrained,) = engine.translate(["The dog is tired."], search)
    word = next(word for word in unconstrained.text.split() if word.isalpha())
    (translation,) = engine.translate(["The dog is tired."], search, glossary={"dog": word})
    assert translation == unconstrained


def test_glossary_with_prefix_keeps_both(engine: Translator) -> None:
    search = GenerationConfig.from_settings(SHORT)
    (translation,) = engine.translate(["The dog is tired."], search, ["Le chat"], glossary={"dog": "caniche"})
    assert translation.text.startswith("Le chat")
    assert "caniche" in translation.text.split() or translation.missing_terms == ("caniche",)


def test_glossary_term_beyond_max_length_is_reported_missing(engine: Translator) -> None:
    """With a prefix, the gaps are not translated separately, and the maximum length leaves no room."""
    search = GenerationConfig(max_length_offset=1)
    long_term = " ".join(["caniche"] * 30)
    (translation,) = engine.translate(["The dog."], search, ["Le"], glossary={"dog": long_term})
    assert translation.missing_terms == (long_term,)
    assert not translation.complete


def test_glossary_sampling_contains_terms(engine: Translator) -> None:
    search = GenerationConfig(method="sample", seed=3, max_length_offset=20)
    translations = engine.translate(TEXTS, search, glossary=GLOSSARY)
    assert not any(translation.missing_terms for translation in translations)
    with pytest.raises(HeedfulError, match="sampling does not support"):
        engine.translate(TEXTS, GenerationConfig(method="sample", glossary_mode="constrained"), glossary=GLOSSARY)


def test_glossary_inline_mode_without_training_raises(engine: Translator) -> None:
    with pytest.raises(HeedfulError, match="not trained with inline terms"):
        engine.translate(TEXTS, GenerationConfig(glossary_mode="inline"), glossary=GLOSSARY)


def test_spell_term_returns_forms_with_and_without_space(engine: Translator) -> None:
    tokenizer = engine.model_folder.tokenizer.target
    same_word = build_same_word_predicate(tokenizer)
    for text in ("chien", "maison rouge", "猫", "C++", "(a)"):
        spellings = spell_term(tokenizer, [text])
        assert {tokenizer.decode(spelling) for spelling in spellings} == {text}
        assert any(tokenizer.ids_to_bytes(spelling).decode().startswith("▁") for spelling in spellings)
    spaced, unspaced = spell_term(tokenizer, ["chien"])
    assert tokenizer.ids_to_bytes(unspaced).decode() == "chien"
    [apostrophe] = [token for token in tokenizer.encode("l'") if tokenizer.ids_to_bytes([token]).endswith(b"'")]
    assert not same_word(apostrophe, unspaced[0])
    assert same_word(spaced[-1], unspaced[0])
    assert not same_word(spaced[-1], spaced[0])
    assert not same_word(PAD, unspaced[0])


def test_translate_command_applies_glossary(quick_model: Path, tmp_path: Path) -> None:
    terms = tmp_path / "terms.tsv"
    terms.write_text("# comment\ndog\tcaniche\n", encoding="utf-8")
    lines = tmp_path / "in.txt"
    lines.write_text("The dog is tired.\n\nI am a student.\n", encoding="utf-8")
    out = tmp_path / "out.txt"
    result = run_heedful("translate", quick_model, "--glossary", terms, "-i", lines, "-o", out)
    assert result.status == 0, result.err
    lines_out = out.read_text(encoding="utf-8").split("\n")
    assert len(lines_out) == 4
    assert "caniche" in lines_out[0]
    result = run_heedful("translate", quick_model, "The dog.", "--glossary", terms, "--glossary-mode", "split")
    assert "caniche" in result.out
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("The dog is tired.\tLe chien est fatigué.\n", encoding="utf-8")
    result = run_heedful("evaluate", quick_model, pairs, "--glossary", terms)
    assert "terms 1 of 1   in the references 0" in result.out


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (["--glossary", "missing.tsv"], "missing.tsv"),
        (["--glossary-mode", "split"], "--glossary-mode requires a glossary"),
        (["--glossary", "TERMS", "--glossary-mode", "inline"], "not trained with inline terms"),
        (["--glossary", "TERMS", "--glossary-mode", "force"], "glossary_mode"),
        (["--glossary", "TERMS", "--stream"], "--stream does not support --glossary"),
    ],
)
def test_translate_command_invalid_glossary_options_raise(
    quick_model: Path, tmp_path: Path, args: list[str], problem: str
) -> None:
    terms = tmp_path / "terms.tsv"
    terms.write_text("dog\tcaniche\n", encoding="utf-8")
    resolved_args = [str(terms) if arg == "TERMS" else arg for arg in args]
    result = run_heedful("translate", quick_model, "The dog.", *resolved_args)
    assert result.status != 0
    assert problem in result.err
