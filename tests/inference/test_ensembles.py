"""Features combined: multilingual TMX files, multilingual models, fine-tuning, glossaries, ensembles, documents."""

from dataclasses import replace
from pathlib import Path

import polib
import pytest

import heedful
from heedful.cli.train import parse_back_translation
from heedful.cli.train import train as train_command
from heedful.data.config import ReadingConfig
from heedful.data.corpus import CorpusInputs, CorpusSource, make_sources
from heedful.data.demo_corpus.grammar import generate_pairs
from heedful.data.reader import write_tsv
from heedful.errors import HeedfulError
from heedful.progress import Reporter
from heedful.training.finetuning import build_finetuning_inputs, get_finetuning_languages
from heedful.workflows.evaluate import EvaluateOptions, evaluate_model
from tests.conftest import run_heedful
from tests.multilingual_models import LEARNED, new_model_folder, saved

QUIET = Reporter(quiet=True)
TMX = """<?xml version="1.0" encoding="UTF-8"?>
<tmx version="1.4"><header creationtool="test" creationtoolversion="1" segtype="sentence" o-tmf="test"
  adminlang="en" srclang="en" datatype="plaintext"/><body><tu>
<tuv xml:lang="en"><seg>The dog is tired.</seg></tuv>
<tuv xml:lang="de"><seg>LE CHIEN EST FATIGUÉ.</seg></tuv>
<tuv xml:lang="fr"><seg>Le chien est fatigué.</seg></tuv>
</tu></body></tmx>
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a multilingual model and a TMX file of three languages."""
    base = tmp_path_factory.mktemp("ensembles")
    saved(base / "model")
    (base / "memory.tmx").write_text(TMX, encoding="utf-8")
    write_tsv([("The dog.", "Le chien.")], base / "pairs.tsv")
    return base


# ---- a TMX file of three languages and a multilingual model


def evaluate_memory(
    base: Path, target_language: str = "", source_language: str = "", languages: tuple[str, str] | None = None
) -> str:
    """Evaluate on the TMX file; return the direction, the source and the reference."""
    scores_path = base / "scores.tsv"
    options = EvaluateOptions(
        models=(base / "model",),
        pairs=(base / "memory.tmx",),
        sentence_scores=scores_path,
        generation_overrides={"beam_size": 1} | ({"target_language": target_language} if target_language else {}),
        source_language=source_language,
        languages=languages,
        engine="pytorch",
        device="cpu",
    )
    lines = evaluate_model(options, QUIET)
    source, reference, *_ = scores_path.read_text(encoding="utf-8").splitlines()[1].split("\t")
    return f"{lines[0]}: {source} = {reference}"


def test_evaluate_multilingual_tmx_uses_languages_of_model(base: Path) -> None:
    english, german, french = "The dog is tired.", "LE CHIEN EST FATIGUÉ.", "Le chien est fatigué."
    assert evaluate_memory(base, source_language="en", target_language="de") == f"en to de: {english} = {german}"
    assert evaluate_memory(base, languages=("en", "de")) == f"en to de: {english} = {german}"
    assert evaluate_memory(base, languages=("en", "fr")) == f"en to fr: {english} = {french}"
    assert evaluate_memory(base, languages=("fr", "de")).endswith(
        f"(zero-shot: not in the training data): {french} = {german}"
    )


def test_evaluate_unsupported_target_language_raises(base: Path) -> None:
    with pytest.raises(HeedfulError, match="does not translate into 'it'"):
        evaluate_memory(base, languages=("en", "it"))


def test_evaluate_ambiguous_source_language_raises(base: Path) -> None:
    with pytest.raises(HeedfulError, match="has 3 languages"):
        evaluate_memory(base, target_language="de")


# ---- fine-tuning


def test_finetuning_inline_terms_without_tags_raises(base: Path) -> None:
    with pytest.raises(HeedfulError, match="their tags cannot be added") as error:
        heedful.train(
            base / "pairs.tsv",
            base / "refused",
            init_from=base / "model",
            settings={"inline_terms": {"fraction": 0.1}},
            report=QUIET,
        )
    assert "--glossary" in error.value.hint
    assert not (base / "refused").exists()


def test_finetuning_back_translated_pairs_without_tag_raises(base: Path) -> None:
    back_translated = parse_back_translation(str(base / "pairs.tsv"))
    with pytest.raises(HeedfulError, match="no tag 'bt'") as error:
        heedful.train(
            base / "pairs.tsv", base / "refused", init_from=base / "model", mix=[back_translated], report=QUIET
        )
    assert "--mix" in error.value.hint
    assert not (base / "refused").exists()


def test_finetuning_tagged_pairs_also_get_language_tag(base: Path) -> None:
    paths = (base / "pairs.tsv",)
    corpus_inputs = CorpusInputs(
        (*make_sources(paths), CorpusSource(paths, tags=("en",)), CorpusSource(paths)), languages=("en", "fr")
    )
    assert [source.tags for source in build_finetuning_inputs(base / "model", corpus_inputs).sources] == [
        ("fr",),
        ("fr", "en"),
        ("fr",),
    ]


