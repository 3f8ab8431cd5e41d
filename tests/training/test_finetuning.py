"""Fine-tuning: a trained model is trained on new pairs; both domains are validated."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import heedful
from heedful.cli.train import parse_mix
from heedful.cli.train import train as train_command
from heedful.data.collate import collate
from heedful.data.config import ReadingConfig
from heedful.data.corpus import CorpusInputs, CorpusSource, make_sources
from heedful.data.reader import write_tsv
from heedful.errors import HeedfulError
from heedful.model_folder import ModelFolder, read_tensors
from heedful.progress import Reporter
from heedful.training.finetuning import build_finetuning_inputs, get_finetuning_languages
from tests.conftest import run_heedful

QUIET = Reporter(quiet=True)
GENERAL_WORDS = {"ba": "BOR", "de": "DAS", "fi": "FEN", "go": "GIL", "ku": "KAM", "la": "LUT", "me": "MIR"}
NEW_WORDS = {"pezu": "POX", "rizo": "REX", "sevo": "SUX", "tuzi": "TAX", "vazu": "VOX", "zuvo": "ZIX"}
BASE_SETTINGS: dict[str, Any] = {
    "preset": "tiny",
    "tokenizer": {"vocab_size": 320},
    "model": {"d_model": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "d_ff": 64},
    "batching": {"max_tokens": 512},
    "training": {
        "max_updates": 260,
        "max_epochs": 99,
        "learning_rate": 0.01,
        "warmup_updates": 40,
        "validate_every": 130,
    },
}
FAST_SETTINGS = {"threads": 1, "processes": 1, "precision": "float32", "bleu_sentences": 8}
BASE_SETTINGS["model"]["dropout"] = 0.0
BASE_SETTINGS["training"] |= FAST_SETTINGS
FINETUNING_SETTINGS: dict[str, Any] = {
    "batching": {"max_tokens": 256},
    "training": {"max_updates": 40, "learning_rate": 0.003, "warmup_updates": 5, "validate_every": 10} | FAST_SETTINGS,
}
"""Larger steps than usual, for a tiny model."""


def write_pairs(path: Path, dictionary: dict[str, str], count: int, seed: int) -> Path:
    """Sentences of two to four words, translated word by word."""
    rng = random.Random(seed)
    rows = [[rng.choice(list(dictionary)) for _ in range(rng.randint(2, 4))] for _ in range(count)]
    write_tsv([(" ".join(row), " ".join(dictionary[word] for word in row)) for row in rows], path)
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of seven words, its training pairs, and new pairs with six other words."""
    folder = tmp_path_factory.mktemp("tuning")
    general = write_pairs(folder / "general.tsv", GENERAL_WORDS, 900, 1)
    write_pairs(folder / "new.tsv", NEW_WORDS, 200, 2)
    heedful.train(general, folder / "base", languages=("en", "de"), settings=BASE_SETTINGS, report=QUIET)
    return folder


