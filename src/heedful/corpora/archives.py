"""Zip archives of pairs, as OPUS gives them: two parallel files beside a README, or files of pairs.

Members are read where they are, nothing is unpacked to disk, and no more is unpacked than text can shrink to.
"""

import io
import lzma
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import PurePosixPath

from heedful.corpora.language_codes import languages_in_names, matches
from heedful.corpora.reading import Input, Languages, Reading, Record, head_of
from heedful.corpora.recognition import ending, recognized
from heedful.errors import HeedfulError

ReadInput = Callable[[Input, Reading], Iterator[Record]]
ReadParallel = Callable[[Input, Input], Iterator[Record]]
DAMAGED_ZIP = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    OSError,
    ValueError,
    NotImplementedError,
    RuntimeError,
)
"""What zipfile raises over an archive that is damaged, or packed in a way that it does not know."""
UNSUSPICIOUS = 1 << 26
"""Bytes that any member may unpack to."""
MOST_SHRUNK = 200
"""Times that a larger member may grow; text grows about four times, deflate could make it a thousand."""
_PAPERS = ("readme", "license", "licence", "info", "copying", "changelog", "notice")


def read_zip(given: Input, reading: Reading, read: ReadInput, parallel: ReadParallel) -> Iterator[Record]:
    """The pairs of every member that holds some."""
    with _archive(given) as archive:
        single, pair = _members(archive, given, reading)
        if pair is not None:
            with _member(archive, given, pair[0]) as source, _member(archive, given, pair[1]) as target:
                yield from parallel(source, target)
        for name in single:
            with _member(archive, given, name) as member:
                yield from read(member, reading)


def zip_languages(
    given: Input, reading: Reading, told: Callable[[Input, Reading], Languages | None]
) -> Languages | None:
    """Of the two parallel files, or of the first member that tells."""
    with _archive(given) as archive:
        single, pair = _members(archive, given, reading)
        if pair is not None:
            return languages_in_names([PurePosixPath(name).name for name in pair])
        for name in single:
            with _member(archive, given, name) as member:
                if found := told(member, reading) or languages_in_names([PurePosixPath(name).name]):
                    return found
    return None


@contextmanager
def _archive(given: Input) -> Iterator[zipfile.ZipFile]:
    if not given.stream.seekable():
        raise HeedfulError(
            f"{given.name} is a zip archive, which cannot be read from a pipe", hint="name the file"
        )
    try:
        with zipfile.ZipFile(given.stream) as archive:
            yield archive
    except DAMAGED_ZIP as error:
        raise HeedfulError(
            f"{given.name} cannot be unpacked: {error}", hint="fetch or pack it again"
        ) from None


def _members(
    archive: zipfile.ZipFile, given: Input, reading: Reading
) -> tuple[list[str], tuple[str, str] | None]:
    """Files of pairs, and two parallel files, in the order of the wanted languages."""
    names = [name for name in archive.namelist() if _is_file(name) and not _is_paper(name)]
    single = [name for name in names if _format(archive, given, name)]
    pair = _parallel([name for name in names if name not in single], reading.languages)
    if not single and pair is None:
        shown = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
        raise HeedfulError(f"{given.name} holds no pairs; it holds {shown or 'nothing'}", hint=_cure(names))
    return single, pair


def _cure(names: list[str]) -> str:
    if "content.xml" in names or "xl/workbook.xml" in names:
        return "this is a spreadsheet or a text document: save it as CSV"
    return "two parallel files in it must be named alike, such as X.en-de.en and X.en-de.de"


def _is_file(name: str) -> bool:
    """No folder, and nothing without a name of its own."""
    return bool(PurePosixPath(name).name) and not name.endswith("/")


def _is_paper(name: str) -> bool:
    path = PurePosixPath(name)
    return path.name.lower().startswith((*_PAPERS, ".")) or path.parts[0] == "__MACOSX"


def _format(archive: zipfile.ZipFile, given: Input, name: str) -> str:
    """The format of a member; archives in archives are not opened."""
    with _member(archive, given, name) as member:
        found = recognized(head_of(member)[0], ending(name))
    return "" if found == "zip" else found


def _parallel(names: list[str], languages: Languages | None) -> tuple[str, str] | None:
    """Two files whose names differ only in the language, the source first."""
    for pair in combinations(names, 2):
        found = languages_in_names([PurePosixPath(name).name for name in pair])
        if found is None or PurePosixPath(pair[0]).parent != PurePosixPath(pair[1]).parent:
            continue
        if languages is None:
            stem = PurePosixPath(pair[0]).name.removesuffix(f".{found[0]}")
            turned = languages_in_names([f"{stem}.x"]) == found[::-1]  # X.en-de.de comes before X.en-de.en
        else:
            turned = matches(languages[0], found[1]) and matches(languages[1], found[0])
            if not turned and not (matches(languages[0], found[0]) and matches(languages[1], found[1])):
                continue
        return (pair[1], pair[0]) if turned else pair
    return None


@contextmanager
def _member(archive: zipfile.ZipFile, given: Input, name: str) -> Iterator[Input]:
    info = archive.getinfo(name)
    if info.file_size > max(UNSUSPICIOUS, MOST_SHRUNK * info.compress_size):
        raise HeedfulError(
            f"{name} in {given.name} would unpack to {info.file_size:,} bytes from {info.compress_size:,}",
            hint="no text shrinks so much; if you trust it, unpack it and give the file",
        )
    # zipfile never gives more than the size told here, so what was checked holds.
    with archive.open(info) as packed, io.BufferedReader(packed, buffer_size=1 << 17) as stream:  # type: ignore[type-var]
        yield Input(f"{given.name}/{name}", f"{given.title}/{name}", stream, ending(name))
