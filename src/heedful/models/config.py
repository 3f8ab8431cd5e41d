"""Shape of a model; the defaults are the paper's base model (table 3)."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from heedful.config import Config
from heedful.errors import HeedfulError

RELATIVE_POSITIONS = ("relative", "rotary", "alibi", "relative-dependency")
"""Positions within self-attention, not added to embeddings."""

DEPENDENCY_POSITIONS = ("dependency", "relative-dependency")
"""Positions that need a dependency tree of the source."""

SINUSOIDAL_POSITIONS = ("sinusoidal", "dependency")
"""Positions that use the sinusoids of section 3.5."""

RECURRENT_ARCHITECTURES = ("gru", "lstm")
"""Architectures that read token by token."""

LANGUAGE_MODEL_ARCHITECTURES = ("causal_lm", "masked_lm")
"""Architectures trained on plain text."""

NORM_EPSILON = 1e-5
"""Added to the variance in LayerNorm, and to the mean square in RMSNorm."""


class ArchitectureConfig(Config):
    """Shape of a model without its vocabulary: the [model] section of a recipe."""

    architecture: Literal["transformer", "gru", "lstm", "causal_lm", "masked_lm"] = "transformer"
    """Transformer, recurrent network, or (by `--task`) decoder-only or encoder-only language model."""
    d_model: int = Field(512, ge=1, le=65_536)
    """Size of every token vector [d_model]."""
    heads: int = Field(8, ge=1, le=1024)
    """Attention heads per layer [h]; each has d_model / heads channels [d_k]."""
    encoder_layers: int = Field(6, ge=1, le=1000)
    """Layers of the encoder [N]."""
    decoder_layers: int = Field(6, ge=1, le=1000)
    """Layers of the decoder [N]."""
    d_ff: int = Field(2048, ge=1, le=262_144)
    """Inner size of the feed-forward network [d_ff]."""
    positions: Literal[
        "sinusoidal", "learned", "relative", "rotary", "alibi", "dependency", "relative-dependency", "none"
    ] = "sinusoidal"
    """Positional encoding: added to the embeddings (sinusoidal, section 3.5, or learned), or within
    self-attention (relative, Shaw et al. 2018; rotary; alibi), or none. dependency and relative-dependency
    also use a dependency tree of the source from the corpus (docs/model-variants.md)."""
    max_relative_distance: int = Field(16, ge=1, le=10_000)
    """Relative positions: larger distances are clipped to this one [k]."""
    max_length: int = Field(1024, ge=8, le=1_000_000)
    """Maximum sentence length in tokens: longer pairs are skipped, and learned positions end here."""
    encoder_attention: Literal["full", "bigbird", "linformer"] = "full"
    """Self-attention of the encoder: full, or efficient for long text (docs/model-variants.md)."""
    decoder_attention: Literal["full", "bigbird"] = "full"
    """Self-attention of the decoder: full, or a window and the first blocks."""
    block_size: int = Field(64, ge=1, le=65_536)
    """BigBird: tokens per block."""
    window_blocks: int = Field(3, ge=1, le=999)
    """BigBird: blocks in the window around each block (encoder), or up to it (decoder), itself included."""
    global_blocks: int = Field(1, ge=0, le=999)
    """BigBird: first blocks of the text, which all blocks attend to and which (encoder) attend to all."""
    random_blocks: int = Field(2, ge=0, le=999)
    """BigBird: random blocks that each block attends to (encoder)."""
    projected_length: int = Field(128, ge=1, le=65_536)
    """Linformer: projected length of keys and values [k]."""
    scale_attention: bool = True
    """Divide attention scores by sqrt(d_k); false for ablations."""
    residuals: bool = True
    """Residual connection around each sublayer; false for ablations."""
    norm_placement: Literal["post", "pre"] = "post"
    """Norm after each residual sum (post, the paper) or before each sublayer (pre, more stable)."""
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    """LayerNorm (mean and variance) or RMSNorm (root mean square only)."""
    activation: Literal["relu", "gelu", "silu"] = "relu"
    """Activation of the feed-forward network."""
    gated_feed_forward: bool = False
    """Gated linear unit: a third projection multiplies the activation (Shazeer 2020)."""
    dropout: float = Field(0.1, ge=0, le=0.9)
    """Dropout on embeddings and the output of every sublayer [P_drop]."""
    attention_dropout: float = Field(0.0, ge=0, le=0.9)
    """Dropout on attention weights."""
    activation_dropout: float = Field(0.0, ge=0, le=0.9)
    """Dropout after the activation of the feed-forward network."""
    attention_bias: bool = True
    """Biases of W^Q, W^K, W^V and W^O."""
    tie_output_embeddings: bool = True
    """Use the target embeddings as output layer (section 3.4)."""
    output_bias: bool = False
    """Bias of the output layer, as in Marian."""
    scale_embeddings: bool = True
    """Multiply embeddings by sqrt(d_model) (section 3.4)."""

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if self.d_model % self.heads:
            divisors = ", ".join(str(divisor) for divisor in range(1, 65) if self.d_model % divisor == 0)
            raise ValueError(f"d_model {self.d_model} is not divisible by {self.heads} heads\nuse {divisors} heads")
        if self.d_model % 2:
            if self.architecture in RECURRENT_ARCHITECTURES:
                raise ValueError(f"a bidirectional encoder needs an even d_model, not {self.d_model}")
            if self.positions in SINUSOIDAL_POSITIONS:
                raise ValueError(f"{self.positions} positions need an even d_model, not {self.d_model}")
        if self.positions == "rotary" and self.channels % 2:
            raise ValueError(f"rotary positions need an even d_model / heads, not {self.channels}")
        for name in ("encoder_attention", "decoder_attention"):
            if getattr(self, name) != "full" and self.positions in RELATIVE_POSITIONS:
                raise ValueError(
                    f"{name} = {getattr(self, name)} does not support {self.positions} positions\n"
                    "use sinusoidal, learned, dependency or none"
                )
        if self.encoder_attention == "bigbird" and not self.window_blocks % 2:
            raise ValueError(f"window_blocks must be odd in the encoder, not {self.window_blocks}")
        if self.uses_dependency_trees and self.architecture != "transformer":
            raise ValueError(
                f"architecture = {self.architecture} does not support {self.positions} positions\n"
                "only architecture = transformer reads dependency trees"
            )
        return self

    @property
    def uses_dependency_trees(self) -> bool:
        """Whether sources include the heads of their words."""
        return self.positions in DEPENDENCY_POSITIONS

    @property
    def has_max_length(self) -> bool:
        """Whether ``max_length`` is a hard limit: the model has learned parameters per position."""
        has_length_table = self.positions == "learned" or self.encoder_attention == "linformer"
        return self.architecture not in RECURRENT_ARCHITECTURES and has_length_table

    @property
    def channels(self) -> int:
        """Channels per head [d_k]."""
        return self.d_model // self.heads

    @property
    def attention_options(self) -> dict[str, Any]:
        """Options that all attention classes share."""
        return {"dropout": self.attention_dropout, "bias": self.attention_bias, "scaled": self.scale_attention}

    @property
    def embedding_scale(self) -> float:
        """Factor of the embeddings (section 3.4)."""
        return float(self.d_model**0.5) if self.scale_embeddings else 1.0


class ModelConfig(ArchitectureConfig):
    """Shape of a model, vocabulary sizes included."""

    source_vocab_size: int = Field(ge=2)
    """Entries in the source vocabulary; set by the tokenizer."""
    target_vocab_size: int = Field(ge=2)
    """Entries in the target vocabulary."""
    share_embeddings: bool = True
    """One vocabulary and one embedding matrix for source and target."""

    @property
    def alignment_layer(self) -> int:
        """Decoder layer (from 0) whose mean attention aligns words best: the last but one of a deep stack.

        The last layer attends to the words that come next rather than to the current one (docs/log.md).
        """
        if self.architecture in RECURRENT_ARCHITECTURES:
            return 0
        return self.decoder_layers - (2 if self.decoder_layers > 2 else 1)

    @model_validator(mode="after")
    def _check_shared_vocab_size(self) -> Self:
        if self.share_embeddings and self.source_vocab_size != self.target_vocab_size:
            raise ValueError(
                f"share_embeddings needs equal vocabulary sizes, not {self.source_vocab_size} and "
                f"{self.target_vocab_size}"
            )
        return self


def too_long_error(length: int, max_length: int) -> HeedfulError:
    """The error of a sentence that is longer than the learned positions of its model."""
    return HeedfulError(
        f"{length} tokens exceed the {max_length} learned positions of this model",
        hint="use shorter sentences, or train with a larger model.max_length",
    )
