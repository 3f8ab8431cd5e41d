"""``heedful export`` to CTranslate2 and Argos Translate: those programs themselves translate as we do."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from heedful.bundle import Bundle
from heedful.commands.exporting import FORMATS, ExportOptions, export_command
from heedful.decoding.config import SearchConfig
from heedful.engines.native import NativeEngine
from heedful.errors import HeedfulError
from heedful.interop.argos import export_argos
from heedful.interop.ctranslate2_folder import export_folder
from heedful.progress import Reporter
from tests.conftest import run_heedful
from tests.inspection.models import new_bundle
from tests.interop.learned import PAIRS, SENTENCES, learned

SEARCH = SearchConfig(beam=1)


def program_of(readme: Path) -> str:
    [block] = re.findall(r"```python\n(.*?)```", readme.read_text(encoding="utf-8"), re.DOTALL)
    return str(block)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["bpe", "unigram", "word"])
def test_the_program_of_the_readme_translates_as_we_do(kind: str, tmp_path: Path) -> None:
    bundle = learned(kind)
    [said, *notes] = export_folder(bundle, tmp_path / "out")
    assert "3 of 3 sentences are translated the same" in said
    assert len(notes) == (kind == "word")
    program = program_of(tmp_path / "out" / "README.md")
    asked = re.sub(r"sentences = .*", lambda _: f"sentences = {SENTENCES!r}", program)
    asked = re.sub(r"beam_size=\d+", "beam_size=1", asked)
    done = subprocess.run(
        [sys.executable, "-c", asked], cwd=tmp_path / "out", capture_output=True, text=True, check=True
    )
    ours = [each.text for each in NativeEngine(bundle).translate(SENTENCES, SEARCH)]
    assert done.stdout.splitlines() == ours
    assert ours[1] == PAIRS[1][1]  # it has learned something


def test_the_documents_show_the_same_program(tmp_path: Path) -> None:
    export_folder(learned(), tmp_path / "out")
    documents = Path(__file__).parents[2] / "docs" / "export.md"
    shown, written = (
        re.sub(r"sentences = .*", "", program_of(path))
        for path in (documents, tmp_path / "out" / "README.md")
    )
    assert shown == written


@pytest.mark.parametrize("quantization", ["float16", "int16", "int8", "int8_float32"])
def test_weights_can_be_smaller(quantization: str, tmp_path: Path) -> None:
    bundle = learned()
    export_folder(bundle, tmp_path / "whole")
    [said] = export_folder(bundle, tmp_path / "small", quantization)
    assert f"({quantization} rounds)" in said
    sizes = [(tmp_path / name / "model.bin").stat().st_size for name in ("small", "whole")]
    assert sizes[0] < 0.9 * sizes[1]  # the table of positions is not rounded


ARGOS = """
import sys
from argostranslate import package, sbd, translate
sbd.MiniSBDSentencizer.split_sentences = lambda self, text: [text]  # the real one is downloaded
packages, texts = sys.argv[1:3], sys.argv[3:]
for path in packages:
    package.install_from_path(path)
for found in sorted(package.get_installed_packages(), key=str):
    print(found.from_name, found.to_name, found.get_readme().splitlines()[0])
    for text in texts:
        print(translate.translate(text, found.from_code, found.to_code))
