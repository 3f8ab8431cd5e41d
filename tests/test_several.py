"""Models of several languages: the tag is chosen by one word, everywhere that a model is used."""

from pathlib import Path

import pytest

import heedful
from heedful.decoding.config import SearchConfig
from heedful.engines.native import NativeEngine
from heedful.errors import HeedfulError
from heedful.inspection.alignment import usual_aligner
from heedful.inspection.asked import Asked
from heedful.inspection.record import record
from heedful.inspection.trace import in_words, trace
from heedful.loading import load
from tests.conftest import run_heedful
from tests.several import LEARNED, SENTENCE, imported, new_bundle, saved


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("several") / "model")


def into(language: str) -> SearchConfig:
    return new_bundle().config.search.model_copy(update={"language": language})


# ---- the model folder


def test_what_a_folder_knows_of_its_directions(folder: Path) -> None:
    config = heedful.load(folder, engine="pytorch").bundle.config
    assert config == new_bundle().config
    assert config.offered == (*LEARNED, ("fr", "de"), ("de", "fr"))
    assert config.is_zero_shot("fr", "de")
    assert not config.is_zero_shot("en", "de")


def test_the_tag_is_the_told_one_or_the_usual_one() -> None:
    bundle = new_bundle()
    plain = bundle.source_ids(SENTENCE)[1:]
    tag = bundle.tokenizer.source.tag
    assert bundle.source_ids(SENTENCE) == [tag("fr"), *plain]
    assert bundle.source_ids(SENTENCE, "de") == [tag("de"), *plain]
    assert bundle.writing("de").source_ids(SENTENCE) == [tag("de"), *plain]
    assert bundle.writing("de").source_ids(SENTENCE, "en") == [tag("en"), *plain]
    assert bundle.source_ids(" ") == []


def test_writing_another_language_names_its_source() -> None:
    bundle = new_bundle()
    assert bundle.writing("de").config.languages == ("en", "de")
    assert bundle.writing("en").config.languages == ("fr", "en")
    assert bundle.writing("de", "fr").config.languages == ("fr", "de")
    assert bundle.writing("") is bundle
    with pytest.raises(HeedfulError, match="does not translate 'de' into 'de'") as caught:
        bundle.writing("de", "de")
    assert "en, fr" in caught.value.hint
    with pytest.raises(HeedfulError, match="into 'it'") as caught:
        bundle.writing("it")
    assert "de, en, fr" in caught.value.hint


def test_a_model_from_elsewhere_needs_nothing_but_its_tags() -> None:
    nameless = imported()
    assert nameless.config.offered == ()
    assert nameless.writing("fr").source_ids(SENTENCE) == new_bundle().source_ids(SENTENCE, "fr")
    assert nameless.writing("fr").config.languages is None
    english = imported(languages=("en", "mul"))
    assert english.config.offered == (("en", "de"), ("en", "fr"))
    assert not english.config.is_zero_shot("en", "de")
    assert english.writing("de").config.languages == ("en", "de")


# ---- engines


def test_each_language_is_another_translation_and_its_own_score() -> None:
    engine = NativeEngine(new_bundle())
    found = {language: engine.translate([SENTENCE], into(language))[0] for language in ("de", "en", "fr")}
    assert len({each.text for each in found.values()}) == 3
    for language, translation in found.items():
        best = translation.alternatives[0]
        if translation.complete:
            [scored] = engine.score([SENTENCE], [best.text], into(language))
            assert scored.log_probability == pytest.approx(best.log_probability, abs=1e-4)
        assert NativeEngine(new_bundle().writing(language)).translate([SENTENCE])[0].text == translation.text


def test_links_count_words_of_the_text_not_the_tag() -> None:
    [found] = NativeEngine(new_bundle()).translate([SENTENCE], into("de"), details=True)
    links = found.alternatives[0].alignment
    assert links
    assert {source for source, _ in links} <= set(range(len(SENTENCE.split())))


@pytest.mark.parametrize("language", ["de", "en", "fr"])
@pytest.mark.parametrize("beam", [1, 3])
def test_ctranslate2_gives_what_pytorch_gives(folder: Path, language: str, beam: int) -> None:
    texts = [SENTENCE, "", "I am a student. The animal didn't cross the street.", "你好 👋 مرحبا"]
    search = into(language).model_copy(update={"beam": beam})
    exact = load(folder, engine="pytorch", device="cpu")
    quick = load(folder, engine="ctranslate2", device="cpu", workers=1)
    compared = 0
    for ours, theirs in zip(exact.translate(texts, search), quick.translate(texts, search), strict=True):
        if beam == 1 or ours.complete:  # a beam that is cut off may be cut off otherwise
            compared += bool(ours.source)
            assert theirs.text == ours.text
            assert theirs.score == pytest.approx(ours.score, abs=2e-3)
    targets = ["Le chien est fatigué."]
    [ours], [theirs] = (each.score([SENTENCE], targets, search) for each in (exact, quick))
    assert theirs.log_probability == pytest.approx(ours.log_probability, abs=1e-3)
    assert compared or beam > 1


