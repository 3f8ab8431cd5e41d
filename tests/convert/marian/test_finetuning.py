"""An imported MarianMT model after fine-tuning: it can still be exported to all formats."""

import json
from pathlib import Path

import pytest
import torch
from transformers import MarianMTModel

from heedful.convert import ExportOptions, export_model
from heedful.convert.marian.importer import import_marian
from heedful.data.reader import write_tsv
from heedful.generation.config import GenerationConfig
from heedful.inference.translator import Translator
from heedful.model_folder import ModelFolder
from heedful.progress import Reporter
from tests.conftest import Result, run_heedful
from tests.convert.marian_models import PAIRS, SENTENCES, generate_subwords, load_tokenizer, new_marian

pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
QUICK = ("max_updates=20", "validate_every=10", "validation_size=10", "bleu_sentences=2", "threads=1")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an imported model, new pairs, and general pairs to mix in."""
    base = tmp_path_factory.mktemp("finetuned-marian")
    new_marian(base / "original", updates=30, d_model=36, init_std=0.1)
    import_marian(base / "original").save(base / "model")
    write_tsv(PAIRS[:300], base / "new.tsv")
    write_tsv(PAIRS[300:], base / "general.tsv")
    return base


def finetune(base: Path, output: str, *args: str) -> Result:
    settings = [arg for setting in QUICK for arg in ("--set", f"training.{setting}")]
    command = "train", "--from", base / "model", base / "new.tsv", "-o", base / output
    return run_heedful(*command, *settings, *args)


@pytest.fixture(scope="module")
def finetuned(base: Path) -> ModelFolder:
    """Fine-tuned with ``heedful train --from``."""
    result = finetune(
        base, "finetuned", "--mix", f"{base / 'general.tsv'}:0.3", "--set", "training.learning_rate=0.003"
    )
    assert result.status == 0, result.err
    return ModelFolder.load(base / "finetuned")


def test_finetuning_changes_weights_and_bias_but_not_padding(base: Path, finetuned: ModelFolder) -> None:
    before = ModelFolder.load(base / "model")
    assert finetuned.tokenizer.source.vocabulary == before.tokenizer.source.vocabulary
    bias, old_bias = finetuned.model.output_bias, before.model.output_bias
    assert bias is not None
    assert old_bias is not None
    assert not torch.equal(bias, old_bias)
    for table, old in zip(finetuned.model.embeddings, before.model.embeddings, strict=True):
        assert not torch.equal(table.weight, old.weight)
        assert not table.weight[0].any()  # the embedding of padding
    assert json.loads((base / "finetuned" / "finetuning.json").read_text())["update"] > 0


def test_transformers_reads_the_finetuned_model(base: Path, finetuned: ModelFolder) -> None:
    export(base, "marian", "marian")
    theirs = MarianMTModel.from_pretrained(base / "marian").eval()
    expected = generate_subwords(theirs, load_tokenizer(base / "marian"), SENTENCES[:20], num_beams=1)
    search = GenerationConfig(beam_size=1, max_length_offset=40)
    ours = Translator.with_pytorch(finetuned).translate(SENTENCES[:20], search, details=True)
    actual = [[subword for subword in translation.alternatives[0].tokens if subword != "</s>"] for translation in ours]
    assert sum(map(len, actual)) > 100
    # The maximum lengths are counted differently, so one output may be longer than the other.
    assert all(one[: len(other)] == other[: len(one)] for one, other in zip(actual, expected, strict=True))


@pytest.mark.long
@pytest.mark.parametrize(("form", "name"), [("ctranslate2", "ct2"), ("argos", "tuned.argosmodel"), ("onnx", "onnx")])
def test_finetuned_model_is_exported(base: Path, finetuned: ModelFolder, form: str, name: str) -> None:
    assert any("verified with" in line for line in export(base, form, name))


def export(base: Path, form: str, name: str) -> list[str]:
    return list(export_model(ExportOptions(base / "finetuned", form, base / name), Reporter(quiet=True)))


@pytest.mark.parametrize(
    ("setting", "problem"),
    [("finetuning.new_subwords=20", "cannot extend"), ("tokenizer.bpe_dropout=0.1", "needs model_type 'bpe'")],
)
def test_finetuning_sentencepiece_model_with_bpe_settings_is_an_error(base: Path, setting: str, problem: str) -> None:
    result = finetune(base, "rejected", "--set", setting)
    assert result.status == 1
    assert problem in result.err
    assert not (base / "rejected" / "weights.safetensors").exists()
