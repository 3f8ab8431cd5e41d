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

from heedful.convert.marian.exporter import export_marian
from heedful.convert.marian.importer import import_marian
from heedful.errors import HeedfulError
from heedful.generation.config import GenerationConfig
from heedful.inference.translator import Translator
from heedful.model_folder import ModelFolder, ModelFolderConfig
from heedful.models.config import ModelConfig
from heedful.models.transformer import Transformer
from heedful.tokenization.pair_tokenizer import PairTokenizer
from heedful.tokenization.tokenizer import TokenizerConfig
from tests.convert.marian.test_importer import VARIANTS
from tests.convert.marian_models import PAIRS, SENTENCES, generated, new_marian, tokenizer_of

pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")


@pytest.mark.parametrize("name", VARIANTS)
def test_import_then_export_is_the_identity(name: str, tmp_path: Path) -> None:
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
    same(ModelFolder.load(again), ours)


def same(one: ModelFolder, other: ModelFolder) -> None:
    assert one.config == other.config
    for side in ("source", "target"):
        assert getattr(one.tokenizer, side).vocabulary == getattr(other.tokenizer, side).vocabulary
    actual, expected = one.translation_model.state_dict(), other.translation_model.state_dict()
    assert actual.keys() == expected.keys()
    assert all(torch.equal(actual[name], expected[name]) for name in actual)


def own_model(kind: str, *, joint: bool = True, tags: tuple[str, ...] = (), **settings: Any) -> ModelFolder:
    """One of our own, random, whose sentences end."""
    config = TokenizerConfig.from_settings({"model_type": kind, "vocab_size": 520, "joint_vocabulary": joint})
    tokenizer = PairTokenizer.train(lambda: PAIRS[:300], config, ("en", "fr"), tags)
    model = ModelConfig.from_settings(
        {
            "d_model": 24,
            "heads": 3,
            "encoder_layers": 1,
            "decoder_layers": 2,
            "d_ff": 20,
            "source_vocab_size": tokenizer.source.vocab_size,
            "target_vocab_size": tokenizer.target.vocab_size,
            "share_embeddings": joint,
            **settings,
        }
    )
    torch.manual_seed(4)
    transformer = Transformer(model).eval()
    with torch.no_grad():
        for name, parameter in transformer.named_parameters():
            parameter += 0.3 * torch.randn_like(parameter) * ((parameter != 0) | (name == "output_bias"))
    search = GenerationConfig(beam_size=1, max_length=20, max_length_offset=20)
    targets = tuple(tags)
    return ModelFolder(
        ModelFolderConfig(model=model, languages=("en", "fr"), generation=search, target_languages=targets),
        tokenizer,
        transformer,
    )


OWN: dict[str, dict[str, Any]] = {
    "bpe": {"kind": "bpe"},
    "unigram-untied": {"kind": "unigram", "tie_output_embeddings": False, "activation": "silu"},
    "character-separate": {"kind": "character", "joint": False, "output_bias": True},
    "bpe-separate": {"kind": "bpe", "joint": False, "scale_embeddings": False, "activation": "gelu"},
    "tagged": {"kind": "bpe", "tags": ("de", "fr")},
}


@pytest.mark.parametrize("name", OWN)
def test_exported_model_generates_the_same_in_transformers(name: str, tmp_path: Path) -> None:
    ours = own_model(**OWN[name])
    export_marian(ours, tmp_path / "out")
    theirs: MarianMTModel = MarianMTModel.from_pretrained(tmp_path / "out").eval()
    tokenizer: MarianTokenizer = tokenizer_of(tmp_path / "out")
    texts = [*SENTENCES[:20], "Ünknown 猫 letters 😀."]
    given = [f">>fr<< {text}" for text in texts] if name == "tagged" else texts
    expected = generated(theirs, tokenizer, given)
    actual = Translator.with_pytorch(ours).translate(texts)
    assert [list(each.alternatives[0].tokens) for each in actual] == expected
    assert len({tuple(each) for each in expected}) > 3
    again = import_marian(tmp_path / "out")
    assert again.tokenizer.source.encode(texts[0]) == ours.tokenizer.source.encode(texts[0])
    state = again.translation_model.state_dict()
    assert all(torch.equal(tensor, state[key]) for key, tensor in ours.translation_model.state_dict().items())


def test_ctranslate2_converter_reads_the_export(tmp_path: Path) -> None:
    new_marian(tmp_path / "there", updates=30)
    for model_folder, name in ((import_marian(tmp_path / "there"), "back"), (own_model("bpe"), "own")):
        folder = tmp_path / name
        export_marian(model_folder, folder)
        converted = ctranslate2.converters.TransformersConverter(str(folder)).convert(str(tmp_path / f"{name}-2"))
        translator = ctranslate2.Translator(converted, intra_threads=1)
        tokenizer, settings = (tokenizer_of(folder), GenerationConfig(beam_size=1, max_length=20, max_length_offset=20))
        for text in SENTENCES[:5]:
            pieces = tokenizer.convert_ids_to_tokens(tokenizer.encode(text))
            theirs = translator.translate_batch([pieces], beam_size=1, max_decoding_length=20, min_decoding_length=0)
            [ours] = Translator.with_pytorch(model_folder).translate([text], settings)
            assert theirs[0].hypotheses[0] == list(ours.alternatives[0].tokens)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"norm_placement": "pre"}, "model.norm_placement = 'post', not 'pre'"),
        ({"positions": "learned"}, "model.positions = 'sinusoidal'"),
        ({"attention_bias": False}, "model.attention_bias"),
        ({"norm": "rmsnorm"}, "model.norm"),
        ({"gated_feed_forward": True}, "model.gated_feed_forward"),
    ],
)
def test_export_unsupported_setting_raises(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(HeedfulError, match=re.escape(reason)):
        export_marian(own_model("bpe", **change), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_export_error_has_a_hint(tmp_path: Path) -> None:
    with pytest.raises(HeedfulError) as refused:
        export_marian(own_model("bpe", norm_placement="pre"), tmp_path / "out")
    assert "ctranslate2" in refused.value.hint


def test_export_word_tokenizer_raises(tmp_path: Path) -> None:
    with pytest.raises(HeedfulError, match="unknown words are segmented"):
        export_marian(own_model("word"), tmp_path / "out")


def test_export_does_not_overwrite(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    model_folder = own_model("bpe")
    with pytest.raises(HeedfulError, match="already exists"):
        export_marian(replace(model_folder, card="x"), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]
