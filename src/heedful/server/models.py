"""The directions a server translates: one model for each, known by its languages."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from heedful.errors import HeedfulError
from heedful.server.batching import Batcher, ServedEngine
from heedful.server.config import ServerConfig
from heedful.server.refusal import malformed

Load = Callable[[Path], ServedEngine]


@dataclass(frozen=True, slots=True)
class Direction:
    """A model at the server's door."""

    source: str
    target: str
    folder: Path
    batcher: Batcher

    @property
    def name(self) -> str:
        """Such as en-fr."""
        return f"{self.source}-{self.target}"


class Directions:
    """All models of a server."""

    def __init__(self, directions: Sequence[Direction]) -> None:
        self._directions: dict[tuple[str, str], Direction] = {}
        for direction in map(_normalised, directions):
            pair = direction.source, direction.target
            if pair in self._directions:
                raise HeedfulError(
                    f"two models translate {direction.name}: {self._directions[pair].folder} "
                    f"and {direction.folder}",
                    hint="serve one of them here, and the other on another port: --port 5001",
                )
            self._directions[pair] = direction

    def __iter__(self) -> Iterator[Direction]:
        return iter(self._directions.values())

    @property
    def sources(self) -> list[str]:
        """Languages that are translated from."""
        return sorted({direction.source for direction in self})

    @property
    def languages(self) -> list[str]:
        """All languages."""
        return sorted({*self.sources, *(direction.target for direction in self)})

    def targets(self, source: str) -> list[str]:
        """Languages that ``source`` is translated into."""
        return sorted(direction.target for direction in self if direction.source == source)

    def sources_of(self, target: str) -> list[str]:
        """Languages that are translated into ``target``."""
        return sorted(direction.source for direction in self if direction.target == target)

    def language(self, code: str) -> str:
        """The served language that a client means: pt_br is pt-BR, and en-US is en if there is no other."""
        known = {language.casefold(): language for language in self.languages}
        wanted = _hyphenated(code).casefold()
        found = known.get(wanted) or known.get(wanted.split("-")[0])
        if found is None:
            raise malformed(f"{code} is not supported; languages: {', '.join(self.languages)}")
        return found

    def find(self, source: str, target: str) -> Direction:
        """The model of a direction."""
        found = self._directions.get((source, target))
        if found is None:
            targets = ", ".join(self.targets(source)) or "nothing"
            raise malformed(f"{source} is not translated into {target}, but into {targets}")
        return found


def _normalised(direction: Direction) -> Direction:
    return replace(direction, source=_hyphenated(direction.source), target=_hyphenated(direction.target))


def _hyphenated(code: str) -> str:
    return code.replace("_", "-")


def load_directions(words: Sequence[str], config: ServerConfig, load: Load) -> Directions:
    """The models of the command line: each a folder, or FOLDER=en-fr to name its languages."""
    return Directions([_direction(word, config, load) for word in words])


def _direction(word: str, config: ServerConfig, load: Load) -> Direction:
    folder, languages = _split(word)
    engine = load(folder)
    known = languages or engine.bundle.config.languages
    if known is None:
        raise HeedfulError(
            f"the model {folder} does not say which languages it translates", hint=f"write {folder}=en-fr"
        )
    return Direction(*known, folder, Batcher(engine, config))


def _split(word: str) -> tuple[Path, tuple[str, str] | None]:
    """A folder and its languages, if given."""
    folder, equals, languages = word.rpartition("=")
    if not equals or Path(word).is_dir():  # a folder may have such a name
        return Path(word), None
    codes = languages.split(":" if ":" in languages else "-")
    if len(codes) != 2 or not all(codes):
        raise HeedfulError(
            f"cannot read languages {languages!r}", hint="write source-target, such as en-de, or pt-BR:en"
        )
    return Path(folder), (codes[0], codes[1])
