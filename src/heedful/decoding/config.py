"""How a translation is searched for; defaults are the paper's (section 6.1)."""

from typing import Literal, Self

from pydantic import Field, model_validator

from heedful.config import Config
from heedful.decoding.hypothesis import length_penalty


class SearchConfig(Config):
    """Greedy is a beam of 1; sampling draws each word at random."""

    method: Literal["beam", "sample"] = "beam"
    """Look for the likeliest translation, or draw from the model's distribution."""
    beam: int = Field(4, ge=1, le=100)
    """Hypotheses kept side by side; 1 is greedy."""
    length_penalty: float = Field(0.6, ge=0, le=10)
    """Scores are divided by ((5 + length) / 6) ^ this [alpha]; 0 favours short translations."""
    normalization: Literal["paper", "length"] = "paper"
    """Whether scores are divided so, or by length ^ length_penalty, as Marian and Hugging Face do."""
    early_stopping: bool = True
    """Whether a search ends once `beam` hypotheses have ended, or goes on while the best unfinished one still
    scores above the worst of these."""
    longest: int = Field(0, ge=0, le=1_000_000)
    """A translation has at most this many tokens, its end included, whatever the source; 0 for no limit."""
    extra_length: int = Field(50, ge=1, le=100_000)
    """A translation has at most the length of the source plus this many tokens, its end included."""
    language: str = ""
    """Language to translate into, of a model that knows several; empty for its usual one."""
    glossary_mode: Literal["auto", "inline", "constrain", "split"] = "auto"
    """How a glossary's terms get in: read inline, searched for, put between parts; auto: the first it can."""
    n_best: int = Field(1, ge=1, le=100)
    """Translations returned for each sentence."""
    temperature: float = Field(1.0, ge=1e-4, le=100)
    """Sampling: below 1 bolder words, above 1 rarer ones."""
    top_k: int = Field(0, ge=0)
    """Sampling: only among the k likeliest words; 0 for all."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Sampling: only among the likeliest words that together reach this probability."""
    seed: int = Field(0, ge=0, lt=2**31)
    """Sampling: the same seed draws the same words for the same sentence."""
    batch_tokens: int = Field(4096, ge=1)
    """Padded source tokens translated together, counted once for each hypothesis."""

    def penalty(self, length: int) -> float:
        """What the score of a hypothesis of this length, END included, is divided by."""
        if self.normalization == "length":
            return float(max(length, 1) ** self.length_penalty)
        return length_penalty(length, self.length_penalty)

    def limit(self, source: int) -> int:
        """Tokens of the longest translation, END included, of a source of this length without END."""
        limit = source + self.extra_length
        return min(limit, self.longest) if self.longest else limit

    @model_validator(mode="after")
    def _beam_holds_n_best(self) -> Self:
        if self.method == "beam" and self.n_best > self.beam:
            raise ValueError(
                f"a beam of {self.beam} cannot give {self.n_best} translations\n"
                f"set the beam to {self.n_best} or more"
            )
        return self
