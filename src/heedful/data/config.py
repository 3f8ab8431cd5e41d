"""Settings of reading, cleaning, preprocessing and batching."""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from heedful.config import Config, extract_section, parse_overrides


class PreprocessingConfig(Config):
    """How a large corpus is preprocessed."""

    processes: int = Field(0, ge=0, le=1024)
    """Processes that clean and encode a corpus of more than one chunk; 0: one per core."""
    chunk_megabytes: float = Field(32.0, gt=0, le=100_000)
    """Size of a chunk of the files; after a crash, complete chunks are not cleaned again."""
    shard_pairs: int = Field(1_000_000, ge=1)
    """Pairs that are stored and shuffled together; a larger corpus is stored in shards."""
    streaming: bool = False
    """Read pairs from the files while training and store none: for corpora larger than the disk."""
    shuffle_buffer_pairs: int = Field(100_000, ge=1)
    """Pairs of a stream that are shuffled in memory."""
    sample_pairs: int = Field(200_000, ge=2)
    """Pairs of a stream that set the automatic settings, the tokenizer and the validation pairs."""

    @property
    def chunk_bytes(self) -> int:
        return max(1, round(self.chunk_megabytes * (1 << 20)))


class ReadingConfig(Config):
    """How to read files that hold more than pairs: TMX, PO, XLIFF, CSV."""

    inline_tags: Literal["strip", "keep"] = "strip"
    """Inline tags in TMX and XLIFF sentences: remove them, or keep them as text."""
    malformed: Literal["error", "skip"] = "error"
    """A malformed unit: stop with its line number, or count it and continue where possible."""
    include_fuzzy: bool = False
    """Include unconfirmed translations: fuzzy entries in PO, units that need work in XLIFF."""
    encoding: str = ""
    """Encoding of CSV and PO files that are not UTF-8 and declare none, such as cp1252; empty: UTF-8."""


class CleaningConfig(Config):
    """Which pairs to drop and how to normalize the rest before training."""

    max_characters: int = Field(default=1000, ge=0)
    """Maximum characters per sentence, on either side; 0 disables the limit."""
    max_length_ratio: float = Field(default=6.0, ge=0)
    """Maximum ratio of longer to shorter side in characters, applied from 20 characters; 0 disables it."""
    deduplicate: bool = True
    """Keep only the first of identical pairs."""
    unicode_normalization: Literal["none", "nfc"] = "nfc"
    """Unicode form: nfc gives each accented letter one spelling; none leaves text unchanged."""


class BatchConfig(Config):
    """How many sentences go through the model at once."""

    max_tokens: int = Field(default=4096, ge=1)
    """Maximum padded tokens of a batch, on each side."""
    max_sentences: int = Field(default=0, ge=0)
    """Maximum sentence pairs of a batch; 0: no limit."""


class TermsConfig(Config):
    """Inline terms (Dinu et al. 2019): term translations inside sources, which the model learns to copy."""

    fraction: float = Field(0.0, ge=0, le=1)
    """Fraction of the pairs that are repeated with an inline term; 0: none."""
    glossary: str = ""
    """A file of terms (TSV or CSV): every pair with a term on both sides is repeated with it inline."""
    swap_fraction: float = Field(0.5, ge=0, le=1)
    """Fraction of extracted terms that get another translation on both sides: it teaches copying."""


class PreprocessOptions(Config):
    """All that preprocessing needs of a run's settings; ``RunConfig.preprocess_options`` builds it."""

    cleaning: CleaningConfig
    preprocessing: PreprocessingConfig = PreprocessingConfig()
    batching: BatchConfig
    inline_terms: TermsConfig
    max_length: int
    """Maximum tokens of a sentence, with END."""
    dependency_trees: bool
    """Whether source ids carry dependency trees."""
    seed: int
    validation_size: int
    gradient_accumulation: int


def parse_reading_settings(settings: Sequence[str]) -> tuple[ReadingConfig, list[str]]:
    """The section ``reading``, and the other settings."""
    reading_assignments = [assignment for assignment in settings if assignment.lstrip().startswith("reading")]
    config = ReadingConfig.from_settings(extract_section(parse_overrides(reading_assignments), "reading"))
    return config, [assignment for assignment in settings if assignment not in reading_assignments]
