"""Files that are no MarianMT model, or a broken one: each time it is said what is wrong."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from heedful.convert.marian.importer import import_marian
from heedful.errors import HeedfulError
from heedful.tokenization import sentencepiece as sentencepieces
from tests.conftest import run_heedful
from tests.convert.marian_models import new_marian

pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    new_marian(tmp_path / "model")
    return tmp_path / "model"


def changed(name: str, **change: Any) -> Callable[[Path], None]:
    """JSON of a file with other values; None takes one out."""

    def change_it(folder: Path) -> None:
        value = json.loads((folder / name).read_text())
        value = {key: each for key, each in {**value, **change}.items() if each is not None}
        (folder / name).write_text(json.dumps(value))

    return change_it


def cut(name: str) -> Callable[[Path], None]:
    def cut_it(folder: Path) -> None:
        (folder / name).write_bytes((folder / name).read_bytes()[:500])

    return cut_it


def removed(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


WRONG: dict[str, tuple[Callable[[Path], None], str]] = {
    "bert": (changed("config.json", model_type="bert"), "not a MarianMT model: its config.json says type 'bert'"),
    "ours": (changed("config.json", model_type=None, model={}), "already a Heedful model folder"),
    "causal": (changed("config.json", architectures=["MarianForCausalLM"]), "says MarianForCausalLM"),
    "cut weights": (cut("model.safetensors"), "corrupt or truncated"),
    "cut json": (cut("config.json"), "config.json is not valid JSON"),
    "cut spm": (cut("source.spm"), "corrupt SentencePiece model"),
    "no weights": (removed("model.safetensors"), "model.safetensors is missing"),
    "no config": (removed("config.json"), "config.json is missing"),
    "no vocabulary": (removed("vocab.json"), "vocab.json is missing"),
    "no target.spm": (removed("target.spm"), "target.spm is missing"),
    "activation": (changed("config.json", activation_function="tanh"), "activation_function = 'tanh'"),
    "heads": (changed("config.json", decoder_attention_heads=6), "encoder_attention_heads = 3"),
    "embedding norm": (changed("config.json", normalize_embedding=True), "normalize_embedding = True"),
    "start": (changed("config.json", decoder_start_token_id=5), "decoder_start_token_id = 5"),
    "layers": (changed("config.json", encoder_layers=3), r"lack 'model\.encoder\.layers\.2"),
    "fewer layers": (changed("config.json", encoder_layers=1), "not part of a MarianMT model"),
    "d_model": (changed("config.json", d_model=30, encoder_attention_heads=3), "does not match d_model 30"),
    "no width": (changed("config.json", d_model="many"), "d_model = 'many'"),
    "repetition": (changed("generation_config.json", repetition_penalty=1.3), "repetition_penalty = 1.3"),
    "sampling": (changed("generation_config.json", do_sample=True), "do_sample = True"),
    "bad words": (changed("generation_config.json", bad_words_ids=[[4, 5]]), "bad_words_ids"),
    "stopping": (changed("generation_config.json", early_stopping="never"), "early_stopping = 'never'"),
    "an id too many": (changed("vocab.json", extra=10_000), "vocab.json has gaps"),
    "an id of text": (changed("vocab.json", extra="one"), "an id that is not an integer"),
    "separate": (changed("tokenizer_config.json", separate_vocabs=True), "target_vocab.json is missing"),
}


@pytest.mark.parametrize("name", WRONG)
def test_import_bad_model_raises(name: str, folder: Path) -> None:
    damage, problem = WRONG[name]
    damage(folder)
    with pytest.raises(HeedfulError, match=problem):
        import_marian(folder)


def test_import_vocabulary_size_mismatch_raises(folder: Path) -> None:
    ids = json.loads((folder / "vocab.json").read_text())
    pad = ids.pop("<pad>")
    (folder / "vocab.json").write_text(json.dumps({**ids, "extra": pad, "<pad>": pad + 1}))
    changed("config.json", pad_token_id=pad + 1, decoder_start_token_id=pad + 1)(folder)
    changed("generation_config.json", bad_words_ids=[[pad + 1]])(folder)
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
    """Runs something when it is unpickled."""

    def __reduce__(self) -> Any:
        return print, ("hostile code ran",)


def test_import_bin_weights_run_no_code(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"weight": Hostile()}, folder / "pytorch_model.bin")
    with pytest.raises(HeedfulError, match="cannot read tensors from"):
        import_marian(folder, allow_bin=True)
    assert "hostile" not in capfd.readouterr().out


def test_import_bad_zip_raises(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, empty, large = (tmp_path / name for name in ("broken.zip", "empty.zip", "large.zip"))
    broken.write_bytes(b"PK\3\4 and so on")
    with pytest.raises(HeedfulError, match="not a readable zip file"):
        import_marian(broken)
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
    with pytest.raises(HeedfulError, match="needs SentencePiece") as caught:
        sentencepieces.load_processor((folder / "source.spm").read_bytes())
    assert caught.value.hint == "pip install 'heedful[marian]'"


def test_failed_import_writes_nothing(folder: Path, tmp_path: Path) -> None:
    cut("model.safetensors")(folder)
    done = run_heedful("import", folder, "-o", tmp_path / "out")
    assert done.status == 1
    assert "corrupt or truncated" in done.err
    assert {path.name for path in tmp_path.iterdir()} == {"model"}
