"""Export to MarianMT folders, which ``transformers`` and CTranslate2's converter can read."""

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
from tests.convert.marian_models import PAIRS, SENTENCES, generate_subwords, load_tokenizer, new_marian

pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")


@pytest.mark.parametrize("name", VARIANTS)
def test_import_then_export_gives_the_same_model(name: str, tmp_path: Path) -> None:
    original, exported, saved = tmp_path / "original", tmp_path / "exported", tmp_path / "saved"
    theirs = new_marian(original, **VARIANTS[name])
    ours = import_marian(original)
    export_marian(ours, exported)
    before, after = (load_file(folder / "model.safetensors") for folder in (original, exported))
    state = theirs.state_dict()
    assert all(torch.equal(tensor, state[key]) for key, tensor in after.items())
    assert before.keys() - after.keys() <= {"model.shared.weight"}  # unused if no embeddings are tied
    for file in ("source.spm", "target.spm"):
        assert (original / file).read_bytes() == (exported / file).read_bytes()
    for file in ("vocab.json", "target_vocab.json"):
        assert (original / file).exists() == (exported / file).exists()
        if (original / file).exists():
            assert json.loads((original / file).read_text()) == json.loads((exported / file).read_text())
    check_equal(import_marian(exported), ours)
    import_marian(exported).save(saved)
    check_equal(ModelFolder.load(saved), ours)


def check_equal(first: ModelFolder, second: ModelFolder) -> None:
    assert first.config == second.config
    for side in ("source", "target"):
        assert getattr(first.tokenizer, side).vocabulary == getattr(second.tokenizer, side).vocabulary
    actual, expected = first.translation_model.state_dict(), second.translation_model.state_dict()
    assert actual.keys() == expected.keys()
    assert all(torch.equal(actual[name], expected[name]) for name in actual)


def new_model_folder(
    model_type: str, *, joint: bool = True, tags: tuple[str, ...] = (), **settings: Any
) -> ModelFolder:
    """A random model whose translations end."""
    config = TokenizerConfig.from_settings({"model_type": model_type, "vocab_size": 520, "joint_vocabulary": joint})
    tokenizer = PairTokenizer.train(lambda: PAIRS[:300], config, tags)
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


OUR_MODELS: dict[str, dict[str, Any]] = {
    "bpe": {"model_type": "bpe"},
    "unigram-untied": {"model_type": "unigram", "tie_output_embeddings": False, "activation": "silu"},
    "character-separate": {"model_type": "character", "joint": False, "output_bias": True},
    "bpe-separate": {"model_type": "bpe", "joint": False, "scale_embeddings": False, "activation": "gelu"},
    "tagged": {"model_type": "bpe", "tags": ("de", "fr")},
}


@pytest.mark.parametrize("name", OUR_MODELS)
def test_exported_model_generates_the_same_in_transformers(name: str, tmp_path: Path) -> None:
    ours = new_model_folder(**OUR_MODELS[name])
    export_marian(ours, tmp_path / "out")
    theirs: MarianMTModel = MarianMTModel.from_pretrained(tmp_path / "out").eval()
    tokenizer: MarianTokenizer = load_tokenizer(tmp_path / "out")
    texts = [*SENTENCES[:20], "Ünknown 猫 letters 😀."]
    tagged_texts = [f">>fr<< {text}" for text in texts] if name == "tagged" else texts
    expected = generate_subwords(theirs, tokenizer, tagged_texts)
    actual = Translator.with_pytorch(ours).translate(texts)
    assert [list(output.alternatives[0].tokens) for output in actual] == expected
    assert len({tuple(output) for output in expected}) > 3
    imported = import_marian(tmp_path / "out")
    assert imported.tokenizer.source.encode(texts[0]) == ours.tokenizer.source.encode(texts[0])
    state = imported.translation_model.state_dict()
    assert all(torch.equal(tensor, state[key]) for key, tensor in ours.translation_model.state_dict().items())


def test_ctranslate2_converter_reads_the_export(tmp_path: Path) -> None:
    new_marian(tmp_path / "original", updates=30)
    for model_folder, name in ((import_marian(tmp_path / "original"), "imported"), (new_model_folder("bpe"), "own")):
        folder = tmp_path / name
        export_marian(model_folder, folder)
        converted_folder = ctranslate2.converters.TransformersConverter(str(folder)).convert(
            str(tmp_path / f"{name}-2")
        )
        translator = ctranslate2.Translator(converted_folder, intra_threads=1)
        tokenizer, settings = (
            load_tokenizer(folder),
            GenerationConfig(beam_size=1, max_length=20, max_length_offset=20),
        )
        for text in SENTENCES[:5]:
            subwords = tokenizer.convert_ids_to_tokens(tokenizer.encode(text))
            theirs = translator.translate_batch([subwords], beam_size=1, max_decoding_length=20, min_decoding_length=0)
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
        export_marian(new_model_folder("bpe", **change), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_export_error_has_a_hint(tmp_path: Path) -> None:
    with pytest.raises(HeedfulError) as caught:
        export_marian(new_model_folder("bpe", norm_placement="pre"), tmp_path / "out")
    assert "ctranslate2" in caught.value.hint


def test_export_word_tokenizer_raises(tmp_path: Path) -> None:
    with pytest.raises(HeedfulError, match="unknown words are segmented"):
        export_marian(new_model_folder("word"), tmp_path / "out")


def test_export_does_not_overwrite(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    model_folder = new_model_folder("bpe")
    with pytest.raises(HeedfulError, match="already exists"):
        export_marian(replace(model_folder, card="x"), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]
