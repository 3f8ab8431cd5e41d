"""Which engine `load` chooses, and what it imports."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import heedful
from heedful.inference import loading

PROGRAM = """
import sys
import heedful
from heedful.generation.config import GenerationConfig

def translate(search, engine, **options):
    return engine.translate(["The animal was tired."], search, **options)[0].text

engine = heedful.load(sys.argv[1], device="cpu", engine=sys.argv[2], workers=1)
translate(GenerationConfig(beam_size=4, n_best=2), engine)
translate(GenerationConfig(beam_size=1), engine, details=True)
list(engine.stream("The animal was tired."))
engine.score(["The animal was tired."], ["L'animal"])
print("torch" in sys.modules)
sampling = GenerationConfig(method="sample", seed=3)
native = heedful.load(sys.argv[1], device="cpu", engine="pytorch")
print("torch" in sys.modules, translate(sampling, engine) == translate(sampling, native))
"""


@pytest.mark.parametrize("engine", ["auto", "exact"])
@pytest.mark.long
def test_load_existing_conversion_does_not_import_torch(quick_model: Path, engine: loading.EngineName) -> None:
    """Until a request needs PyTorch."""
    assert heedful.load(quick_model, device="cpu", engine=engine).name.startswith("CTranslate2")  # converted
    command = [sys.executable, "-c", PROGRAM, str(quick_model), engine]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["False", "True", "True"]


def test_load_possible_gpu_asks_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    device_names = []

    def select_device(name: str) -> torch.device:
        device_names.append(name)
        return torch.device("cuda", 1)

    monkeypatch.setattr("heedful.devices.select_device", select_device)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(loading, "GPU_DRIVERS", (str(tmp_path / "none"),))
    assert [loading._resolve_device(name) for name in ("cpu", "auto")] == ["cpu", "cpu"]
    assert not device_names
    assert loading._resolve_device("cuda") == "cuda:1"
    monkeypatch.setattr(loading, "GPU_DRIVERS", (str(tmp_path / "none"), str(tmp_path)))
    assert [loading._resolve_device(name) for name in ("cpu", "auto")] == ["cpu", "cuda:1"]
    monkeypatch.setattr(loading, "GPU_DRIVERS", ())
    monkeypatch.setattr(sys, "platform", "darwin")
    assert loading._resolve_device("auto") == "cuda:1"
    assert device_names == ["cuda", "auto", "auto"]
