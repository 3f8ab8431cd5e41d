"""A translated file that grows under another name until it is whole, and goes on after a kill.

out.txt.partial         what is translated so far
out.txt.partial.json    of what, by what, how: only the same work can go on
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from heedful.engines.lines import WINDOW
from heedful.errors import HeedfulError
from heedful.files import hold, write_json
from heedful.progress import Reporter

LineNumber = Callable[[int, str], int]
"""Which input line an output line belongs to, from 1; it is given its own number, from 1, and its text."""


@contextmanager
def resumed(
    path: Path, identity: dict[str, Any], number: LineNumber, report: Reporter
) -> Iterator[tuple[TextIO, int]]:
    """The file to write to, and how many input lines are done; it gets its name when all is well."""
    partial, mark = path.with_name(path.name + ".partial"), path.with_name(path.name + ".partial.json")
    try:
        with partial.open("a", encoding="utf-8", newline="\n") as file:
            hold(file, f"another process is writing {partial}")
            same = _is_same(mark, identity)
            done = _kept(partial, number) if same else 0
            if done:
                report.say(f"going on after line {done:,}, with what {partial} holds")
            elif not same and partial.stat().st_size:
                report.warn(f"{partial} is of other work (input, model or settings differ); beginning anew")
            if not same:
                file.truncate(0)
            write_json(mark, identity)
            yield file, done
    except HeedfulError:
        raise
    except BaseException:
        report.warn(f"what was translated so far is in {partial}; the same command goes on from there")
        raise
    partial.replace(path)
    mark.unlink(missing_ok=True)


def of_file(path: Path) -> dict[str, Any]:
    """What tells one state of a file from another, without reading it."""
    found = path.stat()
    return {"path": str(path.absolute()), "bytes": found.st_size, "changed": found.st_mtime_ns}


def by_order(number: int, line: str) -> int:
    """One output line for each input line."""
    return number


def by_column(number: int, line: str) -> int:
    """TSV: the first column."""
    return int(line.split("\t", 1)[0])


def by_field(number: int, line: str) -> int:
    """JSONL: the field ``line``."""
    return int(json.loads(line)["line"])


def _is_same(mark: Path, identity: dict[str, Any]) -> bool:
    try:
        return bool(json.loads(mark.read_text(encoding="utf-8")) == json.loads(json.dumps(identity)))
    except (OSError, ValueError, RecursionError):
        return False


def _kept(partial: Path, number: LineNumber) -> int:
    """Cut the file after the last whole window of input lines, and count these.

    Whole windows only: then every line is translated in the same company as without the interruption.
    The last input line may have more output lines to come, so it does not count.
    """
    if not partial.exists():
        return 0
    ends: list[tuple[int, int]] = []  # (input line, where its output ends), one for each window
    place = last = 0
    with partial.open("rb") as file:
        for count, raw in enumerate(file, start=1):
            if not raw.endswith(b"\n"):
                break
            try:
                line = number(count, raw.decode("utf-8"))
            except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
                break
            if line != last and last % WINDOW == 0 and last:
                ends.append((last, place))
            last, place = line, place + len(raw)
    kept, end = ends[-1] if ends else (0, 0)
    with partial.open("rb+") as file:
        file.truncate(end)
    return kept
