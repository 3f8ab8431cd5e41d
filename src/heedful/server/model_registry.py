"""The models of a server: translation models by direction, language models by name."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from heedful.errors import HeedfulError
from heedful.inference.translator import Translator
from heedful.model_folder import ModelFolder
from heedful.server.api_errors import bad_request
from heedful.server.batching import Batcher
from heedful.server.config import ServerConfig
from heedful.tokenization.languages import parse_language_pair, resolve_language
from heedful.tokenization.sentence_splitter import TextSegment

LoadModel = Callable[[Path], Translator | ModelFolder]
"""Loads a translator, or the folder of a language model."""

LANGUAGE_MODEL_ROUTES = {"causal_lm": "POST /api/generate", "masked_lm": "POST /api/fill"}
"""The route of each language model."""

UNNAMED_LANGUAGES = ("source", "target")
"""Language codes of a model whose languages are unknown."""


@dataclass(frozen=True, slots=True)
class ServedLanguageModel:
    """A language model: it generates text, or fills in blanks."""

    folder: Path
    model_folder: ModelFolder
    engine_name = "PyTorch"

    @property
    def name(self) -> str:
        """Its folder's name."""
        return short_folder_name(self.folder)

    @property
    def task(self) -> str:
        """Its architecture, which determines its task."""
        return self.model_folder.config.model.architecture

    def split_segments(self, text: str) -> list[TextSegment]:
        """Return the whole text: its continuation depends on all of it."""
        return [TextSegment(text, "")]


@dataclass(frozen=True, slots=True)
class ServedDirection:
    """One translation direction of a model; a multilingual model has several."""

    source: str
    target: str
    folder: Path
    batcher: Batcher
    """Shared by all directions of the model."""
    model_languages: tuple[str, str] = ("", "")
    """Source and target as a multilingual model names them; empty for others."""

    @property
    def name(self) -> str:
        """The direction, such as en-fr."""
        return f"{self.source}-{self.target}"

    @property
    def is_unnamed(self) -> bool:
        """Whether its languages are unknown."""
        return (self.source, self.target) == UNNAMED_LANGUAGES

    @property
    def naming_hint(self) -> str:
        """How to name its languages on the command line."""
        return f"heedful serve {self.folder}=SOURCE-TARGET, such as {self.folder}=en-de"

    @property
    def model_folder(self) -> ModelFolder:
        """The model, with this direction as its default."""
        model_folder, (source, target) = self.batcher.translator.model_folder, self.model_languages
        return model_folder.for_language(target, source) if target else model_folder

    @property
    def is_zero_shot(self) -> bool:
        """Whether the model was not trained on this direction."""
        return bool(self.model_languages[1]) and self.batcher.translator.model_folder.config.is_zero_shot(
            *self.model_languages
        )

    @property
    def engine_name(self) -> str:
        """The backend that runs it, for people."""
        return self.batcher.translator.name

    def split_segments(self, text: str, target_language: str = "") -> list[TextSegment]:
        """Split a text into segments that fit the model, with their tokens to translate into the language."""
        try:
            return self.batcher.translator.split_segments(text, target_language)
        except HeedfulError as error:  # such as invalid dependency heads
            raise bad_request(str(error)) from None


ServedModel = ServedDirection | ServedLanguageModel


