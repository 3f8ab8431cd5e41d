"""Import rules: imports point down, no cycles, a torch-free core, a light command line."""

import ast
import re
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import heedful

PACKAGE = Path(heedful.__file__).parent

LAYERS = [
    {"__main__"},
    {"cli"},
    {"server"},
    {"web", "workflows"},
    {"interpret", "documents"},
    {"inference", "training"},
    {"convert"},
    {"model_folder"},
    {"data", "generation", "evaluation"},
    {"models"},
    {"tokenization"},
    {"config"},
    {"files", "progress", "devices"},
    {"errors", "version"},
]
"""From top to bottom; packages in one layer do not import each other."""

TORCH_FREE = [
    "model_folder",
    "tokenization/*",
    "data/**/*",
    "documents/*",
    "generation/config",
    "generation/constraints",
    "generation/decoder_protocol",
    "convert/compatibility",
    "convert/ctranslate2/cache",
    "convert/ctranslate2/weights",
    "inference/translation",
    "inference/translator",
    "inference/ctranslate2_backend",
    "inference/loading",
    "inference/terminology",
    "inference/placeholders",
    "inference/projection",
    "inference/bulk",
    "inference/bulk_shards",
    "inference/ray_bulk",
    "training/config",
]
"""Modules of the core install, which translates without PyTorch."""

NEEDS_TORCH = {"heedful.data.collate"}


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


PATHS = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


@cache
def imported_modules(path: Path) -> set[str]:
    """All heedful modules that a file imports, also inside functions."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "heedful":
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                modules.add(submodule if submodule in PATHS else node.module)
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names if alias.name.split(".")[0] == "heedful"}
    return {module for module in modules if module is not None}


def layer_name(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def test_imports_point_down() -> None:
    levels = {name: number for number, names in enumerate(LAYERS) for name in names}
    violations = [
        f"{module} imports {imported}"
        for module, path in PATHS.items()
        if (layer := layer_name(module))
        for imported in sorted(imported_modules(path))
        if (imported_layer := layer_name(imported)) != layer
        and (not imported_layer or levels[imported_layer] <= levels[layer])
    ]
    assert not violations


def test_every_module_has_a_layer() -> None:
    assert {layer_name(module) for module in PATHS} - {""} == set().union(*LAYERS)


def test_imports_have_no_cycle() -> None:
    graph = {module: imported_modules(path) - {module} for module, path in PATHS.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"import cycle: {' -> '.join(error.args[1])}")


POSIX_MODULES = {"fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty"}
POSIX_NAMES = {
    "os": "O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK chown fchmod fork forkpty geteuid getgid getloadavg getpgid "
    "getuid killpg mkfifo nice sched_getaffinity sched_setaffinity setsid statvfs sysconf uname wait waitid",
    "signal": "SIGALRM SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGSTOP SIGUSR1 SIGUSR2 SIG_BLOCK SIG_SETMASK "
    "SIG_UNBLOCK alarm pause pthread_kill pthread_sigmask setitimer sigwait",
    "socket": "AF_UNIX send_fds recv_fds",
}
"""Absent on Windows, and a few on macOS."""
GUARDED_POSIX_NAMES = {"heedful.data.process_pool": {"SIG_BLOCK", "SIG_SETMASK", "pthread_sigmask"}}
"""Used only where they exist: tests/data/test_parallel_cleaning.py removes them."""


def test_posix_names_are_guarded() -> None:
    pattern = re.compile(
        "|".join(rf"\b{module}\.({'|'.join(names.split())})\b" for module, names in POSIX_NAMES.items())
    )
    modules = "|".join(POSIX_MODULES)
    for module, path in PATHS.items():
        if module.startswith("heedful.training.distributed"):
            continue  # several processes: Linux and macOS
        text = path.read_text(encoding="utf-8")
        assert not re.search(rf"^\s*(import|from) ({modules})\b", text, re.MULTILINE), module
        names = {match[0].partition(".")[2] for match in pattern.finditer(text)}
        assert names == GUARDED_POSIX_NAMES.get(module, set()), module


def test_only_marian_import_unpickles_and_only_tensors() -> None:
    for module, path in PATHS.items():
        text = path.read_text(encoding="utf-8")
        if re.search(r"\b(eval|exec|pickle)\b", text):  # parsing all files takes seconds
            names = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
            assert not names & {"eval", "exec", "pickle"}, module
        expected = 1 if module == "heedful.convert.marian.importer" else 0
        assert text.count("torch.load(") == text.count("weights_only=True") == expected, module


def imported_packages(code: str, packages: set[str]) -> set[str]:
    """Which of these packages are loaded after running the code in a new process."""
    code += f"\nimport sys; print('modules:', *({packages!r} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(result.stdout.rpartition("modules:")[2].split())


def test_core_modules_do_not_import_torch() -> None:
    paths = {path for pattern in TORCH_FREE for path in PACKAGE.glob(f"{pattern}.py")}
    modules = sorted({module_name(path) for path in paths} - NEEDS_TORCH)
    assert len(modules) > len(TORCH_FREE)
    assert not imported_packages("\n".join(f"import {module}" for module in modules), {"torch", "matplotlib"})


def test_translating_imports_nothing_it_does_not_need() -> None:
    assert not imported_packages("import heedful", {"torch", "numpy", "pydantic", "typer"})
    code = "import heedful.inference.loading, heedful.inference.bulk"
    assert not imported_packages(code, {"torch", "sacrebleu", "rich", "fastapi"})


@pytest.fixture(scope="module")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained model, converted for CTranslate2."""
    from heedful.inference.loading import load
    from tests.module_paths import train_model

    folder = train_model(tmp_path_factory.mktemp("architecture"))
    load(folder)
    return folder


@pytest.mark.long
@pytest.mark.parametrize(("path", "limit"), [("translate", 19), ("serve", 20), ("trace", 18)])
def test_path_enters_few_modules(small_model: Path, path: str, limit: int) -> None:
    """``heedful translate``, ``POST /translate`` and ``heedful.trace``, as docs/architecture.md describes them."""
    command = [sys.executable, "-m", "tests.module_paths", path, "--model", str(small_model)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    modules = [line for line in result.stdout.splitlines() if line in PATHS]
    assert 10 < len(modules) <= limit


@pytest.mark.long
def test_translate_command_imports_no_other_modules(small_model: Path) -> None:
    """The command on a converted model: no Ray, no document formats, no training code."""
    code = f"import os, sys; sys.argv = ['heedful', 'translate', {str(small_model)!r}, 'The dog.']\n"
    code += "os._exit = lambda status: None\nfrom heedful.cli.main import main; main()"
    prefixes = ("heedful.training", "heedful.documents", "heedful.server", "heedful.inference.ray_bulk")
    unneeded = {module for module in PATHS if module.startswith(prefixes)}
    unneeded |= {f"heedful.data.formats.{name}" for name in ("tmx", "xliff", "gettext", "archives")}
    assert not imported_packages(code, unneeded | {"torch", "ray", "fastapi", "sacrebleu"})


def test_help_imports_nothing_heavy() -> None:
    code = "import heedful.cli.main"
    assert not imported_packages(code, {"torch", "pydantic", "tokenizers", "numpy"})
