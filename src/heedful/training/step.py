"""One update: loss with label smoothing (section 5.4), gradient, Adam step (5.3), and which pairs it reads.

Losses are sums over tokens, divided once by all target tokens of the update: splitting a batch changes
nothing. ``label_smoothed_loss`` is the formula; ``output_loss`` computes the same, output layer and gradient
included, chunk by chunk: the logits of a whole batch never exist.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from heedful.data.collate import Batch, create_collator
from heedful.devices import mixed_precision
from heedful.errors import HeedfulError
from heedful.models.base import Model
from heedful.progress import Reporter
from heedful.tokenization.bpe_dropout import BPEDropout
from heedful.tokenization.dependency_trees import SentenceIds
from heedful.tokenization.special_tokens import PAD
from heedful.tokenization.tokenizer import Tokenizer
from heedful.training.config import TrainingConfig
from heedful.training.guided_attention import GuidedAttention, load_guided_attention
from heedful.training.preparation import PreparedCorpus

CHUNK_LOGITS = 1 << 22
"""Logits in memory at a time: 16 MB, half of a usual last-level cache."""


def label_smoothed_loss(logits: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Smoothed loss and plain negative log-likelihood, both summed over the tokens that are not PAD.

    The smoothed target is 1 - smoothing for the correct token, plus smoothing / vocabulary for every token.
    """
    log_probabilities = logits.log_softmax(-1)
    nll = -log_probabilities.gather(-1, targets[..., None])[..., 0]
    uniform_loss = -log_probabilities[..., PAD + 1 :].mean(-1)  # PAD is never a target
    token_mask = targets != PAD
    smoothed_loss = (1 - smoothing) * nll + smoothing * uniform_loss
    return smoothed_loss[token_mask].sum(), nll[token_mask].sum()


