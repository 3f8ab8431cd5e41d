"""Parts of Heedful used together: memories of many languages, models of several, glossaries, documents."""

from dataclasses import replace
from pathlib import Path

import polib
import pytest

import heedful
from heedful.commands.evaluate import evaluate_command
from heedful.commands.training import TrainOptions, back_translated_part, train_command
from heedful.corpora.formats import write_tsv
from heedful.corpora.grammar import generate
from heedful.corpora.parts import Part
from heedful.corpora.reading import ReadingConfig
from heedful.errors import HeedfulError
from heedful.progress import Reporter
from heedful.text import three_letters
from heedful.training.inputs import Inputs
from heedful.training.starting_model import inputs_to_tune, languages_to_tune
from tests.conftest import run_heedful
from tests.several import LEARNED, new_bundle, saved

QUIET = Reporter(quiet=True)
MEMORY = """<?xml version="1.0" encoding="UTF-8"?>
<tmx version="1.4"><header creationtool="test" creationtoolversion="1" segtype="sentence" o-tmf="test"
  adminlang="en" srclang="en" datatype="plaintext"/><body><tu>
<tuv xml:lang="en"><seg>The dog is tired.</seg></tuv>
<tuv xml:lang="de"><seg>LE CHIEN EST FATIGUÉ.</seg></tuv>
<tuv xml:lang="fr"><seg>Le chien est fatigué.</seg></tuv>
</tu></body></tmx>
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of several languages and a memory of three."""
    base = tmp_path_factory.mktemp("together")
    saved(base / "model")
    (base / "memory.tmx").write_text(MEMORY, encoding="utf-8")
    write_tsv([("The dog.", "Le chien.")], base / "pairs.tsv")
    return base


# ---- a memory of three languages and a model of several


def evaluated(base: Path, to: str = "", read: str = "", languages: tuple[str, str] | None = None) -> str:
    """The direction and, word for word, what was taken for the reference."""
    each = base / "each.tsv"
    lines = evaluate_command(
        [base / "model"],
        [base / "memory.tmx"],
        None,
        each,
        {"beam": 1} | ({"language": to} if to else {}),
        [],
        read=read,
        languages=languages,
        engine="pytorch",
        device="cpu",
        report=QUIET,
    )
    source, reference, *_ = each.read_text(encoding="utf-8").splitlines()[1].split("\t")
    return f"{lines[0]}: {source} = {reference}"


def test_evaluate_takes_the_languages_of_the_model_out_of_a_memory(base: Path) -> None:
    english, german, french = "The dog is tired.", "LE CHIEN EST FATIGUÉ.", "Le chien est fatigué."
    assert evaluated(base, read="en", to="de") == f"en to de: {english} = {german}"
    assert evaluated(base, languages=("en", "de")) == f"en to de: {english} = {german}"
    assert evaluated(base, languages=("en", "fr")) == f"en to fr: {english} = {french}"
    assert evaluated(base, languages=("fr", "de")).endswith(f"(zero-shot): {french} = {german}")


def test_evaluate_says_what_the_model_does_not_write(base: Path) -> None:
    with pytest.raises(HeedfulError, match="does not translate into 'it'"):
        evaluated(base, languages=("en", "it"))


def test_evaluate_asks_which_source_of_several(base: Path) -> None:
    with pytest.raises(HeedfulError, match="holds 3 languages"):
        evaluated(base, to="de")


# ---- what a model to start from cannot learn any more


def test_a_model_without_tags_for_terms_cannot_learn_them(base: Path) -> None:
    with pytest.raises(HeedfulError, match="tags cannot be added to its vocabulary") as caught:
        heedful.train(
            base / "pairs.tsv",
            base / "refused",
            start_from=base / "model",
            settings={"terms": {"share": 0.1}},
            report=QUIET,
        )
    assert "--glossary" in caught.value.hint
    assert not (base / "refused").exists()


def test_a_model_without_their_tag_takes_no_back_translated_pairs(base: Path) -> None:
    part = back_translated_part(str(base / "pairs.tsv"))
    with pytest.raises(HeedfulError, match="no tag 'bt'") as caught:
        heedful.train(
            base / "pairs.tsv", base / "refused", start_from=base / "model", mix=[part], report=QUIET
        )
    assert "--mix" in caught.value.hint
    assert not (base / "refused").exists()


def test_pairs_with_a_tag_of_their_own_have_that_of_the_language_too(base: Path) -> None:
    paths = (base / "pairs.tsv",)
    given = Inputs(paths, languages=("en", "fr"), parts=(Part(paths, tags=("en",)), Part(paths)))
    assert [part.tags for part in inputs_to_tune(base / "model", given).parts] == [
        ("fr",),
        ("fr", "en"),
        ("fr",),
    ]


def test_a_model_takes_its_own_languages_out_of_a_memory(base: Path, quick_model: Path) -> None:
    memory = (base / "memory.tmx",)
    assert languages_to_tune(quick_model, memory) == ("en", "fr")
    assert languages_to_tune(quick_model, (base / "pairs.tsv",)) is None  # whose name may say others
    assert languages_to_tune(base / "model", memory) is None  # which of its languages must be told
    assert languages_to_tune(None, memory) is None


