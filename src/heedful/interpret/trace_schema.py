"""The JSON of a trace: ``TraceRequest`` and ``TraceManifest``, the only definition of both.

The server validates and documents its API with these classes, trace files are checked against them, and the
page (``web/static/data/trace.js``) reads what they write.
"""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from heedful.config import Config
from heedful.generation.beam_search import CandidateStatus
from heedful.interpret.activations import AttentionKind

TRACE_FORMAT = 2
MAX_TRACE_TOKENS = 512
"""Maximum tokens of a traced sentence: attention tensors grow with the square."""

MAX_TRACE_BEAM_SIZE = 16


class TraceRequest(Config):
    """What to trace."""

    source: str
    """One sentence; for a causal language model a prompt, for a masked one a text with blanks (__)."""
    prefix: str = ""
    """Start of the translation, as text; cannot be combined with a target."""
    prefix_ids: tuple[int, ...] = ()
    """Start of the translation, as target token ids; for a language model it replaces the prompt."""
    target: str | None = None
    """A complete translation to score; default: the model generates one."""
    target_ids: tuple[int, ...] | None = None
    """The same as token ids; for a language model the complete text, continued or filled."""
    beam_size: int | None = Field(None, ge=1, le=MAX_TRACE_BEAM_SIZE)
    """Default: the model's setting (1 for a language model). With a target, only alternatives use it."""
    seed: int | None = Field(None, ge=0, lt=2**31)
    """Sample with this seed instead of searching; cannot be combined with beam_size."""
    top_k: int = Field(0, ge=0)
    """Sample from the k most probable tokens; 0: from all."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Sample from the most probable tokens whose probabilities sum to this value."""
    temperature: float = Field(1.0, ge=0.05, le=20.0)
    """Of sampling, and of the probabilities listed for each step; beam search ignores it."""
    ablated_heads: tuple[str, ...] = Field((), max_length=1024)
    """Heads to switch off, counted from 0: encoder.0.3, decoder.1.0, cross.1.2."""
    masked_source: tuple[int, ...] = Field((), max_length=MAX_TRACE_TOKENS)
    """Source positions, from 0, masked like padding; the end cannot be masked."""


# ---- The manifest: everything but the tensors.

BlockReason = Literal["first", "window", "random"]
"""Why a block attends to another (BigBird): a global block, a neighbor, or a random one."""

Task = Literal["translate", "generate", "fill"]

Size = tuple[NonNegativeInt, NonNegativeInt]


class StackAttention(Config):
    """The attention mechanism of each stack: full, bigbird or linformer."""

    encoder: str
    decoder: str


class AttentionLayers(Config):
    """Layers with each kind of attention."""

    encoder: NonNegativeInt
    decoder: NonNegativeInt
    cross: NonNegativeInt


class VocabularySizes(Config):
    """Tokens of each vocabulary."""

    source: NonNegativeInt
    target: NonNegativeInt


class ModelFacts(Config):
    """A model in a few numbers."""

    name: str
    languages: tuple[str, str] | None
    architecture: str
    task: Task
    encoder_layers: NonNegativeInt
    decoder_layers: NonNegativeInt
    layers: AttentionLayers
    heads: PositiveInt
    has_arithmetic: bool
    """Whether single attention weights can be recomputed: not in recurrent models."""
    d_model: PositiveInt
    d_k: PositiveInt
    d_ff: PositiveInt
    norm_placement: str
    positions: str
    activation: str
    attention: StackAttention
    vocab_size: VocabularySizes
    parameters: NonNegativeInt
    guided_head: Size | None
    """Encoder layer and head trained with guided attention, counted from 1."""
    beam_size: PositiveInt
    length_penalty: float
    length_normalization: str
    scale_embeddings: bool


class ManifestTokens(Config):
    """Tokens and the words they form."""

    ids: tuple[int, ...]
    subwords: tuple[str, ...]
    word_ids: tuple[int, ...]
    """The word of each token."""
    words: tuple[str, ...]


