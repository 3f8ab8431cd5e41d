"""The seam of translation: text in, Translation out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from heedful.bundle import Bundle
from heedful.decoding.config import SearchConfig
from heedful.text.links import Link


@dataclass(frozen=True, slots=True)
class Alternative:
    """One of the n best translations of a text."""

    text: str
    score: float
    """Log-probability over the length penalty: higher is better."""
    log_probability: float
    tokens: tuple[str, ...]
    token_log_probabilities: tuple[float, ...]
    """One for each token, and one for the end of each sentence; a quick engine gives them with details."""
    alignment: tuple[Link, ...] = ()
    """(source word, target word) over the words between spaces, from 0; given with details."""


@dataclass(frozen=True, slots=True)
class Translation:
    """What became of one text."""

    source: str
    alternatives: tuple[Alternative, ...]
    """Best first."""
    segments: int = 1
    """Pieces the text was split into, being longer than the model reads at once."""
    complete: bool = True
    """False when a translation ran into the longest length before it ended."""

    @property
    def text(self) -> str:
        """The best translation."""
        return self.alternatives[0].text

    @property
    def score(self) -> float:
        """The best translation's score."""
        return self.alternatives[0].score


@dataclass(frozen=True, slots=True)
class Continuation:
    """One way to go on after what is written, and where it leads."""

    piece: str
    """The next token as it stands in the vocabulary; "</s>" says that the sentence ends here."""
    token: int
    """Its id."""
    probability: float
    """What the model gives it among all tokens; if the prefix ends inside a word, among all ways to go on."""
    word: str
    """The whole word of the translation that it belongs to; empty at the end."""
    translation: Translation
    """The best translation that begins so."""


class Engine(Protocol):
    """A model at work."""

    bundle: Bundle
    name: str
    """For people."""
    windows_at_once: int
    """Windows of lines that keep it busy: one is prepared while others are translated."""

    def translate(
        self,
        texts: Sequence[str],
        search: SearchConfig | None = None,
        prefixes: Sequence[str] | None = None,
        *,
        details: bool = False,
    ) -> list[Translation]:
        """Translate each text; ``prefixes`` are beginnings that the translations must have.

        With ``details`` every alternative has the probabilities of its tokens and its alignment, which costs.
        """
        ...

    def score(
        self, sources: Sequence[str], targets: Sequence[str], search: SearchConfig | None = None
    ) -> list[Alternative]:
        """How likely the model finds these translations."""
        ...

    def stream(self, text: str, search: SearchConfig | None = None, prefix: str = "") -> Iterator[str]:
        """The translation of one text bit by bit, as it is written: greedy or sampled."""
        ...

    def continuations(
        self, text: str, prefix: str = "", search: SearchConfig | None = None, count: int = 8
    ) -> list[Continuation]:
        """The likeliest next tokens after ``prefix``, likeliest first, each with the translation it leads to.

        For one sentence. After a prefix that ends with a space a new word begins, or the sentence ends. If it
        ends inside a word, a token may replace the word's beginning and complete it.
        """
        ...
