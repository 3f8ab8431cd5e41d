"""The user's files: what to learn from, what to validate on."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from heedful.corpora.parts import Direction, Part
from heedful.corpora.pieces import Piece
from heedful.corpora.reading import Reading, ReadingConfig, Record
from heedful.errors import HeedfulError


@dataclass(frozen=True, slots=True)
class Inputs:
    """The user's files."""

    training: tuple[Path, ...]
    validation: tuple[Path, ...] = ()
    languages: tuple[str, str] | None = None
    plain: bool = False
    """Whether these are plain texts, and no pairs."""
    trees: bool = False
    """Whether sources come with the heads of their words."""
    reading: ReadingConfig = ReadingConfig()  # noqa: RUF009 - frozen
    """How files of other programs are read."""
    parts: tuple[Part, ...] = ()
    """More to learn from, behind the training files."""
    examined: tuple[Part, ...] = ()
    """More to validate on; their shares say nothing."""
    remembered: tuple[Part, ...] = ()
    """What the model knew before, if it is tuned: to see what it forgets."""

    def __post_init__(self) -> None:
        if self.tags and (self.trees or self.plain):
            raise HeedfulError(
                f"{'trees' if self.trees else 'plain texts'} cannot be tagged", hint="leave out the tags"
            )

    @property
    def corpus(self) -> tuple[Part, ...]:
        """All parts to learn from."""
        return (*([Part(self.training, self.languages)] * bool(self.training)), *self.parts)

    @property
    def examination(self) -> tuple[Part, ...]:
        """All parts to validate on, if any are given."""
        return (*([Part(self.validation, self.languages)] * bool(self.validation)), *self.examined)

    @property
    def paths(self) -> tuple[Path, ...]:
        """Of everything that is read."""
        parts = (*self.corpus, *self.examination, *self.remembered)
        return tuple(path for part in parts for path in part.paths)

    @property
    def tags(self) -> tuple[str, ...]:
        """Those of all parts, in their order."""
        named = [tag for part in (*self.corpus, *self.examination) for tag in part.tags]
        return tuple(dict.fromkeys(named))

    @property
    def unit(self) -> str:
        """What they are made of."""
        return "line" if self.plain else "pair"

    @property
    def directions(self) -> tuple[Direction, ...]:
        """What is learned, if a tag asks for each target."""
        return tuple(dict.fromkeys(part.direction for part in self.corpus if part.direction))

    def records(self, part: Part, piece: Piece | None = None) -> Iterator[Record]:
        """What stands in the files of a part, or in a piece of them; its languages may not be the model's."""
        piece = piece or Piece(part.paths, plain=self.plain)
        languages = part.languages or self.languages
        if not part.reverse:
            return piece.records(Reading(languages, self.reading))
        assert languages  # a direction says them
        found = piece.records(Reading((languages[1], languages[0]), self.reading))
        return (record._replace(source=record.target, target=record.source) for record in found)

    def to_json(self) -> dict[str, Any]:
        """Plain data of what is learned from; what to validate on is no part of it."""
        return {
            "languages": self.languages,
            "plain": self.plain,
            "trees": self.trees,
            "reading": self.reading.model_dump(),
            "parts": [part.to_json() for part in self.corpus],
        }

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> Self:
        """What ``to_json`` described: all of it as parts."""
        languages = (state["languages"][0], state["languages"][1]) if state["languages"] else None
        reading = ReadingConfig.checked(state["reading"])
        parts = tuple(map(Part.from_json, state["parts"]))
        return cls((), (), languages, state["plain"], state["trees"], reading, parts)
