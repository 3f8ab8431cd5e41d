"""A MarianMT model that was taken over is used like any other: commands, server, page, exports."""

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
STRANGE = "The dog 猫 saw 😀 %s and\u0301 ﬁne http://example.org/猫 <b>."


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Taken over by the real command."""
    base = tmp_path_factory.mktemp("marian")
    new_marian(base / "opus-mt-en-fr", tags=["fra", "deu"], updates=40, d_model=36, init_std=0.1)
    done = run_heedful("import", base / "opus-mt-en-fr", "-o", base / "model", "--languages", "en-fra")
    assert done.status == 0, done.err
    assert "en to fra" in done.out
    assert "target languages (2): fra, deu" in done.out
    return base / "model"


def test_imported_model_translates(model: Path) -> None:
    [text] = Translator.with_pytorch(ModelFolder.load(model)).translate([SENTENCES[0]])
    done = run_heedful("translate", model, SENTENCES[0], "--engine", "exact")
    assert done.out.strip() == text.text


@pytest.mark.slow
def test_imported_model_works_with_other_commands(model: Path, tmp_path: Path) -> None:
    [text] = Translator.with_pytorch(ModelFolder.load(model)).translate([SENTENCES[0]])
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text(f"{SENTENCES[0]}\t{text.text}\n", encoding="utf-8")
    scored = run_heedful("evaluate", model, pairs, "--engine", "exact")
    assert "BLEU" in scored.out
    page = tmp_path / "page.html"
    assert run_heedful("inspect", model, STRANGE, "-o", page).status == 0
    assert page.stat().st_size > 10_000
    for word in ("The", ">>fra<<"):
        assert "softmax" in run_heedful("explain", model, "The dog is tired.", "--word", word).out


def test_explain_without_embedding_scale_adds_up(tmp_path: Path) -> None:
    new_marian(tmp_path / "there", scale_embedding=False)
    import_marian(tmp_path / "there").save(tmp_path / "model")
    told = json.loads(run_heedful("explain", tmp_path / "model", "The dog.", "--json").out)
    [vector] = [section for section in told["sections"] if section["heading"] == "The vector x"]
    assert vector["formula"] == "embedding + position, d_model = 24"
    [table] = vector["tables"]
    assert table["rows"][:2] == ["embedding", "+ position 0"]


def test_trace_with_unknown_letters_works(model: Path) -> None:
    model_folder = ModelFolder.load(model)
    source = model_folder.tokenizer.source
    actual = compute_trace(model_folder, TraceRequest(source=STRANGE)).manifest
    side = actual["sides"]["source"]
    assert "<unk>" in side["subwords"]
    assert len(side["spans"]) == len(side["subwords"])
    text = actual["text"]["source"]
    for piece, span in zip(side["subwords"], side["spans"], strict=True):
        if span and span[0] < span[1]:
            assert text[span[0] : span[1]] == piece.replace("▁", "")
    assert source.decode(side["ids"]) == text
    [translated] = Translator.with_pytorch(model_folder).translate([STRANGE], details=True)
    words = STRANGE.split()
    assert all(0 <= one < len(words) for one, _ in translated.alternatives[0].alignment)


def test_continuations_follow_a_prefix(model: Path) -> None:
    engine = Translator.with_pytorch(ModelFolder.load(model))
    for prefix in ("", "Le ", "L'é", "猫"):
        actual = engine.alternatives(SENTENCES[1], prefix, count=3)
        assert 0 < len(actual) <= 3
        assert all(0 < each.probability <= 1 for each in actual)


@pytest.mark.long
def test_imported_model_is_served(model: Path) -> None:
    with serve_process(model, "--engine", "pytorch", "--device", "cpu") as process:
        address = process.address
        for text in (SENTENCES[0], f">>deu<< {SENTENCES[0]}", STRANGE):
            answer = ask(address, "/translate", {"q": text, "source": "en", "target": "fra"})
            assert answer.status == 200, answer.body
        html = ask(
            address, "/translate", {"q": "<p>The <b>dog</b> 猫.</p>", "source": "en", "target": "fra", "format": "html"}
        )
        assert html.json["translatedText"].startswith("<p>")
        trace = ask(address, "/api/trace", {"source": STRANGE})
        assert trace.status == 200, trace.body
        assert trace.json["beam_search"]["length_normalization"] == "length"
        others = ask(
            address, "/api/alternatives", {"text": SENTENCES[0], "prefix": "Le ", "source": "en", "target": "fra"}
        )
        assert others.status == 200, others.body


def test_imported_model_can_be_finetuned(model: Path, tmp_path: Path) -> None:
    """Loss and gradients with the output bias are those of the logits."""
    import torch

    from heedful.training.step import label_smoothed_loss, output_loss

    model_folder = ModelFolder.load(model)
    assert model_folder.model.output_bias is not None
    states = torch.randn(3, 5, model_folder.config.model.d_model, generator=torch.Generator().manual_seed(1))
    target = torch.randint(1, model_folder.config.model.target_vocab_size, (3, 5))
    wanted = label_smoothed_loss(model_folder.model.logits(states), target, 0.1)[1]
    actual = output_loss(*model_folder.model.output_product(states), target, 0.1)[1]
    torch.testing.assert_close(actual, wanted)
    model_folder.tokenizer.save(tmp_path / "tokenizer.json")
    assert {path.name for path in tmp_path.iterdir()} == {"tokenizer.json", "source.spm", "target.spm"}
