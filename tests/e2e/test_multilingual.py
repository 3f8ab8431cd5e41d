"""Multilingual models: the target language selects the tag, in every command and function."""

from pathlib import Path

import pytest

import heedful
from heedful.errors import HeedfulError
from heedful.generation.config import GenerationConfig
from heedful.inference.loading import load
from heedful.inference.translator import Translator
from heedful.interpret.activations import compute_activations, regroup_words
from heedful.interpret.heads import default_aligner
from heedful.interpret.trace import compute_trace
from heedful.interpret.trace_schema import TraceRequest
from tests.conftest import run_heedful
from tests.multilingual_models import LEARNED, SENTENCE, imported, new_model_folder, saved


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("several") / "model")


def into(language: str) -> GenerationConfig:
    return new_model_folder().config.generation.model_copy(update={"target_language": language})


# ---- the model folder


def test_model_folder_lists_directions(folder: Path) -> None:
    config = heedful.load(folder, engine="pytorch").model_folder.config
    assert config == new_model_folder().config
    assert config.supported_directions == (*LEARNED, ("fr", "de"), ("de", "fr"))
    assert config.is_zero_shot("fr", "de")
    assert not config.is_zero_shot("en", "de")


def test_source_ids_start_with_requested_or_default_tag() -> None:
    bundle = new_model_folder()
    plain = bundle.source_ids(SENTENCE)[1:]
    tag = bundle.tokenizer.source.tag_id
    assert bundle.source_ids(SENTENCE) == [tag("fr"), *plain]
    assert bundle.source_ids(SENTENCE, "de") == [tag("de"), *plain]
    assert bundle.for_language("de").source_ids(SENTENCE) == [tag("de"), *plain]
    assert bundle.for_language("de").source_ids(SENTENCE, "en") == [tag("en"), *plain]
    assert bundle.source_ids(" ") == []


def test_for_language_sets_source_language() -> None:
    bundle = new_model_folder()
    assert bundle.for_language("de").config.languages == ("en", "de")
    assert bundle.for_language("en").config.languages == ("fr", "en")
    assert bundle.for_language("de", "fr").config.languages == ("fr", "de")
    assert bundle.for_language("") is bundle
    with pytest.raises(HeedfulError, match="does not translate 'de' into 'de'") as caught:
        bundle.for_language("de", "de")
    assert "en, fr" in caught.value.hint
    with pytest.raises(HeedfulError, match="into 'it'") as caught:
        bundle.for_language("it")
    assert "de, en, fr" in caught.value.hint


def test_imported_model_without_directions_uses_tags() -> None:
    nameless = imported()
    assert nameless.config.supported_directions == ()
    assert nameless.for_language("fr").source_ids(SENTENCE) == new_model_folder().source_ids(SENTENCE, "fr")
    assert nameless.for_language("fr").config.languages is None
    english = imported(languages=("en", "mul"))
    assert english.config.supported_directions == (("en", "de"), ("en", "fr"))
    assert not english.config.is_zero_shot("en", "de")
    assert english.for_language("de").config.languages == ("en", "de")


# ---- engines


def test_translate_each_target_language_scores_itself() -> None:
    engine = Translator.with_pytorch(new_model_folder())
    translations = {language: engine.translate([SENTENCE], into(language))[0] for language in ("de", "en", "fr")}
    assert len({translation.text for translation in translations.values()}) == 3
    for language, translation in translations.items():
        best = translation.alternatives[0]
        if translation.complete:
            [score] = engine.score([SENTENCE], [best.text], into(language))
            assert score.log_probability == pytest.approx(best.log_probability, abs=1e-4)
        assert (
            Translator.with_pytorch(new_model_folder().for_language(language)).translate([SENTENCE])[0].text
            == translation.text
        )


def test_alignment_does_not_count_tag() -> None:
    [translation] = Translator.with_pytorch(new_model_folder()).translate([SENTENCE], into("de"), details=True)
    links = translation.alternatives[0].alignment
    assert links
    assert {source for source, _ in links} <= set(range(len(SENTENCE.split())))


@pytest.mark.parametrize("language", ["de", "en", "fr"])
@pytest.mark.parametrize("beam", [1, 3])
def test_ctranslate2_matches_pytorch(folder: Path, language: str, beam: int) -> None:
    texts = [SENTENCE, "", "I am a student. The animal didn't cross the street.", "你好 👋 مرحبا"]
    search = into(language).model_copy(update={"beam_size": beam})
    pytorch = load(folder, engine="pytorch", device="cpu")
    ctranslate2 = load(folder, engine="ctranslate2", device="cpu", workers=1)
    comparisons = 0
    for ours, theirs in zip(pytorch.translate(texts, search), ctranslate2.translate(texts, search), strict=True):
        if beam == 1 or ours.complete:  # truncated hypotheses may differ
            comparisons += bool(ours.source)
            assert theirs.text == ours.text
            assert theirs.score == pytest.approx(ours.score, abs=2e-3)
    targets = ["Le chien est fatigué."]
    [ours], [theirs] = (engine.score([SENTENCE], targets, search) for engine in (pytorch, ctranslate2))
    assert theirs.log_probability == pytest.approx(ours.log_probability, abs=1e-3)
    assert comparisons or beam > 1


