"""Invalid and corrupt MarianMT models: importing raises an error that names the problem."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from heedful.convert.marian.importer import import_marian
from heedful.errors import HeedfulError
from heedful.tokenization import sentencepiece
from tests.conftest import run_heedful
from tests.convert.marian_models import new_marian

pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    new_marian(tmp_path / "model")
    return tmp_path / "model"


def edit_json(name: str, **change: Any) -> Callable[[Path], None]:
    """Change values of a JSON file; None deletes a key."""

    def edit(folder: Path) -> None:
        value = json.loads((folder / name).read_text())
        value = {key: entry for key, entry in {**value, **change}.items() if entry is not None}
        (folder / name).write_text(json.dumps(value))

    return edit


def truncate(name: str) -> Callable[[Path], None]:
    def cut(folder: Path) -> None:
        (folder / name).write_bytes((folder / name).read_bytes()[:500])

    return cut


def delete(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


BAD_MODELS: dict[str, tuple[Callable[[Path], None], str]] = {
    "bert": (edit_json("config.json", model_type="bert"), "not a MarianMT model: its config.json says type 'bert'"),
    "ours": (edit_json("config.json", model_type=None, model={}), "already a Heedful model folder"),
    "causal": (edit_json("config.json", architectures=["MarianForCausalLM"]), "says MarianForCausalLM"),
    "cut weights": (truncate("model.safetensors"), "corrupt or truncated"),
    "cut json": (truncate("config.json"), "config.json is not valid JSON"),
    "cut spm": (truncate("source.spm"), "corrupt SentencePiece model"),
    "no weights": (delete("model.safetensors"), "model.safetensors is missing"),
    "no config": (delete("config.json"), "config.json is missing"),
    "no vocabulary": (delete("vocab.json"), "vocab.json is missing"),
    "no target.spm": (delete("target.spm"), "target.spm is missing"),
    "activation": (edit_json("config.json", activation_function="tanh"), "activation_function = 'tanh'"),
    "heads": (edit_json("config.json", decoder_attention_heads=6), "encoder_attention_heads = 3"),
    "embedding norm": (edit_json("config.json", normalize_embedding=True), "normalize_embedding = True"),
    "start": (edit_json("config.json", decoder_start_token_id=5), "decoder_start_token_id = 5"),
    "layers": (edit_json("config.json", encoder_layers=3), r"lack 'model\.encoder\.layers\.2"),
    "fewer layers": (edit_json("config.json", encoder_layers=1), "not part of a MarianMT model"),
    "d_model": (edit_json("config.json", d_model=30, encoder_attention_heads=3), "does not match d_model 30"),
    "d_model is text": (edit_json("config.json", d_model="many"), "d_model = 'many'"),
    "repetition": (edit_json("generation_config.json", repetition_penalty=1.3), "repetition_penalty = 1.3"),
    "sampling": (edit_json("generation_config.json", do_sample=True), "do_sample = True"),
    "bad words": (edit_json("generation_config.json", bad_words_ids=[[4, 5]]), "bad_words_ids"),
    "stopping": (edit_json("generation_config.json", early_stopping="never"), "early_stopping = 'never'"),
    "gap in ids": (edit_json("vocab.json", extra=10_000), "vocab.json: its ids have gaps"),
    "id is text": (edit_json("vocab.json", extra="one"), "an id that is not an integer"),
    "separate": (edit_json("tokenizer_config.json", separate_vocabs=True), "target_vocab.json is missing"),
}


@pytest.mark.parametrize("name", BAD_MODELS)
def test_import_bad_model_raises(name: str, folder: Path) -> None:
    damage, problem = BAD_MODELS[name]
    damage(folder)
    with pytest.raises(HeedfulError, match=problem):
        import_marian(folder)


def test_import_vocabulary_size_mismatch_raises(folder: Path) -> None:
    ids = json.loads((folder / "vocab.json").read_text())
    pad = ids.pop("<pad>")
    (folder / "vocab.json").write_text(json.dumps({**ids, "extra": pad, "<pad>": pad + 1}))
    edit_json("config.json", pad_token_id=pad + 1, decoder_start_token_id=pad + 1)(folder)
    edit_json("generation_config.json", bad_words_ids=[[pad + 1]])(folder)
    with pytest.raises(HeedfulError, match=f"has {pad + 2} entries, but the weights have {pad + 1}"):
        import_marian(folder)


def test_import_bin_weights_need_allow_bin(folder: Path) -> None:
    from safetensors.torch import load_file

    expected = import_marian(folder)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(HeedfulError, match=r"in pytorch_model\.bin, a pickle format") as caught:
        import_marian(folder)
    assert "--allow-bin" in caught.value.hint
    actual = import_marian(folder, allow_bin=True)
    assert actual.config == expected.config
    state = expected.translation_model.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in actual.translation_model.state_dict().items())


class Hostile:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> Any:
        return print, ("hostile code ran",)


def test_import_bin_weights_run_no_code(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"weight": Hostile()}, folder / "pytorch_model.bin")
    with pytest.raises(HeedfulError, match="cannot read tensors from"):
        import_marian(folder, allow_bin=True)
    assert "hostile" not in capfd.readouterr().out


def test_import_bad_zip_raises(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corrupt, empty, large = (tmp_path / name for name in ("corrupt.zip", "empty.zip", "large.zip"))
    corrupt.write_bytes(b"PK\3\4 and so on")
    with pytest.raises(HeedfulError, match="not a readable zip file"):
        import_marian(corrupt)
    with zipfile.ZipFile(empty, "w") as archive:
        archive.writestr("readme.txt", "nothing here")
    with pytest.raises(HeedfulError, match=r"has no config\.json"):
        import_marian(empty)
    with zipfile.ZipFile(large, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config.json", " " * (5 << 20))
    with pytest.raises(HeedfulError, match="more than the limit"):
        import_marian(large)
    with pytest.raises(HeedfulError, match="no such file or folder"):
        import_marian(tmp_path / "nowhere")


def test_missing_package_raises_with_pip_command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(HeedfulError, match="needs sentencepiece") as caught:
        sentencepiece.load_processor((folder / "source.spm").read_bytes())
    assert caught.value.hint == "pip install 'heedful[marian]'"


def test_failed_import_writes_nothing(folder: Path, tmp_path: Path) -> None:
    truncate("model.safetensors")(folder)
    result = run_heedful("import", folder, "-o", tmp_path / "out")
    assert result.status == 1
    assert "corrupt or truncated" in result.err
    assert {path.name for path in tmp_path.iterdir()} == {"model"}
