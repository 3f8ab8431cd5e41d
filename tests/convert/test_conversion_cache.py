"""The user's cache of conversions: what is loaded from it, who may write to it, and how large it gets."""

import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from heedful.convert.ctranslate2 import cache
from heedful.convert.ctranslate2.cache import CACHE_VARIABLE, Precision, cache_folder, open_conversion
from heedful.generation.config import GenerationConfig
from heedful.inference.loading import load
from heedful.model_folder import ModelFolder
from tests.conftest import MODEL_FILES
from tests.interpret.small_models import new_model_folder

QUICK = GenerationConfig(beam_size=1, max_length_offset=3)


@pytest.fixture(autouse=True)
def cache_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache" / "ctranslate2"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_model(tmp_path / "model")


def save_model(folder: Path, seed: int = 3) -> Path:
    model_folder = new_model_folder()
    with torch.no_grad():
        model_folder.translation_model.output.weight[5] += seed
    model_folder.save(folder)
    return folder


def convert(folder: Path, precision: Precision = "float32") -> tuple[Path, str]:
    with open_conversion(folder, ModelFolder.open(folder), precision) as (conversion, problem):
        assert (conversion / "model.bin").is_file()
        return conversion, problem


def conversions(cache_path: Path) -> set[str]:
    return {path.name for path in cache_path.iterdir()} - {"lock"}


def test_open_conversion_same_model_converts_once(model: Path, tmp_path: Path, cache_path: Path) -> None:
    (first, problem), copy = convert(model), save_model(tmp_path / "copy")
    assert problem == ""
    modified = (first / "model.bin").stat().st_mtime_ns
    assert convert(copy) == (first, "")
    assert (first / "model.bin").stat().st_mtime_ns == modified
    assert conversions(cache_path) == {first.name}
    assert {path.name for path in model.iterdir()} == {"README.md", *MODEL_FILES}


