"""Zip archives of pairs, such as OPUS downloads: two parallel files beside a README, or files of pairs.

Members are streamed, never extracted to disk; a compression ratio no text reaches is rejected.
"""

import io
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import PurePosixPath

from heedful.data.formats.base import InputFile, PairRecord, ReadOptions, detect_format, file_extension, read_head
from heedful.errors import HeedfulError
from heedful.files import ZIP_ERRORS
from heedful.tokenization.languages import LanguagePair, languages_from_names, languages_match

ReadInput = Callable[[InputFile, ReadOptions], Iterator[PairRecord]]

ReadParallel = Callable[[InputFile, InputFile], Iterator[PairRecord]]

MAX_UNCHECKED_BYTES = 1 << 26  # size up to which any compression ratio is accepted
MAX_COMPRESSION_RATIO = 200  # limit for larger members; text reaches about 4, a zip bomb 1000
_METADATA_PREFIXES = ("readme", "license", "licence", "info", "copying", "changelog", "notice")


def read_zip(
    input_file: InputFile, options: ReadOptions, read_member: ReadInput, read_parallel: ReadParallel
) -> Iterator[PairRecord]:
    """The pairs of every member that holds pairs."""
    with _open_archive(input_file) as archive:
        pair_files, parallel_files = _list_members(archive, input_file, options)
        if parallel_files is not None:
            with (
                _open_member(archive, input_file, parallel_files[0]) as source,
                _open_member(archive, input_file, parallel_files[1]) as target,
            ):
                yield from read_parallel(source, target)
        for name in pair_files:
            with _open_member(archive, input_file, name) as member:
                yield from read_member(member, options)


def zip_languages(
    input_file: InputFile,
    options: ReadOptions,
    member_languages: Callable[[InputFile, ReadOptions], LanguagePair | None],
) -> LanguagePair | None:
    """The languages of the two parallel files, or of the first member that declares them."""
    with _open_archive(input_file) as archive:
        pair_files, parallel_files = _list_members(archive, input_file, options)
        if parallel_files is not None:
            return languages_from_names([PurePosixPath(name).name for name in parallel_files])
        for name in pair_files:
            with _open_member(archive, input_file, name) as member:
                if languages := member_languages(member, options) or languages_from_names([PurePosixPath(name).name]):
                    return languages
    return None


@contextmanager
def _open_archive(input_file: InputFile) -> Iterator[zipfile.ZipFile]:
    if not input_file.stream.seekable():
        raise HeedfulError(
            f"{input_file.name} is a zip archive, which cannot be read from a pipe", hint="name the file itself"
        )
    try:
        with zipfile.ZipFile(input_file.stream) as archive:
            yield archive
    except ZIP_ERRORS as error:
        raise HeedfulError(f"cannot unpack {input_file.name}: {error}", hint="download or pack it again") from None


def _list_members(
    archive: zipfile.ZipFile, input_file: InputFile, options: ReadOptions
) -> tuple[list[str], tuple[str, str] | None]:
    """Files of pairs, and two parallel files in source-target order."""
    names = []
    for name in archive.namelist():
        path = PurePosixPath(name)
        is_metadata = path.name.lower().startswith((*_METADATA_PREFIXES, ".")) or path.parts[:1] == ("__MACOSX",)
        if path.name and not name.endswith("/") and not is_metadata:
            names.append(name)
    pair_files = []
    for name in names:
        with _open_member(archive, input_file, name) as member:
            if detect_format(read_head(member)[0], member.extension) not in ("", "zip"):  # no nested archives
                pair_files.append(name)
    parallel_files = _find_parallel_files([name for name in names if name not in pair_files], options.languages)
    if not pair_files and parallel_files is None:
        listing = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
        hint = "two parallel files must differ only in the language suffix, such as X.en-de.en and X.en-de.de"
        if "content.xml" in names or "xl/workbook.xml" in names:
            hint = "this is a spreadsheet or text document: save it as CSV"
        raise HeedfulError(f"{input_file.name} holds no pairs; its members are: {listing or 'none'}", hint=hint)
    return pair_files, parallel_files


def _find_parallel_files(names: list[str], languages: LanguagePair | None) -> tuple[str, str] | None:
    """Two files whose names differ only in the language, source first."""
    for pair in combinations(names, 2):
        pair_languages = languages_from_names([PurePosixPath(name).name for name in pair])
        if pair_languages is None or PurePosixPath(pair[0]).parent != PurePosixPath(pair[1]).parent:
            continue
        if languages is None:
            stem = PurePosixPath(pair[0]).name.removesuffix(f".{pair_languages[0]}")
            # X.en-de.de may come before X.en-de.en
            reverse = languages_from_names([f"{stem}.x"]) == pair_languages[::-1]
        else:
            reverse = all(map(languages_match, languages, pair_languages[::-1]))
            if not reverse and not all(map(languages_match, languages, pair_languages)):
                continue
        return (pair[1], pair[0]) if reverse else pair
    return None


@contextmanager
def _open_member(archive: zipfile.ZipFile, input_file: InputFile, name: str) -> Iterator[InputFile]:
    info = archive.getinfo(name)
    if info.file_size > max(MAX_UNCHECKED_BYTES, MAX_COMPRESSION_RATIO * info.compress_size):
        raise HeedfulError(
            f"{name} in {input_file.name} expands from {info.compress_size:,} to {info.file_size:,} bytes, "
            "an implausible ratio for text",
            hint="if you trust it, unpack it and name the file",
        )
    # zipfile never yields more than the declared size, so the check above holds.
    with archive.open(info) as compressed, io.BufferedReader(compressed, buffer_size=1 << 17) as stream:  # type: ignore[type-var]
        yield InputFile(f"{input_file.name}/{name}", f"{input_file.display_name}/{name}", stream, file_extension(name))
