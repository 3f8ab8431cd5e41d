"""``heedful export`` to CTranslate2 and Argos Translate: both translate exactly as we do."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from heedful.convert import EXPORT_FORMATS, ExportOptions, export_model
from heedful.convert.argos import export_argos
from heedful.convert.ctranslate2.exporter import export_ctranslate2_folder
from heedful.errors import HeedfulError
from heedful.generation.config import GenerationConfig
from heedful.inference.translator import Translator
from heedful.model_folder import ModelFolder
from heedful.progress import Reporter
from tests.conftest import run_heedful
from tests.convert.trained_models import PAIRS, SENTENCES, train_model
from tests.interpret.small_models import new_model_folder

SEARCH = GenerationConfig(beam_size=1)


def read_program(readme: Path) -> str:
    [block] = re.findall(r"```python\n(.*?)```", readme.read_text(encoding="utf-8"), re.DOTALL)
    return str(block)


@pytest.mark.long
@pytest.mark.parametrize("model_type", ["bpe", "unigram", "word"])
def test_readme_program_translates_identically(model_type: str, tmp_path: Path) -> None:
    model_folder = train_model(model_type)
    [message, *notes] = export_ctranslate2_folder(model_folder, tmp_path / "out")
    assert "3 of 3 translations are identical" in message
    assert len(notes) == (model_type == "word")
    program = read_program(tmp_path / "out" / "README.md")
    program_for_sentences = re.sub(r"sentences = .*", lambda _: f"sentences = {SENTENCES!r}", program)
    program_for_sentences = re.sub(r"beam_size=\d+", "beam_size=1", program_for_sentences)
    process = subprocess.run(
        [sys.executable, "-c", program_for_sentences], cwd=tmp_path / "out", capture_output=True, text=True, check=True
    )
    ours = [translation.text for translation in Translator.with_pytorch(model_folder).translate(SENTENCES, SEARCH)]
    assert process.stdout.splitlines() == ours
    assert ours[1] == PAIRS[1][1]  # the model has learned this sentence


@pytest.mark.long
def test_docs_show_the_readme_program(tmp_path: Path) -> None:
    export_ctranslate2_folder(train_model(), tmp_path / "out")
    documents = Path(__file__).parents[2] / "docs" / "export.md"
    documented, exported = (
        re.sub(r"sentences = .*", "", read_program(path)) for path in (documents, tmp_path / "out" / "README.md")
    )
    assert documented == exported


@pytest.mark.parametrize("quantization", ["float16", "int16", "int8", "int8_float32"])
def test_quantization_shrinks_the_model(quantization: str, tmp_path: Path) -> None:
    model_folder = train_model()
    export_ctranslate2_folder(model_folder, tmp_path / "float32")
    [message] = export_ctranslate2_folder(model_folder, tmp_path / "small", quantization)
    assert f"({quantization} rounds)" in message
    sizes = [(tmp_path / name / "model.bin").stat().st_size for name in ("small", "float32")]
    assert sizes[0] < 0.9 * sizes[1]  # the position table is not quantized


ARGOS = """
import sys
from argostranslate import package, sbd, translate
sbd.MiniSBDSentencizer.split_sentences = lambda self, text: [text]  # the original downloads a model
packages, texts = sys.argv[1:3], sys.argv[3:]
for path in packages:
    package.install_from_path(path)
for actual in sorted(package.get_installed_packages(), key=str):
    print(actual.from_name, actual.to_name, actual.get_readme().splitlines()[0])
    for text in texts:
        print(translate.translate(text, actual.from_code, actual.to_code))
