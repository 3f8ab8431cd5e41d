"""The model folder: what was saved comes back exactly, and what is broken is said to be."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from heedful.bundle import FORMAT, Bundle, BundleConfig, UnreadModel, named_parameters
from heedful.decoding.config import SearchConfig
from heedful.engines.native import NativeEngine
from heedful.errors import HeedfulError
from heedful.model.config import ModelConfig
from heedful.model.transformer import Transformer
from heedful.text.tokenizer import PairTokenizer, TokenizerConfig

PAIRS = [
    ("the animal did not cross the street", "l'animal n'a pas traversé la rue"),
    ("it was too tired", "il était trop fatigué"),
    ("it was too wide", "elle était trop large"),
    ("I am a student", "je suis étudiant"),
]


def new_bundle(joint: bool = True, tied: bool = True, positions: str = "sinusoidal") -> Bundle:
    config = TokenizerConfig(vocabulary=331, joint=joint)
    tokenizer = PairTokenizer.train(lambda: PAIRS, config, ("en", "fr"))
    torch.manual_seed(3)
    settings = {
        "source_vocabulary": tokenizer.source.size,
        "target_vocabulary": tokenizer.target.size,
        "joint": joint,
        "tie_output": tied,
        "positions": positions,
        "width": 22,
        "heads": 2,
        "encoder_layers": 1,
        "decoder_layers": 3,
        "feed_forward_width": 13,
    }
    model = Transformer(ModelConfig.checked(settings))
    bundle = BundleConfig(
        languages=("en", "fr"), model=model.config, search=SearchConfig(beam=3), longest_source=37
    )
    return Bundle(bundle, tokenizer, model.eval(), "# Un modèle\n")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    new_bundle().save(tmp_path / "model")
    return tmp_path / "model"


def refused(folder: Path, problem: str) -> str:
    """The hint of the error that loading gives."""
    with pytest.raises(HeedfulError, match=problem) as caught:
        Bundle.load(folder)
    return caught.value.hint


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


# ---- round trip


@pytest.mark.parametrize(
    ("joint", "tied", "positions"),
    [
        (True, True, "sinusoidal"),
        (False, True, "learned"),
        (False, False, "sinusoidal"),
        (True, False, "learned"),
    ],
)
def test_round_trip(tmp_path: Path, joint: bool, tied: bool, positions: str) -> None:
    bundle = new_bundle(joint, tied, positions)
    bundle.save(tmp_path / "deep" / "model")
    again = Bundle.load(tmp_path / "deep" / "model")
    assert again.config == bundle.config
    assert again.card == bundle.card
    assert not again.model.training
    source, target = torch.tensor([[5, 260, 261, 1]]), torch.tensor([[0, 262, 9]])
    assert torch.equal(again.model.logits(again.model(source, target)), logits(bundle, source, target))
    assert again.tokenizer.joint == joint
    assert again.tokenizer.languages == ("en", "fr")
    for side in ("source", "target"):
        ours, theirs = getattr(bundle.tokenizer, side), getattr(again.tokenizer, side)
        assert ours.vocabulary == theirs.vocabulary
        assert theirs.decode(theirs.encode("été: 世界")) == "été: 世界"
    tables = {again.model.encoder.embedding.table, again.model.decoder.embedding.table, again.model.output}
    assert len(tables) == 3 - joint - tied


def logits(bundle: Bundle, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return bundle.model.logits(bundle.model(source, target))


def test_the_engine_translates_as_before(folder: Path) -> None:
    search = SearchConfig(beam=3, n_best=2, extra_length=5)
    texts = ["the street was too wide", "", "I am a student"]
    before = NativeEngine(new_bundle()).translate(texts, search)
    assert NativeEngine.load(folder).translate(texts, search) == before
    assert before[0].alternatives[0].text != before[2].alternatives[0].text


def test_shared_tables_are_stored_once(folder: Path) -> None:
    stored = load_file(folder / "weights.safetensors")
    assert [name for name in stored if stored[name].shape[0] > 200] == ["encoder.embedding.table.weight"]
    assert sum(tensor.numel() for tensor in stored.values()) == new_bundle().model.parameter_count()


def test_saving_again_replaces_and_leaves_nothing_aside(folder: Path) -> None:
    bundle = new_bundle()
    with torch.no_grad():
        bundle.model.output.weight += 1
    bundle.save(folder)
    assert torch.equal(Bundle.load(folder).model.output.weight, bundle.model.output.weight)
    files = ["README.md", "config.json", "tokenizer.json", "weights.safetensors"]
    assert sorted(path.name for path in folder.iterdir()) == files


def test_a_folder_without_a_card_is_a_model(folder: Path) -> None:
    (folder / "README.md").unlink()
    assert Bundle.load(folder).card == ""


# ---- weights that are read later


def test_an_open_folder_reads_its_weights_once(folder: Path) -> None:
    opened = Bundle.open(folder)
    assert isinstance(opened.weights, UnreadModel)
    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(lambda _: id(opened.model), range(8)))) == 1
    assert torch.equal(opened.model.output.weight, new_bundle().model.output.weight)
    assert opened.read().weights is opened.model


def test_weights_that_came_later_are_refused(folder: Path) -> None:
    opened = Bundle.open(folder)
    new_bundle().save(folder)
    with pytest.raises(HeedfulError, match="have changed meanwhile"):
        opened.read()


def test_an_open_folder_has_weights(folder: Path) -> None:
    (folder / "weights.safetensors").unlink()
    with pytest.raises(HeedfulError, match="no such file"):
        Bundle.open(folder)


# ---- config.json


def test_a_newer_format_is_refused(folder: Path) -> None:
    edit_config(folder, format=FORMAT + 1, something_new=True)
    hint = refused(folder, f"has format {FORMAT + 1}, and this Heedful reads up to {FORMAT}")
    assert "--upgrade heedful" in hint


@pytest.mark.parametrize("text", ["{}", "[]", "7", '{"format": "one"}', '{"model": {}}'])
def test_another_programs_config_is_refused(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    refused(folder, "not a Heedful model's: it has no format number")


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe"])
def test_a_damaged_config_is_refused(folder: Path, data: bytes) -> None:
    (folder / "config.json").write_bytes(data)
    refused(folder, "config.json is damaged")


def test_an_unknown_setting_is_refused(folder: Path) -> None:
    model = json.loads((folder / "config.json").read_text())["model"]
    edit_config(folder, model={**model, "widht": 22})
    assert "model.width" in refused(folder, "unknown setting 'model.widht'")


def test_a_setting_that_cannot_be_is_refused(folder: Path) -> None:
    model = json.loads((folder / "config.json").read_text())["model"]
    edit_config(folder, model={**model, "heads": 7})
    refused(folder, "width 22 does not split evenly over 7 heads")


def test_a_folder_that_is_no_model(tmp_path: Path) -> None:
    assert "heedful train" in refused(tmp_path, "not a model folder: it has no config.json")
    assert "come after it" in refused(tmp_path / "nowhere", "there is no folder")


def test_a_training_that_has_not_ended(tmp_path: Path) -> None:
    (tmp_path / "training").mkdir()
    assert f"--resume {tmp_path}" in refused(tmp_path, "no config.json")


# ---- weights and tokenizer


@pytest.mark.parametrize("size", [0, 3, 500, -1])
def test_truncated_weights_are_refused(folder: Path, size: int) -> None:
    path = folder / "weights.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    assert refused(folder, "damaged or cut short") == "copy the model folder again"


@pytest.mark.parametrize("name", ["weights.safetensors", "tokenizer.json"])
def test_missing_files_are_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert refused(folder, name)


def test_a_missing_and_an_extra_tensor_are_named(folder: Path) -> None:
    stored = named_parameters(new_bundle().model)
    name = "decoder.layers.2.cross_attention.output.bias"
    taken = stored.pop(name)
    save_file(stored, folder / "weights.safetensors")
    refused(folder, f"'{name}' is missing or too much")
    save_file({**stored, name: taken, "extra": taken.clone()}, folder / "weights.safetensors")
    refused(folder, "'extra' is missing or too much")


def test_a_wrong_shape_is_named(folder: Path) -> None:
    stored = named_parameters(new_bundle().model)
    name = "encoder.layers.0.feed_forward.inner.weight"
    stored[name] = stored[name].T.contiguous()
    save_file(stored, folder / "weights.safetensors")
    hint = refused(folder, rf"'{name}' has shape \[22, 13\], not \[13, 22\]")
    assert "config.json" in hint


def test_a_damaged_tokenizer_is_refused(folder: Path) -> None:
    path = folder / "tokenizer.json"
    path.write_bytes(path.read_bytes()[:200])
    refused(folder, "tokenizer")
