"""All settings of a training run, one section per part; RunConfig holds them all. Presets, and merging settings."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from heedful.config import Config, Settings, merge_settings, parse_overrides, read_toml
from heedful.data.config import (
    BatchConfig,
    CleaningConfig,
    PreprocessingConfig,
    PreprocessOptions,
    ReadingConfig,
    TermsConfig,
)
from heedful.devices import is_under_torchrun
from heedful.errors import HeedfulError
from heedful.generation.config import GenerationConfig
from heedful.models.config import LANGUAGE_MODEL_ARCHITECTURES, RECURRENT_ARCHITECTURES, ArchitectureConfig
from heedful.tokenization.tokenizer import TokenizerConfig


class TrainingConfig(Config):
    """Optimization (section 5)."""

    max_epochs: int = Field(20, ge=1)
    """Maximum passes over the corpus."""
    max_updates: int = Field(0, ge=0)
    """Maximum updates (optimizer steps); without max_epochs, the only limit. 0: no limit besides epochs."""
    max_minutes: float = Field(0.0, ge=0, le=1_000_000)
    """Time limit from reading the corpus to writing the model (`--time`); 0: no limit."""
    lr_schedule: Literal["noam", "linear", "cosine", "constant"] = "noam"
    """Decay of the learning rate after the warm-up; noam is the paper's 1 / sqrt(step)."""
    learning_rate: float = Field(0.0, ge=0)
    """Peak learning rate; 0: the paper's, (d_model * warmup_updates) ^ -0.5."""
    warmup_updates: int = Field(4000, ge=1)
    """Updates of linear warm-up [warmup_steps]."""
    cooldown_fraction: float = Field(0.0, ge=0, le=1)
    """Final fraction of the run in which the learning rate is also scaled linearly to zero."""
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    """Probability moved from the correct token to all tokens evenly [epsilon_ls]."""
    adam_beta1: float = Field(0.9, ge=0, lt=1)
    """Adam beta1 [beta_1]."""
    adam_beta2: float = Field(0.98, ge=0, lt=1)
    """Adam beta2 [beta_2]."""
    adam_epsilon: float = Field(1e-9, gt=0)
    """Adam epsilon [epsilon]."""
    max_grad_norm: float = Field(1.0, ge=0)
    """Gradient-norm clipping threshold; 0: no clipping."""
    gradient_accumulation: int = Field(1, ge=1)
    """Batches per update: large updates in little memory."""
    validate_every: int = Field(0, ge=0)
    """Updates between validations, each of which also writes a checkpoint; 0: once per epoch."""
    checkpoint_minutes: float = Field(1.0, gt=0)
    """Minutes between checkpoints, the most that a lost process or a power failure can cost; more if writing a
    checkpoint takes longer than 5 % of them."""
    bleu_sentences: int = Field(200, ge=0)
    """Validation sentences translated greedily for BLEU and chrF; 0: none."""
    patience: int = Field(0, ge=0)
    """Stop after this many validations without a lower loss; 0: never."""
    average_checkpoints: int = Field(1, ge=1)
    """Last checkpoints whose weights are averaged into the model (section 6.1)."""
    keep_last: int = Field(5, ge=1)
    """Newest checkpoints to keep besides the best; at least two, in case one is corrupt."""
    snapshots: int = Field(0, ge=0, le=1000)
    """Weights kept to show how training went, more of them early; 0: none."""
    sampling_temperature: float = Field(1.0, ge=1, le=100)
    """Corpora (`--mix`) and directions are sampled by size ^ (1 / T): above 1, small ones more often."""
    validation_size: int = Field(0, ge=0)
    """Pairs held out for validation if none are given; 0: chosen by corpus size."""
    seed: int = Field(1, ge=0, lt=2**31)
    """Seed of weights, batch order and dropout: the same seed gives the same model."""
    source_embeddings: str = ""
    """Word vectors (GloVe or word2vec file) that initialize the source embeddings; empty: random."""
    target_embeddings: str = ""
    """Word vectors for the target embeddings; joint vocabulary: for entries not in source_embeddings."""
    init_encoder_from: str = ""
    """Masked language model that provides encoder and source vocabulary; empty: random."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1 or mps."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """auto: bfloat16 matrix products where they are faster (measured at the start of long runs), else float32."""
    threads: int = Field(0, ge=0, le=1024)
    """CPU threads; 0: one per core."""
    processes: int = Field(0, ge=0, le=1024)
    """Processes that share the threads and compute each gradient together; 0: measured at the start of long runs."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """Every process has the whole model (ddp), or a shard of weights, gradients and moments (fsdp)."""
    timeout_seconds: float = Field(300.0, ge=1, le=1_000_000)
    """Seconds without an answer after which a process of the group counts as lost."""
    max_nonfinite_updates: int = Field(10, ge=0)
    """Consecutive updates that may be skipped for a non-finite loss or gradient before training stops."""

    @model_validator(mode="after")
    def _check_keep_last(self) -> Self:
        if self.keep_last < self.average_checkpoints:
            raise ValueError(
                f"cannot average {self.average_checkpoints} checkpoints if only {self.keep_last} are kept\n"
                f"set training.keep_last to {self.average_checkpoints} or more"
            )
        return self


class GuidedAttentionConfig(Config):
    """One encoder head trained by an extra loss to follow given alignments: for teaching, not for quality."""

    alignments: str = ""
    """File of `source TAB 7-1` lines: word 7 should attend to word 1 (from 0). Empty: no guided head."""
    layer: int = Field(1, ge=1)
    """Encoder layer of the guided head, from 1."""
    head: int = Field(1, ge=1)
    """Number of the head, from 1."""


class FinetuningConfig(Config):
    """Training that starts from a trained model (docs/fine-tuning.md)."""

    init_from: str = ""
    """Model folder to start from (`--from`); empty: a new model."""
    new_subwords: int = Field(0, ge=0, le=100_000)
    """Maximum subwords added to its vocabulary (BPE only), learned from the new pairs."""
    max_forgetting: float = Field(0.1, ge=0)
    """Maximum relative rise of the original-domain loss: weights that forget more are not chosen."""

    @model_validator(mode="after")
    def _check_init_from(self) -> Self:
        changed = self.model_dump(exclude_defaults=True)
        if changed and not self.init_from:
            raise ValueError(f"finetuning.{min(changed)} needs a model to start from\nadd --from MODEL")
        return self


class RunConfig(Config):
    """The complete configuration; ``preset`` names the defaults of the other sections."""

    preset: str = "auto"
    """auto, demo, tiny, small, base or big; finetuning if training starts from a model."""
    reading: ReadingConfig = ReadingConfig()
    """How input files are read."""
    cleaning: CleaningConfig = CleaningConfig()
    """Which pairs are filtered out."""
    preprocessing: PreprocessingConfig = PreprocessingConfig()
    """How the corpus is prepared."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    """Tokenizer and vocabulary."""
    model: ArchitectureConfig = ArchitectureConfig()
    """Architecture and size of the model."""
    batching: BatchConfig = BatchConfig()
    """Batch size."""
    training: TrainingConfig = TrainingConfig()
    """Optimization."""
    inline_terms: TermsConfig = TermsConfig()
    """Inline terms in source sentences."""
    guided_attention: GuidedAttentionConfig = GuidedAttentionConfig()
    """Guided attention head."""
    finetuning: FinetuningConfig = FinetuningConfig()
    """Model to start from."""
    generation: GenerationConfig = GenerationConfig()
    """Default search settings of the trained model."""

    @property
    def preprocess_options(self) -> PreprocessOptions:
        """The settings that preprocessing needs."""
        return PreprocessOptions(
            cleaning=self.cleaning,
            preprocessing=self.preprocessing,
            batching=self.batching,
            inline_terms=self.inline_terms,
            max_length=self.model.max_length,
            dependency_trees=self.model.uses_dependency_trees,
            seed=self.training.seed,
            validation_size=self.training.validation_size,
            gradient_accumulation=self.training.gradient_accumulation,
        )

    @model_validator(mode="after")
    def _check_inline_terms(self) -> Self:
        terms, model = self.inline_terms, self.model
        if terms.glossary and not terms.fraction:
            raise ValueError("inline_terms.glossary needs inline_terms.fraction\nset inline_terms.fraction to 0.1")
        if not terms.fraction:
            return self
        if model.uses_dependency_trees or model.architecture in LANGUAGE_MODEL_ARCHITECTURES:
            raise ValueError(
                "inline terms need a translation model without dependency trees\nremove inline_terms.fraction"
            )
        if not self.tokenizer.joint_vocabulary:
            raise ValueError(
                "inline terms are copied, which needs the same subwords on both sides\n"
                "set tokenizer.joint_vocabulary=true"
            )
        if self.training.init_encoder_from:
            raise ValueError("the vocabulary of training.init_encoder_from has no term tags\nremove one of the two")
        return self

    @model_validator(mode="after")
    def _check_fsdp(self) -> Self:
        if self.training.parallel == "fsdp" and self.model.architecture in RECURRENT_ARCHITECTURES:
            raise ValueError("the weights of recurrent layers cannot be sharded\nset training.parallel to ddp")
        return self

    @model_validator(mode="after")
    def _check_guided_attention(self) -> Self:
        guided, model = self.guided_attention, self.model
        if not guided.alignments:
            return self
        if guided.layer > model.encoder_layers or guided.head > model.heads:
            raise ValueError(
                f"there is no encoder layer {guided.layer} with a head {guided.head} to guide\n"
                f"the model has {model.encoder_layers} layers of {model.heads} heads"
            )
        if model.architecture != "transformer" or model.encoder_attention == "linformer":
            raise ValueError(
                "guided attention needs a Transformer whose encoder attends to tokens\n"
                "remove guided_attention.alignments, or change model.architecture or model.encoder_attention"
            )
        if self.tokenizer.bpe_dropout:
            raise ValueError("guided attention needs a fixed segmentation\nset tokenizer.bpe_dropout to 0")
        return self


def demo() -> RunConfig:
    """The demo grammar in a minute: a word vocabulary, so that figures show words."""
    return RunConfig(
        preset="demo",
        tokenizer=TokenizerConfig(model_type="word", vocab_size=1200, joint_vocabulary=False),
        model=ArchitectureConfig(d_model=64, heads=4, encoder_layers=2, decoder_layers=2, d_ff=128, dropout=0.05),
        batching=BatchConfig(max_tokens=4096, max_sentences=64),
        training=TrainingConfig(
            max_epochs=5,
            lr_schedule="linear",
            learning_rate=3e-3,
            warmup_updates=100,
            bleu_sentences=100,
            validation_size=400,
            keep_last=3,
            snapshots=12,  # 0.9 MB each: the web page shows how heads form
        ),
        generation=GenerationConfig(beam_size=1),
    )


def tiny() -> RunConfig:
    """A few thousand to fifty thousand pairs on a laptop: minutes to an hour."""
    return RunConfig(
        preset="tiny",
        tokenizer=TokenizerConfig(vocab_size=6000),
        model=ArchitectureConfig(
            d_model=128,
            heads=4,
            encoder_layers=4,
            decoder_layers=4,
            d_ff=512,
            norm_placement="pre",  # learns sooner than post-norm at this size (docs/log.md)
            dropout=0.2,
        ),
        batching=BatchConfig(max_tokens=2048),
        training=TrainingConfig(
            max_epochs=20, learning_rate=2.5e-3, warmup_updates=600, cooldown_fraction=0.35, average_checkpoints=5
        ),
    )


def small() -> RunConfig:
    """A hundred thousand pairs or more: hours on a laptop."""
    return RunConfig(
        preset="small",
        tokenizer=TokenizerConfig(vocab_size=16000),
        model=ArchitectureConfig(
            d_model=256, heads=4, encoder_layers=4, decoder_layers=4, d_ff=1024, norm_placement="pre"
        ),
        batching=BatchConfig(max_tokens=4096),
        training=TrainingConfig(
            max_epochs=20, learning_rate=1.5e-3, warmup_updates=2000, cooldown_fraction=0.2, average_checkpoints=5
        ),
    )


def base() -> RunConfig:
    """The paper's base model (table 3): 25,000 target tokens per update, 100,000 updates."""
    return RunConfig(
        preset="base",
        tokenizer=TokenizerConfig(vocab_size=37000),
        model=ArchitectureConfig(),
        batching=BatchConfig(max_tokens=4096),
        training=TrainingConfig(
            max_epochs=1000,
            max_updates=100_000,
            gradient_accumulation=6,
            validate_every=1000,
            average_checkpoints=5,
            patience=20,
        ),
    )