class ModelRegistry:
    """All models of a server; iterating yields the translation directions."""

    def __init__(
        self, directions: Sequence[ServedDirection], language_models: Sequence[ServedLanguageModel] = ()
    ) -> None:
        self.language_models = tuple(language_models)
        self._directions: dict[tuple[str, str], ServedDirection] = {}
        for direction in directions:
            pair = source, target = _hyphenate(direction.source), _hyphenate(direction.target)
            direction = replace(direction, source=source, target=target)
            if pair in self._directions:
                raise HeedfulError(
                    f"two models translate {direction.name}: {self._directions[pair].folder} and {direction.folder}",
                    hint=f"name their languages: {direction.naming_hint}"
                    if direction.is_unnamed
                    else "serve one of them on another port: --port 5001",
                )
            self._directions[pair] = direction
        names = [model.name for model in (*self, *self.language_models)]
        duplicate = next((name for name in names if names.count(name) > 1), None)
        if duplicate is not None:
            raise HeedfulError(
                f"two models are named {duplicate}", hint="serve one of them on another port: --port 5001"
            )

    def __iter__(self) -> Iterator[ServedDirection]:
        return iter(self._directions.values())

    @property
    def directions_by_model(self) -> list[list[ServedDirection]]:
        """Group the directions by model."""
        groups: dict[int, list[ServedDirection]] = {}
        for direction in self:
            groups.setdefault(id(direction.batcher), []).append(direction)
        return list(groups.values())

    @property
    def models_by_name(self) -> dict[str, ServedModel]:
        """All models by name, translation models first."""
        return {model.name: model for model in (*self, *self.language_models)}

    @property
    def first_direction(self) -> ServedDirection:
        """The first direction."""
        self.check_can_translate()
        return next(iter(self))

    def check_can_translate(self) -> None:
        """Raise an error if no model translates."""
        if not self._directions:
            available = ", ".join(
                f"{model.name} ({LANGUAGE_MODEL_ROUTES[model.task]})" for model in self.language_models
            )
            raise bad_request(f"no model of this server translates; it has {available}")

    @property
    def source_languages(self) -> list[str]:
        """Supported source languages."""
        return sorted({direction.source for direction in self})

    @property
    def languages(self) -> list[str]:
        """All source and target languages."""
        return sorted({*self.source_languages, *(direction.target for direction in self)})

    def get_target_languages(self, source: str) -> list[str]:
        """Return the target languages of a source language."""
        return sorted(direction.target for direction in self if direction.source == source)

    def get_source_languages(self, target: str) -> list[str]:
        """Return the source languages of a target language."""
        return sorted(direction.source for direction in self if direction.target == target)

    def resolve_language(self, code: str) -> str:
        """Match a client's code with a served language: pt_br is pt-BR, fr may be fra, zh-TW zh-Hant, en-US en."""
        self.check_can_translate()
        by_code = {language.casefold(): language for language in self.languages}
        requested = _hyphenate(code).casefold()
        if requested in by_code:
            return by_code[requested]
        resolved = resolve_language(code, self.languages)
        if resolved is None:
            raise bad_request(f"{code} is not supported; languages: {', '.join(self.languages)}")
        return resolved

    def find_direction(self, source: str, target: str) -> ServedDirection:
        """Return the model of a direction."""
        direction = self._directions.get((source, target))
        if direction is None:
            targets = ", ".join(self.get_target_languages(source)) or "nothing"
            raise bad_request(f"{source} is not translated into {target}, but into {targets}")
        return direction


def _hyphenate(code: str) -> str:
    return code.replace("_", "-")


def load_registry(specs: Sequence[str], config: ServerConfig, load: LoadModel) -> ModelRegistry:
    """Load the models of the command line: each a folder, or FOLDER=en-fr to name its languages."""
    directions: list[ServedDirection] = []
    language_models: list[ServedLanguageModel] = []
    for spec in specs:
        folder, languages = _parse_model_spec(spec)
        model = load(folder)
        if not isinstance(model, ModelFolder):
            directions += _list_directions(folder, model, languages, Batcher(model, config))
        elif languages is None:
            language_models.append(ServedLanguageModel(folder, model))
        else:
            raise HeedfulError(f"the model {folder} does not translate", hint=f"use {folder} without languages")
    return ModelRegistry(directions, language_models)


def short_folder_name(folder: Path) -> str:
    """Return a folder's name, with its parent's if it is just "model"."""
    folder = folder.resolve()
    return f"{folder.parent.name}/{folder.name}" if folder.name == "model" else folder.name


def _list_directions(
    folder: Path, translator: Translator, requested: tuple[str, str] | None, batcher: Batcher
) -> list[ServedDirection]:
    """Return the directions of a model, or the requested one."""
    config = translator.model_folder.config
    if not config.target_languages:
        return [ServedDirection(*(requested or config.languages or UNNAMED_LANGUAGES), folder, batcher)]
    directions = config.supported_directions or [("", target) for target in config.target_languages]
    if requested is not None:
        if requested not in directions and ("", requested[1]) not in directions:
            available = ", ".join("-".join(filter(None, pair)) for pair in directions)
            problem = f"the model {folder} does not translate {'-'.join(requested)}"
            raise HeedfulError(problem, hint=f"use one of {available}")
        directions = [requested]
    return [ServedDirection(pair[0] or UNNAMED_LANGUAGES[0], pair[1], folder, batcher, pair) for pair in directions]


def _parse_model_spec(spec: str) -> tuple[Path, tuple[str, str] | None]:
    """Split FOLDER=en-fr; without languages, the second value is None."""
    folder, separator, languages = spec.rpartition("=")
    if not separator or Path(spec).is_dir():  # a folder name may contain =
        return Path(spec), None
    return Path(folder), parse_language_pair(languages)