def test_finetuning_multilingual_tmx_uses_languages_of_model(base: Path, quick_model: Path) -> None:
    memory = (base / "memory.tmx",)
    assert get_finetuning_languages(quick_model, memory) == ("en", "fr")
    assert get_finetuning_languages(quick_model, (base / "pairs.tsv",)) is None  # its name may give other languages
    assert get_finetuning_languages(base / "model", memory) is None  # ambiguous: the model has several directions


def test_finetuning_multilingual_model_accepts_any_source_language(base: Path) -> None:
    reading = ReadingConfig(malformed="skip")
    corpus_inputs = CorpusInputs(make_sources((base / "memory.tmx",)), languages=("fr", "de"), reading=reading)
    inputs = build_finetuning_inputs(base / "model", corpus_inputs)
    assert inputs.reading == reading
    [source] = inputs.sources
    assert (source.languages, source.tags) == (("fr", "de"), ("de",))
    with pytest.raises(HeedfulError, match="the pairs are it-de"):
        build_finetuning_inputs(
            base / "model", CorpusInputs(make_sources((base / "memory.tmx",)), languages=("it", "de"))
        )


FAST_SETTINGS = {
    "training": {"max_updates": 2, "validate_every": 2, "validation_size": 10, "bleu_sentences": 0, "threads": 1}
}


def test_finetuning_adds_zero_shot_direction(base: Path) -> None:
    pairs = [(pair.target, pair.target.upper()) for pair in generate_pairs(80)]
    write_tsv(pairs, base / "new.tsv")
    tuned = heedful.train(
        base / "new.tsv",
        base / "tuned",
        init_from=base / "model",
        languages=("fr", "de"),
        settings=FAST_SETTINGS,
        report=QUIET,
    )
    config = tuned.model_folder.config
    assert config.directions == (*LEARNED, ("fr", "de"))
    assert config.target_languages == ("de", "en", "fr")


def test_finetuning_original_validation_equal_to_training_raises(base: Path) -> None:
    write_tsv([(pair.source, pair.target) for pair in generate_pairs(80)], base / "same.tsv")
    with pytest.raises(HeedfulError, match="no training pairs are left"):
        heedful.train(
            base / "same.tsv",
            base / "nothing",
            init_from=base / "model",
            languages=("en", "fr"),
            original_validation=base / "same.tsv",
            settings=FAST_SETTINGS,
            report=QUIET,
        )


def test_train_directions_with_finetuning_options_raises(base: Path) -> None:
    for options in ({"init_from": base / "model"}, {"original_validation": [base / "model"]}):
        with pytest.raises(HeedfulError, match="cannot be combined with --direction"):
            train_command(output=base / "refused", direction=["en-fr=x.tsv"], quiet=True, **options)


# ---- glossaries and localization files

CATALOG = """msgid ""
msgstr ""
"Language: de\\n"
"Content-Type: text/plain; charset=UTF-8\\n"

#, c-format
msgid "The dog has %d files.\\n"
msgstr ""

msgid "The cat sees the dog."
msgstr ""
"""


def translate_catalog(base: Path, *args: str) -> str:
    """Translate the catalog with the command line; return it, or the error message."""
    (base / "messages.po").write_text(CATALOG, encoding="utf-8")
    (base / "terms.tsv").write_text("dog\tHund\n", encoding="utf-8")
    result = run_heedful(
        "translate", base / "model", "-i", base / "messages.po", "--to", "de", "--engine", "pytorch", *args
    )
    return result.out if result.status == 0 else result.err


def test_translate_po_with_ensemble_applies_language_and_glossary(base: Path) -> None:
    saved(base / "other")
    terms = "--glossary", str(base / "terms.tsv")
    plain, split, constrained = (
        [entry.msgstr for entry in polib.pofile(translate_catalog(base, *args))]
        for args in ((), (*terms, "--glossary-mode", "split"), (*terms, "--with", str(base / "other")))
    )
    assert not any("Hund" in text for text in plain)
    for texts in (split, constrained):
        assert all("Hund" in text for text in texts)
        assert "%d" in texts[0]
        assert texts[0].endswith("\n")
    assert split[1] != constrained[1]  # constrained search, not gaps translated separately


def test_translate_po_untrained_glossary_mode_raises(base: Path) -> None:
    error = translate_catalog(base, "--glossary", str(base / "terms.tsv"), "--glossary-mode", "inline")
    assert "not trained with inline terms" in error


# ---- three-letter language codes, as in imported models


def test_language_tag_accepts_other_iso_code() -> None:
    tags = ("fra", "deu", "nds")
    model_folder = new_model_folder()
    renamed = replace(
        model_folder, config=model_folder.config.model_copy(update={"target_languages": tags, "directions": ()})
    )
    codes = ("fra", "fr", "FRE", "de", "nds")
    assert [renamed.language_tag(code) for code in codes] == ["fra", "fra", "fra", "deu", "nds"]
    assert renamed.for_language("de").config.languages == ("en", "deu")
    assert renamed.for_language("de").config.generation.target_language == "deu"
    with pytest.raises(HeedfulError, match="into 'nl'"):
        renamed.language_tag("nl")
