"""The end of a tuning: which weights are taken and why, and what has become better and what worse.

The start is a candidate: if no other weights are better, the model stays as it was, and that is said.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heedful.bundle import WEIGHTS, load_parameters, read_tensors
from heedful.progress import counted
from heedful.training.checkpoint import averaged_weights, whole
from heedful.training.examination import Examination, Original, examine, original
from heedful.training.loop import Run
from heedful.training.validation import Validation

REPORT = "tuning.json"
SAMPLES = 5
WAYS = (0.75, 0.5, 0.25)
"""How far to go towards weights that have forgotten too much."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """A model before and after."""

    chosen: str
    """Which weights were taken, and why."""
    update: int
    """The newest update that is in them; 0 for none."""
    before: Examination
    after: Examination

    def to_json(self, run: Run) -> dict[str, Any]:
        """What stands in tuning.json."""
        prepared = run.prepared
        report: dict[str, Any] = {
            "start_from": prepared.config.tuning.start_from,
            "chosen": self.chosen,
            "update": self.update,
            "new_pieces": _new_pieces(run),
            "new": _compared(self.before.new, self.after.new, len(prepared.validation)),
            "old": None,
        }
        if self.before.old is not None and self.after.old is not None:
            report["old"] = _compared(self.before.old, self.after.old, len(prepared.remembered))
        return report


def finish_tuning(run: Run, sentences: int) -> Tuned:
    """Put the best weights into the run's model, and examine it and the one it comes from."""
    first = _weights(run, 0) or Path(run.prepared.config.tuning.start_from) / WEIGHTS
    start = original(run.folder, run.prepared, run.model, first)
    chosen, update = _choose_weights(run, start)
    before = start.examine(run.prepared, sentences)
    if update:
        return Tuned(chosen, update, before, examine(run.model, run.prepared, sentences))
    run.model, run.prepared = start.model, replace(run.prepared, tokenizer=start.tokenizer)
    return Tuned(chosen, update, before, before)


def _choose_weights(run: Run, start: Original) -> tuple[str, int]:
    """The best that does not forget; returns what it is and its newest update, 0 for the start."""
    state, allowed = run.state, run.prepared.config.tuning.forgetting
    losses = {"those of the model that it started from": start.examine(run.prepared, 0).new.loss}
    candidates = _candidates(run)
    for name, (_, weights) in candidates.items():
        load_parameters(run.model, weights, run.folder)
        result = examine(run.model, run.prepared, 0)
        if not result.forgets(state.old_loss, allowed):
            losses[name] = result.new.loss
    winner = min(losses, key=lambda name: losses[name])
    update = 0
    if winner in candidates:
        update, weights = candidates[winner]
        load_parameters(run.model, weights, run.folder)
    reason = _reason(run, losses[winner], update > 0)
    return f"weights: {winner} (loss on new pairs {losses[winner]:.4f}); {reason}", update


def _candidates(run: Run) -> dict[str, tuple[int, dict[str, Tensor]]]:
    """The best checkpoint, the average of the last ones, and some of the way to one that forgets too much.

    On the way from a model to a tuned one, much of the new is learned before much of the old is forgotten
    (Wortsman et al. 2022).
    """
    state, found = run.state, dict[str, tuple[int, dict[str, Tensor]]]()
    best = _weights(run, state.best_update) if state.best_update else None
    if best:
        name = f"the best checkpoint, of update {state.best_update:,}"
        found[name] = state.best_update, read_tensors(best)
    last = [path for path in run.regular_checkpoints() if int(path.name)][-run.plan.settings.average :]
    last = whole(last, run.report)
    if len(last) > 1 or (last and state.best_update and not best):
        name = f"the average of the last {counted(len(last), 'checkpoint')}"
        found[name] = int(last[-1].name), averaged_weights(last)
    if state.refused_update and state.refused_loss < state.best_loss:
        whole_ends = [path for update in (0, state.refused_update) if (path := _weights(run, update))]
        ends = [read_tensors(path) for path in whole_ends]
        for way in WAYS if len(ends) == 2 else ():
            weights = {name: torch.lerp(ends[0][name], ends[1][name], way) for name in ends[0]}
            found[f"{way:.0%} of the way from the start to update {state.refused_update:,}"] = (
                state.refused_update,
                weights,
            )
    return found


def _reason(run: Run, loss: float, tuned: bool) -> str:
    state, allowed = run.state, run.prepared.config.tuning.forgetting
    limit = f"of those whose loss on old pairs rose by at most {allowed:.0%} (tuning.forgetting)"
    text = "the lowest loss on new pairs" if tuned else "tuning has made nothing better"
    text += f", {limit}" if run.prepared.remembered else ""
    if state.refused_loss < loss:
        text += (
            f"; update {state.refused_update:,} had {state.refused_loss:.4f}, but forgot more: "
            "to get there mix in general pairs (--mix), or allow more forgetting"
        )
    return text


def _weights(run: Run, update: int) -> Path | None:
    """Of a checkpoint, if it is there and whole."""
    path = run.checkpoint_folder / f"{update:09}"
    return path / WEIGHTS if path.is_dir() and whole([path], run.report) else None


def _new_pieces(run: Run) -> list[int]:
    """Pieces that were added: of the joint vocabulary, or of source and target."""
    start, tokenizer = run.prepared.start, run.prepared.tokenizer
    assert start is not None
    added = [
        tokenizer.source.size - start.model.source_vocabulary,
        tokenizer.target.size - start.model.target_vocabulary,
    ]
    return added[:1] if tokenizer.joint else added


def _compared(before: Validation, after: Validation, pairs: int) -> dict[str, Any]:
    samples = zip(before.samples[:SAMPLES], after.samples, strict=False)
    return {
        "pairs": pairs,
        "before": {"loss": before.loss, **before.scores},
        "after": {"loss": after.loss, **after.scores},
        "samples": [
            {"source": source, "reference": reference, "before": first, "after": second}
            for (source, reference, first), (_, _, second) in samples
        ],
    }


def table(report: dict[str, Any]) -> list[str]:
    """Before and after, in lines of Markdown, from what stands in tuning.json."""
    lines = ["| pairs | score | before | after | change |", "|---|---|---|---|---|"]
    for kind in ("new", "old"):
        found = report[kind]
        for name in found["before"] if found else ():
            first, second = found["before"][name], found["after"][name]
            digits = 4 if name == "loss" else 1
            numbers = f"{first:.{digits}f} | {second:.{digits}f} | {second - first:+.{digits}f}"
            lines.append(f"| {kind} ({found['pairs']:,}) | {name} | {numbers} |")
    if not report["old"]:
        lines += ["", "No old pairs were there: what the model has forgotten is not known."]
    return lines


def samples(report: dict[str, Any]) -> list[tuple[str, ...]]:
    """Rows of source, reference, before, after."""
    return [
        tuple(sample.values())
        for kind in ("new", "old")
        for sample in (report[kind] or {"samples": []})["samples"]
    ]


def pieces_added(report: dict[str, Any]) -> str:
    """In words; empty if there are none."""
    added = report["new_pieces"]
    if not any(added):
        return ""
    return " and ".join(counted(number, "new piece") for number in added) + " in the vocabulary"
