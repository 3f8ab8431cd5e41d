"""The user's files: what to learn from, what to validate on."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from heedful.corpora.formats import read_pairs, read_texts
from heedful.corpora.parts import Direction, Part
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

    def records(self, part: Part) -> Iterator[Record]:
        """What stands in the files of a part, whose languages may be others than the model's."""
        if self.plain:
            return read_texts(part.paths)
        languages = part.languages or self.languages
        if not part.reverse:
            return read_pairs(part.paths, Reading(languages, self.reading))
        assert languages  # a direction says them
        found = read_pairs(part.paths, Reading((languages[1], languages[0]), self.reading))
        return (record._replace(source=record.target, target=record.source) for record in found)
