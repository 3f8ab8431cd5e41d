"""The model card says what is true of a model of its family, and nothing else."""

from pathlib import Path

import pytest

from heedful.api import train, train_on_texts
from heedful.config import Settings, merged
from heedful.progress import Reporter
from heedful.training.run import read_run

SMALL: Settings = {
    "preset": "demo",
    "tokenizer": {"vocabulary": 400, "kind": "character"},
    "model": {"width": 16, "heads": 1, "feed_forward_width": 16, "encoder_layers": 2, "decoder_layers": 3},
    "training": {"updates": 1, "held_out": 1, "bleu_sentences": 1, "threads": 1, "snapshots": 0},
}


def card_of(family: str, pairs: Path, folder: Path) -> str:
    report = Reporter(quiet=True)
    if family in ("language", "mask"):
        train_on_texts(pairs, folder, task=family, settings=SMALL, report=report)
    else:
        train(pairs, folder, settings=merged(SMALL, {"model": {"family": family}}), report=report)
    return (folder / "README.md").read_text(encoding="utf-8").partition("## Settings")[0]


@pytest.mark.parametrize(
    ("family", "kind", "shape"),
    [
        ("transformer", "A Transformer trained", "2 encoder and 3 decoder layers, width 16, 1 head\n"),
        ("gru", "A recurrent model (GRU)", "2 encoder and 3 decoder layers, width 16\n"),
        ("lstm", "A recurrent model (LSTM)", "2 encoder and 3 decoder layers, width 16\n"),
        ("language", "A language model", "- 3 layers, width 16, 1 head\n"),
        ("mask", "A masked language model", "- 2 layers, width 16, 1 head\n"),
    ],
)
def test_every_family(family: str, kind: str, shape: str, grammar_pairs: Path, tmp_path: Path) -> None:
    card = card_of(family, grammar_pairs, tmp_path / "model")
    plain = family in ("language", "mask")
    assert kind in card
    assert shape in card
    assert "1 update, " in card
    assert f"held out 1 {'line' if plain else 'pair'} for validation" in card
    assert ("pair" in card.replace("pairs.tsv", "")) != plain
    assert ("## Samples" in card) != plain
    assert "None were translated" not in card
    assert "joint" not in card.partition("told:")[2].partition("\n")[0]  # a setting of the task
    assert read_run(tmp_path / "model").told.get("tokenizer") == SMALL["tokenizer"]
