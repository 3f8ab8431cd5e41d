"""Validation: loss on held-out pairs and scores of greedy translations; in fine-tuning on both domains."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import torch

from heedful.data.cleaning import Pair
from heedful.data.collate import Batch, collate, create_collator
from heedful.data.corpus import Direction, interleave
from heedful.data.sampler import group_by_length
from heedful.evaluation.metrics import corpus_scores
from heedful.generation.config import GenerationConfig
from heedful.generation.search import max_output_lengths, search
from heedful.model_folder import load_parameters, named_parameters, read_tensors
from heedful.models.base import Model, Seq2SeqModel
from heedful.models.config import LANGUAGE_MODEL_ARCHITECTURES
from heedful.models.factory import new_model
from heedful.models.language_models import MaskedLM
from heedful.tokenization.dependency_trees import encode_sources
from heedful.tokenization.pair_tokenizer import PairTokenizer
from heedful.tokenization.special_tokens import PAD, strip_tags
from heedful.training.checkpoint import TrainerState
from heedful.training.preparation import INIT_FOLDER, PreparedCorpus
from heedful.training.step import compute_batch_loss

BATCH_TOKENS = 4096

GREEDY = GenerationConfig(beam_size=1)

SAMPLES_PER_DIRECTION = 2


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """Loss is the negative log-likelihood per target token, without label smoothing."""

    loss: float
    scores: dict[str, float] = field(default_factory=dict)
    samples: list[tuple[str, str, str]] = field(default_factory=list)
    """A few (source, reference, translation) rows."""
    per_direction: "dict[str, ValidationResult]" = field(default_factory=dict)
    """Results of each direction by name, if there are several."""

    @property
    def perplexity(self) -> float:
        """exp(loss), capped to stay finite."""
        return math.exp(min(self.loss, 100.0))

    @property
    def metrics(self) -> dict[str, float]:
        """Values for metrics.jsonl."""
        return {"validation_loss": self.loss, "perplexity": self.perplexity, **self.scores}


def validate_pairs(
    model: Model,
    tokenizer: PairTokenizer,
    pairs: Sequence[Pair],
    bleu_sentences: int,
    languages: Direction | None = None,
) -> ValidationResult:
    """Loss on all pairs; BLEU and chrF of greedy translations of the first ``bleu_sentences``.

    BLEU tokenizes by the target language of ``languages``.
    """
    was_training = model.training
    model.eval()
    try:
        loss = compute_loss(model, tokenizer, pairs)
        scored_pairs = list(pairs[:bleu_sentences])
        if isinstance(model, MaskedLM):
            return ValidationResult(loss, {"accuracy": 100 * compute_accuracy(model, tokenizer, pairs)})
        is_language_model = model.config.architecture in LANGUAGE_MODEL_ARCHITECTURES
        if not scored_pairs or is_language_model or not isinstance(model, Seq2SeqModel):
            return ValidationResult(loss)
        translations = _translate_greedily(model, tokenizer, [pair.source_with_heads for pair in scored_pairs])
        language = languages[1] if languages else ""
        scores = corpus_scores(translations, [pair.target for pair in scored_pairs], ("BLEU", "chrF"), language)
        samples = [
            (strip_tags(pair.source), pair.target, text)
            for pair, text in zip(scored_pairs[:5], translations, strict=False)
        ]
        return ValidationResult(loss, {name: score.value for name, score in scores.items()}, samples)
    finally:
        model.train(was_training)


def validate_directions(model: Model, prepared: PreparedCorpus, bleu_sentences: int) -> ValidationResult:
    """``validate_pairs``, with scores per direction if there are several."""
    tokenizer, pairs, directions = prepared.tokenizer, prepared.validation, prepared.validation_directions
    if not directions:
        return validate_pairs(model, tokenizer, pairs, bleu_sentences, prepared.languages)
    unique_directions = list(dict.fromkeys(directions))
    per_direction = {}
    for direction in unique_directions:
        direction_pairs = [pair for pair, other in zip(pairs, directions, strict=True) if other == direction]
        per_direction["-".join(direction)] = validate_pairs(
            model, tokenizer, direction_pairs, bleu_sentences // len(unique_directions), direction
        )
    overall = validate_pairs(model, tokenizer, pairs, 0)
    samples = interleave(result.samples[:SAMPLES_PER_DIRECTION] for result in per_direction.values())
    return replace(overall, samples=samples, per_direction=per_direction)


def format_directions(result: ValidationResult, train_directions: Sequence[Direction]) -> list[str]:
    """One line of scores per direction."""
    train_names = {"-".join(name) for name in train_directions}
    return [
        f"{name}{'' if name in train_names else ' (zero-shot)'}: loss {direction_result.loss:.4f} per token, "
        f"perplexity {direction_result.perplexity:.3f}"
        + "".join(f", {score} {value:.1f}" for score, value in direction_result.scores.items())
        for name, direction_result in result.per_direction.items()
    ]


@torch.inference_mode()
def compute_loss(model: Model, tokenizer: PairTokenizer, pairs: Sequence[Pair]) -> float:
    """Negative log-likelihood per target token."""
    nll_sum, tokens = 0.0, 0
    for batch in _iterate_batches(model, tokenizer, pairs):
        nll_sum += float(compute_batch_loss(model, batch, 0.0)[1])
        tokens += batch.tokens
    return nll_sum / tokens


@torch.inference_mode()
def compute_accuracy(model: Model, tokenizer: PairTokenizer, pairs: Sequence[Pair]) -> float:
    """Fraction of target tokens that are the most probable ones; masking is the same every time."""
    correct, tokens = 0, 0
    device = model.output.weight.device
    for batch in _iterate_batches(model, tokenizer, pairs):
        target_mask = batch.target != PAD
        states = model(batch.source.to(device), batch.decoder_input.to(device))[target_mask.to(device)]
        correct += int((model.logits(states).argmax(-1).cpu() == batch.target[target_mask]).sum())
        tokens += batch.tokens
    return correct / max(tokens, 1)


class LanguageModelScores(NamedTuple):
    """How well a model predicts the subwords of a text, beside the best unigram model, which ignores context."""

    subwords: int
    """Subwords to predict: all of the text, or the masked ones."""
    loss: float
    accuracy: float
    unigram_loss: float
    unigram_accuracy: float


@torch.inference_mode()
def score_language_model(model: Model, tokenizer: PairTokenizer, pairs: Sequence[Pair]) -> LanguageModelScores:
    """Loss and accuracy on plain text, beside those of a unigram model."""
    target_ids = torch.cat([batch.target[batch.target != PAD] for batch in _iterate_batches(model, tokenizer, pairs)])
    frequencies = target_ids.bincount() / len(target_ids)
    frequencies = frequencies[frequencies > 0]
    return LanguageModelScores(
        len(target_ids),
        compute_loss(model, tokenizer, pairs),
        compute_accuracy(model, tokenizer, pairs),
        -float((frequencies * frequencies.log()).sum()),
        float(frequencies.max()),
    )


def _iterate_batches(model: Model, tokenizer: PairTokenizer, pairs: Sequence[Pair]) -> Iterator[Batch]:
    make_batch = create_collator(model.config, tokenizer.source.vocab_size)
    sources = encode_sources(tokenizer.source, [pair.source_with_heads for pair in pairs])
    targets = tokenizer.target.encode_batch([pair.target for pair in pairs])
    lengths = [max(len(source), len(target)) + 1 for source, target in zip(sources, targets, strict=True)]
    for number, indices in enumerate(group_by_length(lengths, BATCH_TOKENS)):
        yield make_batch([sources[i] for i in indices], [targets[i] for i in indices], [number])


def _translate_greedily(model: Seq2SeqModel, tokenizer: PairTokenizer, texts: list[str]) -> list[str]:
    """Greedy translations; validation sentences are as long as training ones, so none are split."""
    encoded = encode_sources(tokenizer.source, texts)
    translations = [""] * len(texts)
    device = model.output.weight.device
    for indices in group_by_length([len(token_ids) + 1 for token_ids in encoded], BATCH_TOKENS):
        source = collate([encoded[i] for i in indices], [[] for _ in indices]).source.to(device)
        limits = max_output_lengths(source, GREEDY, model.max_length)
        search_results = search(model, source, GREEDY, max_lengths=limits)
        for i, hypotheses in zip(indices, search_results, strict=True):
            translations[i] = tokenizer.target.decode(hypotheses[0].tokens)
    return translations


@dataclass(frozen=True, slots=True)
class ValidationReport:
    """Validation on the new and, in fine-tuning, on the original domain."""

    validation: ValidationResult
    original_validation: ValidationResult | None = None
    """None if there are no original-domain pairs."""

    def exceeds_forgetting(self, original_loss: float, max_forgetting: float) -> bool:
        """Whether the original-domain loss has risen by more than this fraction of ``original_loss``."""
        return self.original_validation is not None and not self.original_validation.loss <= original_loss * (
            1 + max_forgetting
        )

    def to_metrics(self) -> dict[str, float]:
        """Values for metrics.jsonl."""
        original_metrics = self.original_validation.metrics if self.original_validation else {}
        return self.validation.metrics | {f"original_{name}": value for name, value in original_metrics.items()}


def validate(model: Model, prepared: PreparedCorpus, bleu_sentences: int) -> ValidationReport:
    """``validate_pairs`` on the validation pairs and, in fine-tuning, the original-domain pairs."""
    result = validate_pairs(model, prepared.tokenizer, prepared.validation, bleu_sentences, prepared.languages)
    if not prepared.original_validation:
        return ValidationReport(result)
    return ValidationReport(
        result,
        validate_pairs(model, prepared.tokenizer, prepared.original_validation, bleu_sentences, prepared.languages),
    )


def update_best(state: TrainerState, result: ValidationReport, max_forgetting: float) -> None:
    """Record whether these are the best weights so far: the lowest loss of those that do not forget.

    Patience also restarts while weights that forget too much still improve on either domain.
    """
    best, forgetting, loss, original_loss = state.best, state.forgetting, result.validation.loss, 0.0
    if result.original_validation is not None:
        original_loss = result.original_validation.loss
        if not state.update:
            forgetting.original_loss = original_loss
    best.validations_since_best += 1
    if result.exceeds_forgetting(forgetting.original_loss, max_forgetting):
        if original_loss < forgetting.last_original_loss or loss < min(best.loss, forgetting.rejected_loss):
            best.validations_since_best = 0
        if loss < forgetting.rejected_loss:
            forgetting.rejected_loss, forgetting.rejected_update = loss, state.update
    elif loss < best.loss:
        best.loss, best.update, best.validations_since_best = loss, state.update, 0
    forgetting.last_original_loss = original_loss


@dataclass(frozen=True, slots=True)
class OriginalModel:
    """The initial model of a fine-tuning run, with its own vocabulary."""

    model: Model
    tokenizer: PairTokenizer

    def validate(self, prepared: PreparedCorpus, bleu_sentences: int) -> ValidationReport:
        """Validate it; losses are per token of the fine-tuned model's vocabulary, so that they compare."""
        result = validate(self.model, replace(prepared, tokenizer=self.tokenizer), bleu_sentences)

        def rescale(result: ValidationResult, pairs: Sequence[Pair]) -> ValidationResult:
            """A smaller vocabulary splits the same pairs into more tokens, each of which is easier."""
            own_tokens, tokens = (
                sum(len(ids) + 1 for ids in tokenizer.target.encode_batch([pair.target for pair in pairs]))
                for tokenizer in (self.tokenizer, prepared.tokenizer)
            )
            return replace(result, loss=result.loss * (own_tokens / tokens))

        original = result.original_validation
        return ValidationReport(
            rescale(result.validation, prepared.validation),
            rescale(original, prepared.original_validation) if original else None,
        )


def load_original_model(
    folder: Path, prepared: PreparedCorpus, model: Model, weights: Path | None = None
) -> OriginalModel:
    """The initial model of the run in ``folder``: from ``weights``, or from ``model`` at update 0.

    New subwords follow the old ones, so cutting them off restores it.
    """
    init_folder = folder / "data" / INIT_FOLDER
    assert prepared.init_config is not None
    # Dropout may differ, but validation does not use it.
    original_model = new_model(prepared.init_config.model).to(model.output.weight.device).eval()
    tensors = read_tensors(weights) if weights else named_parameters(model)
    truncated_tensors = {
        name: tensors[name][: len(parameter)]
        for name, parameter in original_model.named_parameters()
        if name in tensors
    }
    load_parameters(original_model, truncated_tensors, folder)
    is_extended = PairTokenizer.is_saved(init_folder)
    return OriginalModel(original_model, PairTokenizer.load(init_folder) if is_extended else prepared.tokenizer)