def test_open_conversion_other_inputs_convert_again(
    model: Path, tmp_path: Path, cache_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {convert(model)[0].name, convert(model, "int8")[0].name, convert(save_model(tmp_path / "b", 4))[0].name}
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_source_length": 7}))
    names.add(convert(model)[0].name)  # not used by the conversion
    assert len(names) == 3
    config["model"]["activation"] = "gelu" if config["model"]["activation"] == "relu" else "relu"
    (model / "config.json").write_text(json.dumps(config))
    names.add(convert(model)[0].name)
    monkeypatch.setattr("ctranslate2.__version__", "99.1")
    names.add(convert(model)[0].name)
    monkeypatch.setattr(cache, "CONVERSION_VERSION", 99)
    names.add(convert(model)[0].name)
    assert len(names) == 6
    assert conversions(cache_path) == names


def test_load_conversion_in_model_folder_is_ignored(model: Path, cache_path: Path) -> None:
    for name in ("ctranslate2/int8", "ctranslate2/float32"):
        (model / name).mkdir(parents=True)
        (model / name / "model.bin").write_bytes(b"planted")
    assert load(model, device="cpu", workers=1).name == "CTranslate2 int8"
    [name] = conversions(cache_path)
    assert name.endswith("-int8")


def test_load_read_only_model_folder_uses_ctranslate2(model: Path) -> None:
    for path in (*model.iterdir(), model):
        path.chmod(0o500 if path.is_dir() else 0o400)
    assert load(model, device="cpu", workers=1).name == "CTranslate2 int8"
    model.chmod(0o700)


@pytest.mark.parametrize("name", ["model.bin", "config.json", "checksums.json"])
def test_open_conversion_corrupt_file_is_replaced(model: Path, name: str) -> None:
    path = convert(model)[0] / name
    content = path.read_bytes()
    path.write_bytes(content[:-7])
    convert(model)
    assert path.read_bytes() == content
    path.unlink()
    convert(model)
    assert path.read_bytes() == content


def test_cache_folder_is_private(model: Path, cache_path: Path) -> None:
    convert(model)
    assert stat.S_IMODE(cache_path.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_open_conversion_cache_writable_by_others_is_not_used(model: Path, cache_path: Path, mode: int) -> None:
    convert(model)
    cache_path.chmod(mode)
    conversion, problem = convert(model)
    assert cache_path not in conversion.parents
    assert not conversion.exists()  # deleted after loading
    assert problem == f"other users can write to {cache_path}"
    translator = load(model, device="cpu", workers=1)
    assert translator.name == f"CTranslate2 int8 (not cached: {problem})"
    assert translator.translate(["The dog."], QUICK)[0].alternatives


def test_open_conversion_cache_of_another_user_is_not_used(
    model: Path, cache_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert(model)
    user_id = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user_id + 1)
    conversion, problem = convert(model)
    assert cache_path not in conversion.parents
    assert problem == f"{cache_path} belongs to another user"


def test_open_conversion_link_to_private_folder_is_followed(model: Path, cache_path: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "elsewhere" / ".other").mkdir()
    cache_path.parent.mkdir()
    cache_path.symlink_to(tmp_path / "elsewhere")
    conversion, problem = convert(model)
    assert (conversion.parent, problem) == (tmp_path / "elsewhere", "")
    assert conversions(cache_path) == {conversion.name, ".other"}  # only conversions are deleted
    (tmp_path / "elsewhere").chmod(0o770)
    assert convert(model)[1] == f"other users can write to {tmp_path / 'elsewhere'}"


@pytest.mark.parametrize(
    ("mode", "group", "is_safe"),
    [
        *((0o770, os.getegid(), True), (0o770, os.getegid() + 1, False)),
        *((0o707, os.getegid(), False), (0o1777, os.getegid(), True), (0o755, os.getegid(), True)),
    ],
)
def test_open_conversion_parent_writable_by_others_is_used_if_sticky(
    model: Path, cache_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, group: int, is_safe: bool
) -> None:
    """Whoever can write to a parent could replace the cache; the user's own group is trusted."""
    shared = tmp_path / "cache"
    shared.mkdir()
    shared.chmod(mode)
    monkeypatch.setattr(os, "getegid", lambda: group)
    assert convert(model)[1] == ("" if is_safe else f"other users can write to {shared}")


@pytest.mark.parametrize(("owner", "is_safe"), [(0, True), (os.geteuid() + 1, False)])
def test_open_conversion_parent_of_another_user_is_used_if_of_root(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: int, is_safe: bool
) -> None:
    shared, get_status = tmp_path / "cache", Path.stat

    def change_owner(path: Path, **options: bool) -> os.stat_result:
        status = get_status(path, **options)
        return os.stat_result((*status[:4], owner, *status[5:])) if path == shared else status

    monkeypatch.setattr(Path, "stat", change_owner)
    assert convert(model)[1] == ("" if is_safe else f"{shared} belongs to another user")


def test_cache_folder_parents_are_private(model: Path, cache_path: Path) -> None:
    """Also with the umask of private groups, which would let the group replace the cache."""
    umask = os.umask(0o002)
    try:
        assert convert(model)[1] == ""
    finally:
        os.umask(umask)
    assert stat.S_IMODE(cache_path.parent.stat().st_mode) == 0o700


def test_open_conversion_unwritable_cache_uses_temporary_folder(model: Path, cache_path: Path) -> None:
    cache_path.parent.write_text("a file, where not even root can create a folder")
    conversion, problem = convert(model)
    assert problem.startswith(f"cannot write {cache_path}: ")
    assert not conversion.exists()


def test_open_conversion_user_without_home_uses_temporary_folder(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv(CACHE_VARIABLE)
    monkeypatch.setattr(Path, "home", fail)
    assert convert(model)[1] == "no cache: Could not determine home directory."


def set_last_use(path: Path, hours_ago: float) -> None:
    seconds = time.time() - 3600 * hours_ago
    os.utime(path, (seconds, seconds))


def test_open_conversion_evicts_least_recently_used(
    model: Path, tmp_path: Path, cache_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [convert(save_model(tmp_path / str(seed), seed))[0] for seed in (11, 12, 13)]
    for hours, path in enumerate([paths[1], paths[2], paths[0]], start=2):
        set_last_use(path, hours)
    convert(tmp_path / "11")  # used again
    (cache_path / f".{paths[0].name}.left-by-a-crash").mkdir()
    size = sum(path.stat().st_size for path in paths[0].iterdir())
    monkeypatch.setattr(cache, "MAX_CACHE_BYTES", 3 * size + size // 2)
    new = convert(model)[0]
    assert conversions(cache_path) == {new.name, paths[0].name, paths[1].name}
    monkeypatch.setattr(cache, "MAX_CACHE_BYTES", 1)
    assert conversions(cache_path) == {new.name, paths[0].name, paths[1].name}
    for path in (new, paths[0], paths[1]):
        set_last_use(path, 2)
    newest = convert(model, "int8")[0]
    assert conversions(cache_path) == {newest.name}


def test_open_conversion_used_within_an_hour_is_kept(
    model: Path, cache_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may be about to load it, and two large models in turn are not converted each time."""
    monkeypatch.setattr(cache, "MAX_CACHE_BYTES", 1)
    first = convert(model)[0]
    set_last_use(first, 0.9)
    second = convert(model, "int8")[0]
    assert conversions(cache_path) == {first.name, second.name}


def test_open_conversion_in_use_is_kept_from_the_start_of_validation(
    model: Path, cache_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = convert(model)[0]
    set_last_use(first, 2)
    monkeypatch.setattr(cache, "MAX_CACHE_BYTES", 1)
    is_valid_conversion = cache.is_valid_conversion

    def convert_another(conversion: Path) -> bool:  # as another process would, in the meantime
        monkeypatch.setattr(cache, "is_valid_conversion", is_valid_conversion)
        convert(model, "int8")
        return is_valid_conversion(conversion)

    monkeypatch.setattr(cache, "is_valid_conversion", convert_another)
    modified = (first / "model.bin").stat().st_mtime_ns
    assert convert(model)[0] == first
    assert (first / "model.bin").stat().st_mtime_ns == modified
    assert len(conversions(cache_path)) == 2


@pytest.mark.parametrize(
    ("platform", "variable", "expected"),
    [
        ("linux", "XDG_CACHE_HOME", "base/heedful"),
        ("linux", "", "home/.cache/heedful"),
        ("darwin", "XDG_CACHE_HOME", "home/Library/Caches/heedful"),
        ("win32", "LOCALAPPDATA", "base/heedful"),
        ("win32", "", "home/AppData/Local/heedful"),
    ],
)
def test_cache_folder_follows_platform(
    platform: str, variable: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (CACHE_VARIABLE, "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, str(tmp_path / "base"))
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    monkeypatch.setattr(sys, "platform", platform)
    assert cache_folder() == tmp_path / expected / "ctranslate2"


@pytest.mark.long
def test_open_conversion_concurrent_processes_convert_once(model: Path, cache_path: Path) -> None:
    code = f"from heedful import load; print(load({str(model)!r}, device='cpu', workers=1).name)"
    processes = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate(timeout=300)[0].strip() for process in processes] == ["CTranslate2 int8"] * 3
    assert len(conversions(cache_path)) == 1
