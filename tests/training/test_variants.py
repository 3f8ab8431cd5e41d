"""Complete trainings with unusual settings: each must finish and translate."""

from pathlib import Path

import pytest

import heedful
from heedful.config import merge_settings, parse_overrides
from heedful.progress import Reporter
from tests.conftest import QUICK_SETTINGS

VARIANTS = {
    "bfloat16": ["training.precision=bfloat16"],
    "learned positions, short": ["model.positions=learned", "model.max_length=16"],
    "BPE-dropout within learned positions": [
        "tokenizer.model_type=bpe",
        "tokenizer.bpe_dropout=0.5",
        "model.positions=learned",
        "model.max_length=24",
    ],
    "pre-norm, GELU, joint": ["model.norm_placement=pre", "model.activation=gelu", "tokenizer.joint_vocabulary=true"],
    "characters, untied": ["tokenizer.model_type=character", "model.tie_output_embeddings=false"],
    "unigram, all dropouts": [
        "tokenizer.model_type=unigram",
        "model.attention_dropout=0.1",
        "model.activation_dropout=0.1",
    ],
    "GRU": ["model.architecture=gru"],
    "GRU, bfloat16": ["model.architecture=gru", "training.precision=bfloat16"],
    "LSTM, joint": ["model.architecture=lstm", "tokenizer.joint_vocabulary=true"],
    "relative, RMSNorm, gated": ["model.positions=relative", "model.norm=rmsnorm", "model.gated_feed_forward=true"],
    "rotary, bfloat16": ["model.positions=rotary", "training.precision=bfloat16"],
    "ALiBi, bfloat16": ["model.positions=alibi", "training.precision=bfloat16"],
    "BigBird": ["model.encoder_attention=bigbird", "model.decoder_attention=bigbird", "model.block_size=2"],
    "Linformer": ["model.encoder_attention=linformer", "model.max_length=60", "model.projected_length=8"],
    "accumulated, cosine": ["training.gradient_accumulation=3", "training.lr_schedule=cosine"],
    "no clip, no smoothing, constant": [
        "training.max_grad_norm=0",
        "training.label_smoothing=0",
        "training.lr_schedule=constant",
    ],
}


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.long
def test_train_variant_translates_the_same_after_loading(name: str, grammar_pairs: Path, tmp_path: Path) -> None:
    settings = merge_settings(parse_overrides(QUICK_SETTINGS), parse_overrides(VARIANTS[name]))
    settings = merge_settings(settings, {"training": {"max_updates": 6}})
    engine = heedful.train(grammar_pairs, tmp_path / "m", settings=settings, report=Reporter(quiet=True))
    loaded = heedful.load(tmp_path / "m", device="cpu", engine="pytorch")
    text = ["The dog is tired. " * 12]
    assert loaded.translate(text)[0].alternatives == engine.translate(text)[0].alternatives


def test_patience_stops_a_diverging_training(grammar_pairs: Path, tmp_path: Path) -> None:
    """A learning rate that ruins the model: validation never improves, and patience ends the run."""
    settings = merge_settings(
        parse_overrides(QUICK_SETTINGS),
        {
            "training": {
                "max_updates": 60,
                "validate_every": 2,
                "patience": 3,
                "learning_rate": 0.3,
                "lr_schedule": "constant",
            }
        },
    )
    heedful.train(grammar_pairs, tmp_path / "m", settings=settings, report=Reporter(quiet=True))
    metrics = (tmp_path / "m/training/metrics.jsonl").read_text()
    assert '"update": 60' not in metrics
    assert "weights: best checkpoint" in (tmp_path / "m/README.md").read_text().replace("- weights", "weights")


def test_resume_of_locked_folder_is_an_error(grammar_pairs: Path, tmp_path: Path) -> None:
    from heedful.files import lock_folder

    settings = merge_settings(parse_overrides(QUICK_SETTINGS), {"training": {"max_updates": 2}})
    heedful.train(grammar_pairs, tmp_path / "m", settings=settings, report=Reporter(quiet=True))
    with (
        lock_folder(tmp_path / "m" / "training"),
        pytest.raises(heedful.HeedfulError, match="another process is using"),
    ):
        heedful.resume(tmp_path / "m")
