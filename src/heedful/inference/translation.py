"""What every layer of translation shares: its results and the backend protocol.

The rule to remember: ``Translator`` handles text, a ``Backend`` handles token ids.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from heedful.data.word_alignment import WordLink
from heedful.generation.config import GenerationConfig
from heedful.generation.constraints import Constraint
from heedful.generation.decoder_protocol import Hypothesis
from heedful.model_folder import ModelFolder
from heedful.tokenization.dependency_trees import SentenceIds

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Alternative:
    """One of the n best translations of a text, or a text assembled from translations of its parts."""

    text: str
    score: float = 0.0
    """Log-probability divided by the length penalty; higher is better."""
    log_probability: float = 0.0
    tokens: tuple[str, ...] = ()
    token_log_probabilities: tuple[float, ...] = ()
    """One per token and one per sentence end; CTranslate2 computes them only with details."""
    alignment: tuple[WordLink, ...] = ()
    """(source word, target word), whitespace-separated words counted from 0; only with details."""
    steps: int = 0
    """Decoding steps: the tokens, and the end of each sentence. 0 if the text was assembled from parts of
    other translations and has no scores."""
    complete: bool = True
    """False if a segment reached the maximum length before its end."""


@dataclass(frozen=True, slots=True)
class Translation:
    """The translation of one text."""

    source: str
    alternatives: tuple[Alternative, ...]
    """Best first."""
    segments: int = 1
    """Segments that the text was split into to fit the model."""
    missing_terms: tuple[str, ...] = ()
    """Glossary terms that the best translation lacks."""
    error: str = ""
    """Why the text could not be translated; bulk translation then leaves it empty."""

    @property
    def text(self) -> str:
        """The best translation."""
        return self.alternatives[0].text

    @property
    def complete(self) -> bool:
        """Whether the best translation is complete."""
        return self.alternatives[0].complete

    @property
    def score(self) -> float:
        """The score of the best translation."""
        return self.alternatives[0].score


@dataclass(frozen=True, slots=True)
class TokenAlternative:
    """A token that could come next at a position of a translation, and the translation it leads to."""

    token_id: int
    subword: str
    """The token as spelled in the vocabulary; "</s>" ends the sentence."""
    probability: float
    """Among all tokens; if the prefix ends inside a word, among all ways to continue it."""
    word: str
    """The word of the translation that the token belongs to; empty at the end."""
    translation: Translation
    """The best translation that starts with the prefix and the token."""


class SearchInput(NamedTuple):
    """One segment as a backend searches it."""

    ids: SentenceIds
    prefix: list[int]
    """Tokens that the translation must start with."""
    constraints: tuple[Constraint, ...] = ()
    """Terms that the translation must contain."""


class Backend(Protocol):
    """Runs one model on token ids, without END. Backends give the same results for the same inputs."""

    model_folder: ModelFolder
    name: str
    """Shown to users."""
    concurrent_batches: int
    """Batches of lines to submit at a time to keep it busy."""

    def search(
        self, inputs: Sequence[SearchInput], config: GenerationConfig, *, with_attention: bool = False
    ) -> list[list[Hypothesis]]:
        """The hypotheses of each input, best first."""
        ...

    def score(self, sources: Sequence[SentenceIds], targets: Sequence[list[int]]) -> list[list[float]]:
        """The log-probability of each token of each target, and of its END."""
        ...

    def add_attention(self, source_ids: SentenceIds, hypothesis: Hypothesis) -> Hypothesis:
        """The hypothesis with its attention to the source, for word alignment."""
        ...

    def stream(self, source_ids: SentenceIds, prefix: list[int], config: GenerationConfig) -> Iterator[int]:
        """Tokens as they are generated, greedily or by sampling; the prefix comes first."""
        ...

    def next_token_probabilities(self, source_ids: SentenceIds, prefix: list[int]) -> "Tensor":
        """Distributions after the prefix, see ``generation.search.next_token_probabilities``."""
        ...
