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
GENERAL = {"ba": "BOR", "de": "DAS", "fi": "FEN", "go": "GIL", "ku": "KAM", "la": "LUT", "me": "MIR"}
NEW = {"pezu": "POX", "rizo": "REX", "sevo": "SUX", "tuzi": "TAX", "vazu": "VOX", "zuvo": "ZIX"}
BASE: dict[str, Any] = {
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
QUICK = {"threads": 1, "processes": 1, "precision": "float32", "bleu_sentences": 8}
BASE["model"]["dropout"] = 0.0
BASE["training"] |= QUICK
TUNING: dict[str, Any] = {
    "batching": {"max_tokens": 256},
    "training": {"max_updates": 40, "learning_rate": 0.003, "warmup_updates": 5, "validate_every": 10} | QUICK,
}
"""Quicker steps than anybody should tune with, for a model that is smaller than anybody's."""


def write_pairs(path: Path, words: dict[str, str], count: int, seed: int) -> Path:
    """Sentences of two to four words, translated word by word."""
    chosen = random.Random(seed)
    rows = [[chosen.choice(list(words)) for _ in range(chosen.randint(2, 4))] for _ in range(count)]
    write_tsv([(" ".join(row), " ".join(words[word] for word in row)) for row in rows], path)
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of eight words, the pairs it learned from, and new ones with six other words."""
    folder = tmp_path_factory.mktemp("tuning")
    general = write_pairs(folder / "general.tsv", GENERAL, 900, 1)
    write_pairs(folder / "new.tsv", NEW, 200, 2)
    heedful.train(general, folder / "base", languages=("en", "de"), settings=BASE, report=QUIET)
    return folder


def tuned(files: Path, folder: Path, settings: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    """Tune the model; returns what finetuning.json says."""
    told = {**TUNING, **(settings or {})}
    heedful.train(files / "new.tsv", folder, init_from=files / "base", settings=told, report=QUIET, **options)
    report: dict[str, Any] = json.loads((folder / "finetuning.json").read_text())
    return report


def metrics(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "training" / "metrics.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if "validation_loss" in line]


def test_finetuning_learns_and_measures_forgetting(files: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in (files / "base").iterdir() if path.is_file()}
    allowing = {"finetuning": {"max_forgetting": 100}}
    alone = tuned(files, tmp_path / "alone", allowing)
    mixed = tuned(files, tmp_path / "mixed", allowing, mix=[CorpusSource((files / "general.tsv",), fraction=0.5)])
    for report in (alone, mixed):
        assert report["validation"]["after"]["loss"] < 0.6 * report["validation"]["before"]["loss"]
        assert report["original_validation"]["before"]["loss"] == pytest.approx(
            alone["original_validation"]["before"]["loss"]
        )
    assert alone["original_validation"]["after"]["loss"] > 1.5 * alone["original_validation"]["before"]["loss"]
    assert mixed["original_validation"]["after"]["loss"] < 0.7 * alone["original_validation"]["after"]["loss"]
    assert before == {path.name: path.read_bytes() for path in (files / "base").iterdir() if path.is_file()}
    found = metrics(tmp_path / "alone")
    assert [line["update"] for line in found] == [0, 10, 20, 30, 40]
    assert all({"BLEU", "original_BLEU", "original_validation_loss"} <= line.keys() for line in found)
    card = (tmp_path / "alone" / "README.md").read_text(encoding="utf-8")
    assert "## Before and after fine-tuning" in card
    assert f"| {alone['validation']['before']['loss']:.4f} | {alone['validation']['after']['loss']:.4f} |" in card
    assert alone["validation"]["samples"][0].keys() == {"source", "reference", "before", "after"}
    # The old validation pairs are of general.tsv: mixed in again, they must not be learned from.
    summary = json.loads((tmp_path / "mixed/training/data/preprocessed.json").read_text())["summary"]
    assert any("left out" in line and "that they contain too" in line for line in summary)


def test_finetuning_rejects_weights_that_forget(files: Path, tmp_path: Path) -> None:
    report = tuned(files, tmp_path / "careful", {"finetuning": {"max_forgetting": 3}})
    assert report["original_validation"]["after"]["loss"] <= 4 * report["original_validation"]["before"]["loss"]
    assert any(
        line["original_validation_loss"] > 4 * report["original_validation"]["before"]["loss"]
        for line in metrics(tmp_path / "careful")
    )
    assert report["validation"]["after"]["loss"] < report["validation"]["before"]["loss"]
    assert "forgot more" in report["weights"]


def test_finetuning_without_improvement_keeps_the_initial_model(files: Path, tmp_path: Path) -> None:
    """A rate that ruins the model: what comes out is the model that went in, new pieces or not."""
    training = TUNING["training"] | {"learning_rate": 10.0, "max_updates": 6, "validate_every": 3, "warmup_updates": 1}
    for name, pieces in (("same", 0), ("extended", 8)):
        report = tuned(files, tmp_path / name, {"training": training, "finetuning": {"new_subwords": pieces}})
        assert report["update"] == 0
        assert "did not improve" in report["weights"]
        assert report["validation"]["after"] == report["validation"]["before"]
        first, second = (read_tensors(each / "weights.safetensors") for each in (files / "base", tmp_path / name))
        assert all(torch.equal(first[key], second[key]) for key in first.keys() | second.keys())


@pytest.mark.parametrize(
    "shape", [{}, {"tokenizer": {"joint_vocabulary": False}, "model": {"tie_output_embeddings": False}}]
)
def test_finetuning_new_subwords_extend_the_vocabulary(files: Path, tmp_path: Path, shape: dict[str, Any]) -> None:
    base = files / "base"
    if shape:
        told = {
            section: BASE[section] | shape.get(section, {}) if section != "preset" else BASE[section]
            for section in BASE
        }
        told["training"] = told["training"] | {"max_updates": 1}
        base = tmp_path / "base"
        heedful.train(files / "general.tsv", base, languages=("en", "de"), settings=told, report=QUIET)
    settings = {
        "finetuning": {"new_subwords": 60, "max_forgetting": 100},
        "training": TUNING["training"] | {"max_updates": 1},
    }
    heedful.train(files / "new.tsv", tmp_path / "tuned", init_from=base, settings=TUNING | settings, report=QUIET)
    old, new = ModelFolder.load(base), ModelFolder.load(tmp_path / "tuned")
    start = read_tensors(tmp_path / "tuned" / "training" / "checkpoints" / "000000000" / "weights.safetensors")
    added = json.loads((tmp_path / "tuned" / "finetuning.json").read_text())["new_subwords"]
    assert len(added) == (2 if shape else 1)
    assert min(added) > 20
    assert new.tokenizer.source.vocab_size == old.tokenizer.source.vocab_size + added[0]
    assert new.tokenizer.source.encode("ba de fi") == old.tokenizer.source.encode("ba de fi")
    assert len(new.tokenizer.source.encode("pezu")) < len(old.tokenizer.source.encode("pezu"))
    assert new.tokenizer.source.decode(new.tokenizer.source.encode("pezu ba")) == "pezu ba"
    for name, parameter in new.model.named_parameters():
        parameter.data = start[name]  # the model before its first update
    batch = collate([old.tokenizer.source.encode("ba de fi")], [old.tokenizer.target.encode("BOR DAS")])
    with torch.inference_mode():
        logits = [bundle.model.logits(bundle.model(batch.source, batch.decoder_input)) for bundle in (old, new)]
    size = old.tokenizer.target.vocab_size
    torch.testing.assert_close(logits[1][..., 1:size], logits[0][..., 1:size], rtol=0, atol=1e-6)
    assert logits[1].size(-1) == size + added[-1]


def test_finetuning_resume_is_bit_exact(files: Path, tmp_path: Path) -> None:
    options = {"mix": [CorpusSource((files / "general.tsv",), fraction=0.3)]}
    tuned(files, tmp_path / "whole", {"finetuning": {"new_subwords": 5}}, **options)
    shutil.copytree(tmp_path / "whole", tmp_path / "again")
    for name in ("config.json", "weights.safetensors", "tokenizer.json", "README.md", "finetuning.json"):
        (tmp_path / "again" / name).unlink()
    checkpoints = tmp_path / "again" / "training" / "checkpoints"
    kept = sorted(int(path.name) for path in checkpoints.iterdir())
    for update in kept:
        if update > 20:
            shutil.rmtree(checkpoints / f"{update:09}")
    heedful.resume(tmp_path / "again", report=QUIET)
    for name in ("weights.safetensors", "tokenizer.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    reports = [json.loads((tmp_path / each / "finetuning.json").read_text()) for each in ("whole", "again")]
    assert reports[0] == reports[1]


def test_finetuning_original_validation_from_option_or_mix(files: Path, tmp_path: Path) -> None:
    """A model without its training folder has no old pairs of its own."""
    bare = tmp_path / "bare"
    shutil.copytree(files / "base", bare, ignore=shutil.ignore_patterns("training"))
    settings = TUNING | {"training": TUNING["training"] | {"max_updates": 2, "validate_every": 2}}
    old = write_pairs(tmp_path / "old.tsv", GENERAL, 30, 7)
    ways: dict[str, dict[str, Any]] = {
        "none": {},
        "named": {"original_validation": old},
        "mixed": {"mix": [CorpusSource((files / "general.tsv",), fraction=0.5)]},
    }
    found = {}
    for name, options in ways.items():
        folder = tmp_path / name
        heedful.train(files / "new.tsv", folder, init_from=bare, settings=settings, report=QUIET, **options)
        found[name] = json.loads((folder / "finetuning.json").read_text())["original_validation"]
    assert found["none"] is None
    assert found["named"]["pairs"] == len(set(old.read_text().splitlines()))
    assert found["mixed"]["pairs"] > 0
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
    memory = files / "three.tmx"
    variants = {"fr": "chien", "de-DE": "Hund", "en-GB": "dog"}
    told = "".join(f'<tuv xml:lang="{code}"><seg>{word}</seg></tuv>' for code, word in variants.items())
    memory.write_text(f'<tmx version="1.4"><header srclang="fr"/><body><tu>{told}</tu></body></tmx>')
    assert get_finetuning_languages(files / "base", [memory]) == ("en", "de")
    assert get_finetuning_languages(files / "base", [files / "new.tsv"]) is None
    skipping = ReadingConfig(malformed="skip")
    inputs = build_finetuning_inputs(
        files / "base", CorpusInputs(make_sources((memory,)), languages=("en", "de"), reading=skipping)
    )
    assert inputs.reading == skipping
    (part,) = inputs.sources
    assert [(each.source, each.target) for each in inputs.read_records(part)] == [("dog", "Hund")]


def test_finetuning_options_without_model_are_errors(files: Path, tmp_path: Path) -> None:
    with pytest.raises(HeedfulError, match="needs a model to start from"):
        heedful.train(files / "new.tsv", tmp_path / "a", settings={"finetuning": {"new_subwords": 5}}, report=QUIET)
    with pytest.raises(HeedfulError, match="only for fine-tuning"):
        heedful.train(files / "new.tsv", tmp_path / "a", original_validation=files / "general.tsv", report=QUIET)


def test_finetuning_new_subwords_of_word_vocabulary_is_an_error(
    quick_model: Path, grammar_pairs: Path, tmp_path: Path
) -> None:
    """The quick model's words have no merges."""
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
    words = [word for setting in settings for word in ("--set", setting)]
    done = run_heedful(
        "train", "--from", files / "base", files / "new.tsv", "-o", tmp_path / "out",
        "--mix", f"{files / 'general.tsv'}:0.5", *words,
    )  # fmt: skip
    assert done.status == 0, done.err
    assert "| domain (pairs) | score | before | after | change |" in done.out
    assert "reference" in done.out
    assert "weights: " in done.out
