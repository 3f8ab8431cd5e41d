"""`heedful inspect`: which files it writes, their content, and errors."""

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

from heedful.data.word_alignment import format_pharaoh
from heedful.errors import HeedfulError
from heedful.interpret import head_report
from heedful.interpret.activations import aggregate_to_words, compute_activations, regroup_words
from heedful.interpret.attention_report import FigureOptions, write_attention_report
from heedful.interpret.attribution import gradient_matrix, occlusion_matrix, target_rollout
from heedful.interpret.heads import Aligner
from heedful.model_folder import ModelFolder
from heedful.progress import Reporter
from tests.conftest import Result, run_heedful
from tests.interpret.small_models import new_model_folder

SENTENCE = "The animal didn't cross the street because it was too tired."
TARGET = "L'animal dort."


def inspect(model: Path, folder: Path, *, quiet: bool = False, **options: Any) -> list[str]:
    """Run the command in this process, where every warning is an error."""
    figure_options = replace(FigureOptions(model, SENTENCE, folder), **options)
    return list(write_attention_report(figure_options, Reporter(quiet=quiet)))


def read_numbers(folder: Path, name: str = "weights.json") -> dict[str, Any]:
    return json.loads((folder / name).read_text(encoding="utf-8"))


def matrices(attention: dict[str, Any]) -> Tensor:
    return torch.tensor(attention["weights"], dtype=torch.float64)


