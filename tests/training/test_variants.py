"""Whole trainings in unusual settings: each must reach its end and translate."""

from pathlib import Path

import pytest

import heedful
from heedful.config import merged, parsed_overrides
from heedful.progress import Reporter
from tests.conftest import QUICK_SETTINGS

VARIANTS = {
    "bfloat16": ["training.precision=bfloat16"],
    "learned positions, short": ["model.positions=learned", "model.longest=16"],
    "BPE-dropout within learned positions": [
        "tokenizer.kind=bpe",
        "tokenizer.dropout=0.5",
        "model.positions=learned",
        "model.longest=24",
    ],
    "pre-norm, GELU, joint": ["model.norm=pre", "model.activation=gelu", "tokenizer.joint=true"],
    "characters, untied": ["tokenizer.kind=character", "model.tie_output=false"],
    "unigram, all dropouts": [
        "tokenizer.kind=unigram",
        "model.attention_dropout=0.1",
        "model.activation_dropout=0.1",
    ],
    "GRU": ["model.family=gru"],
    "GRU, bfloat16": ["model.family=gru", "training.precision=bfloat16"],
    "LSTM, joint": ["model.family=lstm", "tokenizer.joint=true"],
    "relative, RMSNorm, gated": ["model.positions=relative", "model.normalization=rms", "model.gated=true"],
    "rotary, bfloat16": ["model.positions=rotary", "training.precision=bfloat16"],
    "ALiBi, bfloat16": ["model.positions=alibi", "training.precision=bfloat16"],
    "BigBird": ["model.encoder_attention=bigbird", "model.decoder_attention=bigbird", "model.block=2"],
    "Linformer": ["model.encoder_attention=linformer", "model.longest=60", "model.projected_length=8"],
    "accumulated, cosine": ["training.accumulate=3", "training.schedule=cosine"],
    "no clip, no smoothing, constant": [
        "training.clip=0",
        "training.label_smoothing=0",
        "training.schedule=constant",
    ],
}


@pytest.mark.parametrize("name", VARIANTS)
def test_variant(name: str, grammar_pairs: Path, tmp_path: Path) -> None:
    settings = merged(parsed_overrides(QUICK_SETTINGS), parsed_overrides(VARIANTS[name]))
    settings = merged(settings, {"training": {"updates": 6}})
    engine = heedful.train(grammar_pairs, tmp_path / "m", settings=settings, report=Reporter(quiet=True))
    again = heedful.load(tmp_path / "m", device="cpu", engine="pytorch")
    text = ["The dog is tired. " * 12]
    assert again.translate(text)[0].alternatives == engine.translate(text)[0].alternatives


def test_early_stopping(grammar_pairs: Path, tmp_path: Path) -> None:
    """A rate that ruins the model: validation never improves again, and patience ends the run."""
    settings = merged(
        parsed_overrides(QUICK_SETTINGS),
        {
            "training": {
                "updates": 60,
                "validate_every": 2,
                "patience": 3,
                "rate": 0.3,
                "schedule": "constant",
            }
        },
    )
    heedful.train(grammar_pairs, tmp_path / "m", settings=settings, report=Reporter(quiet=True))
    metrics = (tmp_path / "m/training/metrics.jsonl").read_text()
    assert '"update": 60' not in metrics
    assert "weights: the best checkpoint" in (tmp_path / "m/README.md").read_text().replace(
        "- weights", "weights"
    )


def test_two_trainings_in_one_folder(grammar_pairs: Path, tmp_path: Path) -> None:
    from heedful.files import locked

    settings = merged(parsed_overrides(QUICK_SETTINGS), {"training": {"updates": 2}})
    heedful.train(grammar_pairs, tmp_path / "m", settings=settings, report=Reporter(quiet=True))
    with locked(tmp_path / "m" / "training"), pytest.raises(heedful.HeedfulError, match="at work"):
        heedful.resume(tmp_path / "m")
