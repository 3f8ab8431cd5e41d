"""The engine of an ensemble, on real model folders, in Python and on the command line."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import heedful
from heedful.data.demo_corpus.grammar import generate_pairs
from heedful.data.reader import write_tsv
from heedful.errors import HeedfulError
from heedful.generation.config import GenerationConfig
from heedful.generation.decoder_protocol import new_hypothesis
from heedful.inference.loading import load
from heedful.inference.pytorch_backend import EnsembleBackend, PyTorchBackend
from heedful.inference.translator import Translator
from heedful.model_folder import ModelFolder
from heedful.models.factory import new_model
from heedful.progress import Reporter
from heedful.tokenization.special_tokens import END, PAD
from heedful.workflows.evaluate import EvaluateOptions, evaluate_model
from tests.conftest import quick_train_args, run_heedful

SILENT = Reporter(quiet=True)
TEXTS = ["The dog is tired.", "I am a student.", "", "The cat. The dog.", "你好 👋 عربي"]


@pytest.fixture(scope="module")
def other_model(grammar_pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Like the quick model, but from another seed."""
    folder = tmp_path_factory.mktemp("models") / "other"
    done = run_heedful(*quick_train_args(grammar_pairs, folder), "--set", "training.seed=7")
    assert done.status == 0, done.err
    return folder


@pytest.fixture(scope="module")
def pairs_to_score(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("test") / "test.tsv"
    write_tsv([(pair.source, pair.target) for pair in generate_pairs(900)[700:]], path)
    return path


def test_ensemble_of_equal_models_matches_single_model(quick_model: Path) -> None:
    alone = load(quick_model, engine="pytorch")
    for folders in ([quick_model], [quick_model, quick_model]):
        engine = heedful.load(folders, engine="pytorch")
        for ours, theirs in zip(engine.translate(TEXTS), alone.translate(TEXTS), strict=True):
            assert ours.text == theirs.text
            assert ours.score == pytest.approx(theirs.score, abs=1e-4)
    assert isinstance(engine.backend, EnsembleBackend)


def test_ensemble_search_score_and_stream_use_mean(quick_model: Path, other_model: Path) -> None:
    engine = heedful.load([quick_model, other_model])
    assert engine.name == "PyTorch, ensemble of 2 models"
    source, target = "The dog is tired.", "Le chien est"
    members = [load(folder, engine="pytorch").score([source], [target])[0] for folder in (quick_model, other_model)]
    mean = np.exp([each.token_log_probabilities for each in members]).mean(0)
    (scored,) = engine.score([source], [target])
    assert np.exp(scored.token_log_probabilities) == pytest.approx(mean, rel=1e-4)

    search = GenerationConfig(beam_size=3, n_best=3)
    (found,) = engine.translate([source], search, ["Le chien"])
    assert len(found.alternatives) == 3
    assert all(each.text.startswith("Le chien") for each in found.alternatives)
    greedy = GenerationConfig(beam_size=1)
    assert "".join(engine.stream(source, greedy)) == engine.translate([source], greedy)[0].text
    first = engine.alternatives(source, "Le ", count=1)[0]
    ids, forced = engine.model_folder.source_ids(source), engine.model_folder.tokenizer.target.encode("Le")
    rows = [
        ModelFolder.load(folder).translation_model.log_probabilities(
            torch.tensor([[*ids, END]]), torch.tensor([[PAD, *forced]])
        )[0, -1]
        for folder in (quick_model, other_model)
    ]
    assert first.probability == pytest.approx(
        float(sum(row.detach().exp()[first.token_id] for row in rows)) / 2, rel=1e-4
    )


def test_ensemble_alignment_uses_mean_attention(quick_model: Path, other_model: Path) -> None:
    engine = heedful.load([quick_model, other_model])
    members = [load(folder, engine="pytorch") for folder in (quick_model, other_model)]
    assert isinstance(engine.backend, PyTorchBackend)
    ids = engine.model_folder.source_ids("The dog is tired.")
    hypothesis = new_hypothesis(
        engine.model_folder.tokenizer.target.encode("Le chien"), [], penalty=lambda length: 1.0, complete=True
    )
    looked = [each.backend.add_attention(ids, hypothesis).attention for each in (engine, *members)]
    np.testing.assert_allclose(looked[0], (looked[1] + looked[2]) / 2, atol=1e-6)  # type: ignore[operator]


def test_ensemble_of_different_architectures_translates(quick_model: Path) -> None:
    bundle = ModelFolder.load(quick_model)
    shape = bundle.config.model.model_copy(update={"architecture": "gru", "norm_placement": "post"})
    torch.manual_seed(3)
    recurrent = replace(bundle, config=bundle.config.model_copy(update={"model": shape}))
    recurrent = replace(recurrent, weights=new_model(shape))
    engine = Translator(EnsembleBackend([bundle, recurrent]))
    (found,) = engine.translate(["The dog is tired."], details=True)
    assert found.alternatives[0].tokens


def test_ensemble_incompatible_model_raises(quick_model: Path, other_model: Path, tmp_path: Path) -> None:
    stranger = tmp_path / "stranger"
    shutil.copytree(other_model, stranger)
    tokenizer = json.loads((stranger / "tokenizer.json").read_text())
    pieces = tokenizer["target"]["tokens"]
    pieces[-1], pieces[-2] = pieces[-2], pieces[-1]
    (stranger / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(HeedfulError, match="target vocabularies differ"):
        heedful.load([quick_model, stranger])
    with pytest.raises(HeedfulError, match="does not support ensembles"):
        heedful.load([quick_model, other_model], engine="ctranslate2")
    with pytest.raises(HeedfulError, match="no model to translate with"):
        heedful.load([])
    done = run_heedful("translate", quick_model, "--with", stranger, "The dog.")
    assert (done.status, done.out) == (1, "")
    assert "cannot form an ensemble: their target vocabularies differ" in done.err


def test_ensemble_loss_is_lower_than_each_model(
    quick_model: Path, other_model: Path, pairs_to_score: Path, tmp_path: Path
) -> None:
    def loss(*models: Path) -> float:
        options = EvaluateOptions(
            models=models, pairs=(pairs_to_score,), generation_overrides={"beam_size": 1}, device="cpu"
        )
        lines = evaluate_model(options, SILENT)
        return float(lines[-1].split()[1])

    alone = [loss(folder) for folder in (quick_model, other_model)]
    assert loss(quick_model, other_model) < min(alone)
    done = run_heedful("evaluate", quick_model, "--with", other_model, pairs_to_score, "--beam", 1)
    assert f"loss  {loss(quick_model, other_model):6.3f}" in done.out
    sources = tmp_path / "sources.txt"
    sources.write_text("The dog is tired.\n\nI am a student.\n", encoding="utf-8")
    done = run_heedful("translate", quick_model, "--with", other_model, "-i", sources, "-o", tmp_path / "out")
    assert done.status == 0, done.err
    assert "ensemble of 2 models" in done.err
    engine = heedful.load([quick_model, other_model])
    expected = [each.text for each in engine.translate(["The dog is tired.", "", "I am a student."])]
    assert (tmp_path / "out").read_text(encoding="utf-8").split("\n")[:3] == expected
