"""The core install: translation, evaluation and documents without PyTorch and matplotlib, and the pip command of
each missing extra. The packages are installed here, so a process pretends that they are not."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import heedful
from heedful.data.cleaning import Pair
from heedful.errors import EXTRAS, HeedfulError, check_extras, has_extra
from heedful.inference.loading import load
from heedful.model_folder import ModelFolder
from heedful.progress import Reporter
from heedful.training.validation import compute_loss
from heedful.workflows.evaluate import EvaluateOptions, evaluate_model
from tests.conftest import Result
from tests.processes import command_without
from tests.server.server_process import ask, serve_process

ALL_PACKAGES = tuple(package for packages in EXTRAS.values() for package in packages)

SENTENCE = "The animal didn't cross the street because it was too tired."

PO = f'''msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\\n"
"Language: fr\\n"

msgid "{SENTENCE}"
msgstr ""

msgid "The <b>dog</b> of %s is tired."
msgstr ""
'''

TMX = f"""<?xml version="1.0" encoding="UTF-8"?>
<tmx version="1.4"><header srclang="en" segtype="sentence" datatype="plaintext" adminlang="en" o-tmf="x"
creationtool="x" creationtoolversion="1"/><body>
<tu><tuv xml:lang="en"><seg>The <bpt i="1"/>animal<ept i="1"/> is tired.</seg></tuv></tu>
<tu><tuv xml:lang="en"><seg>{SENTENCE}</seg></tuv></tu>
</body></tmx>
"""

XLIFF = f"""<?xml version="1.0" encoding="UTF-8"?>
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2"><file original="a" source-language="en"
target-language="fr" datatype="plaintext"><body>
<trans-unit id="1"><source>The <g id="1">animal</g> is tired.</source></trans-unit>
<trans-unit id="2"><source>{SENTENCE}</source></trans-unit>
</body></file></xliff>
"""


def run_without(*args: object, missing: tuple[str, ...] = ALL_PACKAGES) -> Result:
    """Run a command in an interpreter that cannot import these packages."""
    command = [*command_without(*missing), *map(str, args)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    return Result(result.returncode, result.stdout, result.stderr)


@pytest.fixture(scope="module")
def model(reverse_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a model that is copied to another machine."""
    folder = tmp_path_factory.mktemp("copied") / "model"
    shutil.copytree(reverse_model, folder, ignore=shutil.ignore_patterns("training"))
    return folder