@pytest.fixture(scope="module")
def inspection(quick_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    folder = tmp_path_factory.mktemp("inspection") / "new" / "folder"
    result = run_heedful("inspect", quick_model, SENTENCE, "-o", folder, "--target", TARGET)
    assert result.status == 0, result.err
    return folder, result


def test_inspect_single_head_is_counted_in_singular(tmp_path: Path) -> None:
    new_model_folder(layers=(1, 1), heads=1).save(tmp_path / "model")
    lines = inspect(tmp_path / "model", tmp_path / "out", kind="encoder", image_format="svg", target=TARGET)
    assert any(line.endswith(", 1 head") for line in lines)
    assert any(line.endswith(", mean of 1 head") for line in lines)


def test_inspect_writes_and_lists_all_figures(inspection: tuple[Path, Result]) -> None:
    folder, result = inspection
    stems = ["training", "rollout", "gradient", "occlusion"] + [
        f"{kind}-layer-1{end}" for kind in ("encoder", "decoder", "cross") for end in ("", "-mean", "-lines")
    ]
    expected = {f"{stem}.{form}" for stem in stems for form in ("png", "svg")} | {"weights.json"}
    assert {path.name for path in folder.iterdir()} == expected
    for stem in stems:
        assert f"{stem}.png, .svg: " in result.out
    assert "all 2 heads" in result.out
    assert "warning" not in result.err


def test_inspect_figures_are_readable(inspection: tuple[Path, Result]) -> None:
    folder, _ = inspection
    with Image.open(folder / "encoder-layer-1.png") as image:
        image.load()
    cross = (folder / "cross-layer-1-mean.svg").read_text(encoding="utf-8")
    assert ">animal</text>" in cross
    assert ">dort</text>" in cross


def test_inspect_json_matches_model(inspection: tuple[Path, Result], quick_model: Path) -> None:
    report = read_numbers(inspection[0])
    activations = compute_activations(ModelFolder.load(quick_model), SENTENCE, TARGET)
    kinds = [(attention["kind"], attention["layer"], attention["heads"]) for attention in report["attention"]]
    assert kinds == [("encoder", 1, [1, 2]), ("decoder", 1, [1, 2]), ("cross", 1, [1, 2])]
    for attention in report["attention"]:
        rows, columns = activations.queries_and_keys(attention["kind"])
        assert (attention["rows"], attention["columns"]) == (list(rows.words), list(columns.words))
        expected = aggregate_to_words(activations.weights(attention["kind"], 0).double(), rows, columns)
        torch.testing.assert_close(matrices(attention), expected, rtol=0, atol=1e-6)
        torch.testing.assert_close(matrices(attention).sum(-1), torch.ones(expected.shape[:-1]).double())
    assert report["source"]["words"][-1] == "</s>"


def test_inspect_selected_head_and_word_writes_only_these(quick_model: Path, tmp_path: Path) -> None:
    lines = inspect(
        quick_model, tmp_path, kind="encoder", layer=1, head=2, word="it", target=TARGET, image_format="svg"
    )
    assert {path.name for path in tmp_path.iterdir()} == {
        "encoder-layer-1-head-2.svg",
        "encoder-layer-1-head-2-word-8.svg",
        "weights-encoder-layer-1-head-2.json",
    }
    assert any("what “it” attends to" in line for line in lines)
    (only,) = read_numbers(tmp_path, "weights-encoder-layer-1-head-2.json")["attention"]
    assert only["heads"] == [2]
    activations = compute_activations(ModelFolder.load(quick_model), SENTENCE, TARGET)
    torch.testing.assert_close(matrices(only)[0], activations.weights("encoder", 0)[1].double(), rtol=0, atol=1e-6)


def test_inspect_subwords_match_model(quick_model: Path, tmp_path: Path) -> None:
    target = "中 <b>& $x_1$ dort"
    inspect(quick_model, tmp_path, sentence="مرحبا it", target=target, kind="cross", subwords=True, image_format="svg")
    report = read_numbers(tmp_path, "weights-cross.json")
    assert report["between"] == "subwords"
    activations = compute_activations(ModelFolder.load(quick_model), "مرحبا it", target)
    (cross,) = report["attention"]
    assert (cross["rows"], cross["columns"]) == (list(activations.target.subwords), list(activations.source.subwords))
    torch.testing.assert_close(matrices(cross), activations.weights("cross", 0).double(), rtol=0, atol=1e-6)


@pytest.mark.long
def test_inspect_very_long_sentence_draws_figures(quick_model: Path, tmp_path: Path) -> None:
    long = "it was tired " * 70
    inspect(quick_model, tmp_path, sentence=long, target="il " * 20, image_format="png")
    assert (tmp_path / "cross-layer-1.png").stat().st_size > 10_000


def test_inspect_target_word_draws_decoder_and_cross_attention(quick_model: Path, tmp_path: Path) -> None:
    inspect(quick_model, tmp_path, sentence="it", target="la rue", word="rue", image_format="svg")
    names = {path.name for path in tmp_path.iterdir() if "-word-" in path.name}
    assert names == {"decoder-layer-1-word-3.svg", "cross-layer-1-word-2.svg"}


@pytest.mark.long
def test_inspect_missing_glyphs_warn_once(
    quick_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    strange = "\U0010fffd"
    inspect(quick_model, tmp_path, sentence=strange, target=strange, image_format="png", quiet=True)
    stderr = capsys.readouterr().err
    assert stderr.count("no installed font can draw 1 of the characters (U+10FFFD)") == 1


def test_inspect_model_without_metrics_draws_no_training_curve(quick_model: Path, tmp_path: Path) -> None:
    model, output = tmp_path / "model", tmp_path / "output"
    shutil.copytree(quick_model, model, ignore=shutil.ignore_patterns("training"))
    inspect(model, output, sentence="it", target="il", kind="cross", image_format="svg")
    assert not (output / "training.svg").exists()
    (model / "training").mkdir()
    (model / "training" / "metrics.jsonl").touch()
    inspect(model, output, sentence="it", target="il", kind="cross", image_format="svg")
    assert not (output / "training.svg").exists()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"layer": 2}, "layer 2 does not exist: the encoder has 1"),
        ({"kind": "cross", "layer": 0}, "layer 0 does not exist: the decoder has 1"),
        ({"head": 3}, "head 3 does not exist: each layer has 2"),
        ({"word": "zebra"}, "the word 'zebra' is not in the sentence"),
        ({"kind": "sideways"}, "unknown attention kind 'sideways'"),
        ({"image_format": "pdf"}, "unknown format 'pdf'"),
        ({"sentence": " "}, "the sentence is empty"),
    ],
)
def test_inspect_invalid_options_raise(
    options: dict[str, Any], problem: str, quick_model: Path, tmp_path: Path
) -> None:
    with pytest.raises(HeedfulError, match=problem) as caught:
        inspect(quick_model, tmp_path / "new", **options)
    assert caught.value.hint
    assert not (tmp_path / "new").exists()