"""


def argos(packages: list[Path], texts: list[str], place: Path) -> list[str]:
    """What Argos Translate itself prints, with its folders in a place of their own."""
    names = ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "ARGOS_PACKAGES_DIR")
    folders = {name: str(place / name) for name in names}
    more = {"ARGOS_BEAM_SIZE": "1", "ARGOS_COMPUTE_TYPE": "default", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ARGOS, *map(str, packages), *texts],
        env={**os.environ, **folders, **more},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.long
def test_argos_translate_installs_and_translates(tmp_path: Path) -> None:
    """A model with one vocabulary, and one with two, although a package has one SentencePiece file."""
    packages = [tmp_path / "fr.argosmodel", tmp_path / "de.argosmodel"]
    export_argos(learned(joint=True), packages[0], quantization="float32")
    export_argos(learned(joint=False), packages[1], ("en", "de"), quantization="float32")
    lines = argos(packages, SENTENCES, tmp_path)
    found = [lines[: len(lines) // 2], lines[len(lines) // 2 :]]
    assert [each[0] for each in found] == [
        "English French # English to French",
        "English German # English to German",
    ]
    for bundle, [_, *texts] in zip([learned(joint=True), learned(joint=False)], found, strict=True):
        assert texts == [each.text for each in NativeEngine(bundle).translate(SENTENCES, SEARCH)]


def test_a_package_is_in_eight_bits_unless_told_otherwise(tmp_path: Path) -> None:
    [said] = export_argos(learned(), tmp_path / "a.argosmodel")
    assert "(int8 rounds)" in said
    export_argos(learned(), tmp_path / "b.argosmodel", quantization="float32")
    sizes = [
        zipfile.ZipFile(tmp_path / name).getinfo("translate-en_fr-1_0/model/model.bin").file_size
        for name in ("a.argosmodel", "b.argosmodel")
    ]
    assert sizes[0] < 0.9 * sizes[1]


def test_a_package_needs_languages(tmp_path: Path) -> None:
    bundle = learned()
    nameless = Bundle(
        bundle.config.model_copy(update={"languages": None}), bundle.tokenizer, bundle.model, bundle.card
    )
    with pytest.raises(HeedfulError, match="must say its languages") as error:
        export_argos(nameless, tmp_path / "a.argosmodel")
    assert "--languages en-fr" in str(error.value.hint)
    with pytest.raises(HeedfulError, match="no language has the code"):
        export_argos(nameless, tmp_path / "a.argosmodel", ("en", "../fr"))
    export_argos(nameless, tmp_path / "a.argosmodel", ("pt-BR", "eo"))
    metadata = zipfile.ZipFile(tmp_path / "a.argosmodel").read("translate-pt-BR_eo-1_0/metadata.json")
    assert b'"from_name": "Portuguese (Brazil)"' in metadata
    assert b'"to_code": "eo"' in metadata


def test_a_learned_table_that_is_short_is_told(tmp_path: Path) -> None:
    said = export_argos(new_bundle("bpe", positions="learned", longest=64), tmp_path / "a.argosmodel")
    assert "end at 64 tokens" in said[-1]


def test_the_verb(tmp_path: Path, quick_model: Path) -> None:
    done = run_heedful("export", quick_model, "--to", "ctranslate2", "-o", tmp_path / "out")
    assert done.status == 0, done.err
    assert "checked with CTranslate2" in done.out
    assert f"{tmp_path / 'out'}/README.md has a program" in done.out
    assert sorted(each.name for each in tmp_path.iterdir()) == ["out"]
    before = (tmp_path / "out" / "model.bin").stat().st_mtime_ns
    again = run_heedful("export", quick_model, "--to", "ctranslate2", "-o", tmp_path / "out")
    assert again.status != 0
    assert "exists already" in again.err
    assert (tmp_path / "out" / "model.bin").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--to", "tensorflow", "-o", "x"], "there is no format 'tensorflow'"),
        (["--to", "argos", "-o", "x"], "would not know x as a package"),
        (["--to", "ctranslate2", "-o", "x", "--languages", "en-fr"], "--languages has no meaning for"),
        (["--to", "ctranslate2", "-o", "x", "--quantization", "int9"], "no weights of kind 'int9'"),
        (["--to", "ctranslate2", "-o", "no/such/x"], "there is no folder"),
    ],
)
def test_what_is_refused_leaves_nothing(
    words: list[str], problem: str, tmp_path: Path, quick_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    named = dict(zip(words[::2], words[1::2], strict=True))
    options = ExportOptions(
        quick_model, named["--to"], Path(named["-o"]), named.get("--quantization"), named.get("--languages")
    )
    with pytest.raises(HeedfulError, match=re.escape(problem)):
        list(export_command(options, Reporter(quiet=True)))
    assert not list(tmp_path.iterdir())


def test_the_help_names_every_format() -> None:
    shown = " ".join(run_heedful("export", "--help").out.split())
    assert all(re.search(rf"format: [^.]*\b{name}\b", shown) for name in FORMATS)


@pytest.mark.parametrize("format_name", ["ctranslate2", "argos", "onnx"])
@pytest.mark.parametrize("settings", [{"encoder_attention": "bigbird", "block": 4}, {"family": "gru"}])
def test_models_that_cannot_be_expressed_are_refused_by_name(
    format_name: str, settings: dict[str, object], tmp_path: Path
) -> None:
    new_bundle("bpe", **settings).save(tmp_path / "model")
    options = ExportOptions(tmp_path / "model", format_name, tmp_path / "out.argosmodel")
    with pytest.raises(HeedfulError, match="cannot express model") as error:
        list(export_command(options, Reporter(quiet=True)))
    [(name, _), *_] = settings.items()
    assert name in error.value.problem
    assert f"one trained with model.{name} =" in str(error.value.hint)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["model"]
