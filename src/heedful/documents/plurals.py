"""Plural forms of PO files: which form each number takes, and the formulas of common languages."""

import gettext
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from heedful.errors import HeedfulError

_PLURAL_FORMS = re.compile(r"\s*nplurals\s*=\s*(\d+)\s*;\s*plural\s*=\s*([^;]+);?\s*")

_SAMPLE_SIZE, _MAX_FORMS = 1001, 20


@dataclass(frozen=True)
class PluralForms:
    """The Plural-Forms of a header."""

    text: str
    count: int
    formula: Callable[[int], int]

    @cached_property
    def numbers(self) -> list[list[int]]:
        """The numbers up to 1,000 that use each form."""
        numbers: list[list[int]] = [[] for _ in range(self.count)]
        for number in range(_SAMPLE_SIZE):
            numbers[self.formula(number)].append(number)
        return numbers

    def is_singular(self, form: int) -> bool:
        """Whether the form is used for 1, among other numbers."""
        return 1 in self.numbers[form]

    def is_exactly_one(self, form: int) -> bool:
        """Whether the form is used for 1 only."""
        return self.numbers[form] == [1]


def parse_plural_forms(text: str) -> PluralForms:
    """Parse the Plural-Forms of a header.

    >>> plurals = parse_plural_forms("nplurals=2; plural=(n > 1);")
    >>> plurals.is_singular(0), plurals.is_exactly_one(0), plurals.numbers[0]
    (True, False, [0, 1])
    """
    match = _PLURAL_FORMS.fullmatch(text)
    try:
        if match is None:
            raise ValueError(text)
        plural_forms = PluralForms(text, int(match[1]), gettext.c2py(match[2].strip()))
        if not 0 < plural_forms.count <= _MAX_FORMS or not plural_forms.numbers:
            raise ValueError(text)
    except (ValueError, IndexError, ZeroDivisionError, RecursionError):
        raise HeedfulError(
            f"cannot read the header's Plural-Forms: {text!r}", hint="example: nplurals=2; plural=(n != 1);"
        ) from None
    return plural_forms


def plural_forms_for(language: str) -> PluralForms | None:
    """The plural forms of a language; None if it is not in the table.

    >>> plural_forms_for("pt_BR").text, plural_forms_for("tlh")
    ('nplurals=2; plural=(n > 1);', None)
    """
    locale = language.replace("-", "_").lower()
    for code in (locale, locale.split("_")[0]):
        for languages, text in _FORMULAS:
            if code in languages.split():
                return parse_plural_forms(text)
    return None


_FORMULAS = (
    ("ja ko zh vi th id ms lo my km jv su bo dz yo wo", "nplurals=1; plural=0;"),
    ("pt_br fr oc fa hi bn gu kn am ti ln mg wa fil tl hy br", "nplurals=2; plural=(n > 1);"),
    (
        "en de nl sv da no nb nn fo es pt it bg el fi et he iw eo hu tr ca gl eu af sq az ka kk ky uz tk "
        "mn ne mr ml ta te pa or ur sw zu xh st tn so ha fy lb rm fur sc an ast gsw nds ia as si ps ku ckb "
        "tt ug yi",
        "nplurals=2; plural=(n != 1);",
    ),
    ("is", "nplurals=2; plural=(n%10!=1 || n%100==11);"),
    ("mk", "nplurals=2; plural=(n%10==1 && n%100!=11 ? 0 : 1);"),
    ("lv", "nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n != 0 ? 1 : 2);"),
    ("ga", "nplurals=3; plural=n==1 ? 0 : n==2 ? 1 : 2;"),
    ("ro mo", "nplurals=3; plural=n==1 ? 0 : (n==0 || (n%100 > 0 && n%100 < 20)) ? 1 : 2;"),
    ("lt", "nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n%10>=2 && (n%100<10 || n%100>=20) ? 1 : 2);"),
    (
        "ru uk be sr hr bs sh",
        "nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2);",
    ),
    ("cs sk", "nplurals=3; plural=(n==1) ? 0 : (n>=2 && n<=4) ? 1 : 2;"),
    ("pl", "nplurals=3; plural=(n==1 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2);"),
    ("sl hsb dsb", "nplurals=4; plural=(n%100==1 ? 0 : n%100==2 ? 1 : n%100==3 || n%100==4 ? 2 : 3);"),
    ("ar", "nplurals=6; plural=n==0 ? 0 : n==1 ? 1 : n==2 ? 2 : n%100>=3 && n%100<=10 ? 3 : n%100>=11 ? 4 : 5;"),
    ("cy", "nplurals=4; plural=(n==1) ? 0 : (n==2) ? 1 : (n != 8 && n != 11) ? 2 : 3;"),
    ("mt", "nplurals=4; plural=(n==1 ? 0 : n==0 || (n%100>1 && n%100<11) ? 1 : n%100>10 && n%100<20 ? 2 : 3);"),
    ("gd", "nplurals=4; plural=(n==1 || n==11) ? 0 : (n==2 || n==12) ? 1 : (n > 2 && n < 20) ? 2 : 3;"),
)
"""The same formulas as msginit of GNU gettext, for the languages it knows."""
