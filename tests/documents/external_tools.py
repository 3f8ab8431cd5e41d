"""Run external programs that create and check files."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def run_tool(name: str, *args: str | Path, status: int | None = 0) -> str:
    """The output of a program; if it is not installed, the test is skipped, or fails if tools are required."""
    installed_path = Path(sys.executable).with_name(name)  # programs of the Translate Toolkit
    path = str(installed_path) if installed_path.exists() else shutil.which(name)
    if path is None:
        if os.environ.get("HEEDFUL_TOOLS_REQUIRED"):
            pytest.fail(f"{name} is not installed")
        pytest.skip(f"{name} is not installed")
    process = subprocess.run([path, *map(str, args)], capture_output=True, text=True, env=_untranslated_environment())
    assert status is None or process.returncode == status, process.stderr
    return process.stdout + process.stderr


def _untranslated_environment() -> dict[str, str]:
    return {**os.environ, "LC_ALL": "C.UTF-8", "LANGUAGE": "C", "PYTHONWARNINGS": "ignore"}
