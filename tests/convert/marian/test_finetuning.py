"""A MarianMT model that was taken over and tuned: still a MarianMT model, and everything takes it."""

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
from tests.convert.marian_models import PAIRS, SENTENCES, generated, new_marian, tokenizer_of

pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
QUICK = ("max_updates=20", "validate_every=10", "validation_size=10", "bleu_sentences=2", "threads=1")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model that was taken over, new pairs, and others to mix in."""
    base = tmp_path_factory.mktemp("tuned-marian")
    new_marian(base / "there", updates=30, d_model=36, init_std=0.1)
    import_marian(base / "there").save(base / "model")
    write_tsv(PAIRS[:300], base / "new.tsv")
    write_tsv(PAIRS[300:], base / "general.tsv")
    return base


def tune(base: Path, output: str, *words: str) -> Result:
    settings = [word for setting in QUICK for word in ("--set", f"training.{setting}")]
    given = "train", "--from", base / "model", base / "new.tsv", "-o", base / output
    return run_heedful(*given, *settings, *words)


@pytest.fixture(scope="module")
def tuned(base: Path) -> ModelFolder:
    """Tuned by the real command."""
    done = tune(base, "tuned", "--mix", f"{base / 'general.tsv'}:0.3", "--set", "training.learning_rate=0.003")
    assert done.status == 0, done.err
    return ModelFolder.load(base / "tuned")


def test_finetuning_changes_weights_and_bias_but_not_padding(base: Path, tuned: ModelFolder) -> None:
    before = ModelFolder.load(base / "model")
    assert tuned.tokenizer.source.vocabulary == before.tokenizer.source.vocabulary
    bias, old_bias = tuned.model.output_bias, before.model.output_bias
    assert bias is not None
    assert old_bias is not None
    assert not torch.equal(bias, old_bias)
    for table, old in zip(tuned.model.embeddings, before.model.embeddings, strict=True):
        assert not torch.equal(table.weight, old.weight)
        assert not table.weight[0].any()  # of padding
    assert json.loads((base / "tuned" / "finetuning.json").read_text())["update"] > 0


def test_transformers_reads_the_finetuned_model(base: Path, tuned: ModelFolder) -> None:
    exported(base, "marian", "back")
    theirs = MarianMTModel.from_pretrained(base / "back").eval()
    expected = generated(theirs, tokenizer_of(base / "back"), SENTENCES[:20], num_beams=1)
    search = GenerationConfig(beam_size=1, max_length_offset=40)
    ours = Translator.with_pytorch(tuned).translate(SENTENCES[:20], search, details=True)
    actual = [[piece for piece in each.alternatives[0].tokens if piece != "</s>"] for each in ours]
    assert sum(map(len, actual)) > 100
    # How long a sentence may become is counted otherwise, so that one may end before the other.
    assert all(one[: len(other)] == other[: len(one)] for one, other in zip(actual, expected, strict=True))


@pytest.mark.long
@pytest.mark.parametrize(("form", "name"), [("ctranslate2", "ct2"), ("argos", "tuned.argosmodel"), ("onnx", "onnx")])
def test_finetuned_model_is_exported(base: Path, tuned: ModelFolder, form: str, name: str) -> None:
    assert any("verified with" in line for line in exported(base, form, name))


def exported(base: Path, form: str, name: str) -> list[str]:
    return list(export_model(ExportOptions(base / "tuned", form, base / name), Reporter(quiet=True)))


@pytest.mark.parametrize(
    ("setting", "problem"),
    [("finetuning.new_subwords=20", "cannot extend"), ("tokenizer.bpe_dropout=0.1", "needs model_type 'bpe'")],
)
def test_sentencepiece_has_no_merges(base: Path, setting: str, problem: str) -> None:
    done = tune(base, "refused", "--set", setting)
    assert done.status == 1
    assert problem in done.err
    assert not (base / "refused" / "weights.safetensors").exists()
