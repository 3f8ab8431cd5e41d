"""Which build of PyTorch the Makefile installs, by dry run."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CPU_INDEX = "download.pytorch.org/whl/cpu"


def torch_command(*arguments: str) -> str:
    """The line of `make demo` that installs PyTorch."""
    command = ["make", "--dry-run", "--always-make", "--no-print-directory", "demo", *arguments]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    (line,) = (line for line in result.stdout.splitlines() if line.endswith(" torch"))
    return line


def test_torch_cpu_installs_cpu_build() -> None:
    line = torch_command("TORCH=cpu")
    local, _, remote = line.partition("||")
    assert "--no-index" in local
    assert CPU_INDEX in remote


@pytest.mark.parametrize("build", ["cuda", "default"])
def test_torch_cuda_and_default_use_pip(build: str) -> None:
    line = torch_command(f"TORCH={build}")
    assert "index" not in line
    assert "--constraint constraints.txt torch" in line


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere pip finds no CUDA libraries")
def test_torch_linux_without_gpu_defaults_to_cpu() -> None:
    assert CPU_INDEX in torch_command("GPU_DRIVER=")
    assert CPU_INDEX not in torch_command("GPU_DRIVER=/proc/driver/nvidia")


def test_unknown_torch_build_raises() -> None:
    result = subprocess.run(["make", "-n", "demo", "TORCH=gpu"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert "TORCH=gpu: use cpu, cuda or default" in result.stderr
