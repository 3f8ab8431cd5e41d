"""A virtual environment per toolkit, created once, so that none changes the versions of ours.

torch is installed first, with our constraints: as a dependency it would add gigabytes.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "hugging-face": ("torch", "transformers"),
    "eole": ("torch", "eole", "aiohttp"),  # which eole 0.6 imports without asking for it
    "marian": ("pymarian",),
}
FINISHED = "installed.txt"
"""In each environment, written last: the packages asked for, and all that came."""


class InstallationError(Exception):
    """An environment could not be made."""


def environment(name: str, folder: Path) -> Path:
    """The environment's folder of programs, made if it is not there yet."""
    place, title = folder / name, f"# {' '.join(PACKAGES[name])}\n"
    finished = place / FINISHED
    if not (finished.exists() and finished.read_text(encoding="utf-8").startswith(title)):
        print(f"{name}: making an environment in {place}", file=sys.stderr, flush=True)
        _run([sys.executable, "-m", "venv", "--clear", str(place)])
        for package in PACKAGES[name]:
            _run([str(place / "bin" / "pip"), "install", "--quiet", *_constraint_options(package), package])
        installed = _run([str(place / "bin" / "pip"), "freeze"])
        finished.write_text(title + installed, encoding="utf-8")
    return place / "bin"


def versions(name: str, folder: Path) -> dict[str, str]:
    """What is installed of the packages asked for; nothing without an environment."""
    finished = folder / name / FINISHED
    lines = finished.read_text(encoding="utf-8").splitlines() if finished.exists() else []
    found = dict(line.split("==", 1) for line in lines if "==" in line)
    return {package: found[package] for package in PACKAGES[name] if package in found}


def _constraint_options(package: str) -> list[str]:
    return ["--constraint", str(ROOT / "constraints.txt")] if package in ("torch", "transformers") else []


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise InstallationError(lines[-1] if lines else f"{command[0]} ended with {done.returncode}")
    return done.stdout