def test_any_source_of_a_model_of_several_is_tuned(base: Path) -> None:
    reading = ReadingConfig(malformed="skip")
    given = Inputs((base / "memory.tmx",), languages=("fr", "de"), reading=reading)
    inputs = inputs_to_tune(base / "model", given)
    assert inputs.reading == reading
    [part] = inputs.parts
    assert (part.languages, part.tags) == (("fr", "de"), ("de",))
    with pytest.raises(HeedfulError, match="these pairs are it-de"):
        inputs_to_tune(base / "model", Inputs((base / "memory.tmx",), languages=("it", "de")))


TUNED_IN_A_SECOND = {
    "training": {"updates": 2, "validate_every": 2, "held_out": 10, "bleu_sentences": 0, "threads": 1}
}


def test_a_direction_is_learned_by_tuning(base: Path) -> None:
    pairs = [(pair.target, pair.target.upper()) for pair in generate(80)]
    write_tsv(pairs, base / "new.tsv")
    tuned = heedful.train(
        base / "new.tsv",
        base / "tuned",
        start_from=base / "model",
        languages=("fr", "de"),
        settings=TUNED_IN_A_SECOND,
        report=QUIET,
    )
    config = tuned.bundle.config
    assert config.directions == (*LEARNED, ("fr", "de"))
    assert config.targets == ("de", "en", "fr")


def test_old_pairs_must_leave_something_to_learn(base: Path) -> None:
    write_tsv([(pair.source, pair.target) for pair in generate(80)], base / "same.tsv")
    with pytest.raises(HeedfulError, match="nothing is left to learn from"):
        heedful.train(
            base / "same.tsv",
            base / "nothing",
            start_from=base / "model",
            languages=("en", "fr"),
            old_validation=base / "same.tsv",
            settings=TUNED_IN_A_SECOND,
            report=QUIET,
        )


@pytest.mark.parametrize("option", ["start_from", "old_validation"])
def test_directions_do_not_start_from_a_model(base: Path, option: str) -> None:
    given = {"start_from": None, "old_validation": ()} | {option: (base / "model",)}
    options = TrainOptions(
        (),
        base / "refused",
        (),
        None,
        (),
        task="translate",
        settings={},
        directions=("en-fr=x.tsv",),
        **given,
    )
    with pytest.raises(HeedfulError, match="does not go with directions"):
        train_command(options, QUIET)


# ---- a glossary and a localisation file

CATALOGUE = """msgid ""
msgstr ""
"Language: de\\n"
"Content-Type: text/plain; charset=UTF-8\\n"

#, c-format
msgid "The dog has %d files.\\n"
msgstr ""

msgid "The cat sees the dog."
msgstr ""
"""


def filled(base: Path, *words: str) -> str:
    """A catalogue as the real command fills it."""
    (base / "messages.po").write_text(CATALOGUE, encoding="utf-8")
    (base / "terms.tsv").write_text("dog\tHund\n", encoding="utf-8")
    done = run_heedful(
        "translate", base / "model", "-i", base / "messages.po", "--to", "de", "--engine", "pytorch", *words
    )
    return done.out if done.status == 0 else done.err


def test_a_catalogue_obeys_language_glossary_and_several_models(base: Path) -> None:
    saved(base / "other")
    terms = "--glossary", str(base / "terms.tsv")
    plain, split, together = (
        [entry.msgstr for entry in polib.pofile(filled(base, *words))]
        for words in ((), (*terms, "--glossary-mode", "split"), (*terms, "--with", str(base / "other")))
    )
    assert not any("Hund" in text for text in plain)
    for texts in (split, together):
        assert all("Hund" in text for text in texts)
        assert "%d" in texts[0]
        assert texts[0].endswith("\n")
    assert split[1] != together[1]  # which is searched for its terms, not put together around them


def test_a_catalogue_says_what_mode_the_model_has_not_learned(base: Path) -> None:
    said = filled(base, "--glossary", str(base / "terms.tsv"), "--glossary-mode", "inline")
    assert "has not learned to read inline terms" in said


# ---- codes of three letters, as models from elsewhere have them


def test_a_language_may_be_called_by_its_other_code() -> None:
    tags = ("fra", "deu", "nds")
    known = new_bundle()
    bundle = replace(known, config=known.config.model_copy(update={"targets": tags, "directions": ()}))
    asked = ("fra", "fr", "FRE", "de", "nds")
    assert [bundle.language_tag(code) for code in asked] == ["fra", "fra", "fra", "deu", "nds"]
    assert bundle.writing("de").config.languages == ("en", "deu")
    assert bundle.writing("de").config.search.language == "deu"
    with pytest.raises(HeedfulError, match="into 'nl'"):
        bundle.language_tag("nl")


def test_every_language_with_two_letters_has_three() -> None:
    from heedful.text.languages import _names

    found = set(three_letters._table().values())
    assert found == {code for code in _names() if len(code) == 2} - {"bh", "iw", "in", "ji", "mo", "zt"}
