"""A MarianMT model that was taken over and tuned: still a MarianMT model, and everything takes it."""

import json
from pathlib import Path

import pytest
import torch
from transformers import MarianMTModel

from heedful.bundle import Bundle
from heedful.commands.exporting import ExportOptions, export_command
from heedful.corpora.formats import write_tsv
from heedful.decoding.config import SearchConfig
from heedful.engines.native import NativeEngine
from heedful.interop.marian import import_marian
from heedful.progress import Reporter
from tests.conftest import Result, run_heedful
from tests.interop.marian_models import PAIRS, SENTENCES, generated, new_marian, tokenizer_of

pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
QUICK = ("updates=20", "validate_every=10", "held_out=10", "bleu_sentences=2", "threads=1")


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
def tuned(base: Path) -> Bundle:
    """Tuned by the real command."""
    done = tune(base, "tuned", "--mix", f"{base / 'general.tsv'}:0.3", "--set", "training.rate=0.003")
    assert done.status == 0, done.err
    return Bundle.load(base / "tuned")


def test_tuning_moves_weights_and_bias_but_not_padding(base: Path, tuned: Bundle) -> None:
    before = Bundle.load(base / "model")
    assert tuned.tokenizer.source.vocabulary == before.tokenizer.source.vocabulary
    bias, old_bias = tuned.predictor.output_bias, before.predictor.output_bias
    assert bias is not None
    assert old_bias is not None
    assert not torch.equal(bias, old_bias)
    for table, old in zip(tuned.predictor.tables, before.predictor.tables, strict=True):
        assert not torch.equal(table.weight, old.weight)
        assert not table.weight[0].any()  # of padding
    assert json.loads((base / "tuned" / "tuning.json").read_text())["update"] > 0


def test_transformers_reads_the_tuned_model(base: Path, tuned: Bundle) -> None:
    exported(base, "marian", "back")
    theirs = MarianMTModel.from_pretrained(base / "back").eval()
    expected = generated(theirs, tokenizer_of(base / "back"), SENTENCES[:20], num_beams=1)
    search = SearchConfig(beam=1, extra_length=40)
    ours = NativeEngine(tuned).translate(SENTENCES[:20], search, details=True)
    found = [[piece for piece in each.alternatives[0].tokens if piece != "</s>"] for each in ours]
    assert sum(map(len, found)) > 100
    # How long a sentence may become is counted otherwise, so that one may end before the other.
    assert all(one[: len(other)] == other[: len(one)] for one, other in zip(found, expected, strict=True))


@pytest.mark.long
@pytest.mark.parametrize(
    ("form", "name"), [("ctranslate2", "ct2"), ("argos", "tuned.argosmodel"), ("onnx", "onnx")]
)
def test_the_tuned_model_is_exported(base: Path, tuned: Bundle, form: str, name: str) -> None:
    assert any("checked with" in line for line in exported(base, form, name))


def exported(base: Path, form: str, name: str) -> list[str]:
    return list(export_command(ExportOptions(base / "tuned", form, base / name), Reporter(quiet=True)))


@pytest.mark.parametrize(
    ("setting", "problem"),
    [("tuning.new_pieces=20", "cannot be extended"), ("tokenizer.dropout=0.1", "not on kind")],
)
def test_sentencepiece_has_no_merges(base: Path, setting: str, problem: str) -> None:
    done = tune(base, "refused", "--set", setting)
    assert done.status == 1
    assert problem in done.err
    assert not (base / "refused" / "weights.safetensors").exists()
