"""What the formats share: what a user wishes, what became of the units, texts on their way to the engine."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import BinaryIO, Literal, Protocol, TypeVar

from heedful.decoding.config import SearchConfig
from heedful.engines.base import Engine, Translation
from heedful.engines.lines import translate_lines
from heedful.progress import Task, counted
from heedful.text.glossary import Glossary
from heedful.text.spans import Rules
from heedful.text.three_letters import two_letters
from heedful.text.translated import Rounds, Translated, drive, together

Again = Literal["", "drafts", "all"]
Mark = Literal["fuzzy", "comment"]
Result = TypeVar("Result")
NAME = "heedful"
_UNFIT = re.compile("[\x00-\x1f\x7f\ud800-\udfff\ufffe\uffff]+")
"""What cannot stand in XML, and line breaks, which a line of text has not."""
_MOST_KNOWN = 200_000


@dataclass(frozen=True, slots=True)
class Wishes:
    """How a document is filled."""

    source: str = ""
    """The language to translate from, if known."""
    target: str = ""
    again: Again = ""
    """What of the translated is translated anew: nothing, drafts (not reviewed), or all."""
    mark: Mark = "fuzzy"
    """Whether translations have to be reviewed before they are used, or are only labelled."""
    rules: Rules = field(default_factory=Rules)

    def redoes(self, draft: bool) -> bool:
        """Whether something translated is translated anew."""
        return self.again == "all" or (self.again == "drafts" and draft)


@dataclass
class Tally:
    """What became of the units of a document."""

    translated: int = 0
    kept: int = 0
    """Translated already."""
    skipped: int = 0
    """Not to be translated, or nothing fit came out."""

    def __str__(self) -> str:
        return (
            f"{counted(self.translated, 'unit')} translated, {self.kept:,} kept as they were, "
            f"{self.skipped:,} skipped"
        )


class Document(Protocol):
    """A file that was read and found to be whole."""

    kind: str
    """For people."""
    source_language: str
    """As the file says, or nothing."""
    target_language: str
    needs_target: bool
    """Whether it cannot be written without a target language."""

    def wanted(self, wishes: Wishes) -> int:
        """How many units will be translated."""
        ...

    def fill(self, wishes: Wishes, texts: "Texts", file: BinaryIO) -> Tally:
        """Write the document with its units filled."""
        ...


class Texts:
    """Texts on their way through an engine; one that comes again is not translated again."""

    def __init__(
        self,
        engine: Engine,
        search: SearchConfig | None = None,
        task: Task | None = None,
        glossary: Glossary | None = None,
    ) -> None:
        self.engine, self.search, self.task, self.glossary = engine, search, task, glossary
        self.incomplete = 0
        self._known: dict[tuple[bool, str], Translated] = {}
        self._ahead = 0

    def translate(self, works: Sequence[Rounds[Result]], *, links: bool = False) -> list[Result]:
        """The results of works side by side, one for each unit; ``links`` say which word comes from which."""
        self._ahead = len(works)
        results = drive(together(works), partial(self._translated, links=links))
        self._advance(self._ahead)
        return results

    def _translated(self, texts: Sequence[str], *, links: bool) -> list[Translated]:
        if len(self._known) > _MOST_KNOWN:
            self._known.clear()
        new = [text for text in dict.fromkeys(texts) if (links, text) not in self._known]
        found = translate_lines(
            self.engine, new, self.search, details=links, waiting=False, glossary=self.glossary
        )
        for text, translation in zip(new, found, strict=True):
            self._known[links, text] = _cleaned(translation)
            self.incomplete += not translation.complete
            self._advance(min(1, self._ahead))
        return [self._known[links, text] for text in texts]

    def _advance(self, amount: int) -> None:
        self._ahead -= amount
        if self.task and amount:
            self.task.advance(amount)


def _cleaned(translation: Translation) -> Translated:
    best = translation.alternatives[0]
    return Translated(_UNFIT.sub(" ", best.text).strip(), best.alignment, translation.complete)


Write = Callable[[str], str]
"""How text is written in a document."""


def same_language(one: str, other: str) -> bool:
    """Whether two codes may be of the same language: one may say more than the other.

    >>> same_language("deu", "de_DE"), same_language("pt-BR", "pt-PT"), same_language("zh-Hans", "ZH")
    (True, False, True)
    """
    first, second = (re.split("[-_@.]", code.lower()) for code in (one, other))
    if two_letters(first[0]) != two_letters(second[0]):
        return False
    return all(left == right for left, right in zip(first[1:], second[1:], strict=False))
