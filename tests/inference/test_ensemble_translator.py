"""Translation with an ensemble of trained models, in Python and on the command line."""

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

QUIET = Reporter(quiet=True)
TEXTS = ["The dog is tired.", "I am a student.", "", "The cat. The dog.", "你好 👋 عربي"]


@pytest.fixture(scope="module")
def other_model(grammar_pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Like `quick_model`, but with another seed."""
    folder = tmp_path_factory.mktemp("models") / "other"
    result = run_heedful(*quick_train_args(grammar_pairs, folder), "--set", "training.seed=7")
    assert result.status == 0, result.err
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
    mean = np.exp([member.token_log_probabilities for member in members]).mean(0)
    (scored,) = engine.score([source], [target])
    assert np.exp(scored.token_log_probabilities) == pytest.approx(mean, rel=1e-4)

    search = GenerationConfig(beam_size=3, n_best=3)
    (translation,) = engine.translate([source], search, ["Le chien"])
    assert len(translation.alternatives) == 3
    assert all(alternative.text.startswith("Le chien") for alternative in translation.alternatives)
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
    attention = [translator.backend.add_attention(ids, hypothesis).attention for translator in (engine, *members)]
    np.testing.assert_allclose(attention[0], (attention[1] + attention[2]) / 2, atol=1e-6)  # type: ignore[operator]


def test_ensemble_of_different_architectures_translates(quick_model: Path) -> None:
    transformer = ModelFolder.load(quick_model)
    shape = transformer.config.model.model_copy(update={"architecture": "gru", "norm_placement": "post"})
    torch.manual_seed(3)
    recurrent = replace(transformer, config=transformer.config.model_copy(update={"model": shape}))
    recurrent = replace(recurrent, weights=new_model(shape))
    engine = Translator(EnsembleBackend([transformer, recurrent]))
    (translation,) = engine.translate(["The dog is tired."], details=True)
    assert translation.alternatives[0].tokens


def test_ensemble_incompatible_model_raises(quick_model: Path, other_model: Path, tmp_path: Path) -> None:
    incompatible = tmp_path / "incompatible"
    shutil.copytree(other_model, incompatible)
    tokenizer = json.loads((incompatible / "target_tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    *_, first, second = vocabulary
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (incompatible / "target_tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(HeedfulError, match="target vocabularies differ"):
        heedful.load([quick_model, incompatible])
    with pytest.raises(HeedfulError, match="does not support ensembles"):
        heedful.load([quick_model, other_model], engine="ctranslate2")
    with pytest.raises(HeedfulError, match="no model to translate with"):
        heedful.load([])
    result = run_heedful("translate", quick_model, "--with", incompatible, "The dog.")
    assert (result.status, result.out) == (1, "")
    assert "cannot form an ensemble: their target vocabularies differ" in result.err


def test_ensemble_loss_is_lower_than_each_model(
    quick_model: Path, other_model: Path, pairs_to_score: Path, tmp_path: Path
) -> None:
    def loss(*models: Path) -> float:
        options = EvaluateOptions(
            models=models, pairs=(pairs_to_score,), generation_overrides={"beam_size": 1}, device="cpu"
        )
        lines = evaluate_model(options, QUIET)
        return float(lines[-1].split()[1])

    alone = [loss(folder) for folder in (quick_model, other_model)]
    assert loss(quick_model, other_model) < min(alone)
    result = run_heedful("evaluate", quick_model, "--with", other_model, pairs_to_score, "--beam", 1)
    assert f"loss  {loss(quick_model, other_model):6.3f}" in result.out
    sources = tmp_path / "sources.txt"
    sources.write_text("The dog is tired.\n\nI am a student.\n", encoding="utf-8")
    result = run_heedful("translate", quick_model, "--with", other_model, "-i", sources, "-o", tmp_path / "out")
    assert result.status == 0, result.err
    assert "ensemble of 2 models" in result.err
    engine = heedful.load([quick_model, other_model])
    expected = [translation.text for translation in engine.translate(["The dog is tired.", "", "I am a student."])]
    assert (tmp_path / "out").read_text(encoding="utf-8").split("\n")[:3] == expected