def finetune(files: Path, folder: Path, settings: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    """Fine-tune the model and return finetuning.json."""
    run_settings = {**FINETUNING_SETTINGS, **(settings or {})}
    heedful.train(files / "new.tsv", folder, init_from=files / "base", settings=run_settings, report=QUIET, **options)
    report: dict[str, Any] = json.loads((folder / "finetuning.json").read_text())
    return report


def read_validations(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "training" / "metrics.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if "validation_loss" in line]


def test_finetuning_learns_and_measures_forgetting(files: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in (files / "base").iterdir() if path.is_file()}
    unlimited = {"finetuning": {"max_forgetting": 100}}
    unmixed = finetune(files, tmp_path / "alone", unlimited)
    mixed = finetune(files, tmp_path / "mixed", unlimited, mix=[CorpusSource((files / "general.tsv",), fraction=0.5)])
    for report in (unmixed, mixed):
        assert report["validation"]["after"]["loss"] < 0.6 * report["validation"]["before"]["loss"]
        assert report["original_validation"]["before"]["loss"] == pytest.approx(
            unmixed["original_validation"]["before"]["loss"]
        )
    assert unmixed["original_validation"]["after"]["loss"] > 1.5 * unmixed["original_validation"]["before"]["loss"]
    assert mixed["original_validation"]["after"]["loss"] < 0.7 * unmixed["original_validation"]["after"]["loss"]
    assert before == {path.name: path.read_bytes() for path in (files / "base").iterdir() if path.is_file()}
    validations = read_validations(tmp_path / "alone")
    assert [line["update"] for line in validations] == [0, 10, 20, 30, 40]
    assert all({"BLEU", "original_BLEU", "original_validation_loss"} <= line.keys() for line in validations)
    card = (tmp_path / "alone" / "README.md").read_text(encoding="utf-8")
    assert "## Before and after fine-tuning" in card
    assert f"| {unmixed['validation']['before']['loss']:.4f} | {unmixed['validation']['after']['loss']:.4f} |" in card
    assert unmixed["validation"]["samples"][0].keys() == {"source", "reference", "before", "after"}
    # The original validation pairs come from general.tsv: mixed in again, they must not be trained on.
    summary = json.loads((tmp_path / "mixed/training/data/preprocessed.json").read_text())["summary"]
    assert any("left out" in line and "that they contain too" in line for line in summary)


def test_finetuning_rejects_weights_that_forget(files: Path, tmp_path: Path) -> None:
    report = finetune(files, tmp_path / "careful", {"finetuning": {"max_forgetting": 3}})
    assert report["original_validation"]["after"]["loss"] <= 4 * report["original_validation"]["before"]["loss"]
    assert any(
        line["original_validation_loss"] > 4 * report["original_validation"]["before"]["loss"]
        for line in read_validations(tmp_path / "careful")
    )
    assert report["validation"]["after"]["loss"] < report["validation"]["before"]["loss"]
    assert "forgot more" in report["weights"]


def test_finetuning_without_improvement_keeps_the_initial_model(files: Path, tmp_path: Path) -> None:
    """A learning rate that ruins the model: the result is the initial model, with new subwords or without."""
    training = FINETUNING_SETTINGS["training"] | {
        "learning_rate": 10.0,
        "max_updates": 6,
        "validate_every": 3,
        "warmup_updates": 1,
    }
    for name, new_subwords in (("same", 0), ("extended", 8)):
        report = finetune(files, tmp_path / name, {"training": training, "finetuning": {"new_subwords": new_subwords}})
        assert report["update"] == 0
        assert "did not improve" in report["weights"]
        assert report["validation"]["after"] == report["validation"]["before"]
        first, second = (read_tensors(folder / "weights.safetensors") for folder in (files / "base", tmp_path / name))
        assert all(torch.equal(first[key], second[key]) for key in first.keys() | second.keys())


@pytest.mark.parametrize(
    "shape", [{}, {"tokenizer": {"joint_vocabulary": False}, "model": {"tie_output_embeddings": False}}]
)
def test_finetuning_new_subwords_extend_the_vocabulary(files: Path, tmp_path: Path, shape: dict[str, Any]) -> None:
    base = files / "base"
    if shape:
        base_settings = {
            section: BASE_SETTINGS[section] | shape.get(section, {}) if section != "preset" else BASE_SETTINGS[section]
            for section in BASE_SETTINGS
        }
        base_settings["training"] = base_settings["training"] | {"max_updates": 1}
        base = tmp_path / "base"
        heedful.train(files / "general.tsv", base, languages=("en", "de"), settings=base_settings, report=QUIET)
    settings = {
        "finetuning": {"new_subwords": 60, "max_forgetting": 100},
        "training": FINETUNING_SETTINGS["training"] | {"max_updates": 1},
    }
    heedful.train(
        files / "new.tsv", tmp_path / "tuned", init_from=base, settings=FINETUNING_SETTINGS | settings, report=QUIET
    )
    old, new = ModelFolder.load(base), ModelFolder.load(tmp_path / "tuned")
    start = read_tensors(tmp_path / "tuned" / "training" / "checkpoints" / "000000000" / "weights.safetensors")
    new_subwords = json.loads((tmp_path / "tuned" / "finetuning.json").read_text())["new_subwords"]
    assert len(new_subwords) == (2 if shape else 1)
    assert min(new_subwords) > 20
    assert new.tokenizer.source.vocab_size == old.tokenizer.source.vocab_size + new_subwords[0]
    assert new.tokenizer.source.encode("ba de fi") == old.tokenizer.source.encode("ba de fi")
    assert len(new.tokenizer.source.encode("pezu")) < len(old.tokenizer.source.encode("pezu"))
    assert new.tokenizer.source.decode(new.tokenizer.source.encode("pezu ba")) == "pezu ba"
    for name, parameter in new.model.named_parameters():
        parameter.data = start[name]  # the model before its first update
    batch = collate([old.tokenizer.source.encode("ba de fi")], [old.tokenizer.target.encode("BOR DAS")])
    with torch.inference_mode():
        logits = [
            model_folder.model.logits(model_folder.model(batch.source, batch.decoder_input))
            for model_folder in (old, new)
        ]
    size = old.tokenizer.target.vocab_size
    torch.testing.assert_close(logits[1][..., 1:size], logits[0][..., 1:size], rtol=0, atol=1e-6)
    assert logits[1].size(-1) == size + new_subwords[-1]


def test_finetuning_resume_is_bit_exact(files: Path, tmp_path: Path) -> None:
    options = {"mix": [CorpusSource((files / "general.tsv",), fraction=0.3)]}
    finetune(files, tmp_path / "uninterrupted", {"finetuning": {"new_subwords": 5}}, **options)
    shutil.copytree(tmp_path / "uninterrupted", tmp_path / "resumed")
    for name in ("config.json", "weights.safetensors", "tokenizer.json", "README.md", "finetuning.json"):
        (tmp_path / "resumed" / name).unlink()
    checkpoints = tmp_path / "resumed" / "training" / "checkpoints"
    updates = sorted(int(path.name) for path in checkpoints.iterdir())
    for update in updates:
        if update > 20:
            shutil.rmtree(checkpoints / f"{update:09}")
    heedful.resume(tmp_path / "resumed", report=QUIET)
    for name in ("weights.safetensors", "tokenizer.json"):
        assert (tmp_path / "resumed" / name).read_bytes() == (tmp_path / "uninterrupted" / name).read_bytes()
    reports = [json.loads((tmp_path / name / "finetuning.json").read_text()) for name in ("uninterrupted", "resumed")]
    assert reports[0] == reports[1]


def test_finetuning_original_validation_from_option_or_mix(files: Path, tmp_path: Path) -> None:
    """A model without its training folder has no original validation pairs."""
    bare = tmp_path / "bare"
    shutil.copytree(files / "base", bare, ignore=shutil.ignore_patterns("training"))
    settings = FINETUNING_SETTINGS | {
        "training": FINETUNING_SETTINGS["training"] | {"max_updates": 2, "validate_every": 2}
    }
    old = write_pairs(tmp_path / "old.tsv", GENERAL_WORDS, 30, 7)
    options_by_name: dict[str, dict[str, Any]] = {
        "none": {},
        "named": {"original_validation": old},
        "mixed": {"mix": [CorpusSource((files / "general.tsv",), fraction=0.5)]},
    }
    reports = {}
    for name, options in options_by_name.items():
        folder = tmp_path / name
        heedful.train(files / "new.tsv", folder, init_from=bare, settings=settings, report=QUIET, **options)
        reports[name] = json.loads((folder / "finetuning.json").read_text())["original_validation"]
    assert reports["none"] is None
    assert reports["named"]["pairs"] == len(set(old.read_text().splitlines()))
    assert reports["mixed"]["pairs"] > 0
    assert "forgetting was not measured" in (tmp_path / "none" / "README.md").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"settings": {"model": {"d_model": 64}}}, "model.d_model = 64 contradicts the model"),
        ({"settings": {"tokenizer": {"model_type": "unigram"}}}, "tokenizer.model_type = unigram contradicts"),
        ({"settings": {"preset": "tiny"}}, "a preset contradicts"),
        ({"settings": {"training": {"init_encoder_from": "x"}}}, "is for a new model"),
        ({"languages": ("fr", "de")}, "the pairs are fr-de"),
        ({"mix": [CorpusSource((Path("missing.tsv"),), fraction=0.5)]}, "missing.tsv"),
        ({"original_validation": "missing.tsv"}, "missing.tsv"),
        ({"init_from": "missing"}, "missing"),
    ],
)
def test_finetuning_contradicting_setting_is_an_error(
    files: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(HeedfulError, match=message):
        heedful.train(files / "new.tsv", tmp_path / "out", **{"init_from": files / "base", "report": QUIET} | options)
    assert not (tmp_path / "out").exists()


def test_finetuning_invalid_command_is_an_error(files: Path, tmp_path: Path) -> None:
    with pytest.raises(HeedfulError, match="only translation models can be fine-tuned"):
        train_command([files / "new.tsv"], tmp_path / "out", init_from=files / "base", task="causal_lm", quiet=True)
    with pytest.raises(HeedfulError, match="not a valid fraction"):
        parse_mix("general.tsv:1.5")


def test_get_finetuning_languages_selects_from_multilingual_tmx(files: Path) -> None:
    tmx = files / "three.tmx"
    variants = {"fr": "chien", "de-DE": "Hund", "en-GB": "dog"}
    units = "".join(f'<tuv xml:lang="{code}"><seg>{word}</seg></tuv>' for code, word in variants.items())
    tmx.write_text(f'<tmx version="1.4"><header srclang="fr"/><body><tu>{units}</tu></body></tmx>')
    assert get_finetuning_languages(files / "base", [tmx]) == ("en", "de")
    assert get_finetuning_languages(files / "base", [files / "new.tsv"]) is None
    skipping = ReadingConfig(malformed="skip")
    inputs = build_finetuning_inputs(
        files / "base", CorpusInputs(make_sources((tmx,)), languages=("en", "de"), reading=skipping)
    )
    assert inputs.reading == skipping
    (source,) = inputs.sources
    assert [(record.source, record.target) for record in inputs.read_records(source)] == [("dog", "Hund")]


def test_finetuning_options_without_model_are_errors(files: Path, tmp_path: Path) -> None:
    with pytest.raises(HeedfulError, match="needs a model to start from"):
        heedful.train(files / "new.tsv", tmp_path / "a", settings={"finetuning": {"new_subwords": 5}}, report=QUIET)
    with pytest.raises(HeedfulError, match="only for fine-tuning"):
        heedful.train(files / "new.tsv", tmp_path / "a", original_validation=files / "general.tsv", report=QUIET)


def test_finetuning_new_subwords_of_word_vocabulary_is_an_error(
    quick_model: Path, grammar_pairs: Path, tmp_path: Path
) -> None:
    """The word vocabulary of `quick_model` has no merges."""
    with pytest.raises(HeedfulError, match="cannot extend a 'word' vocabulary"):
        heedful.train(
            grammar_pairs,
            tmp_path / "a",
            init_from=quick_model,
            settings={"finetuning": {"new_subwords": 5}},
            report=QUIET,
        )


def test_finetuning_command_prints_before_and_after(files: Path, tmp_path: Path) -> None:
    settings = ["training.max_updates=4", "training.threads=1", "training.processes=1", "training.bleu_sentences=4"]
    args = [arg for setting in settings for arg in ("--set", setting)]
    result = run_heedful(
        "train", "--from", files / "base", files / "new.tsv", "-o", tmp_path / "out",
        "--mix", f"{files / 'general.tsv'}:0.5", *args,
    )  # fmt: skip
    assert result.status == 0, result.err
    assert "| domain (pairs) | score | before | after | change |" in result.out
    assert "reference" in result.out
    assert "weights: " in result.out
