"""Import rules: imports point down, no cycles, a core without extras, a light command line."""

import ast
import itertools
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import heedful
from heedful.errors import EXTRAS

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

CORE = [
    "*",
    "cli/*",
    "convert/__init__",
    "convert/compatibility",
    "convert/ctranslate2/cache",
    "convert/ctranslate2/weights",
    "data/**/*",
    "documents/*",
    "evaluation/*",
    "generation/config",
    "generation/constraints",
    "generation/decoder_protocol",
    "inference/bulk",
    "inference/bulk_shards",
    "inference/ctranslate2_backend",
    "inference/loading",
    "inference/placeholders",
    "inference/projection",
    "inference/ray_bulk",
    "inference/terminology",
    "inference/translation",
    "inference/translator",
    "models/config",
    "server/config",
    "tokenization/*",
    "training/config",
    "training/metrics_log",
    "web/assets",
    "workflows/back_translate",
    "workflows/corpus",
    "workflows/evaluate",
]
"""Modules of the core install: they work without any extra."""

NOT_CORE = {"heedful.data.collate", "heedful.__main__"}
"""A module of training, and one that runs the command line."""

SERVER_WITHOUT_TORCH = ["server/*", "server/routes/*"]

NEEDS_TORCH = {"heedful.server.routes.generate", "heedful.server.routes.trace"}
"""Of the server; without PyTorch, routes/unavailable.py replaces them."""


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
    "asyncio": "create_unix_server open_unix_connection",
    "loop": "add_signal_handler remove_signal_handler",
    "mmap": "MAP_ANONYMOUS MAP_PRIVATE MAP_SHARED PROT_READ PROT_WRITE",
    "os": "O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK O_SYNC WNOHANG chown eventfd fchmod fchown fork forkpty getegid "
    "geteuid getgid getgroups getloadavg getpgid getpgrp getpriority getuid killpg lchown memfd_create mkfifo mknod "
    "nice openpty posix_fadvise posix_fallocate posix_spawn pread pwrite register_at_fork sched_getaffinity "
    "sched_setaffinity sched_yield sendfile setpgid setpriority setsid statvfs sync sysconf ttyname uname wait wait3 "
    "wait4 waitid",
    "select": "epoll kqueue poll",
    "signal": "SIGALRM SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGSTOP SIGUSR1 SIGUSR2 SIG_BLOCK SIG_SETMASK "
    "SIG_UNBLOCK alarm pause pthread_kill pthread_sigmask setitimer sigwait",
    "socket": "AF_UNIX SO_REUSEPORT recv_fds send_fds",
    "time": "clock_gettime pthread_getcpuclockid tzset",
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


def list_modules(patterns: list[str]) -> set[str]:
    return {module_name(path) for pattern in patterns for path in PACKAGE.glob(f"{pattern}.py")}


def import_without(modules: set[str], packages: Iterable[str]) -> None:
    """Import modules in a new process that cannot import these packages."""
    code = f"import sys; sys.modules.update(dict.fromkeys({tuple(packages)!r}))\n"  # None: importing raises
    code += "\n".join(f"import {module}" for module in sorted(modules))
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_core_modules_import_without_extras() -> None:
    modules = list_modules(CORE) - NOT_CORE
    assert len(modules) > 90
    assert PATHS.keys() >= modules
    import_without(modules, itertools.chain.from_iterable(EXTRAS.values()))
    with pytest.raises(AssertionError, match="torch"):  # the blocker works
        import_without({"heedful.data.collate"}, EXTRAS["train"])


def test_server_modules_import_without_torch() -> None:
    modules = list_modules(SERVER_WITHOUT_TORCH)
    assert modules >= NEEDS_TORCH
    import_without(modules - NEEDS_TORCH, (*EXTRAS["train"], *EXTRAS["figures"]))


def test_extras_match_pyproject() -> None:
    """Every extra has its check, and the core depends on none of their packages."""
    project = tomllib.loads((PACKAGE.parent.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    assert set(extras) == {*EXTRAS, "all", "dev"}
    assert extras["all"] == [f"heedful[{','.join(sorted(EXTRAS))}]"]

    def names(requirements: Iterable[str]) -> set[str]:
        return {re.split(r"[\[<>=]", name)[0].replace("-", "_") for name in requirements}

    for extra, packages in EXTRAS.items():
        assert names(extras[extra]) == set(packages), extra
        assert not names(project["dependencies"]) & set(packages)


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
@pytest.mark.parametrize(("path", "limit"), [("translate", 21), ("serve", 20), ("trace", 18)])
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
