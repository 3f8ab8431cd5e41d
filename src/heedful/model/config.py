"""The size and shape of a Transformer; defaults are the paper's base model (table 3)."""

from typing import Literal, Self

from pydantic import Field, model_validator

from heedful.config import Config

INNER_POSITIONS = ("relative", "rotary", "alibi", "relative-tree")
"""Those that are not added to embeddings but known within self-attention."""
TREE_POSITIONS = ("tree", "relative-tree")
"""Those that come from a dependency tree of the source."""
SINUSOIDAL = ("sinusoidal", "tree")
"""Those that the paper's sines are part of."""
RECURRENT = ("gru", "lstm")
"""Families that read word by word."""
PLAIN = ("language", "mask")
"""Families that learn from plain text."""
PAD = 0
"""Id of the padding symbol, from which the decoder also starts: its embedding is zero and stays zero."""


class Architecture(Config):
    """One Transformer without its vocabulary: what a recipe says of the model."""

    family: Literal["transformer", "gru", "lstm", "language", "mask"] = "transformer"
    """The paper's model, the recurrent ones that it replaced, or half of it, by `--task` (docs/family.md)."""
    width: int = Field(512, ge=1, le=65_536)
    """Size of every token vector [d_model]."""
    heads: int = Field(8, ge=1, le=1024)
    """Attention heads a layer [h]; each works on width / heads channels [d_k]."""
    encoder_layers: int = Field(6, ge=1, le=1000)
    """Layers of the encoder [N]."""
    decoder_layers: int = Field(6, ge=1, le=1000)
    """Layers of the decoder [N]."""
    feed_forward_width: int = Field(2048, ge=1, le=262_144)
    """Inner size of the feed-forward network [d_ff]."""
    positions: Literal[
        "sinusoidal", "learned", "relative", "rotary", "alibi", "tree", "relative-tree", "none"
    ] = "sinusoidal"
    """How words know their places: vectors added to the embeddings (the sines of section 3.5, or a learned
    table), or distances within self-attention (relative: Shaw et al. 2018; rotary; alibi), or not at all.
    tree and relative-tree read places in a dependency tree too, from the corpus (docs/family.md)."""
    relative_distance: int = Field(16, ge=1, le=10_000)
    """Relative positions: the distance from which on all are the same [k]."""
    longest: int = Field(1024, ge=8, le=1_000_000)
    """Longest sentence in tokens: longer pairs are not trained on, and learned tables end here."""
    encoder_attention: Literal["full", "bigbird", "linformer"] = "full"
    """Self-attention of the encoder: every pair of words, or less for long text (docs/family.md)."""
    decoder_attention: Literal["full", "bigbird"] = "full"
    """Self-attention of the decoder: everything before, or a window and the beginning."""
    block: int = Field(64, ge=1, le=65_536)
    """BigBird: words of a block."""
    window_blocks: int = Field(3, ge=1, le=999)
    """BigBird: blocks that each block sees around itself, or (decoder) up to and with itself."""
    global_blocks: int = Field(1, ge=0, le=999)
    """BigBird: first blocks of the text, which all blocks see and which (encoder) see all blocks."""
    random_blocks: int = Field(2, ge=0, le=999)
    """BigBird: blocks that each block sees by chance (encoder)."""
    projected_length: int = Field(128, ge=1, le=65_536)
    """Linformer: keys and values that the text is summed up in [k]."""
    scaled_attention: bool = True
    """Whether scores are divided by sqrt(d_k); without it is an experiment."""
    residuals: bool = True
    """Whether each sublayer adds to what came in; without it is an experiment."""
    norm: Literal["post", "pre"] = "post"
    """Normalise after each residual sum (the paper) or before each sublayer (steadier)."""
    normalization: Literal["layer", "rms"] = "layer"
    """LayerNorm (mean and variance), or RMSNorm (size only)."""
    activation: Literal["relu", "gelu", "silu"] = "relu"
    """Between the two linear maps of the feed-forward network."""
    gated: bool = False
    """Whether a third linear map of the feed-forward network multiplies the activation, number by number."""
    dropout: float = Field(0.1, ge=0, le=0.9)
    """Share of numbers dropped from embeddings and every sublayer's output [P_drop]."""
    attention_dropout: float = Field(0.0, ge=0, le=0.9)
    """Share of attention weights dropped."""
    activation_dropout: float = Field(0.0, ge=0, le=0.9)
    """Share of numbers dropped after the activation of the feed-forward network."""
    attention_bias: bool = True
    """Whether W^Q, W^K, W^V and W^O come with biases."""
    tie_output: bool = True
    """One matrix for target embeddings and the output layer (section 3.4)."""
    output_bias: bool = False
    """Whether the output layer adds a trained number for each word, as Marian's does."""
    scale_embeddings: bool = True
    """Whether embeddings are multiplied by sqrt(d_model) (section 3.4)."""

    @model_validator(mode="after")
    def _heads_divide_width(self) -> Self:
        if self.width % self.heads:
            options = ", ".join(str(n) for n in range(1, 65) if self.width % n == 0)
            raise ValueError(
                f"width {self.width} does not split evenly over {self.heads} heads\n"
                f"heads could be one of {options}"
            )
        if (self.positions in SINUSOIDAL or self.family in RECURRENT) and self.width % 2:
            what = "two directions need" if self.family in RECURRENT else "sinusoidal positions need"
            raise ValueError(f"{what} an even width, not {self.width}")
        if self.positions == "rotary" and self.width // self.heads % 2:
            raise ValueError(f"rotary positions need an even number of channels a head, not {self.channels}")
        return self

    @model_validator(mode="after")
    def _patterns_have_added_positions(self) -> Self:
        for name in ("encoder_attention", "decoder_attention"):
            if getattr(self, name) != "full" and self.positions in INNER_POSITIONS:
                raise ValueError(
                    f"{name} = {getattr(self, name)} does not go with {self.positions} positions\n"
                    "positions could be sinusoidal, learned, tree or none"
                )
        if self.encoder_attention == "bigbird" and not self.window_blocks % 2:
            raise ValueError(f"a window around a block has an odd number of blocks, not {self.window_blocks}")
        return self

    @model_validator(mode="after")
    def _only_an_encoder_reads_trees(self) -> Self:
        if self.trees and self.family != "transformer":
            raise ValueError(
                f"model.family = {self.family} does not read trees, which {self.positions} positions need\n"
                "family could be transformer"
            )
        return self

    @property
    def trees(self) -> bool:
        """Whether sources come with the heads of their words."""
        return self.positions in TREE_POSITIONS

    @property
    def ends(self) -> bool:
        """Whether no sentence may be longer than ``longest``, since a learned table ends there."""
        learned = self.positions == "learned" or self.encoder_attention == "linformer"
        return self.family not in RECURRENT and learned

    @property
    def channels(self) -> int:
        """Numbers of a head [d_k]."""
        return self.width // self.heads

    @property
    def embedding_scale(self) -> float:
        """What embeddings are multiplied by."""
        return float(self.width**0.5) if self.scale_embeddings else 1.0


class ModelConfig(Architecture):
    """One Transformer, from its vocabulary to its depth."""

    source_vocabulary: int = Field(ge=2)
    """Entries in the source vocabulary. No default: the tokenizer decides."""
    target_vocabulary: int = Field(ge=2)
    """Entries in the target vocabulary."""
    joint: bool = True
    """One vocabulary, and one embedding matrix, for source and target."""

    @property
    def alignment_layer(self) -> int:
        """Decoder layer (from 0) whose heads, on average, align words best: the last but one of a deep stack.

        The last of many layers looks at what comes next rather than at what is written (docs/log.md).
        """
        if self.family in RECURRENT:
            return 0
        return self.decoder_layers - (2 if self.decoder_layers > 2 else 1)

    @model_validator(mode="after")
    def _joint_is_one_size(self) -> Self:
        if self.joint and self.source_vocabulary != self.target_vocabulary:
            raise ValueError(
                f"a joint vocabulary has one size, not {self.source_vocabulary} and {self.target_vocabulary}"
            )
        return self
