"""The gettext catalogues of the programs on a machine: FOLDER/LANGUAGE/LC_MESSAGES/PACKAGE.mo."""

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from heedful.corpora.gettext_catalogs import LARGEST, entry_pairs, parsed_mo, plural_forms
from heedful.corpora.language_codes import base, canonical
from heedful.corpora.lines import opened

Texts = dict[tuple[str, str, str], str]
"""What a catalogue says for a context, a message, and its plural (empty for the singular)."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Two languages, and the packages to look at or to leave out, by name or pattern."""

    source: str
    target: str
    packages: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()

    def takes(self, package: str) -> bool:
        """Whether a package is one of them."""
        chosen = not self.packages or any(fnmatchcase(package, each) for each in self.packages)
        return chosen and not any(fnmatchcase(package, each) for each in self.excluded)


class Catalogue(NamedTuple):
    """The pairs of one package, or why there are none."""

    package: str
    path: Path
    pairs: list[tuple[str, str]]
    fault: str = ""


def system_folders() -> list[Path]:
    """Where programs keep their catalogues, as far as such folders are there."""
    data = os.environ.get("XDG_DATA_DIRS", "/usr/local/share:/usr/share:/opt/homebrew/share").split(":")
    places = [Path(each, "locale") for each in ("/usr/local/share", "/usr/share", *data) if each]
    places += [Path("/usr/share/locale-langpack"), Path(sys.base_prefix, "share", "locale")]
    return [place for place in dict.fromkeys(places) if place.is_dir()]


def catalogues(wanted: Wanted, folders: Sequence[Path]) -> Iterator[Catalogue]:
    """The pairs of every package that has both languages; messages themselves are English."""
    for folder in folders:
        sources, targets = (_by_package(folder, each) for each in (wanted.source, wanted.target))
        english = [base(each) == "en" for each in (wanted.source, wanted.target)]
        packages = sorted(sources.keys() if english[1] else targets.keys())
        for package in packages:
            source, target = sources.get(package), targets.get(package)
            if wanted.takes(package) and (english[0] or source) and (english[1] or target):
                yield _catalogue(package, None if english[0] else source, None if english[1] else target)


def _by_package(folder: Path, language: str) -> dict[str, Path]:
    """The catalogue of every package in a language, of its nearest variant.

    German is looked for in de, de_DE, then de_AT and the like; de@hebrew is another script, and only taken
    if it is asked for. Brazilian Portuguese is looked for in pt_BR alone.
    """
    found: dict[str, Path] = {}
    places = [place for place in folder.iterdir() if (place / "LC_MESSAGES").is_dir()]
    for place in sorted(places, key=lambda place: (_distance(place.name, language), place.name)):
        if _distance(place.name, language) is not FAR:
            for path in sorted((place / "LC_MESSAGES").glob("*.mo")):
                found.setdefault(path.stem, path)
    return found


FAR = 9


def _distance(name: str, language: str) -> int:
    """How far a folder's language is from the one wanted."""
    code, wanted = canonical(name), canonical(language)
    if code == wanted:
        return 0 if "." not in name else 1
    if "-" in wanted or base(code) != wanted or "@" in name:
        return FAR
    return 2 if code == f"{wanted}-{wanted.upper()}" else 3


def _catalogue(package: str, source: Path | None, target: Path | None) -> Catalogue:
    """The two joined over the messages; None is the message itself."""
    path = target or source
    assert path is not None
    try:
        texts = [_texts(each) if each else None for each in (source, target)]
    except ValueError as error:
        return Catalogue(package, path, [], str(error))
    keys = [texts[0] if texts[0] is not None else texts[1], texts[1] if texts[1] is not None else texts[0]]
    sides = [each if each is not None else {key: key[2] or key[1] for key in keys[0] or {}} for each in texts]
    pairs = [(sides[0][key], text) for key, text in sides[1].items() if sides[0].get(key) and text]
    return Catalogue(package, path, pairs)


def _texts(path: Path) -> Texts:
    with opened(path) as stream:
        catalogue = parsed_mo(stream.read(LARGEST))
    forms = plural_forms(catalogue.metadata)
    texts: Texts = {}
    for entry in catalogue:
        for number, (_, text) in enumerate(entry_pairs(entry, forms)):
            texts[entry.msgctxt or "", entry.msgid, entry.msgid_plural if number else ""] = text
    return texts