def big() -> RunConfig:
    """The paper's big model (table 3): 300,000 updates."""
    base_config = base()
    return base_config.model_copy(
        update={
            "preset": "big",
            "model": ArchitectureConfig(d_model=1024, heads=16, d_ff=4096, dropout=0.3),
            "training": base_config.training.model_copy(
                update={"max_updates": 300_000, "average_checkpoints": 20, "keep_last": 20}
            ),
        }
    )


PRESETS: dict[str, Callable[[], RunConfig]] = {"demo": demo, "tiny": tiny, "small": small, "base": base, "big": big}

TASKS: dict[str, Settings] = {
    "translate": {},
    **{
        task: {
            "model": {"architecture": task},
            "tokenizer": {"joint_vocabulary": True},
            "training": {"label_smoothing": 0.0, "bleu_sentences": 0},
        }
        for task in ("causal_lm", "masked_lm")
    },
}
"""Default settings of each task (--task)."""


def get_setting(settings: Settings, section: str, name: str) -> Any:
    """A setting, or None if it was not given."""
    values = settings.get(section)
    return values.get(name) if isinstance(values, Mapping) else None


def apply_settings(config: RunConfig, settings: Settings) -> RunConfig:
    """The configuration with these settings, validated."""
    return RunConfig.from_settings(merge_settings(config.model_dump(), settings))


