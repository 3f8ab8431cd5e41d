"""What a model is examined on: held-out pairs and, if it is tuned, pairs of what it knew before."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from heedful.bundle import load_parameters, named_parameters, read_tensors
from heedful.corpora.filters import Pair
from heedful.model.family import new_model
from heedful.model.predictor import Predictor
from heedful.text.tokenizer import PairTokenizer
from heedful.training.checkpoint import TrainingState
from heedful.training.preparation import START, Prepared
from heedful.training.validation import Validation, validate


@dataclass(frozen=True, slots=True)
class Examination:
    """How good the model is on both."""

    new: Validation
    old: Validation | None = None
    """None if nothing is there to see forgetting by."""

    def forgets(self, before: float, allowed: float) -> bool:
        """Whether the loss on old pairs, ``before`` at the start, has risen by more than this share."""
        return self.old is not None and not self.old.loss <= before * (1 + allowed)

    def metrics(self) -> dict[str, float]:
        """For metrics.jsonl."""
        found = {"validation_loss": self.new.loss, "perplexity": self.new.perplexity, **self.new.scores}
        if self.old is not None:
            old = {"validation_loss": self.old.loss, "perplexity": self.old.perplexity, **self.old.scores}
            found |= {f"old_{name}": value for name, value in old.items()}
        return found


def examine(model: Predictor, prepared: Prepared, translated: int) -> Examination:
    """Loss on all pairs; scores of the first ``translated`` ones of each kind."""
    new = validate(model, prepared.tokenizer, prepared.validation, translated)
    if not prepared.remembered:
        return Examination(new)
    return Examination(new, validate(model, prepared.tokenizer, prepared.remembered, translated))


def judge(state: TrainingState, result: Examination, allowed: float) -> None:
    """Note whether these are the best weights so far: the lowest loss of those that do not forget.

    As long as weights that forget too much learn the new, or remember the old again, there is hope for them.
    """
    old = result.old.loss if result.old is not None else 0.0
    if result.old is not None and not state.update:
        state.old_loss = old
    state.stale += 1
    if result.forgets(state.old_loss, allowed):
        if old < state.last_old_loss or result.new.loss < min(state.best_loss, state.refused_loss):
            state.stale = 0
        if result.new.loss < state.refused_loss:
            state.refused_loss, state.refused_update = result.new.loss, state.update
    elif result.new.loss < state.best_loss:
        state.best_loss, state.best_update, state.stale = result.new.loss, state.update, 0
    state.last_old_loss = old


@dataclass(frozen=True, slots=True)
class Original:
    """The model that a tuning started from, with its own vocabulary."""

    model: Predictor
    tokenizer: PairTokenizer

    def examine(self, prepared: Prepared, translated: int) -> Examination:
        """As the tuned model is examined; losses are a token of the tuned model's, to be compared with."""
        own = replace(prepared, tokenizer=self.tokenizer)
        result = examine(self.model, own, translated)
        new = self._scaled(result.new, prepared.validation, prepared.tokenizer)
        if result.old is None:
            return Examination(new)
        return Examination(new, self._scaled(result.old, prepared.remembered, prepared.tokenizer))

    def _scaled(self, result: Validation, pairs: Sequence[Pair], tokenizer: PairTokenizer) -> Validation:
        """The same pairs are more tokens to a smaller vocabulary, each of which is easier."""
        factor = _target_tokens(self.tokenizer, pairs) / _target_tokens(tokenizer, pairs)
        return replace(result, loss=result.loss * factor)


def original(folder: Path, prepared: Prepared, model: Predictor, weights: Path | None = None) -> Original:
    """The start of the run in a folder: ``model`` at update 0, or the one whose weights these are.

    New pieces lie behind the old ones: without them it is as it was.
    """
    path = folder / "data" / START / "tokenizer.json"
    assert prepared.start is not None
    # Without new pieces the shape is the same but for dropout, which an examination does not have.
    first = new_model(prepared.start.model).to(model.output.weight.device).eval()
    tensors = read_tensors(weights) if weights else named_parameters(model)
    cut = {name: tensors[name][: len(each)] for name, each in first.named_parameters() if name in tensors}
    load_parameters(first, cut, folder)
    return Original(first, PairTokenizer.load(path) if path.is_file() else prepared.tokenizer)


def _target_tokens(tokenizer: PairTokenizer, pairs: Sequence[Pair]) -> int:
    return sum(len(ids) + 1 for ids in tokenizer.target.encode_batch([pair.target for pair in pairs]))
