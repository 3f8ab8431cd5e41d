"""How a corpus is made ready: by how many processes, in pieces and shards of what size, or as a stream."""

from pydantic import Field

from heedful.config import Config


class PreparationConfig(Config):
    """How a corpus is made ready, if it is large."""

    processes: int = Field(0, ge=0, le=1024)
    """Processes that clean and encode a corpus of more than one piece; 0 for one for each core."""
    piece_megabytes: float = Field(32.0, gt=0, le=100_000)
    """So much of the files is cleaned at a time; after a kill, whole pieces are not cleaned again."""
    shard_pairs: int = Field(1_000_000, ge=1)
    """Pairs that are kept, shuffled and planned together; a corpus of more is kept in shards."""
    stream: bool = False
    """Read pairs from the files while training, and keep none of them: for corpora larger than the disk."""
    window_pairs: int = Field(100_000, ge=1)
    """Pairs of a stream that are in memory, and shuffled, at a time."""
    sample_pairs: int = Field(200_000, ge=2)
    """Pairs of a stream that the recipe, the tokenizer and validation pairs are chosen by."""

    @property
    def piece_bytes(self) -> int:
        """The size of a piece."""
        return max(1, round(self.piece_megabytes * (1 << 20)))