def test_inspect_unwritable_output_raises(quick_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    result = run_heedful("inspect", quick_model, SENTENCE, "-o", file)
    assert result.status == 1
    assert f"error: {file} is a file\n  hint: " in result.err
    with pytest.raises(HeedfulError, match="cannot create"):
        inspect(quick_model, file / "below")
    assert file.read_text() == "mine"


@pytest.mark.long
def test_commands_other_than_inspect_do_not_import_matplotlib() -> None:
    code = (
        "import heedful.cli.main, heedful.workflows.train, heedful.inference.bulk, heedful.workflows.evaluate, sys;"
        "import heedful.interpret.activations; print('matplotlib' in sys.modules)"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "False"


# ---- attributions


def test_inspect_attributions_match_model(inspection: tuple[Path, Result], quick_model: Path) -> None:
    report = read_numbers(inspection[0])
    bundle = ModelFolder.load(quick_model)
    activations = compute_activations(bundle, SENTENCE, TARGET)
    for name, expected in (
        ("rollout", target_rollout(activations)[0]),
        ("gradient", gradient_matrix(bundle, activations)),
        ("occlusion", occlusion_matrix(bundle, activations)),
    ):
        attribution = torch.tensor(report[name], dtype=torch.float64)
        torch.testing.assert_close(attribution, expected.double(), rtol=1e-4, atol=1e-5)


def test_inspect_guided_head_is_labeled(quick_model: Path, tmp_path: Path) -> None:
    model = tmp_path / "guided"
    shutil.copytree(quick_model, model, ignore=shutil.ignore_patterns("training"))
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "guided_head": [1, 2]}))
    lines = inspect(model, tmp_path / "all", image_format="svg", target=TARGET, kind="encoder")
    assert any("all 2 heads (head 2 is guided)" in line for line in lines)
    one = inspect(model, tmp_path / "one", image_format="svg", target=TARGET, kind="encoder", layer=1, head=2)
    assert any("head 2 (guided)" in line for line in one)
    assert any("mean of 2 heads (head 2 is guided)" in line for line in lines)
    assert read_numbers(tmp_path / "all", "weights-encoder.json")["guided_head"] == [1, 2]
    other = inspect(model, tmp_path / "other", image_format="svg", target=TARGET, kind="encoder", layer=1, head=1)
    assert not any("guided" in line for line in other[1:-1])
    result = run_heedful("explain", model, SENTENCE, "--head", 2)
    assert "in guided head 2 of layer 1" in result.out


# ---- alignments


