"""Beam search: several hypotheses side by side, vectorised over sentences (section 6.1 of the paper)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from heedful.decoding.config import SearchConfig
from heedful.decoding.hypothesis import Hypothesis, new_hypothesis
from heedful.decoding.stepwise import Prefixes, State, StepwiseDecoder
from heedful.text.tokenizer import END, PAD

Fate = Literal["kept", "finished", "pruned"]


class Candidate(NamedTuple):
    """A hypothesis that search has thought of: one that it kept, one more token, and what became of it."""

    origin: int
    """Its parent's place among the hypotheses that the step before has kept."""
    token: int
    log_probability: float
    """Of the token."""
    total: float
    """Of the whole hypothesis."""
    fate: Fate


Watch = Callable[[Sequence[Candidate]], None]
"""Told of the candidates of every step, best first, of the first sentence of a batch."""


@dataclass(slots=True)
class _Live:
    """Hypotheses still being written: a line a sentence, a column a hypothesis, best first."""

    sentences: list[int]  # which sentence of the batch each line belongs to
    tokens: Tensor  # (lines, hypotheses, length)
    log_probabilities: Tensor  # the same shape
    totals: Tensor  # (lines, hypotheses)


@torch.inference_mode()
def beam_search(
    decoder: StepwiseDecoder[State],
    source: Tensor,
    config: SearchConfig,
    limits: Sequence[int],
    prefixes: Prefixes,
    watch: Watch | None = None,
) -> list[list[Hypothesis]]:
    """Keep the ``beam`` best unfinished hypotheses of each sentence until as many have ended."""
    finished: list[list[Hypothesis]] = [[] for _ in limits]
    state = decoder.start(source)
    live = _nothing_written(source)
    last = source.new_full((source.size(0),), PAD)  # the decoder starts from PAD
    for length in range(max(limits)):
        step_scores, state = decoder.step(last, state)
        log_probabilities = step_scores.view(*live.totals.shape, -1)
        log_probabilities = _forced(log_probabilities, live, prefixes, length)
        rows, live = _grown(live, log_probabilities, config, finished, watch)
        stay = [
            line
            for line, sentence in enumerate(live.sentences)
            if length + 1 < limits[sentence] and _has_hope(live, line, finished[sentence], config)
        ]
        for line in set(range(len(live.sentences))) - set(stay):
            _add_incomplete(live, line, finished[live.sentences[line]], config)
        if not stay:
            break
        if len(stay) < len(live.sentences):
            rows, live = rows[stay], _kept(live, stay)
        state = state.reorder(rows)
        last = live.tokens[:, :, -1].flatten()
    # A translation that ended is better than any that did not.
    best_first = (sorted(each, key=lambda h: (h.complete, h.score), reverse=True) for each in finished)
    return [each[: config.beam] for each in best_first]


def _has_hope(live: _Live, line: int, finished: list[Hypothesis], config: SearchConfig) -> bool:
    """Whether it is worth while to go on with a sentence.

    Without early stopping it is as long as the best hypothesis, if it ended here at no cost, would be better
    than the worst of the best that have ended.
    """
    if len(finished) < config.beam:
        return True
    if config.early_stopping:
        return False
    worst = sorted((each.score for each in finished), reverse=True)[config.beam - 1]
    return float(live.totals[line, 0]) / config.penalty(live.tokens.size(2)) > worst


def _nothing_written(source: Tensor) -> _Live:
    sentences = source.size(0)
    nothing = torch.zeros(sentences, 1, 0, device=source.device)
    return _Live(
        list(range(sentences)), nothing.long(), nothing, torch.zeros(sentences, 1, device=source.device)
    )