def build_run_settings(
    recipe: Path | None,
    preset: str | None,
    time: str | None,
    assignments: Sequence[str],
    glossary: Path | None = None,
    processes: int = 0,
) -> Settings:
    """Merge the config file, --preset, --time, --processes, --glossary and --set; later ones win."""
    settings = read_toml(recipe) if recipe else {}
    if preset:
        settings = merge_settings(settings, {"preset": preset})
    if time is not None:
        settings = merge_settings(settings, {"training": {"max_minutes": parse_minutes(time)}})
    if processes:
        check_process_option()
        settings = merge_settings(settings, {"training": {"processes": processes}})
    if glossary is not None:
        fraction = settings.get("inline_terms", {}).get("fraction", 0.1)
        settings = merge_settings(
            settings, {"inline_terms": {"fraction": fraction, "glossary": str(glossary.resolve())}}
        )
    return merge_settings(settings, parse_overrides(assignments))


def check_process_option() -> None:
    """Raise if torchrun starts the processes."""
    if is_under_torchrun():
        raise HeedfulError("--processes cannot be used under torchrun", hint="use torchrun --nproc-per-node")


MINUTES_PER_UNIT = {"h": 60.0, "m": 1.0, "s": 1 / 60}

NUMBER_PATTERN = r"\d+(?:\.\d+)?"


def parse_minutes(time: str) -> float:
    """Parse a duration; a bare number is minutes.

    >>> [parse_minutes(time) for time in ("30m", "1h30m", "90s", "2.5 h", "10")]
    [30.0, 90.0, 1.5, 150.0, 10.0]
    """
    text = time.replace(" ", "").lower()
    match = re.fullmatch("".join(rf"(?:({NUMBER_PATTERN}){unit})?" for unit in MINUTES_PER_UNIT), text)
    minutes = sum(
        float(number or 0) * unit_minutes
        for number, unit_minutes in zip(match.groups() if match else (), MINUTES_PER_UNIT.values(), strict=False)
    )
    if re.fullmatch(NUMBER_PATTERN, text):
        minutes = float(text)
    if minutes <= 0:
        raise HeedfulError(f"{time!r} is not a valid duration", hint="write 30m, 2h, 1h30m or 90s")
    return minutes


def format_minutes(number: float) -> str:
    """As --time shows it, not as a setting."""
    return f"{number:g} minute{'s' * (number != 1)}"
