"""Our models as MarianMT folders: ``transformers`` and CTranslate2's converter read them."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import ctranslate2
import pytest
import torch
from safetensors.torch import load_file
from transformers import MarianMTModel, MarianTokenizer

from heedful.bundle import Bundle, BundleConfig
from heedful.decoding.config import SearchConfig
from heedful.engines.native import NativeEngine
from heedful.errors import HeedfulError
from heedful.interop.marian import import_marian
from heedful.interop.marian_export import export_marian
from heedful.model.config import ModelConfig
from heedful.model.transformer import Transformer
from heedful.text.tokenizer import PairTokenizer, TokenizerConfig
from tests.interop.marian_models import PAIRS, SENTENCES, generated, new_marian, tokenizer_of
from tests.interop.test_marian import VARIANTS

pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")


@pytest.mark.parametrize("name", VARIANTS)
def test_there_and_back_again_is_the_identity(name: str, tmp_path: Path) -> None:
    there, back, again = tmp_path / "there", tmp_path / "back", tmp_path / "again"
    theirs = new_marian(there, **VARIANTS[name])
    ours = import_marian(there)
    export_marian(ours, back)
    before, after = (load_file(folder / "model.safetensors") for folder in (there, back))
    state = theirs.state_dict()
    assert all(torch.equal(tensor, state[key]) for key, tensor in after.items())
    assert before.keys() - after.keys() <= {"model.shared.weight"}  # nobody reads it where nothing is tied
    for file in ("source.spm", "target.spm"):
        assert (there / file).read_bytes() == (back / file).read_bytes()
    for file in ("vocab.json", "target_vocab.json"):
        assert (there / file).exists() == (back / file).exists()
        if (there / file).exists():
            assert json.loads((there / file).read_text()) == json.loads((back / file).read_text())
    same(import_marian(back), ours)
    import_marian(back).save(again)
    same(Bundle.load(again), ours)


def same(one: Bundle, other: Bundle) -> None:
    assert one.config == other.config
    for side in ("source", "target"):
        assert getattr(one.tokenizer, side).vocabulary == getattr(other.tokenizer, side).vocabulary
    found, expected = one.model.state_dict(), other.model.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)


def own_model(kind: str, *, joint: bool = True, tags: tuple[str, ...] = (), **settings: Any) -> Bundle:
    """One of our own, random, whose sentences end."""
    config = TokenizerConfig.checked({"kind": kind, "vocabulary": 520, "joint": joint})
    tokenizer = PairTokenizer.train(lambda: PAIRS[:300], config, ("en", "fr"), tags)
    model = ModelConfig.checked(
        {
            "width": 24,
            "heads": 3,
            "encoder_layers": 1,
            "decoder_layers": 2,
            "feed_forward_width": 20,
            "source_vocabulary": tokenizer.source.size,
            "target_vocabulary": tokenizer.target.size,
            "joint": joint,
            **settings,
        }
    )
    torch.manual_seed(4)
    transformer = Transformer(model).eval()
    with torch.no_grad():
        for name, parameter in transformer.named_parameters():
            parameter += 0.3 * torch.randn_like(parameter) * ((parameter != 0) | (name == "output_bias"))
    search = SearchConfig(beam=1, longest=20, extra_length=20)
    targets = tuple(tags)
    return Bundle(
        BundleConfig(model=model, languages=("en", "fr"), search=search, targets=targets),
        tokenizer,
        transformer,
    )


OWN: dict[str, dict[str, Any]] = {
    "bpe": {"kind": "bpe"},
    "unigram-untied": {"kind": "unigram", "tie_output": False, "activation": "silu"},
    "character-separate": {"kind": "character", "joint": False, "output_bias": True},
    "bpe-separate": {"kind": "bpe", "joint": False, "scale_embeddings": False, "activation": "gelu"},
    "tagged": {"kind": "bpe", "tags": ("de", "fr")},
}


@pytest.mark.parametrize("name", OWN)
def test_our_own_models_write_the_same_in_transformers(name: str, tmp_path: Path) -> None:
    ours = own_model(**OWN[name])
    export_marian(ours, tmp_path / "out")
    theirs: MarianMTModel = MarianMTModel.from_pretrained(tmp_path / "out").eval()
    tokenizer: MarianTokenizer = tokenizer_of(tmp_path / "out")
    texts = [*SENTENCES[:20], "Ünknown 猫 letters 😀."]
    given = [f">>fr<< {text}" for text in texts] if name == "tagged" else texts
    expected = generated(theirs, tokenizer, given)
    found = NativeEngine(ours).translate(texts)
    assert [list(each.alternatives[0].tokens) for each in found] == expected
    assert len({tuple(each) for each in expected}) > 3
    again = import_marian(tmp_path / "out")
    assert again.tokenizer.source.encode(texts[0]) == ours.tokenizer.source.encode(texts[0])
    state = again.model.state_dict()
    assert all(torch.equal(tensor, state[key]) for key, tensor in ours.model.state_dict().items())


def test_ctranslate2s_own_converter_reads_it(tmp_path: Path) -> None:
    new_marian(tmp_path / "there", updates=30)
    for bundle, name in ((import_marian(tmp_path / "there"), "back"), (own_model("bpe"), "own")):
        folder = tmp_path / name
        export_marian(bundle, folder)
        converted = ctranslate2.converters.TransformersConverter(str(folder)).convert(
            str(tmp_path / f"{name}-2")
        )
        translator = ctranslate2.Translator(converted, intra_threads=1)
        tokenizer, settings = tokenizer_of(folder), SearchConfig(beam=1, longest=20, extra_length=20)
        for text in SENTENCES[:5]:
            pieces = tokenizer.convert_ids_to_tokens(tokenizer.encode(text))
            theirs = translator.translate_batch(
                [pieces], beam_size=1, max_decoding_length=20, min_decoding_length=0
            )
            [ours] = NativeEngine(bundle).translate([text], settings)
            assert theirs[0].hypotheses[0] == list(ours.alternatives[0].tokens)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"norm": "pre"}, "model.norm = 'post', and this has 'pre'"),
        ({"positions": "learned"}, "model.positions = 'sinusoidal'"),
        ({"attention_bias": False}, "model.attention_bias"),
        ({"normalization": "rms"}, "model.normalization"),
        ({"gated": True}, "model.gated"),
    ],
)
def test_what_is_no_marian_model_is_refused(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(HeedfulError, match=re.escape(reason)):
        export_marian(own_model("bpe", **change), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_refusal_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(HeedfulError) as refused:
        export_marian(own_model("bpe", norm="pre"), tmp_path / "out")
    assert "ctranslate2" in refused.value.hint


def test_words_cannot_be_cut_by_sentencepiece(tmp_path: Path) -> None:
    with pytest.raises(HeedfulError, match="words that the model does not know are cut"):
        export_marian(own_model("word"), tmp_path / "out")


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    bundle = own_model("bpe")
    with pytest.raises(HeedfulError, match="exists already"):
        export_marian(replace(bundle, card="x"), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]
