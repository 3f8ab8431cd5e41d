"""The models of a server: those that translate, one for each direction, and those of plain text, by name."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from heedful.bundle import Bundle
from heedful.corpora.language_codes import canonical
from heedful.errors import HeedfulError
from heedful.server.batching import Batcher, ServedEngine
from heedful.server.config import ServerConfig
from heedful.server.refusal import malformed
from heedful.text.languages import language_pair
from heedful.text.sentences import Segment

Load = Callable[[Path], ServedEngine | Bundle]
"""An engine for a model that translates, else the model itself."""
PLAIN_ROUTES = {"language": "POST /api/generate", "mask": "POST /api/fill"}
"""What to ask of a model of plain text."""
UNNAMED = ("source", "target")
"""What requests call the languages of a model that does not say them."""


class Served(Protocol):
    """Any model of a server, for those who look inside."""

    @property
    def name(self) -> str:
        """How requests call it."""
        ...

    @property
    def folder(self) -> Path:
        """Where it comes from."""
        ...

    @property
    def bundle(self) -> Bundle:
        """The model itself."""
        ...

    @property
    def engine_name(self) -> str:
        """What does its work, for people."""
        ...

    def segments(self, text: str) -> list[Segment]:
        """The parts of a text that it takes one by one."""
        ...


@dataclass(frozen=True, slots=True)
class PlainModel:
    """A model of plain text: it goes on with one, or fills in its blanks."""

    folder: Path
    bundle: Bundle
    engine_name = "PyTorch"

    @property
    def name(self) -> str:
        """Its folder's."""
        return short_name(self.folder)

    @property
    def task(self) -> str:
        """language or mask."""
        return self.bundle.config.model.family

    def segments(self, text: str) -> list[Segment]:
        """The whole text: what comes before is what the rest follows from."""
        return [Segment(text, "")]


@dataclass(frozen=True, slots=True)
class Direction:
    """A model that translates; one that writes several languages is several of these."""

    source: str
    target: str
    folder: Path
    batcher: Batcher
    """All directions of a model share one."""
    own: tuple[str, str] = ("", "")
    """Source and target as a model calls them that writes several languages; empty for others."""

    @property
    def name(self) -> str:
        """Such as en-fr."""
        return f"{self.source}-{self.target}"

    @property
    def unnamed(self) -> bool:
        """Whether nobody has said which languages it translates."""
        return (self.source, self.target) == UNNAMED

    @property
    def to_name_it(self) -> str:
        """How the command line says its languages."""
        return f"heedful serve {self.folder}=SOURCE-TARGET, such as {self.folder}=en-de"

    @property
    def bundle(self) -> Bundle:
        """The model itself, which translates in this direction unless told otherwise."""
        bundle, (source, target) = self.batcher.engine.bundle, self.own
        return bundle.writing(target, source) if target else bundle

    @property
    def zero_shot(self) -> bool:
        """Whether the model has never seen these two languages together."""
        return bool(self.own[1]) and self.batcher.engine.bundle.config.is_zero_shot(*self.own)

    @property
    def engine_name(self) -> str:
        """What translates, for people."""
        return self.batcher.engine.name

    def segments(self, text: str) -> list[Segment]:
        """The parts of a text that it translates one by one."""
        return self.batcher.engine.segments(text)


class Directions:
    """All models of a server; those that translate are what it goes through, ``plain`` are the others."""

    def __init__(self, directions: Sequence[Direction], plain: Sequence[PlainModel] = ()) -> None:
        self.plain = tuple(plain)
        self._directions: dict[tuple[str, str], Direction] = {}
        for direction in map(_normalised, directions):
            pair = direction.source, direction.target
            if pair in self._directions:
                raise HeedfulError(
                    f"two models translate {direction.name}: {self._directions[pair].folder} "
                    f"and {direction.folder}",
                    hint=f"say which languages: {direction.to_name_it}"
                    if direction.unnamed
                    else "serve one of them here, and the other on another port: --port 5001",
                )
            self._directions[pair] = direction
        names = [model.name for model in (*self, *self.plain)]
        double = next((name for name in names if names.count(name) > 1), None)
        if double is not None:
            raise HeedfulError(
                f"two models are called {double}", hint="serve one of them on another port: --port 5001"
            )

    def __iter__(self) -> Iterator[Direction]:
        return iter(self._directions.values())

    @property
    def by_model(self) -> list[list[Direction]]:
        """The directions of each model together."""
        found: dict[int, list[Direction]] = {}
        for direction in self:
            found.setdefault(id(direction.batcher), []).append(direction)
        return list(found.values())

    @property
    def models(self) -> dict[str, Served]:
        """Every model by its name, those that translate first."""
        return {model.name: model for model in (*self, *self.plain)}

    @property
    def first(self) -> Direction:
        """The first that translates."""
        self.check_any()
        return next(iter(self))

    def check_any(self) -> None:
        """Refuse to translate where no model does."""
        if not self._directions:
            others = ", ".join(f"{model.name} ({PLAIN_ROUTES[model.task]})" for model in self.plain)
            raise malformed(f"no model of this server translates; it has {others}")

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
        """The served language that a client means: pt_br is pt-BR, fr may be fra, en-US is en if need be."""
        self.check_any()
        known = {language.casefold(): language for language in self.languages}
        wanted = _hyphenated(code).casefold()
        alike = {canonical(language): language for language in self.languages}
        found = known.get(wanted) or known.get(wanted.split("-")[0]) or alike.get(canonical(code))
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
    found = [each for word in words for each in _models(word, config, load)]
    plain = [model for model in found if isinstance(model, PlainModel)]
    return Directions([model for model in found if isinstance(model, Direction)], plain)


def short_name(folder: Path) -> str:
    """A folder's name; one that is just called model says more with the folder it is in."""
    folder = folder.resolve()
    return f"{folder.parent.name}/{folder.name}" if folder.name == "model" else folder.name


def _models(word: str, config: ServerConfig, load: Load) -> Sequence[Direction | PlainModel]:
    folder, languages = _split(word)
    engine = load(folder)
    if isinstance(engine, Bundle):
        if languages is not None:
            raise HeedfulError(f"the model {folder} does not translate", hint=f"write {folder} alone")
        return [PlainModel(folder, engine)]
    batcher, known = Batcher(engine, config), engine.bundle.config
    if not known.targets:
        return [Direction(*(languages or known.languages or UNNAMED), folder, batcher)]
    offered = known.offered or [("", target) for target in known.targets]
    if languages is not None:
        offered = [_among(offered, languages, folder)]
    return [Direction(own[0] or UNNAMED[0], own[1], folder, batcher, own) for own in offered]


def _among(offered: Sequence[tuple[str, str]], wanted: tuple[str, str], folder: Path) -> tuple[str, str]:
    """The one direction that is to be served of a model with several."""
    if wanted in offered or ("", wanted[1]) in offered:
        return wanted
    known = ", ".join("-".join(filter(None, own)) for own in offered)
    raise HeedfulError(f"the model {folder} does not translate {'-'.join(wanted)}", hint=f"it has {known}")


def _split(word: str) -> tuple[Path, tuple[str, str] | None]:
    """A folder and its languages, if given."""
    folder, equals, languages = word.rpartition("=")
    if not equals or Path(word).is_dir():  # a folder may have such a name
        return Path(word), None
    return Path(folder), language_pair(languages)
