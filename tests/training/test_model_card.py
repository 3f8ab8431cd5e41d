"""The model card describes each architecture correctly."""

from pathlib import Path

import pytest

from heedful.config import Settings, merge_settings
from heedful.progress import Reporter
from heedful.training.run import read_run_description
from heedful.workflows.train import train, train_language_model

SMALL_SETTINGS: Settings = {
    "preset": "demo",
    "tokenizer": {"vocab_size": 400, "model_type": "character"},
    "model": {"d_model": 16, "heads": 1, "d_ff": 16, "encoder_layers": 2, "decoder_layers": 3},
    "training": {"max_updates": 1, "validation_size": 1, "bleu_sentences": 1, "threads": 1, "snapshots": 0},
}


def train_and_read_card(architecture: str, pairs: Path, folder: Path) -> str:
    report = Reporter(quiet=True)
    if architecture in ("causal_lm", "masked_lm"):
        train_language_model(pairs, folder, task=architecture, settings=SMALL_SETTINGS, report=report)
    else:
        train(
            pairs,
            folder,
            settings=merge_settings(SMALL_SETTINGS, {"model": {"architecture": architecture}}),
            report=report,
        )
    return (folder / "README.md").read_text(encoding="utf-8").partition("## Settings")[0]


@pytest.mark.parametrize(
    ("architecture", "kind", "shape"),
    [
        ("transformer", "A Transformer trained", "2 encoder and 3 decoder layers, d_model 16, 1 head\n"),
        ("gru", "A recurrent model (GRU)", "2 encoder and 3 decoder layers, d_model 16\n"),
        ("lstm", "A recurrent model (LSTM)", "2 encoder and 3 decoder layers, d_model 16\n"),
        ("causal_lm", "A causal language model", "- 3 layers, d_model 16, 1 head\n"),
        ("masked_lm", "A masked language model", "- 2 layers, d_model 16, 1 head\n"),
    ],
)
def test_model_card_describes_architecture(
    architecture: str, kind: str, shape: str, grammar_pairs: Path, tmp_path: Path
) -> None:
    card = train_and_read_card(architecture, grammar_pairs, tmp_path / "model")
    is_language_model = architecture in ("causal_lm", "masked_lm")
    assert kind in card
    assert shape in card
    assert "1 update, " in card
    assert f"held out 1 {'line' if is_language_model else 'pair'} for validation" in card
    assert ("pair" in card.replace("pairs.tsv", "")) != is_language_model
    assert ("## Validation samples" in card) != is_language_model
    assert "No samples" not in card
    assert "joint" not in card.partition("overrides:")[2].partition("\n")[0]  # a setting of the task
    assert read_run_description(tmp_path / "model").overrides.get("tokenizer") == SMALL_SETTINGS["tokenizer"]
