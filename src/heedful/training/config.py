"""Everything a training run is told: one section for each part, all in one recipe."""

from typing import Literal, Self

from pydantic import Field, model_validator

from heedful.config import Config
from heedful.corpora.batches import BatchConfig
from heedful.corpora.filters import CleaningConfig
from heedful.corpora.reading import ReadingConfig
from heedful.decoding.config import SearchConfig
from heedful.model.config import PLAIN, RECURRENT, Architecture
from heedful.text.tokenizer import TokenizerConfig
from heedful.training.preparation_config import PreparationConfig


class TrainingConfig(Config):
    """How the weights are found (section 5)."""

    epochs: int = Field(20, ge=1)
    """Times the whole corpus is seen, at most."""
    updates: int = Field(0, ge=0)
    """Stop after this many updates, whatever the preset's epochs; 0 for as many as the epochs have."""
    minutes: float = Field(0.0, ge=0, le=1_000_000)
    """Time for everything, from reading the corpus to writing the model (`--time`); 0 for no limit."""
    schedule: Literal["noam", "linear", "cosine", "constant"] = "noam"
    """How the learning rate falls after the warm-up: as 1 / sqrt(step) (the paper), or otherwise."""
    rate: float = Field(0.0, ge=0)
    """Highest learning rate; 0 for the paper's, (width * warmup) ^ -0.5."""
    warmup: int = Field(4000, ge=1)
    """Updates in which the rate climbs [warmup_steps]."""
    cooldown: float = Field(0.0, ge=0, le=1)
    """Share of all updates, at the end, in which the rate moreover falls linearly to zero."""
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    """Probability taken from the right word and spread evenly over all words [epsilon_ls]."""
    beta1: float = Field(0.9, ge=0, lt=1)
    """Adam's memory of the gradient [beta_1]."""
    beta2: float = Field(0.98, ge=0, lt=1)
    """Adam's memory of its square [beta_2]."""
    epsilon: float = Field(1e-9, gt=0)
    """Adam's guard against division by zero [epsilon]."""
    clip: float = Field(1.0, ge=0)
    """Longest gradient, as a norm over all parameters; 0 for no limit."""
    accumulate: int = Field(1, ge=1)
    """Batches added up before each update: large updates in little memory."""
    validate_every: int = Field(0, ge=0)
    """Updates between validations, each of which also writes a checkpoint; 0 for once an epoch."""
    save_minutes: float = Field(10.0, gt=0)
    """Minutes after which a checkpoint is written in any case, so that a power cut costs no more."""
    bleu_sentences: int = Field(200, ge=0)
    """Validation sentences translated (greedily) for BLEU and chrF; 0 for none."""
    patience: int = Field(0, ge=0)
    """Stop after this many validations without a better loss; 0 to go on to the end."""
    average: int = Field(1, ge=1)
    """Checkpoints at the end whose weights are averaged into the model (section 6.1)."""
    keep: int = Field(5, ge=1)
    """Newest checkpoints kept, besides the best; two at least, in case one is damaged."""
    snapshots: int = Field(0, ge=0, le=1000)
    """Weights kept for looking back, from update 0 to the last, more of them early; 0 for none."""
    temperature: float = Field(1.0, ge=1, le=100)
    """Each corpus (`--mix`) or `--direction` is seen as size ^ (1 / this): above 1, small ones more often."""
    held_out: int = Field(0, ge=0)
    """Sentences set aside for validation when none are given; 0 to choose by the corpus's size."""
    seed: int = Field(1, ge=0, lt=2**31)
    """Of weights, batch order and dropout: the same seed gives the same model."""
    source_vectors: str = ""
    """Word vectors (GloVe or word2vec file) that the source embeddings start from; empty for random."""
    target_vectors: str = ""
    """Likewise the target embeddings; of a joint vocabulary, those that source_vectors did not have."""
    encoder_from: str = ""
    """A model of `--task mask` whose encoder and source vocabulary training starts from; empty for random."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1 or mps."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """auto: bfloat16 products where they are quicker (long trainings try it out), else float32."""
    threads: int = Field(0, ge=0, le=1024)
    """CPU threads; 0 for one for each core."""
    processes: int = Field(0, ge=0, le=1024)
    """Processes that share the threads and compute each gradient together; 0: long trainings try it out."""
    parallel: Literal["auto", "sum", "ddp", "fsdp"] = "auto"
    """Gradients added up after an update (sum; auto on CPUs), during it (ddp), or weights cut up (fsdp)."""
    silence: float = Field(300.0, ge=1, le=1_000_000)
    """Seconds after which a process of the group that does not answer is taken for lost."""
    most_skipped: int = Field(10, ge=0)
    """Updates in a row that may be skipped because loss or gradient is no number, before training stops."""

    @model_validator(mode="after")
    def _keeps_what_it_averages(self) -> Self:
        if self.keep < self.average:
            raise ValueError(
                f"averaging {self.average} checkpoints needs as many kept, not {self.keep}\n"
                f"set training.keep to {self.average} or more"
            )
        return self


class TaughtConfig(Config):
    """One encoder head that is shown where to look, by an extra loss: for teaching, not for quality."""

    links: str = ""
    """A file of links to learn, `source TAB 7-1`: word 7 should look at word 1 (from 0). Empty: no head."""
    layer: int = Field(1, ge=1)
    """Encoder layer of the head, from 1."""
    head: int = Field(1, ge=1)
    """The head, from 1."""
    weight: float = Field(1.0, gt=0)
    """Of a link in the loss, where a target token weighs 1."""


class TermsConfig(Config):
    """Terms with their translations inside sources, so that the model learns to obey a glossary."""

    share: float = Field(0.0, ge=0, le=1)
    """Of the pairs that are learned from once more with a term inline; 0 for none."""
    glossary: str = ""
    """A file of terms (TSV or CSV): every pair that has one on both sides is learned from with it inline."""
    longest: int = Field(3, ge=1, le=20)
    """Words of a term that is found in a pair, at most."""
    swapped: float = Field(0.5, ge=0, le=1)
    """Share of the terms found that get another translation, on both sides: so it copies what it reads."""


class TuningConfig(Config):
    """A training that goes on from a trained model (docs/fine-tuning.md)."""

    start_from: str = ""
    """The model folder to start from (`--from`); empty for a new model."""
    new_pieces: int = Field(0, ge=0, le=100_000)
    """At most so many pieces are added to its vocabulary (BPE only), learned from the new pairs."""
    forgetting: float = Field(0.1, ge=0)
    """How much the loss on old pairs may rise: weights that forget more than this share are not chosen."""

    @model_validator(mode="after")
    def _needs_a_model(self) -> Self:
        told = self.model_fields_set - {"start_from"}
        default = TuningConfig.model_fields
        odd = sorted(name for name in told if getattr(self, name) != default[name].default)
        if odd and not self.start_from:
            raise ValueError(
                f"tuning.{odd[0]} is for a training that starts from a model\nname it: --from MODEL"
            )
        return self


class RunConfig(Config):
    """A whole recipe. ``preset`` names the defaults that the other sections started from."""

    preset: str = "auto"
    """auto, demo, tiny, small, base or big; or tuning, of a training that starts from a model."""
    reading: ReadingConfig = ReadingConfig()
    """How files are read that hold more than pairs."""
    cleaning: CleaningConfig = CleaningConfig()
    """What falls out of the corpus."""
    preparation: PreparationConfig = PreparationConfig()
    """How a large corpus is made ready."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    """How text becomes tokens."""
    model: Architecture = Architecture()
    """Size and shape of the Transformer."""
    batches: BatchConfig = BatchConfig()
    """How many tokens make a batch."""
    training: TrainingConfig = TrainingConfig()
    """How the weights are found."""
    terms: TermsConfig = TermsConfig()
    """Terms inside sources."""
    taught: TaughtConfig = TaughtConfig()
    """A head that is shown where to look."""
    tuning: TuningConfig = TuningConfig()
    """A model to start from."""
    search: SearchConfig = SearchConfig()
    """How the trained model translates unless told otherwise."""

    @model_validator(mode="after")
    def _terms_can_be_read(self) -> Self:
        if self.terms.glossary and not self.terms.share:
            raise ValueError("a glossary alone teaches no copying\nset terms.share to 0.1")
        if self.terms.share and (self.model.trees or self.model.family in PLAIN):
            raise ValueError(
                "only a translator without trees reads terms inside a source\nleave out terms.share"
            )
        if self.terms.share and not self.tokenizer.joint:
            raise ValueError(
                "terms inside a source are copied, which needs the same pieces on both sides\n"
                "set tokenizer.joint=true"
            )
        if self.terms.share and self.training.encoder_from:
            raise ValueError(
                "the vocabulary of training.encoder_from has no tags for terms\nleave out one of the two"
            )
        return self

    @model_validator(mode="after")
    def _can_be_cut_up(self) -> Self:
        if self.training.parallel == "fsdp" and self.model.family in RECURRENT:
            raise ValueError(
                "the weights of recurrent layers cannot be cut up\nset training.parallel to sum or ddp"
            )
        return self

    @model_validator(mode="after")
    def _taught_head_exists(self) -> Self:
        taught, model = self.taught, self.model
        if taught.links and (taught.layer > model.encoder_layers or taught.head > model.heads):
            raise ValueError(
                f"there is no encoder layer {taught.layer} with a head {taught.head} to be taught\n"
                f"the model has {model.encoder_layers} layers of {model.heads} heads"
            )
        if taught.links and (model.family != "transformer" or model.encoder_attention == "linformer"):
            raise ValueError(
                "only a Transformer whose encoder looks at words has heads to be taught\n"
                "leave out taught.links, or choose another model.family or model.encoder_attention"
            )
        if taught.links and self.tokenizer.dropout:
            raise ValueError(
                "a taught head needs sentences that are always spelled the same\nset tokenizer.dropout to 0"
            )
        return self
