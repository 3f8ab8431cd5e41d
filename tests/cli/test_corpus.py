"""Foreign file formats on the command line: all verbs that read pairs, `corpus convert` and `corpus gettext`."""

from pathlib import Path

import polib
import pytest

from heedful.data.formats.gettext import CatalogSelection
from heedful.data.formats.writers import write_pairs
from heedful.data.reader import read_pairs
from heedful.errors import HeedfulError
from heedful.files import read_json
from heedful.model_folder import ModelFolderConfig
from heedful.workflows.corpus import CorpusInput, collect_catalogs, convert_corpus
from tests.conftest import QUICK_SETTINGS, run_heedful

MALFORMED_TMX = (
    '<tmx version="1.4"><header srclang="en"/><body>\n'
    '<tu><tuv xml:lang="en-GB"><seg>Hi</seg></tuv><tuv xml:lang="en-US"><seg>Hey</seg></tuv>'
    '<tuv xml:lang="de"><seg>Na <ph>%s</ph></seg></tuv></tu>\n'
    '<tu><tuv xml:lang="en"><seg>a < b</seg></tuv></tu>\n'
    '<tu><tuv xml:lang="en"><seg>Yes</seg></tuv><tuv xml:lang="de"><seg>Ja</seg></tuv></tu>\n</body></tmx>\n'
)


