"""Codes of languages as files spell them: en, EN, eng, en_us, en-GB, de_DE.UTF-8, sr@latin."""

import re
from collections.abc import Iterable, Sequence

from heedful.corpora.reading import Languages
from heedful.errors import HeedfulError
from heedful.text.three_letters import two_letters


def canonical(code: str) -> str:
    """One spelling for each language: small letters, the script with one capital, the region with two.

    >>> [canonical(code) for code in ("ENG", "en_us", "zh-hans-cn", "de_DE.UTF-8", "sr@latin")]
    ['en', 'en-US', 'zh-Hans-CN', 'de-DE', 'sr-latin']
    """
    code = re.sub(r"\.[^@]*", "", code.strip())  # the character set of a locale
    first, *others = re.split(r"[-_@]+", code)
    return "-".join([two_letters(first.lower()), *(_part(part) for part in others if part)])


def _part(part: str) -> str:
    if len(part) == 4 and part.isalpha():
        return part.title()
    return part.upper() if len(part) == 2 else part.lower()


def base(code: str) -> str:
    """The language without region and script.

    >>> base("pt_BR")
    'pt'
    """
    return canonical(code).partition("-")[0]


def matches(wanted: str, code: str) -> bool:
    """Whether one is the other, or a variant of it.

    >>> matches("en", "en-GB"), matches("pt-BR", "pt"), matches("pt-BR", "pt-PT")
    (True, True, False)
    """
    left, right = canonical(wanted), canonical(code)
    return left == right or right.startswith(f"{left}-") or left.startswith(f"{right}-")


def best_matches(wanted: str, codes: Sequence[str]) -> list[int]:
    """Places of the codes that match, an exact one first; then variants, in order."""
    exact = [place for place, code in enumerate(codes) if canonical(code) == canonical(wanted)]
    return exact + [place for place, code in enumerate(codes) if place not in exact and matches(wanted, code)]


def only_two(codes: Iterable[str], first: str = "") -> Languages | None:
    """The two languages of a file that has no more; ``first`` is the source if it is one of them.

    >>> only_two(["de", "EN-us"], first="en-US")
    ('en-US', 'de')
    >>> only_two(["en-GB", "de", "en-US"])
    ('en', 'de')
    """
    found = list(dict.fromkeys(map(canonical, codes)))
    if len(found) != 2:
        found = list(dict.fromkeys(map(base, found)))
    if len(found) != 2:
        return None
    if first and matches(first, found[1]) and not matches(first, found[0]):
        found.reverse()
    return found[0], found[1]


def swapped(told: Languages | None, source: str, target: str, name: str) -> bool:
    """Whether a file's source is the target that is wanted; an error if its languages are others.

    A language the file does not tell (empty) may be any.
    """
    if told is None or _fit(told, source, target):
        return False
    if _fit(told, target, source):
        return True
    raise HeedfulError(
        f"{name} is {source or 'any language'} to {target or 'any'}, not {told[0]} to {told[1]}",
        hint="leave it out, or name its languages: --languages "
        f"{source or 'source'}{':' if '-' in source + target else '-'}{target or 'target'}",
    )


def _fit(told: Languages, source: str, target: str) -> bool:
    return (not source or matches(told[0], source)) and (not target or matches(told[1], target))


_LANGUAGE = r"[a-z]{2,3}(?:_[A-Za-z]{2,4})?"
_NO_LANGUAGES = {"src", "tgt", "trg", "txt", "ref", "hyp"}


def languages_in_names(names: list[str]) -> Languages | None:
    """What the name of a file of pairs, or the names of two parallel files, tell.

    >>> languages_in_names(["train.en", "train.de"]), languages_in_names(["news.en-de.tsv"])
    (('en', 'de'), ('en', 'de'))
    """
    if len(names) == 1:
        # Three-letter codes only after a dot, lest my-own.tsv be Burmese.
        found = re.search(rf"(?:^([a-z]{{2}})-([a-z]{{2}})|\.({_LANGUAGE})-({_LANGUAGE}))\.", names[0])
        codes = [code for code in found.groups() if code] if found else []
    else:
        stems, codes = _stems_and_codes(names)
        codes = codes if len(set(stems)) == 1 else []
    if len(set(codes)) != 2 or _NO_LANGUAGES & set(codes):
        return None
    return codes[0], codes[1]


def _stems_and_codes(names: list[str]) -> tuple[list[str], list[str]]:
    found = [re.fullmatch(rf"(?:(.*)\.)?({_LANGUAGE})", name.removesuffix(".txt")) for name in names]
    return [str(match and match[1]) for match in found], [match[2] for match in found if match]
