"""An imported MarianMT model works like any other: commands, server, page, exports."""

import json
from pathlib import Path

import pytest

from heedful.convert.marian.importer import import_marian
from heedful.inference.translator import Translator
from heedful.interpret.trace import compute_trace
from heedful.interpret.trace_schema import TraceRequest
from heedful.model_folder import ModelFolder
from tests.conftest import run_heedful
from tests.convert.marian_models import SENTENCES, new_marian
from tests.server.server_process import ask, serve_process

pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
UNUSUAL_SENTENCE = "The dog 猫 saw 😀 %s and\u0301 ﬁne http://example.org/猫 <b>."


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Imported with ``heedful import``."""
    base = tmp_path_factory.mktemp("marian")
    new_marian(base / "opus-mt-en-fr", tags=["fra", "deu"], updates=40, d_model=36, init_std=0.1)
    result = run_heedful("import", base / "opus-mt-en-fr", "-o", base / "model", "--languages", "en-fra")
    assert result.status == 0, result.err
    assert "en to fra" in result.out
    assert "target languages (2): fra, deu" in result.out
    return base / "model"


def test_imported_model_translates(model: Path) -> None:
    [text] = Translator.with_pytorch(ModelFolder.load(model)).translate([SENTENCES[0]])
    result = run_heedful("translate", model, SENTENCES[0], "--engine", "exact")
    assert result.out.strip() == text.text


@pytest.mark.slow
def test_imported_model_works_with_other_commands(model: Path, tmp_path: Path) -> None:
    [text] = Translator.with_pytorch(ModelFolder.load(model)).translate([SENTENCES[0]])
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text(f"{SENTENCES[0]}\t{text.text}\n", encoding="utf-8")
    result = run_heedful("evaluate", model, pairs, "--engine", "exact")
    assert "BLEU" in result.out
    page = tmp_path / "page.html"
    assert run_heedful("inspect", model, UNUSUAL_SENTENCE, "-o", page).status == 0
    assert page.stat().st_size > 10_000
    for word in ("The", ">>fra<<"):
        assert "softmax" in run_heedful("explain", model, "The dog is tired.", "--word", word).out


def test_explain_without_embedding_scale_adds_up(tmp_path: Path) -> None:
    new_marian(tmp_path / "original", scale_embedding=False)
    import_marian(tmp_path / "original").save(tmp_path / "model")
    explanation = json.loads(run_heedful("explain", tmp_path / "model", "The dog.", "--json").out)
    [vector] = [section for section in explanation["sections"] if section["heading"] == "The vector x"]
    assert vector["formula"] == "embedding + position, d_model = 24"
    [table] = vector["tables"]
    assert table["rows"][:2] == ["embedding", "+ position 0"]


def test_trace_with_unknown_letters_works(model: Path) -> None:
    model_folder = ModelFolder.load(model)
    source = model_folder.tokenizer.source
    actual = compute_trace(model_folder, TraceRequest(source=UNUSUAL_SENTENCE)).manifest
    side = actual["sides"]["source"]
    assert "<unk>" in side["subwords"]
    assert len(side["spans"]) == len(side["subwords"])
    text = actual["text"]["source"]
    for subword, span in zip(side["subwords"], side["spans"], strict=True):
        if span and span[0] < span[1]:
            assert text[span[0] : span[1]] == subword.replace("▁", "")
    assert source.decode(side["ids"]) == text
    [translation] = Translator.with_pytorch(model_folder).translate([UNUSUAL_SENTENCE], details=True)
    words = UNUSUAL_SENTENCE.split()
    assert all(0 <= source_word < len(words) for source_word, _ in translation.alternatives[0].alignment)


def test_alternatives_after_any_prefix_have_probabilities(model: Path) -> None:
    engine = Translator.with_pytorch(ModelFolder.load(model))
    for prefix in ("", "Le ", "L'é", "猫"):
        actual = engine.alternatives(SENTENCES[1], prefix, count=3)
        assert 0 < len(actual) <= 3
        assert all(0 < continuation.probability <= 1 for continuation in actual)


@pytest.mark.long
def test_imported_model_is_served(model: Path) -> None:
    with serve_process(model, "--engine", "pytorch", "--device", "cpu") as process:
        address = process.address
        for text in (SENTENCES[0], f">>deu<< {SENTENCES[0]}", UNUSUAL_SENTENCE):
            answer = ask(address, "/translate", {"q": text, "source": "en", "target": "fra"})
            assert answer.status == 200, answer.body
        html = ask(
            address, "/translate", {"q": "<p>The <b>dog</b> 猫.</p>", "source": "en", "target": "fra", "format": "html"}
        )
        assert html.json["translatedText"].startswith("<p>")
        trace = ask(address, "/api/trace", {"source": UNUSUAL_SENTENCE})
        assert trace.status == 200, trace.body
        assert trace.json["beam_search"]["length_normalization"] == "length"
        others = ask(
            address, "/api/alternatives", {"text": SENTENCES[0], "prefix": "Le ", "source": "en", "target": "fra"}
        )
        assert others.status == 200, others.body


def test_imported_model_loss_with_output_bias_matches_logits(model: Path, tmp_path: Path) -> None:
    """The loss with the output bias equals that of the logits."""
    import torch

    from heedful.training.step import label_smoothed_loss, output_loss

    model_folder = ModelFolder.load(model)
    assert model_folder.model.output_bias is not None
    states = torch.randn(3, 5, model_folder.config.model.d_model, generator=torch.Generator().manual_seed(1))
    target = torch.randint(1, model_folder.config.model.target_vocab_size, (3, 5))
    expected = label_smoothed_loss(model_folder.model.logits(states), target, 0.1)[1]
    actual = output_loss(*model_folder.model.output_product(states), target, 0.1)[1]
    torch.testing.assert_close(actual, expected)
    model_folder.tokenizer.save(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"vocab.json", "source.spm", "target.spm"}
