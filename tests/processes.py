"""Child processes, found through /proc, and tasks for them."""

import os
import sys
from pathlib import Path


def descendants(pid: int) -> dict[int, str]:
    """All descendants of a process, parents before children: pid to command line."""
    processes: dict[int, tuple[int, str]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (OSError, IndexError):  # the process has exited
            continue
        processes[int(folder.name)] = (parent, command)
    commands: dict[int, str] = {}
    parents = {pid}
    while parents:
        parents = {child for child, (parent, _) in processes.items() if parent in parents and child not in commands}
        commands |= {child: processes[child][1] for child in parents}
    return commands


def is_running(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def exit_worker(folder: Path, index: int, advance: object) -> None:
    """A task that ends its process."""
    os._exit(7)


def write_imports(folder: Path, index: int, advance: object) -> None:
    """A task that writes which modules its process has imported, and its number of threads."""
    names = {name.partition(".")[0] for name in sys.modules} | {f"threads={os.environ['RAYON_NUM_THREADS']}"}
    (folder / str(index)).write_text("\n".join(sorted(names)))


def command_without(*packages: str) -> list[str]:
    """The command ``heedful`` in a new interpreter that cannot import these packages."""
    block = f"import sys; sys.modules.update(dict.fromkeys({packages!r}))"  # None: importing raises ImportError
    return [sys.executable, "-c", f"{block}; from heedful.cli.main import main; main()"]
