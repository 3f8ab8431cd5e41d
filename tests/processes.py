"""Which processes a process has started, by /proc."""

from pathlib import Path


def family(pid: int) -> dict[int, str]:
    """All processes below one, parents before children: number and command line."""
    parents: dict[int, tuple[int, str]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (OSError, IndexError):  # gone meanwhile
            continue
        parents[int(folder.name)] = (parent, command)
    found: dict[int, str] = {}
    grown = {pid}
    while grown:
        grown = {each for each, (parent, _) in parents.items() if parent in grown and each not in found}
        found |= {each: parents[each][1] for each in grown}
    return found


def is_running(pid: int) -> bool:
    """Whether a process is there, and more than a name that nobody has asked for yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