@pytest.fixture(scope="module")
def unseen_pairs(reverse_pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("test") / "test.tsv"
    path.write_text("".join(reverse_pairs.read_text().splitlines(keepends=True)[:40]))
    return path


def test_core_translates_like_full_install(model: Path, unseen_pairs: Path, tmp_path: Path) -> None:
    source = tmp_path / "in.txt"
    source.write_text("".join(line.split("\t")[0] + "\n" for line in unseen_pairs.read_text().splitlines()))
    args = ["translate", model, "-i", source, "--alignments", "--beam", 3, "--n-best", 2, "--engine", "exact"]
    core = run_without(*args, "-o", tmp_path / "core")
    full = run_without(*args, "-o", tmp_path / "full", missing=())
    assert core.status == full.status == 0, core.err
    assert (tmp_path / "core").read_bytes() == (tmp_path / "full").read_bytes()
    assert (tmp_path / "core").read_text().count("0-0") > 20  # alignments


def test_core_evaluate_loss_matches_pytorch(model: Path, unseen_pairs: Path, tmp_path: Path) -> None:
    core = run_without("evaluate", model, unseen_pairs, "--sentence-scores", tmp_path / "scores.tsv")
    assert core.status == 0, core.err
    assert "CTranslate2 float32" in core.out
    options = EvaluateOptions(models=(model,), pairs=(unseen_pairs,), engine="pytorch", device="cpu")
    assert core.out.replace("CTranslate2 float32", "PyTorch").splitlines() == evaluate_model(
        options, Reporter(quiet=True)
    )
    model_folder = ModelFolder.load(model)
    pairs = [Pair(*line.split("\t")) for line in unseen_pairs.read_text().splitlines()]
    loss = compute_loss(model_folder.translation_model, model_folder.tokenizer, pairs)
    scores = load(model, engine="exact", device="cpu").score(
        [pair.source for pair in pairs], [pair.target for pair in pairs]
    )
    tokens = sum(len(score.token_log_probabilities) for score in scores)
    assert -sum(score.log_probability for score in scores) / tokens == pytest.approx(loss, abs=1e-5)
    assert f"loss  {loss:6.3f}" in core.out


@pytest.mark.parametrize(("name", "text"), [("a.po", PO), ("a.tmx", TMX), ("a.xliff", XLIFF)])
def test_core_fills_documents_like_full_install(model: Path, name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    args = ["translate", model, "-i", tmp_path / name, "--languages", "en-fr", "--engine", "exact"]
    core = run_without(*args, "-o", tmp_path / f"core-{name}")
    full = run_without(*args, "-o", tmp_path / f"full-{name}", missing=())
    assert core.status == full.status == 0, core.err
    assert "2 units translated" in core.err
    assert (tmp_path / f"core-{name}").read_bytes() == (tmp_path / f"full-{name}").read_bytes() != text.encode()


def test_core_glossary_splits_instead_of_constraints(model: Path, tmp_path: Path) -> None:
    (tmp_path / "terms.tsv").write_text("rue\tavenue\n")
    text = "L'animal n'a pas traversé la rue."
    result = run_without("translate", model, text, "--glossary", tmp_path / "terms.tsv")
    assert "avenue" in result.out, result.err


def test_core_corpus_commands_run(unseen_pairs: Path, tmp_path: Path) -> None:
    assert "40 pairs" in run_without("corpus", "stats", unseen_pairs).out
    result = run_without("corpus", "clean", unseen_pairs, "-o", tmp_path / "clean.tsv")
    assert result.status == 0, result.err


@pytest.mark.parametrize(
    ("command", "extras"),
    [
        ("train pairs.tsv -o new", "train"),
        ("train --resume MODEL", "train"),
        ("demo", "train"),
        ("compare pairs.tsv -o new", "figures,train"),
        ("average MODEL -o new", "train"),
        ("distill MODEL pairs.tsv -o new", "train"),
        ("generate MODEL text", "train"),
        ("fill MODEL text", "train"),
        ("explain mask", "train"),
        ("explain mask --figure mask.png", "figures,train"),
        ("inspect MODEL text -o figures", "figures,train"),
        ("inspect MODEL text -o page.html", "train"),
        ("inspect MODEL --heads pairs.tsv", "train"),
        ("export MODEL --to ctranslate2 -o new", "train"),
        ("export MODEL --to argos -o new", "train"),
        ("export MODEL --to marian -o new", "train"),
        ("export MODEL --to onnx -o new", "onnx,train"),
        ("import folder -o new", "marian,train"),
        ("serve MODEL", "serve"),
        ("translate MODEL -i pairs.tsv -o new --ray local", "ray"),
        ("translate MODEL text --sample", "train"),
        ("translate MODEL text --with MODEL", "train"),
        ("translate MODEL text --engine pytorch", "train"),
        ("translate MODEL text --device cuda", "train"),
        ("evaluate MODEL pairs.tsv --set generation.early_stopping=false --beam 2", "train"),
        ("corpus back-translate MODEL pairs.tsv -o new.tsv --sample", "train"),
    ],
)
def test_missing_extra_names_pip_command(
    command: str, extras: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pairs.tsv").write_text("Le chien.\tThe dog.\n")
    result = run_without(*command.replace("MODEL", str(model)).split())
    assert result.status == 1
    assert result.err.endswith(f"\n  hint: pip install 'heedful[{extras}]'\n"), result.err
    assert not {path.name for path in Path().iterdir()} & {"new", "figures", "page.html", "mask.png"}


@pytest.mark.parametrize(("command", "extra"), [("explain mask --figure mask.png", "figures"), ("explain mask", "")])
def test_figures_without_matplotlib_name_only_that_extra(
    command: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run_without(*command.split(), missing=("matplotlib",))
    assert (f"pip install 'heedful[{extra}]'" in result.err) if extra else result.status == 0


@pytest.mark.parametrize("name", ["train", "resume", "trace", "show"])
def test_api_without_torch_names_pip_command(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(HeedfulError, match=rf"heedful\.{name} needs torch") as caught:
        getattr(heedful, name)
    assert caught.value.hint == "pip install 'heedful[train]'"
    assert heedful.load is load


def test_check_extras_lists_only_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(map(has_extra, EXTRAS))
    check_extras("this", *EXTRAS)
    for package in ("onnxscript", "onnx", "ray"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(HeedfulError) as caught:
        check_extras("this", *EXTRAS)
    assert caught.value.problem == "this needs onnx, onnxscript, ray"
    assert caught.value.hint == "pip install 'heedful[onnx,ray]'"
    assert not has_extra("onnx")
    assert has_extra("train")


def test_server_without_torch_translates_and_names_extra(model: Path) -> None:
    with serve_process(model, missing=("torch", "matplotlib")) as process:
        address = process.address
        assert "to inspect the model: pip install 'heedful[train]'" in process.output
        body = {"q": "Le <b>chien</b> est fatigué.", "source": "fr", "target": "en", "format": "html"}
        assert "<b>" in ask(address, "/translate", body).json["translatedText"]
        native = {"text": "Le chien.", "source": "fr", "target": "en"}
        response = ask(address, "/api/translate", native | {"tokens": True, "alignments": True})
        assert response.json["translations"][0]["alignment"]
        assert ask(address, "/").status == 200
        for path, request in (
            ("/api/models", None),
            ("/api/trace", {"source": "Le chien."}),
            ("/api/trace/abc/tensors?names=a", None),
            ("/api/training", None),
            ("/api/generate", {"text": ""}),
            ("/api/fill", {"text": "__"}),
            ("/api/alternatives", native),
            ("/api/translate", native | {"generation": {"method": "sample"}}),
        ):
            response = ask(address, path, request)
            assert response.status == 501, path
            assert "needs torch (pip install 'heedful[train]')" in response.error
        assert ask(address, "/openapi.json").status == 200
