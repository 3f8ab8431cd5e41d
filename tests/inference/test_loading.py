"""Which engine a model gets, and what is imported for it."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import heedful
from heedful.inference import loading

TRANSLATED = """
import sys
import heedful
from heedful.generation.config import GenerationConfig

def translated(search, engine, **options):
    return engine.translate(["The animal was tired."], search, **options)[0].text

engine = heedful.load(sys.argv[1], device="cpu", engine=sys.argv[2], workers=1)
translated(GenerationConfig(beam_size=4, n_best=2), engine)
translated(GenerationConfig(beam_size=1), engine, details=True)
list(engine.stream("The animal was tired."))
engine.score(["The animal was tired."], ["L'animal"])
print("torch" in sys.modules)
drawn = GenerationConfig(method="sample", seed=3)
native = heedful.load(sys.argv[1], device="cpu", engine="pytorch")
print("torch" in sys.modules, translated(drawn, engine) == translated(drawn, native))
"""


@pytest.mark.parametrize("engine", ["auto", "exact"])
@pytest.mark.long
def test_load_existing_conversion_does_not_import_torch(quick_model: Path, engine: loading.EngineName) -> None:
    """Until something is asked for that only PyTorch can do."""
    assert heedful.load(quick_model, device="cpu", engine=engine).name.startswith("CTranslate2")  # converted
    words = [sys.executable, "-c", TRANSLATED, str(quick_model), engine]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "True"]


def test_load_possible_gpu_asks_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = []

    def chosen_device(name: str) -> torch.device:
        asked.append(name)
        return torch.device("cuda", 1)

    monkeypatch.setattr("heedful.devices.select_device", chosen_device)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(loading, "GPU_DRIVERS", (str(tmp_path / "none"),))
    assert [loading._resolve_device(name) for name in ("cpu", "auto")] == ["cpu", "cpu"]
    assert not asked
    assert loading._resolve_device("cuda") == "cuda:1"
    monkeypatch.setattr(loading, "GPU_DRIVERS", (str(tmp_path / "none"), str(tmp_path)))
    assert [loading._resolve_device(name) for name in ("cpu", "auto")] == ["cpu", "cuda:1"]
    monkeypatch.setattr(loading, "GPU_DRIVERS", ())
    monkeypatch.setattr(sys, "platform", "darwin")
    assert loading._resolve_device("auto") == "cuda:1"
    assert asked == ["cuda", "auto", "auto"]
