"""The size and shape of a Transformer; defaults are the paper's base model (table 3)."""

from typing import Literal, Self

from pydantic import Field, model_validator

from heedful.config import Config

PAD = 0
"""Id of the padding symbol, from which the decoder also starts: its embedding is zero and stays zero."""


class Architecture(Config):
    """One Transformer without its vocabulary: what a recipe says of the model."""

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
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    """Position vectors: the sines of section 3.5, or a learned table."""
    longest: int = Field(1024, ge=8, le=1_000_000)
    """Longest sentence in tokens: longer pairs are not trained on, and a learned position table ends here."""
    norm: Literal["post", "pre"] = "post"
    """Normalise after each residual sum (the paper) or before each sublayer (steadier)."""
    activation: Literal["relu", "gelu"] = "relu"
    """Between the two linear maps of the feed-forward network."""
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

    @model_validator(mode="after")
    def _heads_divide_width(self) -> Self:
        if self.width % self.heads:
            options = ", ".join(str(n) for n in range(1, 65) if self.width % n == 0)
            raise ValueError(
                f"width {self.width} does not split evenly over {self.heads} heads\n"
                f"heads could be one of {options}"
            )
        if self.positions == "sinusoidal" and self.width % 2:
            raise ValueError(f"sinusoidal positions need an even width, not {self.width}")
        return self


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
        return self.decoder_layers - (2 if self.decoder_layers > 2 else 1)

    @model_validator(mode="after")
    def _joint_is_one_size(self) -> Self:
        if self.joint and self.source_vocabulary != self.target_vocabulary:
            raise ValueError(
                f"a joint vocabulary has one size, not {self.source_vocabulary} and {self.target_vocabulary}"
            )
        return self