def test_inspect_alignments_writes_pharaoh(quick_model: Path, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.tsv"
    lines = ["The dog sleeps .\tLe chien dort .", "\t", "A cat\tUn chat", "مرحبا 中文\tBonjour 👩‍🚀 !"]
    pairs.write_text("\n".join(lines) + "\n", encoding="utf-8")
    result = run_heedful("inspect", quick_model, "--alignments", pairs)
    assert result.status == 0, result.err
    assert "the mean of heads, the row that writes the word (the default: 3 pairs are too few" in result.err
    output_lines = result.out.split("\n")
    assert len(output_lines) == 5
    assert output_lines[1] == ""
    bundle = ModelFolder.load(quick_model)
    for line, text in zip(lines, output_lines, strict=False):
        source, target = (side.split() for side in line.split("\t"))
        for link in text.split():
            i, j = map(int, link.split("-"))
            assert i < len(source)
            assert j < len(target)
    shifted = run_heedful("inspect", quick_model, "--alignments", pairs, "--layer", 1, "--head", 2, "--shifted")
    unshifted = run_heedful("inspect", quick_model, "--alignments", pairs, "--layer", 1, "--head", 2)
    activations = regroup_words(bundle, compute_activations(bundle, "A cat", "Un chat"), ["A", "cat"], ["Un", "chat"])
    assert unshifted.out.split("\n")[2] == format_pharaoh(Aligner(0, 1, shifted=False).extract_links(activations))
    assert shifted.out.split("\n")[2] == format_pharaoh(Aligner(0, 1, shifted=True).extract_links(activations))
    to_file = run_heedful("inspect", quick_model, "--alignments", pairs, "-o", tmp_path / "links")
    assert (tmp_path / "links").read_text() == result.out
    assert to_file.out == ""


def test_inspect_alignments_with_gold_reports_error_rate(quick_model: Path, tmp_path: Path) -> None:
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
    result = run_heedful("inspect", quick_model, *files, "--gold", gold)
    assert "alignment error rate 0.00%, on 2 pairs" in result.err
    gold.write_text("1-3 3-1\n1-1\n1-1\n")
    result = run_heedful("inspect", quick_model, *files, "--gold", gold)
    assert result.status == 1
    assert "has 3 lines for 2 pairs" in result.err
    assert result.out == ""


def test_inspect_alignments_no_break_space_joins_words(quick_model: Path, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("Is it true ? yes\tEst-ce vrai\u00a0? oui\n\ufeff\ufeff\tLe chat.\n", encoding="utf-8")
    result = run_heedful("inspect", quick_model, "--alignments", pairs)
    targets = {int(link.split("-")[1]) for link in result.out.split("\n")[0].split()}
    assert targets <= {0, 1, 2}
    assert result.out.split("\n")[1] == ""
    assert run_heedful("inspect", quick_model, "--heads", pairs).status == 0


@pytest.mark.long
def test_inspect_heads_reports_patterns(quick_model: Path, grammar_pairs: Path) -> None:
    result = run_heedful("inspect", quick_model, "--heads", grammar_pairs)
    assert result.status == 0, result.err
    rows = re.findall(r"^ +((?:encoder|decoder|cross) \d\.\d)  +(\d\.\d\d)", result.out, re.MULTILINE)
    assert [name for name, _ in rows] == [f"{kind} 1.{n}" for kind in ("encoder", "decoder", "cross") for n in (1, 2)]
    assert "The aligner is decoder layer 1" in result.out
    assert "with IBM model 1 on 300 pairs" in result.out


@pytest.mark.long
def test_inspect_grammar_reports_heads(quick_model: Path) -> None:
    """With a model at chance level: the tables are complete."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(head_report, "SELECTION_SENTENCES", 12)
        patch.setattr(head_report, "TEST_SENTENCES", 30)
        explanation = head_report.report_grammar(quick_model, device="cpu", report=Reporter(quiet=True))
    antecedents, alignment = explanation.sections
    names = antecedents.tables[0].rows
    assert len(set(names)) == 5
    assert {name.split(" ")[0] for name in names} == {"gradient", "occlusion", "encoder", "cross"}
    for cell in [cell for row in antecedents.tables[0].cells for cell in row]:
        assert re.fullmatch(r"\d+\.\d%|nan%", str(cell))
    assert len(alignment.tables[0].rows) == 2


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ([], "nothing to inspect"),
        (["A dog.", "--grammar"], "a sentence and --grammar cannot be combined"),
        (["A dog."], "no folder for the figures"),
        (["--grammar", "--word", "it"], "--word has no effect with --grammar"),
        (["--heads", "PAIRS", "-o", "x"], "--output has no effect with --heads"),
        (["--alignments", "PAIRS", "--format", "png"], "--format has no effect with --alignments"),
        (["--alignments", "PAIRS", "--head", "1"], "--head needs --layer"),
        (["--alignments", "PAIRS", "--shifted"], "--shifted needs --layer"),
        (["A dog.", "-o", "x", "--shifted"], "--shifted has no effect with a sentence"),
        (["A dog.", "-o", "x", "--target", " "], "the target is empty"),
        (["--alignments", "PAIRS", "--layer", "9"], "layer 9 does not exist"),
        (["--alignments", "PAIRS", "--layer", "1", "--head", "9"], "head 9 does not exist"),
        (["--alignments", "missing.tsv"], "no such file"),
        (["--alignments", "EMPTY"], "no pairs in"),
        (["--heads", "EMPTY"], "no usable pair"),
        (["--alignments", "PAIRS", "--gold", "PAIRS"], "invalid link"),
    ],
)
def test_inspect_incompatible_options_raise(
    quick_model: Path, grammar_pairs: Path, tmp_path: Path, args: list[str], problem: str
) -> None:
    (tmp_path / "empty.tsv").write_text("")
    paths = {"PAIRS": str(grammar_pairs), "EMPTY": str(tmp_path / "empty.tsv")}
    result = run_heedful("inspect", quick_model, *(paths.get(arg, arg) for arg in args))
    assert result.status == 1
    assert problem in result.err
    assert "hint:" in result.err