def _forced(log_probabilities: Tensor, live: _Live, prefixes: Prefixes, length: int) -> Tensor:
    """Every next word hidden but the one the prefix asks for."""
    lines = [line for line, sentence in enumerate(live.sentences) if length < len(prefixes[sentence])]
    if not lines:
        return log_probabilities
    forced = log_probabilities.clone()
    for line in lines:
        token = prefixes[live.sentences[line]][length]
        forced[line] = -torch.inf
        forced[line, :, token] = log_probabilities[line, :, token]
    return forced


def _grown(
    live: _Live,
    log_probabilities: Tensor,
    config: SearchConfig,
    finished: list[list[Hypothesis]],
    watch: Watch | None,
) -> tuple[Tensor, _Live]:
    """One more token: ended hypotheses move to ``finished``; returns the old rows of the new ones."""
    lines, hypotheses, vocabulary = log_probabilities.shape
    candidates = (live.totals[:, :, None] + log_probabilities).flatten(1)
    # Twice the beam: at most one END for each hypothesis, so enough remain to go on with.
    totals, index = candidates.topk(min(2 * config.beam, candidates.size(1)))
    origin, token = index // vocabulary, index % vocabulary
    gained = log_probabilities.flatten(1).gather(1, index)
    ended = token == END
    ended_well = ended & (totals > -torch.inf)
    ended_well[:, config.beam :] = False  # an END below the beam's width was not good enough
    for line, place in ended_well.nonzero().tolist():
        parent = int(origin[line, place])
        history = [*live.log_probabilities[line, parent].tolist(), float(gained[line, place])]
        finished[live.sentences[line]].append(
            new_hypothesis(live.tokens[line, parent].tolist(), history, penalty=config.penalty, complete=True)
        )
    going_on = ended.int().argsort(dim=1, stable=True)[:, : config.beam]
    if watch is not None and live.sentences[0] == 0:
        kept = set(going_on[0][~ended[0, going_on[0]]].tolist())
        fates: list[Fate] = [
            "finished" if ended_well[0, place] else "kept" if place in kept else "pruned"
            for place in range(len(index[0]))
        ]
        watch(_candidates(origin[0], token[0], gained[0], totals[0], fates))
    origin, token, totals, gained, hopeless = (
        part.gather(1, going_on) for part in (origin, token, totals, gained, ended)
    )
    totals = totals.masked_fill(hopeless, -torch.inf)  # tiny vocabularies may run out of words but END
    rows = torch.arange(lines, device=origin.device)[:, None] * hypotheses + origin
    return rows, _Live(
        live.sentences,
        _appended(live.tokens, origin, token),
        _appended(live.log_probabilities, origin, gained),
        totals,
    )


def _candidates(
    origin: Tensor, token: Tensor, gained: Tensor, totals: Tensor, fates: Sequence[Fate]
) -> list[Candidate]:
    """What can be; what a prefix forbids is not thought of."""
    rows = zip(origin.tolist(), token.tolist(), gained.tolist(), totals.tolist(), fates, strict=True)
    return [Candidate(*row) for row in rows if row[3] > -torch.inf]


def _appended(history: Tensor, origin: Tensor, new: Tensor) -> Tensor:
    chosen = history.gather(1, origin[:, :, None].expand(-1, -1, history.size(2)))
    return torch.cat([chosen.to(new.dtype), new[:, :, None]], dim=2)


def _kept(live: _Live, lines: list[int]) -> _Live:
    return _Live(
        [live.sentences[line] for line in lines],
        live.tokens[lines],
        live.log_probabilities[lines],
        live.totals[lines],
    )


def _add_incomplete(live: _Live, line: int, finished: list[Hypothesis], config: SearchConfig) -> None:
    """At the longest length what is still being written fills up the list, marked as incomplete."""
    totals = live.totals[line].tolist()
    for place in range(len(totals)):
        if len(finished) < config.beam and totals[place] > -torch.inf:
            tokens = live.tokens[line, place].tolist()
            history = live.log_probabilities[line, place].tolist()
            finished.append(new_hypothesis(tokens, history, penalty=config.penalty, complete=False))