"""


def argos(packages: list[Path], texts: list[str], folder: Path) -> list[str]:
    """The output of Argos Translate, with its folders inside ``folder``."""
    names = ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "ARGOS_PACKAGES_DIR")
    folders = {name: str(folder / name) for name in names}
    settings = {"ARGOS_BEAM_SIZE": "1", "ARGOS_COMPUTE_TYPE": "default", "OMP_NUM_THREADS": "1"}
    process = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ARGOS, *map(str, packages), *texts],
        env={**os.environ, **folders, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.splitlines()


@pytest.mark.long
def test_argos_translate_installs_and_translates(tmp_path: Path) -> None:
    """Models with a joint and with separate vocabularies, although a package has only one SentencePiece file."""
    packages = [tmp_path / "fr.argosmodel", tmp_path / "de.argosmodel"]
    export_argos(train_model(joint=True), packages[0], quantization="float32")
    export_argos(train_model(joint=False), packages[1], ("en", "de"), quantization="float32")
    lines = argos(packages, SENTENCES, tmp_path)
    actual = [lines[: len(lines) // 2], lines[len(lines) // 2 :]]
    assert [output[0] for output in actual] == [
        "English French # English to French",
        "English German # English to German",
    ]
    for model_folder, [_, *texts] in zip([train_model(joint=True), train_model(joint=False)], actual, strict=True):
        assert texts == [
            translation.text for translation in Translator.with_pytorch(model_folder).translate(SENTENCES, SEARCH)
        ]


def test_argos_default_quantization_is_int8(tmp_path: Path) -> None:
    [message] = export_argos(train_model(), tmp_path / "a.argosmodel")
    assert "(int8 rounds)" in message
    export_argos(train_model(), tmp_path / "b.argosmodel", quantization="float32")
    sizes = [
        zipfile.ZipFile(tmp_path / name).getinfo("translate-en_fr-1_0/model/model.bin").file_size
        for name in ("a.argosmodel", "b.argosmodel")
    ]
    assert sizes[0] < 0.9 * sizes[1]


def test_argos_without_languages_raises(tmp_path: Path) -> None:
    model_folder = train_model()
    without_languages = ModelFolder(
        model_folder.config.model_copy(update={"languages": None}),
        model_folder.tokenizer,
        model_folder.translation_model,
        model_folder.card,
    )
    with pytest.raises(HeedfulError, match="needs languages") as error:
        export_argos(without_languages, tmp_path / "a.argosmodel")
    assert "--languages SOURCE-TARGET" in str(error.value.hint)
    with pytest.raises(HeedfulError, match="is not a valid language code"):
        export_argos(without_languages, tmp_path / "a.argosmodel", ("en", "../fr"))
    export_argos(without_languages, tmp_path / "a.argosmodel", ("pt-BR", "eo"))
    metadata = zipfile.ZipFile(tmp_path / "a.argosmodel").read("translate-pt-BR_eo-1_0/metadata.json")
    assert b'"from_name": "Portuguese (Brazil)"' in metadata
    assert b'"to_code": "eo"' in metadata


def test_argos_warns_about_few_learned_positions(tmp_path: Path) -> None:
    message = export_argos(new_model_folder("bpe", positions="learned", max_length=64), tmp_path / "a.argosmodel")
    assert "64 learned positions" in message[-1]


def test_export_command_does_not_overwrite(tmp_path: Path, quick_model: Path) -> None:
    result = run_heedful("export", quick_model, "--to", "ctranslate2", "-o", tmp_path / "out")
    assert result.status == 0, result.err
    assert "verified with CTranslate2" in result.out
    assert f"{tmp_path / 'out'}/README.md shows a program" in result.out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]
    before = (tmp_path / "out" / "model.bin").stat().st_mtime_ns
    second = run_heedful("export", quick_model, "--to", "ctranslate2", "-o", tmp_path / "out")
    assert second.status != 0
    assert "already exists" in second.err
    assert (tmp_path / "out" / "model.bin").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (["--to", "tensorflow", "-o", "x"], "unknown format 'tensorflow'"),
        (["--to", "argos", "-o", "x"], "x is not a valid name"),
        (["--to", "ctranslate2", "-o", "x", "--languages", "en-fr"], "--languages is not supported by"),
        (["--to", "ctranslate2", "-o", "x", "--quantization", "int9"], "no quantization 'int9'"),
        (["--to", "ctranslate2", "-o", "no/such/x"], "no such folder"),
    ],
)
def test_rejected_export_writes_nothing(
    args: list[str], problem: str, tmp_path: Path, quick_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    values = dict(zip(args[::2], args[1::2], strict=True))
    options = ExportOptions(
        quick_model, values["--to"], Path(values["-o"]), values.get("--quantization"), values.get("--languages")
    )
    with pytest.raises(HeedfulError, match=re.escape(problem)):
        list(export_model(options, Reporter(quiet=True)))
    assert not list(tmp_path.iterdir())


def test_export_help_names_every_format() -> None:
    help_text = " ".join(run_heedful("export", "--help").out.split())
    assert all(re.search(rf"Format: [^.]*\b{name}\b", help_text) for name in EXPORT_FORMATS)


@pytest.mark.parametrize("format_name", ["ctranslate2", "argos", "onnx"])
@pytest.mark.parametrize("settings", [{"encoder_attention": "bigbird", "block_size": 4}, {"architecture": "gru"}])
def test_unsupported_model_is_rejected_by_setting(
    format_name: str, settings: dict[str, object], tmp_path: Path
) -> None:
    new_model_folder("bpe", **settings).save(tmp_path / "model")
    options = ExportOptions(tmp_path / "model", format_name, tmp_path / "out.argosmodel")
    with pytest.raises(HeedfulError, match="does not support model") as error:
        list(export_model(options, Reporter(quiet=True)))
    [(name, _), *_] = settings.items()
    assert name in error.value.problem
    assert f"train with model.{name} =" in str(error.value.hint)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]