def output_loss(
    states: Tensor, output: Tensor, targets: Tensor, smoothing: float, matmul_dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """``label_smoothed_loss`` of ``states @ output.T``; ``output`` is (vocabulary, d_model).

    Only matrix products use ``matmul_dtype``.
    """
    token_mask = targets != PAD
    smoothed_loss, nll = _OutputLoss.apply(  # type: ignore[no-untyped-call]
        states[token_mask], output, targets[token_mask], smoothing, matmul_dtype or output.dtype
    )
    return smoothed_loss, nll


class _OutputLoss(torch.autograd.Function):
    """Forward also computes the gradients, while it has the logits, which are then discarded.

    A pass over all logits costs almost as much as a product with them, so there are few: the mean logit
    comes from the mean row, and the softmax division and the target are applied to the much smaller matrices
    that the logits are multiplied with.
    """

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, output: Tensor, targets: Tensor, smoothing: float, matmul_dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        output_rows, target_rows = output[PAD + 1 :], targets - (PAD + 1)
        cast_rows, mean_row = output_rows.to(matmul_dtype), output_rows.mean(0)
        needs_gradient, target_weight = any(ctx.needs_input_grad), 1 - smoothing
        state_gradient = torch.empty_like(states)
        output_gradient = torch.zeros_like(output_rows) if needs_gradient else None
        smoothed_loss = nll = torch.zeros((), dtype=torch.float64, device=states.device)
        chunk_size = max(1, CHUNK_LOGITS // len(output_rows))
        for start in range(0, len(states), chunk_size):
            chunk, rows = states[start : start + chunk_size], target_rows[start : start + chunk_size]
            logits = (chunk.to(matmul_dtype) @ cast_rows.T).to(chunk.dtype)  # (tokens, vocabulary)
            target_logits = logits.gather(1, rows[:, None])[:, 0]
            max_logits = logits.amax(1, keepdim=True)
            exponentials = logits.sub_(max_logits).exp_()
            total = exponentials.sum(1, keepdim=True)
            log_normalizer = (total.log() + max_logits)[:, 0]
            smoothed_logits = target_weight * target_logits + smoothing * (chunk @ mean_row)
            smoothed_loss = smoothed_loss + (log_normalizer - smoothed_logits).sum(dtype=torch.float64)
            nll = nll + (log_normalizer - target_logits).sum(dtype=torch.float64)
            if output_gradient is not None:  # the gradient of the logits is softmax - target
                exponentials, scaled_states = exponentials.to(matmul_dtype), (chunk / total).to(matmul_dtype)
                if matmul_dtype == output_rows.dtype:
                    output_gradient.addmm_(exponentials.T, scaled_states)
                else:
                    output_gradient += exponentials.T @ scaled_states
                output_gradient.index_add_(0, rows, chunk, alpha=-target_weight)
                gradient = (exponentials @ cast_rows).to(output_rows.dtype).div_(total)
                gradient.sub_(output_rows[rows], alpha=target_weight).sub_(mean_row, alpha=smoothing)
                state_gradient[start : start + chunk_size] = gradient
        if output_gradient is not None:
            # The smoothing term is the same for every token: add it once.
            output_gradient -= states.sum(0) * (smoothing / len(output_rows))
            ctx.save_for_backward(state_gradient, output_gradient)
        nll = nll.to(output.dtype)
        ctx.mark_non_differentiable(nll)
        return smoothed_loss.to(output.dtype), nll

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        state_gradient, output_gradient = ctx.saved_tensors
        padded_gradient = torch.nn.functional.pad(output_gradient, (0, 0, PAD + 1, 0))
        return state_gradient * gradients[0], padded_gradient * gradients[0], None, None, None


Resegmentation = Callable[[SentenceIds, np.random.Generator], SentenceIds]
"""BPE-dropout of one sentence."""


class LossSums(NamedTuple):
    """Sums over an update, or over one rank's part of it."""

    nll_sum: float
    """Negative log-likelihood, summed over the target tokens."""
    tokens: int
    splits: int = 0
    """Batches halved because they did not fit in memory."""


class UpdateResult(NamedTuple):
    """Result of an update."""

    sums: LossSums
    loss: float
    """Per token; NaN if no step was taken."""


def compute_batch_loss(
    model: Model, batch: Batch, smoothing: float, guided_attention: GuidedAttention | None = None
) -> tuple[Tensor, Tensor]:
    """Smoothed loss and negative log-likelihood of a batch, summed over target tokens.

    The loss of guided attention is added to the first.
    """
    device = model.output.weight.device
    source, decoder_input = batch.source.to(device), batch.decoder_input.to(device)
    if guided_attention is None or batch.guided_links is None:
        states, guided_loss = model(source, decoder_input), None
    else:
        memory, guided_loss = guided_attention.encode(model, source, batch.guided_links)
        states = model.decode(decoder_input, memory, source)
    matmul_dtype = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None
    with torch.autocast(device.type, enabled=False):  # probabilities need full precision
        states, weight = model.output_product(states)
        smoothed_loss, nll_sum = output_loss(states, weight, batch.target.to(device), smoothing, matmul_dtype)
    return smoothed_loss if guided_loss is None else smoothed_loss + guided_loss, nll_sum


class BatchLoss(nn.Module):
    """``compute_batch_loss`` as a module, for DDP and FSDP, which wrap modules."""

    def __init__(self, model: Model, smoothing: float, guided_attention: GuidedAttention | None = None) -> None:
        super().__init__()
        self.model, self.smoothing, self.guided_attention = model, smoothing, guided_attention

    def forward(self, batch: Batch, precision: str) -> tuple[Tensor, Tensor]:
        with mixed_precision(self.model.output.weight.device, precision):
            return compute_batch_loss(self.model, batch, self.smoothing, self.guided_attention)


def accumulate_gradient(loss: BatchLoss, batches: Sequence[Batch], precision: str) -> LossSums:
    """Add the gradient of the loss, summed over all target tokens, to the parameters.

    If a batch does not fit in memory it is halved, and accumulation starts again from zero gradients.
    """
    model, pending, splits = loss.model, list(batches), 0
    device = model.output.weight.device
    while True:
        total = torch.zeros((), dtype=torch.float64, device=device)
        for index, batch in enumerate(pending):  # noqa: B007 - index of the batch that does not fit
            try:
                smoothed_loss, nll_sum = loss(batch, precision)
                smoothed_loss.backward()
                total += nll_sum
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                break
        else:
            return LossSums(float(total), sum(batch.tokens for batch in batches), splits)
        smoothed_loss = nll_sum = None  # free the memory that they hold
        model.zero_grad(set_to_none=True)  # of earlier batches, and part of this one
        if len(pending[index].source) == 1:
            source_length, target_length = pending[index].source.size(1), pending[index].target.size(1)
            raise HeedfulError(
                f"a single pair of {source_length:,} and {target_length:,} tokens does not fit in memory",
                hint="the last checkpoint is valid; train again with a smaller model or a lower model.max_length",
            )
        pending[index : index + 1] = pending[index].split_in_half()
        splits += 1


def is_out_of_memory(error: Exception) -> bool:
    """Whether an allocation failed; PyTorch raises a plain RuntimeError on CPUs."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error)


def optimizer_step(
    model: Model,
    optimizer: torch.optim.Optimizer,
    sums: LossSums,
    config: TrainingConfig,
    learning_rate: float,
    ranks: int = 1,
) -> float:
    """One Adam step on the accumulated gradient, which is the mean over ``ranks``; returns the loss per token.

    ``sums`` is the result of ``accumulate_gradient``, summed over ranks. Gradients are divided once by the number
    of tokens, so the split into batches or ranks does not matter. If loss or gradient is not finite, no step is
    taken and the result is NaN.
    """
    tokens = max(sums.tokens, 1) / ranks
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    grad_norm = float((norm.full_tensor() if isinstance(norm, DTensor) else norm) / tokens)  # FSDP shards gradients
    if not (np.isfinite(sums.nll_sum) and np.isfinite(grad_norm)):
        return float("nan")
    clip_factor = min(1.0, config.max_grad_norm / (grad_norm + 1e-6)) if config.max_grad_norm else 1.0
    torch._foreach_mul_(gradients, clip_factor / tokens)
    for param_group in optimizer.param_groups:
        param_group["lr"] = learning_rate
    optimizer.step()
    return sums.nll_sum / max(sums.tokens, 1)


def run_update(
    model: Model,
    optimizer: torch.optim.Optimizer,
    batches: Sequence[Batch],
    config: TrainingConfig,
    learning_rate: float,
    guided_attention: GuidedAttention | None = None,
) -> UpdateResult:
    """One Adam step on all batches together, in this process."""
    optimizer.zero_grad(set_to_none=True)
    sums = accumulate_gradient(BatchLoss(model, config.label_smoothing, guided_attention), batches, config.precision)
    return UpdateResult(sums, optimizer_step(model, optimizer, sums, config, learning_rate))


def new_optimizer(model: Model, config: TrainingConfig) -> torch.optim.Optimizer:
    """Adam as in section 5.3; the learning rate is set at each update."""
    fused = model.output.weight.device.type in ("cpu", "cuda")
    return torch.optim.Adam(
        model.parameters(), lr=0.0, betas=(config.adam_beta1, config.adam_beta2), eps=config.adam_epsilon, fused=fused
    )


RANK_SEED_STRIDE = 2_654_435_761
"""Between the seeds of two ranks: larger than any number of updates, and within 32 bits."""


class BatchSchedule:
    """The updates of a run and the batches that each reads, the same in every process.

    Randomness in update n depends only on (seed, n, rank), so a resumed run is bit-exact.
    """

    def __init__(self, prepared: PreparedCorpus, folder: Path, report: Reporter) -> None:
        settings = prepared.config.training
        self.prepared, self.settings = prepared, settings
        self.batches = prepared.create_batches()
        self.updates_per_epoch = self.batches.updates_per_epoch(0)  # the same in every epoch
        epoch_limit = self.updates_per_epoch * settings.max_epochs
        self.total_updates = min(epoch_limit, settings.max_updates) if settings.max_updates else epoch_limit
        self.resegmentation = _build_resegmentation(prepared) if prepared.config.tokenizer.bpe_dropout else None
        self.make_batch = create_collator(prepared.config.model, prepared.tokenizer.source.vocab_size)
        has_alignments = bool(prepared.config.guided_attention.alignments)
        self.guided_attention = load_guided_attention(prepared, folder, report) if has_alignments else None

    def read_batches(self, update: int, rank: int = 0, size: int = 1, batches: int = 0) -> list[Batch]:
        """The first ``batches`` of an update (0: all); of each, every ``size``-th pair from ``rank`` on.

        With BPE-dropout each sentence is segmented again.
        """
        dataset, rank_batches = self.prepared.dataset, []
        update_batches = self.batches.update(*divmod(update - 1, self.updates_per_epoch))
        for batch_number, indices in enumerate(update_batches[: batches or None]):
            pair_indices = indices[rank::size].tolist()
            if not pair_indices:
                continue
            seed = [self.settings.seed, update, batch_number] + [rank] * (size > 1)
            sources: list[SentenceIds] = [dataset.source(i).tolist() for i in pair_indices]
            targets: list[SentenceIds] = [dataset.target(i).tolist() for i in pair_indices]
            if self.resegmentation is not None:
                generator = np.random.default_rng(seed)
                sources = [self.resegmentation[0](row, generator) for row in sources]
                targets = [self.resegmentation[1](row, generator) for row in targets]
            batch = self.make_batch(sources, targets, seed)
            if self.guided_attention:
                batch = replace(batch, guided_links=self.guided_attention.get_links(sources))
            rank_batches.append(batch)
        return rank_batches

    def count_batches(self, update: int, batches: int = 0) -> int:
        """How many batches an update has, of the first ``batches`` (0: all)."""
        return len(self.batches.update(*divmod(update - 1, self.updates_per_epoch))[: batches or None])

    def start_update(self, update: int, rank: int = 0, size: int = 1, batches: int = 0) -> list[Batch]:
        """Seed this process for the update and its rank, and read its batches."""
        torch.manual_seed(self.settings.seed * 1_000_003 + update + rank * RANK_SEED_STRIDE)
        return self.read_batches(update, rank, size, batches)

    def create_loss(self, model: Model) -> BatchLoss:
        """The training loss of a model."""
        return BatchLoss(model, self.settings.label_smoothing, self.guided_attention)


def _build_resegmentation(prepared: PreparedCorpus) -> tuple[Resegmentation, Resegmentation]:
    max_length = prepared.config.model.max_length

    def create_resegmentation(tokenizer: Tokenizer) -> Resegmentation:
        dropout = BPEDropout(tokenizer, prepared.config.tokenizer.bpe_dropout)

        def resegment(tokens: SentenceIds, generator: np.random.Generator) -> SentenceIds:
            new_tokens = dropout(tokens, generator)
            # Smaller subwords must not exceed the maximum length of the model.
            return new_tokens if len(new_tokens) < max_length else tokens

        return resegment

    source = create_resegmentation(prepared.tokenizer.source)
    return source, source if prepared.tokenizer.joint else create_resegmentation(prepared.tokenizer.target)
