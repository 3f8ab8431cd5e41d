"""A MarianMT model that was taken over is used like any other: commands, server, page, exports."""

import json
from pathlib import Path

import pytest

from heedful.bundle import Bundle
from heedful.engines.native import NativeEngine
from heedful.inspection.asked import Asked
from heedful.inspection.record import record
from heedful.interop.marian import import_marian
from tests.conftest import run_heedful
from tests.interop.marian_models import SENTENCES, new_marian
from tests.server.serving import ask, serve_process

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
    assert "2 languages: fra, deu" in done.out
    return base / "model"


def test_translate(model: Path) -> None:
    [text] = NativeEngine(Bundle.load(model)).translate([SENTENCES[0]])
    done = run_heedful("translate", model, SENTENCES[0], "--engine", "exact")
    assert done.out.strip() == text.text


@pytest.mark.slow
def test_other_commands(model: Path, tmp_path: Path) -> None:
    [text] = NativeEngine(Bundle.load(model)).translate([SENTENCES[0]])
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text(f"{SENTENCES[0]}\t{text.text}\n", encoding="utf-8")
    scored = run_heedful("evaluate", model, pairs, "--engine", "exact")
    assert "BLEU" in scored.out
    page = tmp_path / "page.html"
    assert run_heedful("inspect", model, STRANGE, "-o", page).status == 0
    assert page.stat().st_size > 10_000
    for word in ("The", ">>fra<<"):
        assert "softmax" in run_heedful("explain", model, "The dog is tired.", "--word", word).out


def test_explained_numbers_add_up_without_a_scale(tmp_path: Path) -> None:
    new_marian(tmp_path / "there", scale_embedding=False)
    import_marian(tmp_path / "there").save(tmp_path / "model")
    told = json.loads(run_heedful("explain", tmp_path / "model", "The dog.", "--json").out)
    [vector] = [section for section in told["sections"] if section["heading"] == "The vector x"]
    assert vector["formula"] == "embedding + position, d_model = 24"
    [table] = vector["tables"]
    assert table["rows"][:2] == ["embedding", "+ position 0"]


def test_unknown_letters_do_not_break_what_is_seen(model: Path) -> None:
    bundle = Bundle.load(model)
    source = bundle.tokenizer.source
    found = record(bundle, Asked(source=STRANGE)).manifest
    side = found["sides"]["source"]
    assert "<unk>" in side["pieces"]
    assert len(side["spans"]) == len(side["pieces"])
    text = found["text"]["source"]
    for piece, span in zip(side["pieces"], side["spans"], strict=True):
        if span and span[0] < span[1]:
            assert text[span[0] : span[1]] == piece.replace("▁", "")
    assert source.decode(side["ids"]) == text
    [translated] = NativeEngine(bundle).translate([STRANGE], details=True)
    words = STRANGE.split()
    assert all(0 <= one < len(words) for one, _ in translated.alternatives[0].alignment)


def test_continuations_follow_a_prefix(model: Path) -> None:
    engine = NativeEngine(Bundle.load(model))
    for prefix in ("", "Le ", "L'é", "猫"):
        found = engine.continuations(SENTENCES[1], prefix, count=3)
        assert 0 < len(found) <= 3
        assert all(0 < each.probability <= 1 for each in found)


def test_server_and_page(model: Path) -> None:
    with serve_process(model, "--engine", "pytorch", "--device", "cpu") as process:
        address = process.address
        for text in (SENTENCES[0], f">>deu<< {SENTENCES[0]}", STRANGE):
            answer = ask(address, "/translate", {"q": text, "source": "en", "target": "fra"})
            assert answer.status == 200, answer.body
        html = ask(
            address,
            "/translate",
            {"q": "<p>The <b>dog</b> 猫.</p>", "source": "en", "target": "fra", "format": "html"},
        )
        assert html.json["translatedText"].startswith("<p>")
        trace = ask(address, "/api/trace", {"source": STRANGE})
        assert trace.status == 200, trace.body
        assert trace.json["beam"]["normalization"] == "length"
        others = ask(
            address,
            "/api/alternatives",
            {"text": SENTENCES[0], "prefix": "Le ", "source": "en", "target": "fra"},
        )
        assert others.status == 200, others.body


def test_fine_tuning_has_what_it_needs(model: Path, tmp_path: Path) -> None:
    """Loss and gradients with the output bias are those of the logits."""
    import torch

    from heedful.training.loss import label_smoothed_loss, output_loss

    bundle = Bundle.load(model)
    assert bundle.predictor.output_bias is not None
    states = torch.randn(3, 5, bundle.config.model.width, generator=torch.Generator().manual_seed(1))
    target = torch.randint(1, bundle.config.model.target_vocabulary, (3, 5))
    wanted = label_smoothed_loss(bundle.predictor.logits(states), target, 0.1)[1]
    found = output_loss(*bundle.predictor.output_product(states), target, 0.1)[1]
    torch.testing.assert_close(found, wanted)
    bundle.tokenizer.save(tmp_path / "tokenizer.json")
    assert {path.name for path in tmp_path.iterdir()} == {"tokenizer.json", "source.spm", "target.spm"}
