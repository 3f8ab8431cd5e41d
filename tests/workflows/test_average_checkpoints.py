"""``heedful average``: the mean of weights as a model folder, and models that cannot be averaged."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import heedful
from heedful.errors import HeedfulError
from heedful.model_folder import WEIGHTS_FILE, ModelFolder, read_tensors
from heedful.models.factory import new_model
from heedful.progress import Reporter
from heedful.workflows.average_checkpoints import AverageOptions, average_checkpoints
from tests.conftest import run_heedful


def test_average_last_checkpoints_writes_their_mean(quick_model: Path, grammar_pairs: Path, tmp_path: Path) -> None:
    output = tmp_path / "averaged"
    result = run_heedful("average", quick_model, "--last", 3, "-o", output, "-v", grammar_pairs)
    assert result.status == 0, result.err
    folders = sorted((quick_model / "training" / "checkpoints").iterdir())[-3:]
    weights = [read_tensors(folder / WEIGHTS_FILE) for folder in folders]
    for name, tensor in read_tensors(output / WEIGHTS_FILE).items():
        torch.testing.assert_close(tensor, sum(tensors[name] for tensors in weights) / 3)
    losses = [line for line in result.out.splitlines() if line.startswith("loss ")]
    assert len(losses) == 4
    assert losses[-1].endswith("the average")
    assert len({line.split()[1] for line in losses}) == 4
    card = (output / "README.md").read_text(encoding="utf-8")
    assert "The weights are the average of 3 models" in card
    assert all(str(folder) in card for folder in folders)
    assert losses[-1] in card
    assert heedful.load(output).translate(["The dog is tired."])[0].text


def test_average_mixes_models_and_checkpoints(quick_model: Path, tmp_path: Path) -> None:
    first = sorted((quick_model / "training" / "checkpoints").iterdir())[0]
    list(average_checkpoints(AverageOptions((quick_model, first), tmp_path / "both"), Reporter(quiet=True)))
    both = [read_tensors(folder / WEIGHTS_FILE) for folder in (quick_model, first)]
    name, averaged = next(iter(read_tensors(tmp_path / "both" / WEIGHTS_FILE).items()))
    torch.testing.assert_close(averaged, (both[0][name] + both[1][name]) / 2)
    assert "Not validated" in ModelFolder.load(tmp_path / "both").card


def test_average_incompatible_models_is_an_error(quick_model: Path, tmp_path: Path) -> None:
    model_folder, wider, new = ModelFolder.load(quick_model), tmp_path / "wider", tmp_path / "new"
    shape = model_folder.config.model.model_copy(update={"d_ff": 48})
    config = model_folder.config.model_copy(update={"model": shape})
    replace(model_folder, config=config, weights=new_model(shape)).save(wider)

    def problem(*paths: Path, output: Path = new, **options: object) -> str:
        average_options = AverageOptions(paths, output, **options)  # type: ignore[arg-type]
        with pytest.raises(HeedfulError) as error:
            list(average_checkpoints(average_options, Reporter(quiet=True)))
        assert not new.exists()
        return error.value.problem

    both = (quick_model, wider)
    assert problem(*both).endswith("model.d_ff is 32 in one and 48 in the other")
    assert problem(quick_model) == "nothing to average: only one model"
    assert problem(quick_model, quick_model) == "the same weights are listed twice"
    assert problem(quick_model, last=50).endswith("checkpoints, not 50")
    assert problem(wider, last=2).endswith("has 0 checkpoints, not 2")
    assert problem(quick_model, tmp_path / "nothing").startswith("no such folder")
    assert problem(*both, output=quick_model).endswith("already exists")
    assert problem(*both, validation=(tmp_path / "nothing.tsv",)).startswith("no such file")
    result = run_heedful("average", *both, "-o", new)
    assert (result.status, result.out) == (1, "")
    assert "heedful translate --with" in result.err
