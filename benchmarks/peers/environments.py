"""A virtual environment per toolkit, created once, so that none changes the versions of ours.

torch is installed first, with our constraints: as a dependency it would add gigabytes.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "hugging-face": ("torch", "transformers"),
    "eole": ("torch", "eole", "aiohttp"),  # eole 0.6 imports aiohttp without requiring it
    "marian": ("pymarian",),
}
FINISHED = "installed.txt"
"""In each environment, written last: the requested packages and all that were installed."""


class InstallationError(Exception):
    """An environment could not be created."""


def create_environment(name: str, folder: Path) -> Path:
    """The bin folder of the environment, which is created if it is missing."""
    environment_folder, title = folder / name, f"# {' '.join(PACKAGES[name])}\n"
    finished = environment_folder / FINISHED
    if not (finished.exists() and finished.read_text(encoding="utf-8").startswith(title)):
        print(f"{name}: creating an environment in {environment_folder}", file=sys.stderr, flush=True)
        _run([sys.executable, "-m", "venv", "--clear", str(environment_folder)])
        for package in PACKAGES[name]:
            _run(
                [str(environment_folder / "bin" / "pip"), "install", "--quiet", *_constraint_options(package), package]
            )
        installed = _run([str(environment_folder / "bin" / "pip"), "freeze"])
        finished.write_text(title + installed, encoding="utf-8")
    return environment_folder / "bin"


def versions(name: str, folder: Path) -> dict[str, str]:
    """Installed versions of the requested packages; empty without an environment."""
    finished = folder / name / FINISHED
    lines = finished.read_text(encoding="utf-8").splitlines() if finished.exists() else []
    installed = dict(line.split("==", 1) for line in lines if "==" in line)
    return {package: installed[package] for package in PACKAGES[name] if package in installed}


def _constraint_options(package: str) -> list[str]:
    return ["--constraint", str(ROOT / "constraints.txt")] if package in ("torch", "transformers") else []


def _run(command: list[str]) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        lines = [line for line in (result.stderr or result.stdout).splitlines() if line.strip()]
        raise InstallationError(lines[-1] if lines else f"{command[0]} ended with {result.returncode}")
    return result.stdout
