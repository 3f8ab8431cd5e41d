"""Tuning: a trained model goes on with new pairs; what it gains and what it forgets is measured."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import heedful
from heedful.bundle import Bundle, read_tensors
from heedful.commands.training import TrainOptions, mixed_part, train_command
from heedful.corpora.formats import write_tsv
from heedful.corpora.parts import Part
from heedful.corpora.reading import ReadingConfig
from heedful.errors import HeedfulError
from heedful.progress import Reporter
from heedful.training.batch import new_batch
from heedful.training.inputs import Inputs
from heedful.training.starting_model import inputs_to_tune, languages_to_tune
from tests.conftest import run_heedful

QUIET = Reporter(quiet=True)
GENERAL = {"ba": "BOR", "de": "DAS", "fi": "FEN", "go": "GIL", "ku": "KAM", "la": "LUT", "me": "MIR"}
NEW = {"pezu": "POX", "rizo": "REX", "sevo": "SUX", "tuzi": "TAX", "vazu": "VOX", "zuvo": "ZIX"}
BASE: dict[str, Any] = {
    "preset": "tiny",
    "tokenizer": {"vocabulary": 320},
    "model": {"width": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "feed_forward_width": 64},
    "batches": {"tokens": 512},
    "training": {"updates": 260, "epochs": 99, "rate": 0.01, "warmup": 40, "validate_every": 130},
}
QUICK = {"threads": 1, "processes": 1, "precision": "float32", "bleu_sentences": 8}
BASE["model"]["dropout"] = 0.0
BASE["training"] |= QUICK
TUNING: dict[str, Any] = {
    "batches": {"tokens": 256},
    "training": {"updates": 40, "rate": 0.003, "warmup": 5, "validate_every": 10} | QUICK,
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


def tuned(
    files: Path, folder: Path, settings: dict[str, Any] | None = None, **options: Any
) -> dict[str, Any]:
    """Tune the model; returns what tuning.json says."""
    told = {**TUNING, **(settings or {})}
    heedful.train(
        files / "new.tsv", folder, start_from=files / "base", settings=told, report=QUIET, **options
    )
    report: dict[str, Any] = json.loads((folder / "tuning.json").read_text())
    return report


def metrics(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "training" / "metrics.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if "validation_loss" in line]


def test_tuning_learns_the_new_and_sees_what_is_forgotten(files: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in (files / "base").iterdir() if path.is_file()}
    allowing = {"tuning": {"forgetting": 100}}
    alone = tuned(files, tmp_path / "alone", allowing)
    mixed = tuned(files, tmp_path / "mixed", allowing, mix=[Part((files / "general.tsv",), share=0.5)])
    for report in (alone, mixed):
        assert report["new"]["after"]["loss"] < 0.6 * report["new"]["before"]["loss"]
        assert report["old"]["before"]["loss"] == pytest.approx(alone["old"]["before"]["loss"])
    assert alone["old"]["after"]["loss"] > 1.5 * alone["old"]["before"]["loss"]
    assert mixed["old"]["after"]["loss"] < 0.7 * alone["old"]["after"]["loss"]
    assert before == {path.name: path.read_bytes() for path in (files / "base").iterdir() if path.is_file()}
    found = metrics(tmp_path / "alone")
    assert [line["update"] for line in found] == [0, 10, 20, 30, 40]
    assert all({"BLEU", "old_BLEU", "old_validation_loss"} <= line.keys() for line in found)
    card = (tmp_path / "alone" / "README.md").read_text(encoding="utf-8")
    assert "## Before and after tuning" in card
    assert f"| {alone['new']['before']['loss']:.4f} | {alone['new']['after']['loss']:.4f} |" in card
    assert alone["new"]["samples"][0].keys() == {"source", "reference", "before", "after"}
    # The old validation pairs are of general.tsv: mixed in again, they must not be learned from.
    summary = json.loads((tmp_path / "mixed/training/data/prepared.json").read_text())["summary"]
    assert any("left out" in line and "that they have too" in line for line in summary)


def test_weights_that_forget_are_not_chosen(files: Path, tmp_path: Path) -> None:
    report = tuned(files, tmp_path / "careful", {"tuning": {"forgetting": 3}})
    assert report["old"]["after"]["loss"] <= 4 * report["old"]["before"]["loss"]
    assert any(
        line["old_validation_loss"] > 4 * report["old"]["before"]["loss"]
        for line in metrics(tmp_path / "careful")
    )
    assert report["new"]["after"]["loss"] < report["new"]["before"]["loss"]
    assert "forgot more" in report["chosen"]


def test_tuning_that_makes_nothing_better(files: Path, tmp_path: Path) -> None:
    """A rate that ruins the model: what comes out is the model that went in, new pieces or not."""
    training = TUNING["training"] | {"rate": 10.0, "updates": 6, "validate_every": 3, "warmup": 1}
    for name, pieces in (("same", 0), ("extended", 8)):
        report = tuned(files, tmp_path / name, {"training": training, "tuning": {"new_pieces": pieces}})
        assert report["update"] == 0
        assert "nothing better" in report["chosen"]
        assert report["new"]["after"] == report["new"]["before"]
        first, second = (
            read_tensors(each / "weights.safetensors") for each in (files / "base", tmp_path / name)
        )
        assert all(torch.equal(first[key], second[key]) for key in first.keys() | second.keys())


@pytest.mark.parametrize("shape", [{}, {"tokenizer": {"joint": False}, "model": {"tie_output": False}}])
def test_new_pieces(files: Path, tmp_path: Path, shape: dict[str, Any]) -> None:
    base = files / "base"
    if shape:
        told = {
            section: BASE[section] | shape.get(section, {}) if section != "preset" else BASE[section]
            for section in BASE
        }
        told["training"] = told["training"] | {"updates": 1}
        base = tmp_path / "base"
        heedful.train(files / "general.tsv", base, languages=("en", "de"), settings=told, report=QUIET)
    settings = {
        "tuning": {"new_pieces": 60, "forgetting": 100},
        "training": TUNING["training"] | {"updates": 1},
    }
    heedful.train(
        files / "new.tsv",
        tmp_path / "tuned",
        start_from=base,
        settings=TUNING | settings,
        report=QUIET,
    )
    old, new = Bundle.load(base), Bundle.load(tmp_path / "tuned")
    start = read_tensors(
        tmp_path / "tuned" / "training" / "checkpoints" / "000000000" / "weights.safetensors"
    )
    added = json.loads((tmp_path / "tuned" / "tuning.json").read_text())["new_pieces"]
    assert len(added) == (2 if shape else 1)
    assert min(added) > 20
    assert new.tokenizer.source.size == old.tokenizer.source.size + added[0]
    assert new.tokenizer.source.encode("ba de fi") == old.tokenizer.source.encode("ba de fi")
    assert len(new.tokenizer.source.encode("pezu")) < len(old.tokenizer.source.encode("pezu"))
    assert new.tokenizer.source.decode(new.tokenizer.source.encode("pezu ba")) == "pezu ba"
    for name, parameter in new.predictor.named_parameters():
        parameter.data = start[name]  # the model before its first update
    batch = new_batch([old.tokenizer.source.encode("ba de fi")], [old.tokenizer.target.encode("BOR DAS")])
    with torch.inference_mode():
        logits = [
            bundle.predictor.logits(bundle.predictor(batch.source, batch.before)) for bundle in (old, new)
        ]
    size = old.tokenizer.target.size
    torch.testing.assert_close(logits[1][..., 1:size], logits[0][..., 1:size], rtol=0, atol=1e-6)
    assert logits[1].size(-1) == size + added[-1]


def test_resumption_is_exact(files: Path, tmp_path: Path) -> None:
    options = {"mix": [Part((files / "general.tsv",), share=0.3)]}
    tuned(files, tmp_path / "whole", {"tuning": {"new_pieces": 5}}, **options)
    shutil.copytree(tmp_path / "whole", tmp_path / "again")
    for name in ("config.json", "weights.safetensors", "tokenizer.json", "README.md", "tuning.json"):
        (tmp_path / "again" / name).unlink()
    checkpoints = tmp_path / "again" / "training" / "checkpoints"
    kept = sorted(int(path.name) for path in checkpoints.iterdir())
    for update in kept:
        if update > 20:
            shutil.rmtree(checkpoints / f"{update:09}")
    heedful.resume(tmp_path / "again", report=QUIET)
    for name in ("weights.safetensors", "tokenizer.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    reports = [json.loads((tmp_path / each / "tuning.json").read_text()) for each in ("whole", "again")]
    assert reports[0] == reports[1]


def test_old_pairs_by_name_or_out_of_the_mixture(files: Path, tmp_path: Path) -> None:
    """A model without its training folder has no old pairs of its own."""
    bare = tmp_path / "bare"
    shutil.copytree(files / "base", bare, ignore=shutil.ignore_patterns("training"))
    settings = TUNING | {"training": TUNING["training"] | {"updates": 2, "validate_every": 2}}
    old = write_pairs(tmp_path / "old.tsv", GENERAL, 30, 7)
    ways: dict[str, dict[str, Any]] = {
        "none": {},
        "named": {"old_validation": old},
        "mixed": {"mix": [Part((files / "general.tsv",), share=0.5)]},
    }
    found = {}
    for name, options in ways.items():
        folder = tmp_path / name
        heedful.train(files / "new.tsv", folder, start_from=bare, settings=settings, report=QUIET, **options)
        found[name] = json.loads((folder / "tuning.json").read_text())["old"]
    assert found["none"] is None
    assert found["named"]["pairs"] == len(set(old.read_text().splitlines()))
    assert found["mixed"]["pairs"] > 0
    assert "is not known" in (tmp_path / "none" / "README.md").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"settings": {"model": {"width": 64}}}, "model.width = 64 contradicts the model"),
        ({"settings": {"tokenizer": {"kind": "unigram"}}}, "tokenizer.kind = unigram contradicts"),
        ({"settings": {"preset": "tiny"}}, "a preset would make another"),
        ({"settings": {"training": {"encoder_from": "x"}}}, "is for a new model"),
        ({"languages": ("fr", "de")}, "these pairs are fr-de"),
        ({"mix": [Part((Path("missing.tsv"),), share=0.5)]}, "missing.tsv"),
        ({"old_validation": "missing.tsv"}, "missing.tsv"),
        ({"start_from": "missing"}, "missing"),
    ],
)
def test_what_contradicts_is_an_error(
    files: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(HeedfulError, match=message):
        heedful.train(
            files / "new.tsv", tmp_path / "out", **{"start_from": files / "base", "report": QUIET} | options
        )
    assert not (tmp_path / "out").exists()


def test_what_the_command_line_refuses(files: Path, tmp_path: Path) -> None:
    options = TrainOptions(
        (files / "new.tsv",), tmp_path / "out", (), None, (), files / "base", (), "language", {}
    )
    with pytest.raises(HeedfulError, match="only a model that translates can be tuned"):
        train_command(options, QUIET)
    with pytest.raises(HeedfulError, match="no share"):
        mixed_part("general.tsv:1.5")


def test_the_languages_of_the_model_are_found_in_a_memory_of_more(files: Path) -> None:
    memory = files / "three.tmx"
    variants = {"fr": "chien", "de-DE": "Hund", "en-GB": "dog"}
    told = "".join(f'<tuv xml:lang="{code}"><seg>{word}</seg></tuv>' for code, word in variants.items())
    memory.write_text(f'<tmx version="1.4"><header srclang="fr"/><body><tu>{told}</tu></body></tmx>')
    assert languages_to_tune(files / "base", [memory]) == ("en", "de")
    assert languages_to_tune(files / "base", [files / "new.tsv"]) is None
    skipping = ReadingConfig(malformed="skip")
    inputs = inputs_to_tune(files / "base", Inputs((memory,), languages=("en", "de"), reading=skipping))
    assert inputs.reading == skipping
    (part,) = inputs.corpus
    assert [(each.source, each.target) for each in inputs.records(part)] == [("dog", "Hund")]


def test_what_is_for_tuning_only(files: Path, tmp_path: Path) -> None:
    with pytest.raises(HeedfulError, match="starts from a model"):
        heedful.train(files / "new.tsv", tmp_path / "a", settings={"tuning": {"new_pieces": 5}}, report=QUIET)
    with pytest.raises(HeedfulError, match="only a model that is tuned has old pairs"):
        heedful.train(files / "new.tsv", tmp_path / "a", old_validation=files / "general.tsv", report=QUIET)


def test_vocabularies_that_cannot_be_extended(quick_model: Path, grammar_pairs: Path, tmp_path: Path) -> None:
    """The quick model's words have no merges."""
    with pytest.raises(HeedfulError, match="kind 'word' cannot be extended"):
        heedful.train(
            grammar_pairs,
            tmp_path / "a",
            start_from=quick_model,
            settings={"tuning": {"new_pieces": 5}},
            report=QUIET,
        )


def test_the_command_line_prints_before_and_after(files: Path, tmp_path: Path) -> None:
    settings = [
        "training.updates=4",
        "training.threads=1",
        "training.processes=1",
        "training.bleu_sentences=4",
    ]
    words = [word for setting in settings for word in ("--set", setting)]
    done = run_heedful(
        "train", "--from", files / "base", files / "new.tsv", "-o", tmp_path / "out",
        "--mix", f"{files / 'general.tsv'}:0.5", *words,
    )  # fmt: skip
    assert done.status == 0, done.err
    assert "| pairs | score | before | after | change |" in done.out
    assert "reference" in done.out
    assert "weights: " in done.out
