"""Generation settings; the defaults are the paper's (section 6.1)."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from heedful.config import Config, extract_section, merge_settings, parse_overrides


def length_penalty(length: int, alpha: float) -> float:
    """((5 + length) / 6) ^ alpha (Wu et al. 2016; section 6.1 of the paper); the length includes END.

    >>> length_penalty(1, 0.6)
    1.0
    """
    return float(((5 + length) / 6) ** alpha)


class GenerationConfig(Config):
    """How to search for a translation; beam size 1 is greedy search."""

    method: Literal["beam", "sample"] = "beam"
    """Search for the most probable translation, or sample from the model's distribution."""
    beam_size: int = Field(4, ge=1, le=100)
    """Beam size; 1 is greedy search."""
    length_penalty: float = Field(0.6, ge=0, le=10)
    """Scores are divided by ((5 + length) / 6) ^ length_penalty [alpha]; 0 favors short translations."""
    length_normalization: Literal["paper", "length"] = "paper"
    """paper: as above; length: divide by length ^ length_penalty, as Marian and Hugging Face do."""
    early_stopping: bool = True
    """Stop once `beam_size` hypotheses are complete; otherwise continue while the best incomplete one scores
    above the worst of these."""
    max_length: int = Field(0, ge=0, le=1_000_000)
    """Maximum tokens of a translation, END included; 0 for no limit."""
    max_length_offset: int = Field(50, ge=1, le=100_000)
    """Maximum tokens of a translation, END included, beyond the length of the source."""
    target_language: str = ""
    """Target language of a multilingual model; empty for its default."""
    glossary_mode: Literal["auto", "inline", "constrained", "split"] = "auto"
    """How to apply a glossary: inline terms, constrained search, or splitting; auto: the first possible."""
    n_best: int = Field(1, ge=1, le=100)
    """Translations per sentence."""
    temperature: float = Field(1.0, ge=1e-4, le=100)
    """Sampling: below 1 more deterministic, above 1 more random."""
    top_k: int = Field(0, ge=0)
    """Sampling: only the k most probable tokens; 0 for all."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Sampling: only the most probable tokens with this total probability."""
    seed: int = Field(0, ge=0, lt=2**31)
    """Sampling: the same seed gives the same samples for the same sentence."""
    max_batch_tokens: int = Field(4096, ge=1)
    """Maximum padded source tokens per batch, times the beam size."""

    def penalty(self, length: int) -> float:
        """Divisor of the score of a hypothesis of this length, END included."""
        if self.length_normalization == "length":
            return float(max(length, 1) ** self.length_penalty)
        return length_penalty(length, self.length_penalty)

    def max_output_length(self, source_length: int) -> int:
        """Maximum tokens of a translation, END included, for a source length without END."""
        max_length = source_length + self.max_length_offset
        return min(max_length, self.max_length) if self.max_length else max_length

    @model_validator(mode="after")
    def _check_n_best(self) -> Self:
        if self.method == "beam" and self.n_best > self.beam_size:
            raise ValueError(
                f"n_best {self.n_best} is larger than beam_size {self.beam_size}\n"
                f"set beam_size to {self.n_best} or more"
            )
        return self


def build_generation_config(
    base: GenerationConfig, options: Mapping[str, Any], settings: Sequence[str]
) -> GenerationConfig:
    """Merge command-line options and overrides into the defaults of a model."""
    overrides = merge_settings(extract_section(parse_overrides(settings), "generation"), options)
    n_best = overrides.get("n_best")
    if isinstance(n_best, int) and n_best > base.beam_size:
        overrides.setdefault("beam_size", n_best)
    return GenerationConfig.from_settings(merge_settings(base.model_dump(), overrides))