class ManifestSequence(ManifestTokens):
    """Tokens of a text."""

    spans: tuple[Size | None, ...]
    """Characters of the text that each token covers."""


class ManifestSides(Config):
    """The sequences that attend and are attended to."""

    source: ManifestSequence
    decoder_input: ManifestSequence
    target: ManifestSequence
    projected_keys: ManifestTokens | None
    """What the encoder attends to in a Linformer, instead of words."""


class ManifestText(Config):
    """The source as the model reads it."""

    source: str


class ManifestTranslation(Config):
    """The output."""

    text: str
    ids: tuple[int, ...]
    log_probability: float
    score: float
    """Log-probability over the length penalty."""
    complete: bool
    """False if it reached the maximum length."""
    is_reference: bool
    """Whether it was given and only scored."""
    prefix_length: NonNegativeInt
    """Tokens at its start that were given."""


class TopToken(Config):
    """One of the most probable tokens of a step."""

    id: NonNegativeInt
    logit: float
    probability: float
    """At the requested temperature."""


class ManifestStep(Config):
    """The prediction of one token."""

    id: NonNegativeInt
    logit: float
    log_probability: float
    probability: float
    rank: PositiveInt
    entropy: float
    top: tuple[TopToken, ...]


class BeamNode(Config):
    """A candidate of beam search."""

    step: NonNegativeInt
    parent: Annotated[int, Field(ge=-1)]
    """Index in the list of nodes; -1 is the start."""
    id: NonNegativeInt
    log_probability: float
    total: float
    score: float
    status: CandidateStatus


class ManifestBeamSearch(Config):
    """All candidates of a search, and how it ranked them."""

    beam_size: PositiveInt
    length_penalty: float
    length_normalization: str
    space: str
    """The character that stands for a space in subwords."""
    nodes: tuple[BeamNode, ...]


class HeadSummary(Config):
    """What a head does on this sentence (see ``HeadProfile``)."""

    kind: AttentionKind
    layer: NonNegativeInt
    head: NonNegativeInt
    pattern: str
    entropy: float
    normalized_entropy: float
    sink_weight: float


class ManifestAlignment(Config):
    """Word alignment read from cross-attention."""

    layer: NonNegativeInt
    head: NonNegativeInt | None
    caption: str
    links: tuple[Size, ...]
    """Pairs of source and target words."""


class SparsePattern(Config):
    """Which blocks attend to which (BigBird)."""

    block_size: PositiveInt
    rows: tuple[tuple[NonNegativeInt, ...], ...]
    reasons: tuple[tuple[BlockReason, ...], ...]


class TensorSpec(Config):
    """Type (as safetensors names it) and shape of a tensor."""

    dtype: Literal["F16", "F32", "U8", "I32"]
    shape: tuple[NonNegativeInt, ...]


class TraceManifest(Config):
    """Everything about one forward pass but its tensors."""

    format: int = TRACE_FORMAT
    id: str
    checkpoint: NonNegativeInt | None = None
    """Update of the checkpoint; null for the final model."""
    segments: tuple[tuple[str, str], ...]
    """Sentences of the text, each with what separates it from the next."""
    segment: NonNegativeInt = 0
    """Index of the traced sentence."""
    model: ModelFacts
    request: TraceRequest
    sides: ManifestSides
    text: ManifestText
    translation: ManifestTranslation
    blank_positions: tuple[NonNegativeInt, ...] | None
    """Target positions that a masked language model filled; null if it wrote all."""
    steps: tuple[ManifestStep, ...]
    subwords: dict[int, str]
    """Subwords of all ids listed in steps, search and logit lens."""
    beam_search: ManifestBeamSearch | None
    heads: tuple[HeadSummary, ...]
    alignment: ManifestAlignment | None
    sparse_patterns: dict[str, SparsePattern]
    tensors: dict[str, TensorSpec]
    notes: tuple[str, ...]
