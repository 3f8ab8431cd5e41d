"""Crashes found by fuzzing: the smallest input of each, with its correct outcome."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heedful.errors import HeedfulError
from heedful.model_folder import ModelFolder
from heedful.progress import Reporter
from heedful.workflows.compare import CompareOptions, get_result
from tests.fuzzing import valid_files
from tests.fuzzing.model_readers import CHECKPOINT
from tests.fuzzing.outcomes import Reader, read_outcome
from tests.fuzzing.readers import READERS
from tests.fuzzing.server_requests import _request
from tests.scaling import check_nearly_linear

DEEP = b"[" * 20_000
DIGITS = b"9" * 5000
LONE_SURROGATE = "\ud800"
BY_NAME = {reader.name: reader for reader in READERS}


def zip_names(*names: str) -> bytes:
    import io

    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in names:
            archive.writestr(zipfile.ZipInfo(name), "a\tb\n")
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("recipe (TOML)", b"a = " + DEEP, "rejected"),
        ("recipe (TOML)", b"a = " + DIGITS, "rejected"),
        ("--set overrides", b"model.d_model=" + DEEP, "rejected"),
        ("--set overrides", b"model.d_model=" + DIGITS, "rejected"),
        ("--set overrides", b"a" + b".a" * 3000 + b"=1\na" + b".a" * 3000 + b"=2", "rejected"),
        ("pairs: CSV", b"source,target\ra", "accepted"),
        ("pairs: by content", b"\r\rsource,target\n", "rejected"),
        ("glossary: CSV", b"\ra,b\n", "rejected"),
        ("pairs: zip", zip_names("", "."), "rejected"),
        ("pairs: zip", zip_names("/", "pairs.tsv"), "accepted"),
        ("pairs: PO", b'msgid ""\nmsgstr "charset=idna"\n\nmsgid "\xff"\nmsgstr "b"\n', "rejected"),
        ("document: PO", b'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=base64\\n"\n', "rejected"),
        ("alignments of a guided head", b"a b\t1-" + DIGITS + b"\n", "rejected"),
        ("model: config.json", DEEP, "rejected"),
        ("token dataset: dataset.json", DEEP, "rejected"),
        ("run: run.json", DEEP, "rejected"),
        ("run: metrics.jsonl", DEEP, "rejected"),
        ("bulk: partial JSONL", b'{"line": []}\n', "accepted"),
        ("bulk: partial JSONL", b'{"line": 1e999}\n', "accepted"),
        ("bulk: partial JSONL", DEEP + b"\n", "accepted"),
        ("bulk: settings", DEEP, "accepted"),
        ("CTranslate2: config.json", b'{"decoder_start_token": null}', "accepted"),
        ("CTranslate2: shared_vocabulary.json", b"\xff", "accepted"),
        ("CTranslate2: checksums.json", DEEP, "accepted"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else ascii(value)[:30],
)
def test_former_crash_has_expected_outcome(name: str, data: bytes, expected: str, tmp_path: Path) -> None:
    reader = BY_NAME[name]
    reader.prepare(tmp_path)
    assert read_outcome(reader, tmp_path, data) == expected


def read_changed_json(reader: Reader, folder: Path, change: Callable[[Any], object]) -> str:
    """The outcome of a valid JSON file with a change."""
    reader.prepare(folder)
    state = json.loads((folder / reader.file).read_bytes())
    change(state)
    return read_outcome(reader, folder, json.dumps(state).encode())


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("tokenizer: unigram", lambda state: state["model"]["vocab"][-1].__setitem__(0, LONE_SURROGATE)),
        ("tokenizer: unigram", lambda state: state["model"]["vocab"][-1].__setitem__(1, 10**400)),
        ("tokenizer: bpe", lambda state: state["pre_tokenizer"]["pattern"].update(Regex="(a+)+$")),
        ("imported model: vocab.json", lambda state: state.update(x=10**9)),
        ("run: preprocessed.json", lambda state: state.update(languages=["en", 5])),
        ("MarianMT: vocab.json", lambda state: state.update({LONE_SURROGATE: state.pop(list(state)[-2])})),
        ("MarianMT: config.json", lambda state: state.update(activation_function={})),
        ("MarianMT: config.json", lambda state: state.update(architectures=5)),
        ("MarianMT: generation_config.json", lambda state: state.update(bad_words_ids=0.5)),
        ("MarianMT: tokenizer_config.json", lambda state: state.update(model_max_length={})),
        ("MarianMT: tokenizer_config.json", lambda state: state.update(model_max_length=-5)),
        ("token dataset: dataset.json", lambda state: state["source"].update(max_length=-1)),
        ("run: run.json", lambda state: state.update(languages=["en"])),
        ("run: run.json", lambda state: state.update(settings={"model": "x"})),
        ("run: run.json", lambda state: state.update(threads=-1)),
        ("run: run.json", lambda state: state.update(threads=float("inf"))),
        ("run: preprocessed.json", lambda state: state.update(summary=None)),
        ("run: preprocessed.json", lambda state: state.update(fractions=[{}])),
        ("run: preprocessed.json", lambda state: state.update(fractions=[0.0, 0.5])),
        ("run: preprocessed.json", lambda state: state.update(sizes=[10**18])),
        ("distillation: report.json", lambda state: state[0].update(name=5)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_corrupt_json_is_rejected(name: str, change: Callable[[Any], object], tmp_path: Path) -> None:
    assert read_changed_json(BY_NAME[name], tmp_path, change) == "rejected"


@pytest.mark.parametrize("offsets", [(1, 3, 3, 4), (0, 2**62, 3, 4), (0, 3, 1, 4), (0, -1, 3, 4)], ids=str)
def test_overlapping_sentences_are_rejected(offsets: tuple[int, ...], tmp_path: Path) -> None:
    """They used to be accepted."""
    reader = BY_NAME["token dataset: source.offsets"]
    reader.prepare(tmp_path)
    data = b"".join(offset.to_bytes(8, "little", signed=True) for offset in offsets)
    assert read_outcome(reader, tmp_path, data) == "rejected"


@pytest.mark.parametrize("sizes", [{"d_ff": 262_144}, {"encoder_layers": 1000}], ids=str)
def test_model_larger_than_its_weights_takes_no_memory(sizes: dict[str, int], tmp_path: Path) -> None:
    valid_files.write_model_folder(tmp_path)
    state = json.loads((tmp_path / "config.json").read_text())
    state["model"] |= sizes
    (tmp_path / "config.json").write_text(json.dumps(state))
    with pytest.raises(HeedfulError, match="weights of"):
        ModelFolder.load(tmp_path)


def test_word_of_seventy_thousand_letters_is_read_in_linear_time(tmp_path: Path) -> None:
    """The search for variable names used to start again at each letter, in quadratic time."""
    reader = BY_NAME["document: PO"]
    reader.prepare(tmp_path)

    def read_word(length: int) -> None:
        entry = b'msgid "' + b"a" * length + b'"\nmsgstr ""\n'
        assert read_outcome(reader, tmp_path, b'msgid ""\nmsgstr "Language: fr\\n"\n\n' + entry) == "accepted"

    check_nearly_linear(read_word, 70_000)


@pytest.mark.parametrize(
    "state",
    ["", "[]", "{}", '{"format": 1}', '{"format": 1, "model": {"layers": {}}}', "[" * 20_000],
    ids=lambda state: state[:40],
)
def test_corrupt_manifest_is_rejected(state: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save

    reader = BY_NAME["trace: manifest"]
    reader.prepare(tmp_path)
    tensors = load_file(tmp_path / reader.file)
    assert read_outcome(reader, tmp_path, save(tensors, {"heedful": state})) == "rejected"


def test_error_with_lone_surrogate_is_encoded(tmp_path: Path) -> None:
    """The error of the DeepL route contains the unknown option; the response used to have status 500."""
    reader = BY_NAME["API: POST /v2/translate"]
    reader.prepare(tmp_path)
    body = b'{"text": ["a"], "target_lang": "FR", "\\ud800": 1}'
    assert read_outcome(reader, tmp_path, _request("POST", b"/v2/translate", "application/json", body)) == "rejected"


@pytest.mark.parametrize(
    "result_text", ["[", "[]", "{}", '{"settings": {}}', '{"settings": {}, "result": {"name": 1}}']
)
def test_corrupt_comparison_results_are_rejected(result_text: str, tmp_path: Path) -> None:
    (tmp_path / "gru.json").write_text(result_text)
    options = CompareOptions([], tmp_path, [], [], [], [], "tiny", 1, None, None, [])
    with pytest.raises(HeedfulError, match=r"damaged|corrupt|cannot read|different settings"):
        get_result(options, "gru", {}, [], Reporter(quiet=True))


def test_readers_cover_every_checkpoint_file() -> None:
    files = {reader.file for reader in READERS if reader.file.startswith(CHECKPOINT)}
    assert {Path(file).name for file in files} >= {"trainer_state.json", "weights.safetensors", "optimizer.safetensors"}