@pytest.fixture(scope="module")
def memory(grammar_pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs of the demo grammar as a TMX file with another extension."""
    path = tmp_path_factory.mktemp("memory") / "memory.xml"
    pairs = [(record.source or "", record.target or "") for record in read_pairs([grammar_pairs])]
    write_pairs(pairs, path, "tmx", ("en-GB", "fr"))
    return path


def test_train_and_evaluate_read_every_format(memory: Path, tmp_path: Path) -> None:
    """A model has the languages of its training file, and they select pairs of other files, in either order."""
    settings = [arg for setting in QUICK_SETTINGS for arg in ("--set", setting)]
    model = tmp_path / "model"
    result = run_heedful("train", memory, "-o", model, "--set", "reading.inline_tags=keep", *settings)
    assert result.status == 0, result.err
    assert "languages are not known" not in result.err
    config = read_json(model / "config.json", "")
    assert config["languages"] == ["en-GB", "fr"]
    assert ModelFolderConfig.from_settings(config).languages == ("en-GB", "fr")
    test = tmp_path / "test.xlf"
    write_pairs([("la rue", "the street"), ("un animal", "an animal")], test, "xliff", ("fr", "en"))
    result = run_heedful("evaluate", model, test, "--set", "reading.malformed=skip", "--set", "generation.beam_size=1")
    assert "2 pairs, beam size 1" in result.out, result.err
    three = '<tmx version="1.4"><header srclang="de"/><body><tu>' + "".join(
        f'<tuv xml:lang="{code}"><seg>{text}</seg></tuv>'
        for code, text in (("de", "ein Tier"), ("fr", "un animal"), ("en", "an animal"))
    )
    (tmp_path / "three.tmx").write_text(f"{three}</tu><tu><tuv")  # truncated, with a third language
    result = run_heedful("evaluate", model, tmp_path / "three.tmx", "--set", "reading.malformed=skip")
    assert "1 pairs" in result.out, result.err
    invalid = run_heedful("evaluate", model, test, "--set", "reading.malformed=hop")
    assert "'hop' should be 'error' or 'skip'" in invalid.err
    mismatched = run_heedful("evaluate", model, test, "--languages", "en-de")
    assert "is fr to en, not en to de" in mismatched.err
    alignments = run_heedful("inspect", model, "--alignments", test, "--layer", "1")
    assert len(alignments.out.splitlines()) == 2, alignments.err


def test_stats_reports_variants_and_malformed_units(tmp_path: Path) -> None:
    path = tmp_path / "x.tmx"
    path.write_text(MALFORMED_TMX, encoding="utf-8")
    result = run_heedful("corpus", "stats", path)
    assert result.status == 1
    assert "x.tmx, line 3: " in result.err
    assert "--set reading.malformed=skip" in result.err
    result = run_heedful("corpus", "stats", path, "--set", "reading.malformed=skip")
    assert result.out.splitlines()[:3] == [
        "read 3 pairs, kept 2",
        "dropped 1: not well-formed (first: x.tmx:3)",
        "noted 1: of en-US and en-GB, en-US was used (first: x.tmx:2)",
    ]
    out = tmp_path / "x.tsv"
    options = ("--languages", "en-US:de", "--set", "reading.malformed=skip", "--set", "reading.inline_tags=keep")
    assert run_heedful("corpus", "clean", path, "-o", out, *options).status == 0
    assert out.read_text(encoding="utf-8") == "Hey\tNa <ph>%s</ph>\nYes\tJa\n"
    assert "has no effect here" in run_heedful("corpus", "join", path, "-o", out, "--set", "cleaning.x=1").err


def test_stats_detects_format_of_stdin(memory: Path) -> None:
    result = run_heedful("corpus", "stats", "-", stdin=memory.read_bytes())
    assert result.out.startswith("read 600 pairs"), result.err


def test_split_and_join_read_tmx(memory: Path, tmp_path: Path) -> None:
    assert run_heedful("corpus", "split", memory, "-o", tmp_path / "parts", "--validation-size", "20").status == 0
    assert len((tmp_path / "parts" / "validation.tsv").read_text().splitlines()) == 20
    result = run_heedful("corpus", "join", memory, "-o", tmp_path / "joined.tsv", "--lines", "3")
    assert "200 paragraphs" in result.out


def test_convert_round_trip_keeps_pairs(tmp_path: Path) -> None:
    source = tmp_path / "x.tsv"
    source.write_text("a\tb\nc\t\nd\x0ce\tf\x01\na\tb\n", encoding="utf-8")
    result = run_heedful("corpus", "convert", source, "-o", tmp_path / "x.tmx", "--languages", "en-de")
    assert result.out.splitlines() == [
        "read 4 pairs, kept 3",
        "dropped 1: empty side (first: x.tsv:2)",
        f"3 pairs to {tmp_path / 'x.tmx'}",
        "1 pair lost control characters, which tmx does not allow",
    ]
    assert run_heedful("corpus", "convert", tmp_path / "x.tmx", "-o", tmp_path / "x.po.gz").status == 0
    out = tmp_path / "y.xml"
    assert run_heedful("corpus", "convert", tmp_path / "x.po.gz", "-o", out, "--format", "xliff2").status == 0
    assert 'srcLang="en" trgLang="de"' in out.read_text(encoding="utf-8")
    assert run_heedful("corpus", "convert", out, "-o", tmp_path / "y.csv").status == 0
    assert (tmp_path / "y.csv").read_text(encoding="utf-8").split() == ["en,de", "a,b", "d", "e,f", "a,b"]


@pytest.mark.parametrize(
    ("name", "form", "problem"),
    [
        ("x.xlf", None, "needs the languages"),
        ("x.docx", None, r"cannot determine the format of x\.docx"),
        ("x.mo", None, "cannot determine the format"),
        ("x", "excel", "unknown output format 'excel'"),
        ("in.tsv", None, "is also an input"),
        ("nowhere/x.tsv", None, "no such folder"),
    ],
)
def test_convert_invalid_requests_are_errors(tmp_path: Path, name: str, form: str | None, problem: str) -> None:
    source = tmp_path / "in.tsv"
    source.write_text("a\tb\n", encoding="utf-8")
    with pytest.raises(HeedfulError, match=problem):
        convert_corpus(CorpusInput([source]), tmp_path / name, form)
    assert list(tmp_path.iterdir()) == [source]
    assert source.read_text(encoding="utf-8") == "a\tb\n"


@pytest.fixture
def locales(tmp_path: Path) -> Path:
    """A locale folder with two packages and some variants."""
    folder = tmp_path / "locale"
    entries = {
        ("de", "tool"): {"Open": "Öffnen", "Close": "Schließen", "one": "eins"},
        ("de_AT", "tool"): {"Open": "Aufmachen"},
        ("de_DE", "other"): {"Yes": "Ja"},
        ("de@hebrew", "third"): {"No": "נײן"},
        ("fr", "tool"): {"Open": "Ouvrir", "Close": "Fermer"},
        ("pt_BR", "tool"): {"Open": "Abrir"},
    }
    for (language, package), messages in entries.items():
        catalogue = polib.POFile()
        catalogue.metadata = {
            "Content-Type": "text/plain; charset=UTF-8",
            "Plural-Forms": "nplurals=2; plural=(n != 1);",
        }
        for source, target in messages.items():
            catalogue.append(polib.POEntry(msgid=source, msgstr=target, msgctxt="menu"))
        catalogue.append(
            polib.POEntry(msgid="%d x", msgid_plural="%d xs", msgstr_plural={0: f"1 {language}", 1: f"2 {language}"})
        )
        catalog_folder = folder / language / "LC_MESSAGES"
        catalog_folder.mkdir(parents=True)
        catalogue.save_as_mofile(str(catalog_folder / f"{package}.mo"))
    (folder / "de" / "LC_MESSAGES" / "damaged.mo").write_bytes(b"\xde\x12\x04\x95oops")
    return folder


def run_gettext(folder: Path, *args: str | Path) -> tuple[list[str], str]:
    out = folder.parent / "out.tsv"
    result = run_heedful("corpus", "gettext", "--folder", folder, "-o", out, *args)
    assert result.status == 0, result.err
    return out.read_text(encoding="utf-8").splitlines(), result.out


def test_gettext_collects_catalogs(locales: Path) -> None:
    pairs, report = run_gettext(locales, "--to", "de")
    tool = {"Open\tÖffnen", "Close\tSchließen", "one\teins", "%d x\t1 de", "%d xs\t2 de"}
    assert set(pairs) == tool | {"Yes\tJa", "%d x\t1 de_DE", "%d xs\t2 de_DE"}
    assert "tool: 5 pairs\n" in report
    assert "other: 3 pairs\n" in report
    assert "damaged.mo: corrupt MO file" in report


def test_gettext_selects_packages_and_languages(locales: Path) -> None:
    assert run_gettext(locales, "--to", "de", "--package", "ot*")[0] == ["%d x\t1 de_DE", "%d xs\t2 de_DE", "Yes\tJa"]
    assert len(run_gettext(locales, "--to", "de", "--exclude", "other")[0]) == 5
    assert run_gettext(locales, "--from", "fr", "--to", "de")[0] == [
        "1 fr\t1 de",
        "2 fr\t2 de",
        "Fermer\tSchließen",
        "Ouvrir\tÖffnen",
    ]
    assert "Abrir\tOpen" in run_gettext(locales, "--from", "pt-BR", "--to", "en")[0]
    assert run_gettext(locales, "--to", "de@hebrew")[0][0].startswith("%d x")


def test_gettext_invalid_options_are_errors(locales: Path) -> None:
    for selection, folder, problem in (
        (CatalogSelection("en", "xx"), locales, "no catalog has messages in en and xx"),
        (CatalogSelection("pt", "pt"), locales, "source and target are both"),
        (CatalogSelection("en", "de"), locales / "nowhere", "is not a folder"),
    ):
        with pytest.raises(HeedfulError, match=problem):
            collect_catalogs(selection, [folder], locales / "x.tsv")
        assert not (locales / "x.tsv").exists()
