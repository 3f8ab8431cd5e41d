"""Beam search, vectorized over sentences (section 6.1 of the paper)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from heedful.generation.config import GenerationConfig
from heedful.generation.decoder_protocol import Hypothesis, Prefixes, State, StepwiseDecoder, new_hypothesis
from heedful.tokenization.special_tokens import END, PAD

CandidateStatus = Literal["kept", "finished", "pruned"]


class BeamCandidate(NamedTuple):
    """One extension of a hypothesis by a token, with its outcome; for inspection."""

    parent: int
    """Index of the extended hypothesis in the previous beam."""
    token: int
    log_probability: float
    """Log-probability of the token."""
    total: float
    """Log-probability of the extended hypothesis."""
    status: CandidateStatus


StepCallback = Callable[[Sequence[BeamCandidate]], None]
"""Receives the candidates of each step for the first sentence of a batch, best first."""


@dataclass(slots=True)
class _Beam:
    """Active hypotheses: one line per sentence, one column per hypothesis, best first."""

    sentences: list[int]  # index in the batch of each line
    tokens: Tensor  # (lines, hypotheses, length)
    log_probabilities: Tensor  # the same shape
    totals: Tensor  # (lines, hypotheses)


@torch.inference_mode()
def beam_search(
    decoder: StepwiseDecoder[State],
    source: Tensor,
    config: GenerationConfig,
    max_lengths: Sequence[int],
    prefixes: Prefixes,
    on_step: StepCallback | None = None,
) -> list[list[Hypothesis]]:
    """Keep the ``beam_size`` best active hypotheses of each sentence until as many are complete."""
    finished: list[list[Hypothesis]] = [[] for _ in max_lengths]
    state = decoder.start(source)
    batch_size = source.size(0)
    empty = torch.zeros(batch_size, 1, 0, device=source.device)
    beam = _Beam(list(range(batch_size)), empty.long(), empty, torch.zeros(batch_size, 1, device=source.device))
    last_tokens = source.new_full((batch_size,), PAD)  # the decoder starts from PAD
    for length in range(max(max_lengths)):
        step_scores, state = decoder.step(last_tokens, state)
        log_probabilities = step_scores.view(*beam.totals.shape, -1)
        log_probabilities = _force_prefixes(log_probabilities, beam, prefixes, length)
        rows, beam = _expand(beam, log_probabilities, config, finished, on_step)
        active = []
        for line, sentence in enumerate(beam.sentences):
            if length + 1 < max_lengths[sentence] and _can_improve(beam, line, finished[sentence], config):
                active.append(line)
            else:
                _add_incomplete(beam, line, finished[sentence], config)
        if not active:
            break
        if len(active) < len(beam.sentences):
            rows, sentences = rows[active], [beam.sentences[line] for line in active]
            beam = _Beam(sentences, beam.tokens[active], beam.log_probabilities[active], beam.totals[active])
        state = state.reorder(rows)
        last_tokens = beam.tokens[:, :, -1].flatten()
    # Complete hypotheses rank before incomplete ones.
    best_first = (sorted(hypotheses, key=lambda h: (h.complete, h.score), reverse=True) for hypotheses in finished)
    return [hypotheses[: config.beam_size] for hypotheses in best_first]


def _can_improve(beam: _Beam, line: int, finished: list[Hypothesis], config: GenerationConfig) -> bool:
    """Whether the search of a sentence continues.

    Without early stopping, it does while the best active hypothesis, if it ended here at no cost, would score
    above the worst of the ``beam_size`` best complete ones.
    """
    if len(finished) < config.beam_size:
        return True
    if config.early_stopping:
        return False
    worst = sorted((hypothesis.score for hypothesis in finished), reverse=True)[config.beam_size - 1]
    return float(beam.totals[line, 0]) / config.penalty(beam.tokens.size(2)) > worst


def _force_prefixes(log_probabilities: Tensor, beam: _Beam, prefixes: Prefixes, length: int) -> Tensor:
    """Mask all tokens but the next one of the prefix."""
    forced_tokens = {
        line: prefixes[sentence][length]
        for line, sentence in enumerate(beam.sentences)
        if length < len(prefixes[sentence])
    }
    if not forced_tokens:
        return log_probabilities
    forced = log_probabilities.clone()
    for line, token in forced_tokens.items():
        forced[line] = -torch.inf
        forced[line, :, token] = log_probabilities[line, :, token]
    return forced


def _expand(
    beam: _Beam,
    log_probabilities: Tensor,
    config: GenerationConfig,
    finished: list[list[Hypothesis]],
    on_step: StepCallback | None,
) -> tuple[Tensor, _Beam]:
    """Extend all hypotheses by a token; complete ones move to ``finished``. Returns rows and the new beam."""
    batch_size, beam_width, vocab_size = log_probabilities.shape
    candidates = (beam.totals[:, :, None] + log_probabilities).flatten(1)
    # Twice the beam size: at most one END per hypothesis, so enough active ones remain.
    totals, index = candidates.topk(min(2 * config.beam_size, candidates.size(1)))
    parents, tokens = index // vocab_size, index % vocab_size
    token_scores = log_probabilities.flatten(1).gather(1, index)
    is_end = tokens == END
    is_finished = is_end & (totals > -torch.inf)
    is_finished[:, config.beam_size :] = False  # END must rank within the beam
    for line, column in is_finished.nonzero().tolist():
        parent = int(parents[line, column])
        history = [*beam.log_probabilities[line, parent].tolist(), float(token_scores[line, column])]
        finished[beam.sentences[line]].append(
            new_hypothesis(beam.tokens[line, parent].tolist(), history, penalty=config.penalty, complete=True)
        )
    continuing = is_end.int().argsort(dim=1, stable=True)[:, : config.beam_size]
    if on_step is not None and beam.sentences[0] == 0:
        continuing_columns = set(continuing[0][~is_end[0, continuing[0]]].tolist())
        statuses: list[CandidateStatus] = [
            "finished" if is_finished[0, column] else "kept" if column in continuing_columns else "pruned"
            for column in range(len(index[0]))
        ]
        columns = (tensor[0].tolist() for tensor in (parents, tokens, token_scores, totals))
        steps = [BeamCandidate(*fields) for fields in zip(*columns, statuses, strict=True)]
        on_step([step for step in steps if step.total > -torch.inf])  # a prefix excludes the others
    parents, tokens, totals, token_scores, has_ended = (
        tensor.gather(1, continuing) for tensor in (parents, tokens, totals, token_scores, is_end)
    )
    totals = totals.masked_fill(has_ended, -torch.inf)  # tiny vocabularies may offer only END
    rows = torch.arange(batch_size, device=parents.device)[:, None] * beam_width + parents
    return rows, _Beam(
        beam.sentences,
        _append(beam.tokens, parents, tokens),
        _append(beam.log_probabilities, parents, token_scores),
        totals,
    )


def _append(history: Tensor, parents: Tensor, new_column: Tensor) -> Tensor:
    parent_history = history.gather(1, parents[:, :, None].expand(-1, -1, history.size(2)))
    return torch.cat([parent_history.to(new_column.dtype), new_column[:, :, None]], dim=2)


def _add_incomplete(beam: _Beam, line: int, finished: list[Hypothesis], config: GenerationConfig) -> None:
    """Fill up the results with incomplete hypotheses."""
    for column, total in enumerate(beam.totals[line].tolist()):
        if len(finished) < config.beam_size and total > -torch.inf:
            tokens, history = beam.tokens[line, column].tolist(), beam.log_probabilities[line, column].tolist()
            finished.append(new_hypothesis(tokens, history, penalty=config.penalty, complete=False))
