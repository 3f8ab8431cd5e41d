"""The end of a run: which weights become the model, the model folder, and its model card (README.md).

The weights are those with the lowest validation loss (section 6.1 averages the last). In fine-tuning the
initial model is a candidate too, and weights that forget too much of the original domain are not: if nothing
is better, the model stays as it was.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heedful.data.cleaning import read_cleaned_pairs
from heedful.data.corpus import find_first_shard
from heedful.files import write_json
from heedful.model_folder import (
    WEIGHTS_FILE,
    ModelFolder,
    ModelFolderConfig,
    load_parameters,
    named_parameters,
    read_tensors,
)
from heedful.models.config import LANGUAGE_MODEL_ARCHITECTURES, ArchitectureConfig
from heedful.progress import format_count
from heedful.tokenization.sentence_splitter import split_sentences
from heedful.tokenization.special_tokens import strip_tags
from heedful.training.checkpoint import average_weights, filter_valid_checkpoints
from heedful.training.trainer import Trainer
from heedful.training.validation import (
    ValidationResult,
    format_directions,
    load_original_model,
    validate,
    validate_directions,
    validate_pairs,
)

FINAL_BLEU_SENTENCES = 1000

MIN_SOURCE_LENGTH = 24
"""Tokens up to which a sentence is never split, even if all training sentences are shorter."""

MULTI_SENTENCE_FRACTION = 0.05
"""Fraction of sources with several sentences above which the model may translate several at once."""

FINETUNING_FILE = "finetuning.json"

SAMPLES = 5

INTERPOLATION_FRACTIONS = (0.75, 0.5, 0.25)
"""How far to move from the initial weights towards weights that forgot too much."""


class Candidate(NamedTuple):
    """Weights that could become the model."""

    name: str
    update: int
    """The newest update in them."""
    weights: dict[str, Tensor]


def select_weights(
    trainer: Trainer, candidates: Sequence[Candidate], compute_loss: Callable[[], float], max_loss: float = math.inf
) -> tuple[Candidate | None, float]:
    """Load the candidate with the lowest loss into the model; None if no loss is below ``max_loss``."""
    best, best_loss = None, max_loss
    for candidate in candidates:
        load_parameters(trainer.model, candidate.weights, trainer.folder)
        loss = compute_loss()
        if loss < best_loss:
            best, best_loss = candidate, loss
    if best is not None:
        load_parameters(trainer.model, best.weights, trainer.folder)
    return best, best_loss


def load_best_weights(trainer: Trainer) -> str:
    """Load the average of the last checkpoints or the best one, whichever validates better; describe it."""
    prepared = trainer.prepared
    last = _last_checkpoints(trainer)
    candidates = [_average_candidate(last)] if last else []
    if [int(path.name) for path in last] != [trainer.state.best.update]:
        candidates += _best_candidates(trainer)
    if not candidates:  # the checkpoint that the run resumed from was valid, and is its end
        update = trainer.state.update
        candidates = [Candidate(f"weights of update {update:,}", update, named_parameters(trainer.model))]
    chosen, loss = select_weights(
        trainer, candidates, lambda: validate_pairs(trainer.model, prepared.tokenizer, prepared.validation, 0).loss
    )
    if chosen is None:  # no finite loss
        chosen = candidates[0]
        load_parameters(trainer.model, chosen.weights, trainer.folder)
    return f"weights: {chosen.name} (validation loss {loss:.4f})"


def _last_checkpoints(trainer: Trainer) -> list[Path]:
    """The last training.average_checkpoints that were validated, without the initial or corrupt ones."""
    paths = trainer.list_validated_checkpoints()
    if trainer.is_finetuning:
        paths = [path for path in paths if int(path.name)]
    return filter_valid_checkpoints(paths[-trainer.config.average_checkpoints :], trainer.report)


def _average_candidate(paths: Sequence[Path]) -> Candidate:
    update = int(paths[-1].name)
    name = f"average of the last {len(paths)} checkpoints" if len(paths) > 1 else f"checkpoint of update {update:,}"
    return Candidate(name, update, average_weights(paths))


def _best_candidates(trainer: Trainer) -> list[Candidate]:
    """The best checkpoint, if it is there and valid."""
    update = trainer.state.best.update
    path = _checkpoint_weights(trainer, update)
    return [Candidate(f"best checkpoint, of update {update:,}", update, read_tensors(path))] if path else []


def _checkpoint_weights(trainer: Trainer, update: int) -> Path | None:
    """The weights of a checkpoint, if it is there and valid."""
    path = trainer.checkpoint_folder / f"{update:09}"
    return path / WEIGHTS_FILE if path.is_dir() and filter_valid_checkpoints([path], trainer.report) else None


def finish_finetuning(trainer: Trainer, bleu_sentences: int) -> tuple[dict[str, Any], ValidationResult]:
    """Load the best weights that do not forget, and validate the model before and after.

    Returns the content of finetuning.json, and the validation after.
    """
    state, prepared = trainer.state, trainer.prepared
    config, init_config, tokenizer = prepared.config.finetuning, prepared.init_config, prepared.tokenizer
    assert init_config is not None
    initial_weights = _checkpoint_weights(trainer, 0) or Path(config.init_from) / WEIGHTS_FILE
    original_model = load_original_model(trainer.folder, prepared, trainer.model, initial_weights)

    def compute_loss() -> float:
        result = validate(trainer.model, prepared, 0)
        forgets = result.exceeds_forgetting(state.forgetting.original_loss, config.max_forgetting)
        return math.inf if forgets else result.validation.loss

    max_loss = original_model.validate(prepared, 0).validation.loss
    chosen, loss = select_weights(trainer, _finetuning_candidates(trainer), compute_loss, max_loss)
    reason = "lowest validation loss" if chosen else "fine-tuning did not improve the model"
    if prepared.original_validation:
        reason += (
            f", among weights whose original-domain loss rose by at most {config.max_forgetting:.0%} "
            "(finetuning.max_forgetting)"
        )
    if state.forgetting.rejected_loss < loss:
        reason += (
            f"; update {state.forgetting.rejected_update:,} had {state.forgetting.rejected_loss:.4f} but forgot more: "
            "to get there, mix in general-domain pairs (--mix) or raise finetuning.max_forgetting"
        )
    before = after = original_model.validate(prepared, bleu_sentences)
    if chosen:
        after = validate(trainer.model, prepared, bleu_sentences)
    else:
        trainer.model = original_model.model
        tokenizer = original_model.tokenizer
        trainer.prepared = replace(prepared, tokenizer=tokenizer)
    new_subwords = [
        tokenizer.source.vocab_size - init_config.model.source_vocab_size,
        tokenizer.target.vocab_size - init_config.model.target_vocab_size,
    ]
    originals = before.original_validation, after.original_validation
    report = {
        "init_from": config.init_from,
        "weights": f"weights: {chosen.name if chosen else 'the initial model'} (validation loss {loss:.4f}); {reason}",
        "update": chosen.update if chosen else 0,
        "new_subwords": new_subwords[:1] if tokenizer.joint else new_subwords,
        "validation": _compare(before.validation, after.validation, len(prepared.validation)),
        "original_validation": _compare(*originals, len(prepared.original_validation)),
    }
    return report, after.validation


def _finetuning_candidates(trainer: Trainer) -> list[Candidate]:
    """The best checkpoint, the average of the last, and interpolations towards one that forgets too much.

    Between initial and fine-tuned weights, much of the new domain is learned before much of the original is
    forgotten (Wortsman et al. 2022).
    """
    state = trainer.state
    candidates = _best_candidates(trainer) if state.best.update else []
    last = _last_checkpoints(trainer)
    if len(last) > 1 or (last and state.best.update and not candidates):
        candidates.append(_average_candidate(last))
    update = state.forgetting.rejected_update
    if update and state.forgetting.rejected_loss < state.best.loss:
        paths = _checkpoint_weights(trainer, 0), _checkpoint_weights(trainer, update)
        if paths[0] and paths[1]:
            start, end = read_tensors(paths[0]), read_tensors(paths[1])
            for fraction in INTERPOLATION_FRACTIONS:
                name = f"interpolation, {fraction:.0%} from the initial model to update {update:,}"
                weights = {key: torch.lerp(start[key], end[key], fraction) for key in start}
                candidates.append(Candidate(name, update, weights))
    return candidates


def _compare(before: ValidationResult | None, after: ValidationResult | None, pairs: int) -> dict[str, Any] | None:
    if before is None or after is None:
        return None
    samples = zip(before.samples[:SAMPLES], after.samples, strict=False)
    return {
        "pairs": pairs,
        "before": {"loss": before.loss, **before.scores},
        "after": {"loss": after.loss, **after.scores},
        "samples": [
            {"source": source, "reference": reference, "before": text_before, "after": text_after}
            for (source, reference, text_before), (_, _, text_after) in samples
        ],
    }


DOMAINS = {"validation": "new", "original_validation": "original"}
"""Keys of finetuning.json, and what tables call them."""


def format_comparison(report: dict[str, Any]) -> list[str]:
    """A Markdown table of scores before and after, from the content of finetuning.json."""
    lines = ["| domain (pairs) | score | before | after | change |", "|---|---|---|---|---|"]
    for key, domain in DOMAINS.items():
        comparison = report[key]
        for name in comparison["before"] if comparison else ():
            before, after = comparison["before"][name], comparison["after"][name]
            digits = 4 if name == "loss" else 1
            numbers = f"{before:.{digits}f} | {after:.{digits}f} | {after - before:+.{digits}f}"
            lines.append(f"| {domain} ({comparison['pairs']:,}) | {name} | {numbers} |")
    if not report["original_validation"]:
        lines += ["", "No original-domain pairs were available: forgetting was not measured."]
    return lines


def list_samples(report: dict[str, Any]) -> list[tuple[str, ...]]:
    """Rows of source, reference, translation before and after."""
    return [tuple(sample.values()) for key in DOMAINS for sample in (report[key] or {"samples": []})["samples"]]


def describe_new_subwords(report: dict[str, Any]) -> str:
    """How many subwords were added to the vocabulary; empty if none."""
    counts = report["new_subwords"]
    if not any(counts):
        return ""
    return " and ".join(format_count(count, "new subword") for count in counts) + " in the vocabulary"


def write_model_folder(trainer: Trainer, folder: Path) -> ModelFolder:
    """Choose the weights, validate them, and write the model folder."""
    prepared, config, report = trainer.prepared, trainer.config, None
    if trainer.is_finetuning:
        bleu_sentences = config.bleu_sentences if config.max_minutes else FINAL_BLEU_SENTENCES
        report, result = finish_finetuning(trainer, bleu_sentences)
        weights_description = report["weights"]
        write_json(folder / FINETUNING_FILE, report)  # printed by the command line
    else:
        bleu_sentences = 2 * config.bleu_sentences if config.max_minutes else FINAL_BLEU_SENTENCES
        weights_description = load_best_weights(trainer)
        trainer.report.info(weights_description)
        result = validate_directions(trainer.model, prepared, bleu_sentences)
        for line in format_directions(result, prepared.directions):
            trainer.report.info(line)
    card = render_model_card(trainer, result, weights_description, report)
    model_folder_config = _build_model_folder_config(trainer, folder)
    model_folder = ModelFolder(model_folder_config, trainer.prepared.tokenizer, trainer.model.eval(), card)
    model_folder.save(folder)
    return model_folder


def _build_model_folder_config(trainer: Trainer, folder: Path) -> ModelFolderConfig:
    prepared, guided = trainer.prepared, trainer.prepared.config.guided_attention
    # Tokens, END included, of the longest source sentence in training.
    max_source_length = max(prepared.dataset.max_source_length + 1, MIN_SOURCE_LENGTH)
    max_source_length = min(max_source_length, prepared.config.model.max_length)
    # If nearly all sources are one sentence, text must be split before translation.
    pairs = islice(read_cleaned_pairs(find_first_shard(folder / "training" / "data")), 10_000)
    init_config, directions = prepared.init_config, prepared.directions
    language = (
        prepared.languages[0] if prepared.languages else ""
    )  # the source language of the model, as in translation
    has_several = [len(split_sentences(strip_tags(pair.source), language)) > 1 for pair in pairs]
    single_sentences = sum(has_several) < len(has_several) * MULTI_SENTENCE_FRACTION
    if init_config is not None:
        all_directions = tuple(dict.fromkeys((*init_config.directions, *directions)))
        changes = {
            "model": trainer.model.config,
            "generation": prepared.config.generation,
            "max_source_length": max(max_source_length, init_config.max_source_length),
            "split_sentences": init_config.split_sentences and single_sentences,
            "languages": prepared.languages,
            "directions": all_directions if init_config.directions else (),
        }
        return init_config.model_copy(update=changes)
    return ModelFolderConfig(
        languages=prepared.languages,
        target_languages=tuple(dict.fromkeys(target for _, target in directions)),
        source_languages=tuple(dict.fromkeys(source for source, _ in directions)),
        directions=directions,
        tokenizer=prepared.config.tokenizer,
        model=trainer.model.config,
        generation=prepared.config.generation,
        max_source_length=max_source_length,
        split_sentences=single_sentences,
        unicode_normalization=prepared.config.cleaning.unicode_normalization,
        inline_terms=prepared.config.inline_terms.fraction > 0,
        guided_head=(guided.layer, guided.head) if guided.alignments else None,
    )


TITLES = {"causal_lm": "plain text, left to right", "masked_lm": "plain text, masked"}

DESCRIPTIONS = {
    "transformer": "A Transformer",
    "gru": "A recurrent model (GRU) with additive attention",
    "lstm": "A recurrent model (LSTM) with additive attention",
    "causal_lm": "A causal language model (Transformer decoder)",
    "masked_lm": "A masked language model (Transformer encoder)",
}

TOKEN_NAMES = {"causal_lm": "token", "masked_lm": "masked token"}
"""What language models learn to predict."""

USAGES = {"causal_lm": 'generate {} "a beginning"', "masked_lm": 'fill {} "a __ sentence"'}


def usage_command(architecture: str, folder: object = "FOLDER", target_language: str = "") -> str:
    """The command that tries a model; ``target_language`` is for models with several."""
    return (
        "heedful "
        + USAGES.get(architecture, 'translate {} "a sentence"').format(folder)
        + (target_language and f" --to {target_language}")
    )


def render_model_card(
    trainer: Trainer,
    validation: ValidationResult,
    weights_description: str,
    finetuning_report: dict[str, Any] | None = None,
) -> str:
    """Data, settings, scores and samples in Markdown; of a fine-tuned model before and after."""
    prepared, config, state = trainer.prepared, trainer.prepared.config, trainer.state
    languages, architecture = prepared.languages, config.model.architecture
    is_language_model = architecture in LANGUAGE_MODEL_ARCHITECTURES
    title_directions = prepared.directions or ((languages,) if languages else ())
    title = ", ".join(f"{source} to {target}" for source, target in title_directions) or TITLES.get(
        architecture, "translation"
    )
    target_language = prepared.directions[-1][1] if prepared.directions else ""
    guided = config.guided_attention
    model_lines = [
        f"{trainer.model.parameter_count():,} parameters, preset {config.preset}",
        _describe_shape(config.model),
        f"{format_count(state.update, 'update')}, "
        f"{format_count(state.tokens, TOKEN_NAMES.get(architecture, 'target token'))}, "
        f"{state.clock.training_seconds / 60:.1f} minutes",
        weights_description,
    ]
    if guided.alignments:
        model_lines.append(
            f"encoder layer {guided.layer} head {guided.head} is guided: an extra loss trained its attention; "
            "it did not emerge from translation"
        )
    score_lines = [
        f"loss {validation.loss:.4f} per token, perplexity {validation.perplexity:.3f}",
        *(f"{name} {value:.1f}" for name, value in validation.scores.items()),
        *format_directions(validation, prepared.directions),
    ]
    sections = {
        "Data": _format_bullets(prepared.summary),
        "Model": _format_bullets(model_lines),
        f"Scores on the validation {'line' if is_language_model else 'pair'}s": _format_bullets(score_lines),
    }
    if finetuning_report:
        new_subwords = describe_new_subwords(finetuning_report)
        origin = [f"fine-tuned from {finetuning_report['init_from']}", *([new_subwords] if new_subwords else [])]
        comparison = [_format_bullets(origin), "", *format_comparison(finetuning_report)]
        sections["Before and after fine-tuning"] = "\n".join(comparison)
        header = ("source", "reference", "before", "after")
        sections["Validation samples before and after"] = _format_samples(header, list_samples(finetuning_report))
    elif not is_language_model:
        sections["Validation samples"] = _format_samples(("source", "reference", "translation"), validation.samples)
    sections["Settings"] = f"```json\n{config.model_dump_json(indent=2)}\n```"
    sections["Use"] = f"```\n{usage_command(architecture, target_language=target_language)}\n```"
    body = "\n\n".join(f"## {heading}\n\n{text}" for heading, text in sections.items())
    return f"# Heedful model: {title}\n\n{DESCRIPTIONS[architecture]} trained by Heedful.\n\n{body}\n"


def _describe_shape(model: ArchitectureConfig) -> str:
    """Only what a model of this architecture has."""
    size = f"d_model {model.d_model}"
    heads = f"{size}, {format_count(model.heads, 'head')}"
    if model.architecture in LANGUAGE_MODEL_ARCHITECTURES:
        layers = model.decoder_layers if model.architecture == "causal_lm" else model.encoder_layers
        return f"{format_count(layers, 'layer')}, {heads}"
    layers_text = f"{model.encoder_layers} encoder and {format_count(model.decoder_layers, 'decoder layer')}"
    return f"{layers_text}, {heads if model.architecture == 'transformer' else size}"


def _format_bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _format_samples(header: Sequence[str], samples: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    if not samples:
        return "No samples."
    rows = [[text.replace("|", "\\|") for text in sample] for sample in samples]
    lines = [f"| {' | '.join(row)} |" for row in (header, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(header), *lines[1:]])
