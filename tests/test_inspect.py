"""`heedful inspect` as a real process: which files, what is in them, and how mistakes end."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from heedful.bundle import Bundle
from heedful.commands import heads as heads_module
from heedful.commands.pictures import PictureOptions, pictures_command
from heedful.errors import HeedfulError
from heedful.inspection.alignment import Aligner
from heedful.inspection.attribution import gradient_matrix, occlusion_matrix, target_rollout
from heedful.inspection.trace import by_words, in_words, trace
from heedful.progress import Reporter
from heedful.text.links import pharaoh
from tests.conftest import Result, run_heedful
from tests.inspection.models import new_bundle

SENTENCE = "The animal didn't cross the street because it was too tired."
TARGET = "L'animal dort."


def inspect(model: Path, folder: Path, *, quiet: bool = False, **options: Any) -> list[str]:
    """The command in this process, where every warning is an error."""
    chosen = replace(PictureOptions(model, SENTENCE, folder), **options)
    return list(pictures_command(chosen, Reporter(quiet=quiet)))


def read_numbers(folder: Path, name: str = "weights.json") -> dict[str, Any]:
    return json.loads((folder / name).read_text(encoding="utf-8"))


def matrices(attention: dict[str, Any]) -> Tensor:
    return torch.tensor(attention["weights"], dtype=torch.float64)


@pytest.fixture(scope="module")
def inspected(quick_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    folder = tmp_path_factory.mktemp("inspected") / "new" / "folder"
    done = run_heedful("inspect", quick_model, SENTENCE, "-o", folder, "--target", TARGET)
    assert done.status == 0, done.err
    return folder, done


def test_one_head_is_not_all_of_them(tmp_path: Path) -> None:
    new_bundle(layers=(1, 1), heads=1).save(tmp_path / "model")
    lines = inspect(tmp_path / "model", tmp_path / "out", kind="encoder", form="svg", target=TARGET)
    assert any(line.endswith(", 1 head") for line in lines)
    assert any(line.endswith(", mean of 1 head") for line in lines)


def test_files_have_predictable_names(inspected: tuple[Path, Result]) -> None:
    folder, done = inspected
    stems = ["training", "rollout", "gradient", "occlusion"] + [
        f"{kind}-layer-1{end}" for kind in ("encoder", "decoder", "cross") for end in ("", "-mean", "-lines")
    ]
    expected = {f"{stem}.{form}" for stem in stems for form in ("png", "svg")} | {"weights.json"}
    assert {path.name for path in folder.iterdir()} == expected
    for stem in stems:
        assert f"{stem}.png, .svg: " in done.out
    assert "all 2 heads" in done.out
    assert "warning" not in done.err


def test_pictures_can_be_read(inspected: tuple[Path, Result]) -> None:
    folder, _ = inspected
    with Image.open(folder / "encoder-layer-1.png") as image:
        image.load()
    cross = (folder / "cross-layer-1-mean.svg").read_text(encoding="utf-8")
    assert ">animal</text>" in cross
    assert ">dort</text>" in cross


def test_numbers_are_the_models(inspected: tuple[Path, Result], quick_model: Path) -> None:
    written = read_numbers(inspected[0])
    seen = trace(Bundle.load(quick_model), SENTENCE, TARGET)
    kinds = [(each["kind"], each["layer"], each["heads"]) for each in written["attention"]]
    assert kinds == [("encoder", 1, [1, 2]), ("decoder", 1, [1, 2]), ("cross", 1, [1, 2])]
    for each in written["attention"]:
        rows, columns = seen.sides(each["kind"])
        assert (each["rows"], each["columns"]) == (list(rows.words), list(columns.words))
        expected = by_words(seen.weights(each["kind"], 0).double(), rows, columns)
        torch.testing.assert_close(matrices(each), expected, rtol=0, atol=1e-6)
        torch.testing.assert_close(matrices(each).sum(-1), torch.ones(expected.shape[:-1]).double())
    assert written["source"]["words"][-1] == "</s>"


def test_one_head_of_one_kind_and_a_word(quick_model: Path, tmp_path: Path) -> None:
    lines = inspect(
        quick_model, tmp_path, kind="encoder", layer=1, head=2, word="it", target=TARGET, form="svg"
    )
    assert {path.name for path in tmp_path.iterdir()} == {
        "encoder-layer-1-head-2.svg",
        "encoder-layer-1-head-2-word-8.svg",
        "weights-encoder-layer-1-head-2.json",
    }
    assert any("where “it” looks" in line for line in lines)
    (only,) = read_numbers(tmp_path, "weights-encoder-layer-1-head-2.json")["attention"]
    assert only["heads"] == [2]
    seen = trace(Bundle.load(quick_model), SENTENCE, TARGET)
    torch.testing.assert_close(matrices(only)[0], seen.weights("encoder", 0)[1].double(), rtol=0, atol=1e-6)


def test_pieces_and_strange_words(quick_model: Path, tmp_path: Path) -> None:
    target = "中 <b>& $x_1$ dort"
    inspect(quick_model, tmp_path, sentence="مرحبا it", target=target, kind="cross", pieces=True, form="svg")
    written = read_numbers(tmp_path, "weights-cross.json")
    assert written["between"] == "pieces"
    seen = trace(Bundle.load(quick_model), "مرحبا it", target)
    (cross,) = written["attention"]
    assert (cross["rows"], cross["columns"]) == (list(seen.written.pieces), list(seen.source.pieces))
    torch.testing.assert_close(matrices(cross), seen.weights("cross", 0).double(), rtol=0, atol=1e-6)


@pytest.mark.long
def test_a_very_long_sentence(quick_model: Path, tmp_path: Path) -> None:
    long = "it was tired " * 70
    inspect(quick_model, tmp_path, sentence=long, target="il " * 20, form="png")
    assert (tmp_path / "cross-layer-1.png").stat().st_size > 10_000


def test_a_word_of_the_translation_only(quick_model: Path, tmp_path: Path) -> None:
    inspect(quick_model, tmp_path, sentence="it", target="la rue", word="rue", form="svg")
    names = {path.name for path in tmp_path.iterdir() if "-word-" in path.name}
    assert names == {"decoder-layer-1-word-3.svg", "cross-layer-1-word-2.svg"}


def test_characters_without_a_font_are_told_once(
    quick_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    strange = "\U0010fffd"
    inspect(quick_model, tmp_path, sentence=strange, target=strange, form="png", quiet=True)
    told = capsys.readouterr().err
    assert told.count("no installed font can draw 1 of the characters (U+10FFFD)") == 1


def test_a_model_without_its_training(quick_model: Path, tmp_path: Path) -> None:
    model, output = tmp_path / "model", tmp_path / "output"
    shutil.copytree(quick_model, model, ignore=shutil.ignore_patterns("training"))
    inspect(model, output, sentence="it", target="il", kind="cross", form="svg")
    assert not (output / "training.svg").exists()
    (model / "training").mkdir()
    (model / "training" / "metrics.jsonl").touch()
    inspect(model, output, sentence="it", target="il", kind="cross", form="svg")
    assert not (output / "training.svg").exists()


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"layer": 2}, "there is no layer 2: the encoder has 1"),
        ({"kind": "cross", "layer": 0}, "there is no layer 0: the decoder has 1"),
        ({"head": 3}, "there is no head 3: each layer has 2"),
        ({"word": "zebra"}, "the word 'zebra' does not stand in the sentence"),
        ({"kind": "sideways"}, "there is no attention 'sideways'"),
        ({"form": "pdf"}, "there is no format 'pdf'"),
        ({"sentence": " "}, "the sentence is empty"),
    ],
)
def test_mistakes(wrong: dict[str, Any], problem: str, quick_model: Path, tmp_path: Path) -> None:
    with pytest.raises(HeedfulError, match=problem) as caught:
        inspect(quick_model, tmp_path / "new", **wrong)
    assert caught.value.hint
    assert not (tmp_path / "new").exists()


def test_places_that_cannot_be_written(quick_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    done = run_heedful("inspect", quick_model, SENTENCE, "-o", file)
    assert done.status == 1
    assert f"error: {file} is a file\n  hint: " in done.err
    with pytest.raises(HeedfulError, match="cannot make the folder"):
        inspect(quick_model, file / "below")
    assert file.read_text() == "mine"


def test_only_inspect_loads_matplotlib() -> None:
    code = (
        "import heedful.cli, heedful.api, heedful.commands.translate, heedful.commands.evaluate, sys;"
        "import heedful.inspection.trace; print('matplotlib' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# ---- what words depend on


def test_attributions_are_written_in_full(inspected: tuple[Path, Result], quick_model: Path) -> None:
    written = read_numbers(inspected[0])
    bundle = Bundle.load(quick_model)
    seen = trace(bundle, SENTENCE, TARGET)
    for name, expected in (
        ("rollout", target_rollout(seen)[0]),
        ("gradient", gradient_matrix(bundle, seen)),
        ("occlusion", occlusion_matrix(bundle, seen)),
    ):
        found = torch.tensor(written[name], dtype=torch.float64)
        torch.testing.assert_close(found, expected.double(), rtol=1e-4, atol=1e-5)


def test_a_taught_head_is_called_so(quick_model: Path, tmp_path: Path) -> None:
    taught = tmp_path / "taught"
    shutil.copytree(quick_model, taught, ignore=shutil.ignore_patterns("training"))
    config = json.loads((taught / "config.json").read_text())
    (taught / "config.json").write_text(json.dumps({**config, "taught_head": [1, 2]}))
    lines = inspect(taught, tmp_path / "all", form="svg", target=TARGET, kind="encoder")
    assert any("all 2 heads (head 2 was taught)" in line for line in lines)
    one = inspect(taught, tmp_path / "one", form="svg", target=TARGET, kind="encoder", layer=1, head=2)
    assert any("head 2 (taught)" in line for line in one)
    assert any("mean of 2 heads (head 2 was taught)" in line for line in lines)
    assert read_numbers(tmp_path / "all", "weights-encoder.json")["taught_head"] == [1, 2]
    other = inspect(taught, tmp_path / "other", form="svg", target=TARGET, kind="encoder", layer=1, head=1)
    assert not any("taught" in line for line in other[1:-1])
    done = run_heedful("explain", taught, SENTENCE, "--head", 2)
    assert "in taught head 2 of layer 1" in done.out


# ---- alignments


def test_alignments(quick_model: Path, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.tsv"
    lines = ["The dog sleeps .\tLe chien dort .", "\t", "A cat\tUn chat", "مرحبا 中文\tBonjour 👩‍🚀 !"]
    pairs.write_text("\n".join(lines) + "\n", encoding="utf-8")
    done = run_heedful("inspect", quick_model, "--alignments", pairs)
    assert done.status == 0, done.err
    assert (
        "aligned by decoder layer 1, the mean of heads, the row that writes the word (3 pairs are too few"
        in done.err
    )
    printed = done.out.split("\n")
    assert len(printed) == 5
    assert printed[1] == ""
    bundle = Bundle.load(quick_model)
    for line, text in zip(lines, printed, strict=False):
        source, target = (side.split() for side in line.split("\t"))
        for link in text.split():
            i, j = map(int, link.split("-"))
            assert i < len(source)
            assert j < len(target)
    reading = run_heedful("inspect", quick_model, "--alignments", pairs, "--layer", 1, "--head", 2, "--reads")
    named = run_heedful("inspect", quick_model, "--alignments", pairs, "--layer", 1, "--head", 2)
    seen = in_words(bundle, trace(bundle, "A cat", "Un chat"), ["A", "cat"], ["Un", "chat"])
    assert named.out.split("\n")[2] == pharaoh(Aligner(0, 1, reads=False).links(seen))
    assert reading.out.split("\n")[2] == pharaoh(Aligner(0, 1, reads=True).links(seen))
    written = run_heedful("inspect", quick_model, "--alignments", pairs, "-o", tmp_path / "links")
    assert (tmp_path / "links").read_text() == done.out
    assert written.out == ""


def test_error_rate_against_gold(quick_model: Path, tmp_path: Path) -> None:
    source, target, gold = tmp_path / "a.en", tmp_path / "a.fr", tmp_path / "gold"
    source.write_text("The dog sleeps\nA cat\n")
    target.write_text("Le chien dort\nUn chat\n")
    files = ["--alignments", source, "--alignments", target, "--layer", 1]
    links = run_heedful("inspect", quick_model, *files).out
    from_one = [
        " ".join("-".join(str(int(n) + 1) for n in link.split("-")) for link in line.split())
        for line in links.splitlines()
    ]
    gold.write_text("\n".join(from_one) + "\n")
    done = run_heedful("inspect", quick_model, *files, "--gold", gold)
    assert "alignment error rate 0.00%, on 2 pairs" in done.err
    gold.write_text("1-3 3-1\n1-1\n1-1\n")
    done = run_heedful("inspect", quick_model, *files, "--gold", gold)
    assert done.status == 1
    assert "has 3 lines for 2 pairs" in done.err
    assert done.out == ""


def test_a_no_break_space_parts_no_words(quick_model: Path, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("Is it true ? yes\tEst-ce vrai\u00a0? oui\n\ufeff\ufeff\tLe chat.\n", encoding="utf-8")
    done = run_heedful("inspect", quick_model, "--alignments", pairs)
    targets = {int(link.split("-")[1]) for link in done.out.split("\n")[0].split()}
    assert targets <= {0, 1, 2}
    assert done.out.split("\n")[1] == ""
    assert run_heedful("inspect", quick_model, "--heads", pairs).status == 0


def test_heads(quick_model: Path, grammar_pairs: Path) -> None:
    done = run_heedful("inspect", quick_model, "--heads", grammar_pairs)
    assert done.status == 0, done.err
    rows = re.findall(r"^ +((?:encoder|decoder|cross) \d\.\d)  +(\d\.\d\d)", done.out, re.MULTILINE)
    assert [name for name, _ in rows] == [
        f"{kind} 1.{n}" for kind in ("encoder", "decoder", "cross") for n in (1, 2)
    ]
    assert "The aligner is decoder layer 1" in done.out
    assert "with a dictionary of 300 pairs" in done.out


def test_grammar(quick_model: Path) -> None:
    """A model that has learned little: chance, and said so."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(heads_module, "CHOOSING", 12)
        patch.setattr(heads_module, "UNSEEN", 30)
        explanation = heads_module.grammar_command(quick_model, device="cpu", report=Reporter(quiet=True))
    antecedents, alignment = explanation.sections
    names = antecedents.tables[0].rows
    assert len(set(names)) == 5
    assert {name.split(" ")[0] for name in names} == {"gradient", "occlusion", "encoder", "cross"}
    for cell in [cell for row in antecedents.tables[0].cells for cell in row]:
        assert re.fullmatch(r"\d+\.\d%|nan%", str(cell))
    assert len(alignment.tables[0].rows) == 2


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "nothing to inspect"),
        (["A dog.", "--grammar"], "a sentence and --grammar do not go together"),
        (["A dog."], "no folder for the pictures"),
        (["--grammar", "--word", "it"], "--word has no effect with --grammar"),
        (["--heads", "PAIRS", "-o", "x"], "--output has no effect with --heads"),
        (["--alignments", "PAIRS", "--format", "png"], "--format has no effect with --alignments"),
        (["--alignments", "PAIRS", "--head", "1"], "--head alone names no head"),
        (["--alignments", "PAIRS", "--reads"], "--reads alone names no head"),
        (["A dog.", "-o", "x", "--reads"], "--reads has no effect with a sentence"),
        (["A dog.", "-o", "x", "--target", " "], "the target is empty"),
        (["--alignments", "PAIRS", "--layer", "9"], "there is no layer 9"),
        (["--alignments", "PAIRS", "--layer", "1", "--head", "9"], "there is no head 9"),
        (["--alignments", "missing.tsv"], "no such file"),
        (["--alignments", "EMPTY"], "no pairs in"),
        (["--heads", "EMPTY"], "no usable pair"),
        (["--alignments", "PAIRS", "--gold", "PAIRS"], "cannot read the link"),
    ],
)
def test_modes_that_do_not_fit(
    quick_model: Path, grammar_pairs: Path, tmp_path: Path, words: list[str], problem: str
) -> None:
    (tmp_path / "empty.tsv").write_text("")
    places = {"PAIRS": str(grammar_pairs), "EMPTY": str(tmp_path / "empty.tsv")}
    done = run_heedful("inspect", quick_model, *(places.get(word, word) for word in words))
    assert done.status == 1
    assert problem in done.err
    assert "hint:" in done.err
