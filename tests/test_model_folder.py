"""The model folder: saving and loading are lossless, and corrupt folders raise errors."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from heedful.errors import HeedfulError
from heedful.generation.config import GenerationConfig
from heedful.inference.loading import load
from heedful.inference.translator import Translator
from heedful.model_folder import FORMAT_VERSION, LazyModel, ModelFolder, ModelFolderConfig, named_parameters
from heedful.models.config import ModelConfig
from heedful.models.transformer import Transformer
from heedful.tokenization.pair_tokenizer import PairTokenizer
from heedful.tokenization.tokenizer import TokenizerConfig

PAIRS = [
    ("the animal did not cross the street", "l'animal n'a pas traversé la rue"),
    ("it was too tired", "il était trop fatigué"),
    ("it was too wide", "elle était trop large"),
    ("I am a student", "je suis étudiant"),
]


def new_model_folder(
    joint: bool = True, tie_output_embeddings: bool = True, positions: str = "sinusoidal"
) -> ModelFolder:
    config = TokenizerConfig(vocab_size=331, joint_vocabulary=joint)
    tokenizer = PairTokenizer.train(lambda: PAIRS, config)
    torch.manual_seed(3)
    settings = {
        "source_vocab_size": tokenizer.source.vocab_size,
        "target_vocab_size": tokenizer.target.vocab_size,
        "share_embeddings": joint,
        "tie_output_embeddings": tie_output_embeddings,
        "positions": positions,
        "d_model": 22,
        "heads": 2,
        "encoder_layers": 1,
        "decoder_layers": 3,
        "d_ff": 13,
    }
    model = Transformer(ModelConfig.from_settings(settings))
    folder_config = ModelFolderConfig(
        languages=("en", "fr"),
        tokenizer=config,
        model=model.config,
        generation=GenerationConfig(beam_size=3),
        max_source_length=37,
    )
    return ModelFolder(folder_config, tokenizer, model.eval(), "# Un modèle\n")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    new_model_folder().save(tmp_path / "model")
    return tmp_path / "model"


def get_load_hint(folder: Path, problem: str) -> str:
    """The hint of the error that loading gives."""
    with pytest.raises(HeedfulError, match=problem) as caught:
        ModelFolder.load(folder)
    return caught.value.hint


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


# ---- round trip


@pytest.mark.parametrize(
    ("joint", "tie_output_embeddings", "positions"),
    [(True, True, "sinusoidal"), (False, True, "learned"), (False, False, "sinusoidal"), (True, False, "learned")],
)
def test_model_folder_round_trips(tmp_path: Path, joint: bool, tie_output_embeddings: bool, positions: str) -> None:
    model_folder = new_model_folder(joint, tie_output_embeddings, positions)
    model_folder.save(tmp_path / "new" / "model")
    loaded = ModelFolder.load(tmp_path / "new" / "model")
    assert loaded.config == model_folder.config
    assert loaded.card == model_folder.card
    assert not loaded.translation_model.training
    source, target = torch.tensor([[5, 260, 261, 1]]), torch.tensor([[0, 262, 9]])
    assert torch.equal(
        loaded.translation_model.logits(loaded.translation_model(source, target)), logits(model_folder, source, target)
    )
    assert loaded.tokenizer.joint == joint
    assert loaded.config.languages == ("en", "fr")
    for side in ("source", "target"):
        ours, theirs = getattr(model_folder.tokenizer, side), getattr(loaded.tokenizer, side)
        assert ours.vocabulary == theirs.vocabulary
        assert theirs.decode(theirs.encode("été: 世界")) == "été: 世界"
    tables = {
        loaded.translation_model.encoder.embedding.table,
        loaded.translation_model.decoder.embedding.table,
        loaded.translation_model.output,
    }
    assert len(tables) == 3 - joint - tie_output_embeddings


def logits(model_folder: ModelFolder, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return model_folder.translation_model.logits(model_folder.translation_model(source, target))


def test_loaded_model_translates_identically(folder: Path) -> None:
    search = GenerationConfig(beam_size=3, n_best=2, max_length_offset=5)
    texts = ["the street was too wide", "", "I am a student"]
    before = Translator.with_pytorch(new_model_folder()).translate(texts, search)
    assert load(folder, engine="pytorch").translate(texts, search) == before
    assert before[0].alternatives[0].text != before[2].alternatives[0].text


def test_shared_embeddings_are_stored_once(folder: Path) -> None:
    tensors = load_file(folder / "weights.safetensors")
    assert [name for name in tensors if tensors[name].shape[0] > 200] == ["encoder.embedding.table.weight"]
    assert sum(tensor.numel() for tensor in tensors.values()) == new_model_folder().translation_model.parameter_count()


def test_save_twice_leaves_no_temporary_files(folder: Path) -> None:
    model_folder = new_model_folder()
    with torch.no_grad():
        model_folder.translation_model.output.weight += 1
    model_folder.save(folder)
    assert torch.equal(
        ModelFolder.load(folder).translation_model.output.weight, model_folder.translation_model.output.weight
    )
    files = ["README.md", "config.json", "tokenizer.json", "weights.safetensors"]
    assert sorted(path.name for path in folder.iterdir()) == files


def test_load_without_card_works(folder: Path) -> None:
    (folder / "README.md").unlink()
    assert ModelFolder.load(folder).card == ""


# ---- lazy loading of weights


def test_open_loads_weights_once(folder: Path) -> None:
    model_folder = ModelFolder.open(folder)
    assert isinstance(model_folder.weights, LazyModel)
    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(lambda _: id(model_folder.translation_model), range(8)))) == 1
    assert torch.equal(model_folder.translation_model.output.weight, new_model_folder().translation_model.output.weight)
    assert model_folder.load_weights().weights is model_folder.translation_model


def test_changed_weights_raise(folder: Path) -> None:
    model_folder = ModelFolder.open(folder)
    new_model_folder().save(folder)
    with pytest.raises(HeedfulError, match="changed after it was opened"):
        model_folder.load_weights()


def test_open_without_weights_raises(folder: Path) -> None:
    (folder / "weights.safetensors").unlink()
    with pytest.raises(HeedfulError, match="no such file"):
        ModelFolder.open(folder)


# ---- config.json


def test_load_newer_format_raises(folder: Path) -> None:
    edit_config(folder, format=FORMAT_VERSION + 1, something_new=True)
    problem = f"format {FORMAT_VERSION + 1}; this version of Heedful reads format {FORMAT_VERSION}"
    assert "--upgrade heedful" in get_load_hint(folder, problem)


def test_load_format_1_says_train_or_import_again(folder: Path) -> None:
    edit_config(folder, format=1)
    assert get_load_hint(folder, "format 1; this version") == "train or import the model again"


@pytest.mark.parametrize("text", ["{}", "[]", "7", '{"format": "one"}', '{"model": {}}'])
def test_load_foreign_config_raises(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    get_load_hint(folder, "not from a Heedful model: it has no format number")


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe"])
def test_load_corrupt_config_raises(folder: Path, data: bytes) -> None:
    (folder / "config.json").write_bytes(data)
    get_load_hint(folder, "config.json is corrupt")


def test_unknown_setting_raises(folder: Path) -> None:
    model = json.loads((folder / "config.json").read_text())["model"]
    edit_config(folder, model={**model, "d_modle": 22})
    assert "model.d_model" in get_load_hint(folder, "unknown setting 'model.d_modle'")


def test_invalid_setting_raises(folder: Path) -> None:
    model = json.loads((folder / "config.json").read_text())["model"]
    edit_config(folder, model={**model, "heads": 7})
    get_load_hint(folder, "d_model 22 is not divisible by 7 heads")


def test_load_without_config_raises(tmp_path: Path) -> None:
    assert "heedful train" in get_load_hint(tmp_path, "not a model folder: it has no config.json")
    assert "before texts and files" in get_load_hint(tmp_path / "nowhere", "no such folder")


def test_load_incomplete_training_raises(tmp_path: Path) -> None:
    (tmp_path / "training").mkdir()
    assert f"--resume {tmp_path}" in get_load_hint(tmp_path, "no config.json")


# ---- weights and tokenizer


@pytest.mark.parametrize("size", [0, 3, 500, -1])
def test_load_truncated_weights_raises(folder: Path, size: int) -> None:
    path = folder / "weights.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    assert get_load_hint(folder, "corrupt or truncated") == "copy the model folder again"


@pytest.mark.parametrize("name", ["weights.safetensors", "tokenizer.json"])
def test_load_missing_file_raises(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert get_load_hint(folder, name)


def test_load_missing_target_tokenizer_raises(tmp_path: Path) -> None:
    new_model_folder(joint=False).save(tmp_path)
    names = {path.name for path in tmp_path.glob("*tokenizer.json")}
    assert names == {"tokenizer.json", "target_tokenizer.json"}
    (tmp_path / "target_tokenizer.json").unlink()
    assert "target_tokenizer.json" in get_load_hint(tmp_path, "one vocabulary, but its config.json says")


def test_save_over_separate_vocabularies_deletes_target_tokenizer(tmp_path: Path) -> None:
    new_model_folder(joint=False).save(tmp_path)
    new_model_folder(joint=True).save(tmp_path)
    assert not (tmp_path / "target_tokenizer.json").exists()
    assert ModelFolder.load(tmp_path).tokenizer.joint


def test_load_missing_or_extra_tensor_raises(folder: Path) -> None:
    tensors = named_parameters(new_model_folder().translation_model)
    name = "decoder.layers.2.cross_attention.output.bias"
    tensor = tensors.pop(name)
    save_file(tensors, folder / "weights.safetensors")
    get_load_hint(folder, f"'{name}' is missing or unexpected")
    save_file({**tensors, name: tensor, "extra": tensor.clone()}, folder / "weights.safetensors")
    get_load_hint(folder, "'extra' is missing or unexpected")


def test_load_wrong_shape_raises(folder: Path) -> None:
    tensors = named_parameters(new_model_folder().translation_model)
    name = "encoder.layers.0.feed_forward.inner.weight"
    tensors[name] = tensors[name].T.contiguous()
    save_file(tensors, folder / "weights.safetensors")
    hint = get_load_hint(folder, rf"'{name}' has shape \[22, 13\], not \[13, 22\]")
    assert "config.json" in hint


def test_load_corrupt_tokenizer_raises(folder: Path) -> None:
    path = folder / "tokenizer.json"
    path.write_bytes(path.read_bytes()[:200])
    get_load_hint(folder, "tokenizer")


def test_save_gives_all_files_the_same_mode(tmp_path: Path) -> None:
    """Another user who can read config.json can read the weights."""
    new_model_folder().save(tmp_path / "model")
    assert len({path.stat().st_mode for path in (tmp_path / "model").iterdir()}) == 1