# ---- traces and activations


def test_trace_shows_tag_as_unaligned_token() -> None:
    manifest = compute_trace(new_model_folder().for_language("de"), TraceRequest(source=SENTENCE)).manifest
    source = manifest["sides"]["source"]
    assert source["subwords"][0] == source["words"][0] == ">>de<<"
    assert source["spans"][0] is None
    assert manifest["model"]["languages"] == ["en", "de"]
    assert manifest["text"]["source"] == SENTENCE
    links = manifest["alignment"]["links"]
    assert links
    assert min(word for word, _ in links) >= 1


def test_word_indices_do_not_count_tag() -> None:
    bundle = new_model_folder().for_language("fr")
    words, target = SENTENCE.split(), "Le chien est fatigué."
    activations = compute_activations(bundle, SENTENCE, target)
    regrouped = regroup_words(bundle, activations, words, target.split())
    assert regrouped.source.words == (">>fr<<", *words, "</s>")
    assert regrouped.source.word_ids[0] == 0
    assert regrouped.source.word_ids[1] == 1
    assert regrouped.source.word_ids[-1] == len(words) + 1
    assert activations.tag_count == 1
    assert default_aligner(bundle.config.model).weights(regrouped).shape == (4, len(words))


def test_trace_with_target_language_uses_it(folder: Path) -> None:
    assert heedful.trace(folder, SENTENCE, target_language="de").manifest["model"]["languages"] == ["en", "de"]


# ---- the command line


def test_cli_translate_to_language_uses_it(folder: Path, tmp_path: Path) -> None:
    expected = Translator.with_pytorch(new_model_folder()).translate([SENTENCE], into("de"))[0].text
    options = ["--engine", "pytorch", "--device", "cpu"]
    result = run_heedful("translate", folder, SENTENCE, "--to", "de", *options)
    assert result.out == expected + "\n"
    lines = tmp_path / "lines.txt"
    lines.write_text(f"\ufeff{SENTENCE}\r\n\r\n", encoding="utf-8")
    output = tmp_path / "written.txt"
    result = run_heedful("translate", folder, "-i", lines, "-o", output, "--to", "de", *options)
    assert result.status == 0, result.err
    assert output.read_text(encoding="utf-8") == f"{expected}\n\n"
    result = run_heedful("translate", folder, SENTENCE, "--to", "it")
    assert result.status == 1
    assert "into 'it'" in result.err
    assert "it translates into de, en, fr" in result.err


def test_cli_evaluate_to_language_scores_with_it(folder: Path, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text(f"{SENTENCE}\tLe chien est fatigué.\nI am a student.\tJe suis étudiant.\n")
    losses = {}
    for language in ("fr", "de"):
        scores_path = tmp_path / f"{language}.tsv"
        result = run_heedful(
            "evaluate", folder, pairs, "--to", language, "--sentence-scores", scores_path, "--engine", "pytorch"
        )
        assert result.status == 0, result.err
        assert result.out.startswith(f"en to {language}\n")
        losses[language] = float(result.out.split("loss")[1].split()[0])
        rows = [line.split("\t") for line in scores_path.read_text().splitlines()[1:]]
        sources, targets = [row[0] for row in rows], [row[1] for row in rows]
        scores = Translator.with_pytorch(new_model_folder()).score(sources, targets, into(language))
        total = -sum(score.log_probability for score in scores)
        steps = sum(len(score.token_log_probabilities) for score in scores)
        assert losses[language] == pytest.approx(total / steps, abs=1e-3)
        assert float(rows[0][3]) == pytest.approx(scores[0].log_probability, abs=1e-3)
    assert losses["fr"] != losses["de"]
    result = run_heedful("evaluate", folder, pairs, "--from", "fr", "--to", "de")
    assert "fr to de (zero-shot" in result.out
    result = run_heedful("evaluate", folder, pairs, "--from", "it", "--to", "de")
    assert "into de it translates from en, fr" in result.err


def test_cli_explain_and_inspect_to_language_use_it(folder: Path, tmp_path: Path) -> None:
    result = run_heedful("explain", folder, SENTENCE, "--to", "de", "--word", "dog", "--steps", "1")
    assert ">>de<<" in result.out, result.err
    result = run_heedful("explain", "mask", "--to", "de")
    assert "--to belongs to a model" in result.err
    result = run_heedful("inspect", folder, SENTENCE, "-o", tmp_path / "page.html", "--to", "de")
    assert Translator.with_pytorch(new_model_folder()).translate([SENTENCE], into("de"))[0].text in result.out, (
        result.err
    )
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text(f"{SENTENCE}\tLe chien est fatigué.\n")
    result = run_heedful("inspect", folder, "--alignments", pairs, "--layer", "1", "--to", "fr")
    assert result.status == 0, result.err
    assert all(0 <= int(link.split("-")[0]) < 4 for link in result.out.split())
    result = run_heedful("inspect", folder, "--grammar", "--to", "fr")
    assert "--to has no effect with --grammar" in result.err
