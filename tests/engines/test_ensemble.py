"""The engine of an ensemble, on real model folders, in Python and on the command line."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import heedful
from heedful.bundle import Bundle
from heedful.commands.evaluate import evaluate_command
from heedful.corpora.formats import write_tsv
from heedful.corpora.grammar import generate
from heedful.decoding.config import SearchConfig
from heedful.decoding.hypothesis import new_hypothesis
from heedful.engines.ensemble import EnsembleEngine
from heedful.engines.native import NativeEngine
from heedful.errors import HeedfulError
from heedful.model.family import new_model
from heedful.progress import Reporter
from heedful.text.tokenizer import END, PAD
from tests.conftest import quick_train_words, run_heedful

SILENT = Reporter(quiet=True)
TEXTS = ["The dog is tired.", "I am a student.", "", "The cat. The dog.", "你好 👋 عربي"]


@pytest.fixture(scope="module")
def other_model(grammar_pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Like the quick model, but from another seed."""
    folder = tmp_path_factory.mktemp("models") / "other"
    done = run_heedful(*quick_train_words(grammar_pairs, folder), "--set", "training.seed=7")
    assert done.status == 0, done.err
    return folder


@pytest.fixture(scope="module")
def pairs_to_score(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("test") / "test.tsv"
    write_tsv([(pair.source, pair.target) for pair in generate(900)[700:]], path)
    return path


def test_one_model_is_itself_and_two_of_it_as_well(quick_model: Path) -> None:
    alone = NativeEngine.load(quick_model)
    for folders in ([quick_model], [quick_model, quick_model]):
        engine = heedful.load(folders, engine="pytorch")
        for ours, theirs in zip(engine.translate(TEXTS), alone.translate(TEXTS), strict=True):
            assert ours.text == theirs.text
            assert ours.score == pytest.approx(theirs.score, abs=1e-4)
    assert isinstance(engine, EnsembleEngine)


def test_everything_an_engine_does_is_by_the_mean(quick_model: Path, other_model: Path) -> None:
    engine = heedful.load([quick_model, other_model])
    assert engine.name == "PyTorch, 2 models together (CTranslate2 cannot average models)"
    source, target = "The dog is tired.", "Le chien est"
    members = [
        NativeEngine.load(folder).score([source], [target])[0] for folder in (quick_model, other_model)
    ]
    mean = np.exp([each.token_log_probabilities for each in members]).mean(0)
    (scored,) = engine.score([source], [target])
    assert np.exp(scored.token_log_probabilities) == pytest.approx(mean, rel=1e-4)

    search = SearchConfig(beam=3, n_best=3)
    (found,) = engine.translate([source], search, ["Le chien"])
    assert len(found.alternatives) == 3
    assert all(each.text.startswith("Le chien") for each in found.alternatives)
    greedy = SearchConfig(beam=1)
    assert "".join(engine.stream(source, greedy)) == engine.translate([source], greedy)[0].text
    first = engine.continuations(source, "Le ", count=1)[0]
    ids, forced = engine.bundle.source_ids(source), engine.bundle.tokenizer.target.encode("Le")
    rows = [
        Bundle.load(folder).model.log_probabilities(
            torch.tensor([[*ids, END]]), torch.tensor([[PAD, *forced]])
        )[0, -1]
        for folder in (quick_model, other_model)
    ]
    assert first.probability == pytest.approx(
        float(sum(row.detach().exp()[first.token] for row in rows)) / 2, rel=1e-4
    )


def test_alignments_are_by_the_mean_of_the_members_attention(quick_model: Path, other_model: Path) -> None:
    engine = heedful.load([quick_model, other_model])
    members = [NativeEngine.load(folder) for folder in (quick_model, other_model)]
    assert isinstance(engine, NativeEngine)
    ids = engine.bundle.source_ids("The dog is tired.")
    hypothesis = new_hypothesis(
        engine.bundle.tokenizer.target.encode("Le chien"), [], penalty=lambda length: 1.0, complete=True
    )
    looked = [each.watched(ids, hypothesis).attention for each in (engine, *members)]
    np.testing.assert_allclose(looked[0], (looked[1] + looked[2]) / 2, atol=1e-6)  # type: ignore[operator]


def test_models_of_different_families_work_together(quick_model: Path) -> None:
    bundle = Bundle.load(quick_model)
    shape = bundle.config.model.model_copy(update={"family": "gru", "norm": "post"})
    torch.manual_seed(3)
    recurrent = replace(bundle, config=bundle.config.model_copy(update={"model": shape}))
    recurrent = replace(recurrent, weights=new_model(shape))
    engine = EnsembleEngine([bundle, recurrent])
    (found,) = engine.translate(["The dog is tired."], details=True)
    assert found.alternatives[0].tokens


def test_a_stranger_is_refused_with_the_reason(quick_model: Path, other_model: Path, tmp_path: Path) -> None:
    stranger = tmp_path / "stranger"
    shutil.copytree(other_model, stranger)
    tokenizer = json.loads((stranger / "tokenizer.json").read_text())
    pieces = tokenizer["target"]["pieces"]
    pieces[-1], pieces[-2] = pieces[-2], pieces[-1]
    (stranger / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(HeedfulError, match="target vocabularies differ"):
        heedful.load([quick_model, stranger])
    with pytest.raises(HeedfulError, match="cannot run several models together"):
        heedful.load([quick_model, other_model], engine="ctranslate2")
    with pytest.raises(HeedfulError, match="no model to translate with"):
        heedful.load([])
    done = run_heedful("translate", quick_model, "--with", stranger, "The dog.")
    assert (done.status, done.out) == (1, "")
    assert "cannot work together: their target vocabularies differ" in done.err


def test_two_models_lose_less_than_either(
    quick_model: Path, other_model: Path, pairs_to_score: Path, tmp_path: Path
) -> None:
    def loss(*models: Path) -> float:
        lines = evaluate_command(
            models, [pairs_to_score], None, None, {"beam": 1}, (), engine="exact", device="cpu", report=SILENT
        )
        return float(lines[-1].split()[1])

    alone = [loss(folder) for folder in (quick_model, other_model)]
    assert loss(quick_model, other_model) < min(alone)
    done = run_heedful("evaluate", quick_model, "--with", other_model, pairs_to_score, "--beam", 1)
    assert f"loss  {loss(quick_model, other_model):6.3f}" in done.out
    sources = tmp_path / "sources.txt"
    sources.write_text("The dog is tired.\n\nI am a student.\n", encoding="utf-8")
    done = run_heedful("translate", quick_model, "--with", other_model, "-i", sources, "-o", tmp_path / "out")
    assert done.status == 0, done.err
    assert "2 models together" in done.err
    engine = heedful.load([quick_model, other_model])
    expected = [each.text for each in engine.translate(["The dog is tired.", "", "I am a student."])]
    assert (tmp_path / "out").read_text(encoding="utf-8").split("\n")[:3] == expected