# ---- seeing inside


def test_the_tag_is_seen_as_a_token_that_no_word_comes_from() -> None:
    found = record(new_bundle().writing("de"), Asked(source=SENTENCE)).manifest
    source = found["sides"]["source"]
    assert source["pieces"][0] == source["words"][0] == ">>de<<"
    assert source["spans"][0] is None
    assert found["model"]["languages"] == ("en", "de")
    assert found["text"]["source"] == SENTENCE
    links = found["ribbon"]["links"]
    assert links
    assert min(word for word, _ in links) >= 1


def test_words_between_spaces_keep_their_numbers_behind_a_tag() -> None:
    bundle = new_bundle().writing("fr")
    words, target = SENTENCE.split(), "Le chien est fatigué."
    seen = trace(bundle, SENTENCE, target)
    grouped = in_words(bundle, seen, words, target.split())
    assert grouped.source.words == (">>fr<<", *words, "</s>")
    assert grouped.source.groups[0] == 0
    assert grouped.source.groups[1] == 1
    assert grouped.source.groups[-1] == len(words) + 1
    assert seen.tags == 1
    assert usual_aligner(bundle.config.model).weights(grouped).shape == (4, len(words))


def test_a_notebook_chooses_the_language(folder: Path) -> None:
    assert heedful.record(folder, SENTENCE, language="de").manifest["model"]["languages"] == ("en", "de")


# ---- the command line


def test_translate_to(folder: Path, tmp_path: Path) -> None:
    expected = NativeEngine(new_bundle()).translate([SENTENCE], into("de"))[0].text
    exact = ["--engine", "pytorch", "--device", "cpu"]
    done = run_heedful("translate", folder, SENTENCE, "--to", "de", *exact)
    assert done.out == expected + "\n"
    lines = tmp_path / "lines.txt"
    lines.write_text(f"\ufeff{SENTENCE}\r\n\r\n", encoding="utf-8")
    written = tmp_path / "written.txt"
    done = run_heedful("translate", folder, "-i", lines, "-o", written, "--to", "de", *exact)
    assert done.status == 0, done.err
    assert written.read_text(encoding="utf-8") == f"{expected}\n\n"
    done = run_heedful("translate", folder, SENTENCE, "--to", "it")
    assert done.status == 1
    assert "into 'it'" in done.err
    assert "it translates into de, en, fr" in done.err


def test_evaluate_to(folder: Path, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text(f"{SENTENCE}\tLe chien est fatigué.\nI am a student.\tJe suis étudiant.\n")
    losses = {}
    for language in ("fr", "de"):
        each = tmp_path / f"{language}.tsv"
        done = run_heedful("evaluate", folder, pairs, "--to", language, "--each", each, "--engine", "pytorch")
        assert done.status == 0, done.err
        assert done.out.startswith(f"en to {language}\n")
        losses[language] = float(done.out.split("loss")[1].split()[0])
        rows = [line.split("\t") for line in each.read_text().splitlines()[1:]]
        sources, targets = [row[0] for row in rows], [row[1] for row in rows]
        scored = NativeEngine(new_bundle()).score(sources, targets, into(language))
        total = -sum(found.log_probability for found in scored)
        steps = sum(len(found.token_log_probabilities) for found in scored)
        assert losses[language] == pytest.approx(total / steps, abs=1e-3)
        assert float(rows[0][3]) == pytest.approx(scored[0].log_probability, abs=1e-3)
    assert losses["fr"] != losses["de"]
    done = run_heedful("evaluate", folder, pairs, "--from", "fr", "--to", "de")
    assert "fr to de, never learned from (zero-shot)" in done.out
    done = run_heedful("evaluate", folder, pairs, "--from", "it", "--to", "de")
    assert "into de it translates en, fr" in done.err


def test_explain_and_inspect_to(folder: Path, tmp_path: Path) -> None:
    done = run_heedful("explain", folder, SENTENCE, "--to", "de", "--word", "dog", "--steps", "1")
    assert ">>de<<" in done.out, done.err
    done = run_heedful("explain", "mask", "--to", "de")
    assert "--to belongs to a model" in done.err
    done = run_heedful("inspect", folder, SENTENCE, "-o", tmp_path / "page.html", "--to", "de")
    assert NativeEngine(new_bundle()).translate([SENTENCE], into("de"))[0].text in done.out, done.err
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text(f"{SENTENCE}\tLe chien est fatigué.\n")
    done = run_heedful("inspect", folder, "--alignments", pairs, "--layer", "1", "--to", "fr")
    assert done.status == 0, done.err
    assert all(0 <= int(link.split("-")[0]) < 4 for link in done.out.split())
    done = run_heedful("inspect", folder, "--grammar", "--to", "fr")
    assert "--to has no effect with --grammar" in done.err
