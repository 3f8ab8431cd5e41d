"""One row of one head of a trained model, and all there is to know about it."""

from dataclasses import dataclass

from torch import Tensor

from heedful.bundle import Bundle
from heedful.inspection.arithmetic import AttentionStep, HeadStep, MultiHeadStep
from heedful.inspection.stacks import sublayer_of
from heedful.inspection.trace import Kind, Tokens, Trace
from heedful.model.residual import Norm
from heedful.text.spelling import SPACE


@dataclass(frozen=True, slots=True)
class WordRow:
    """A row of a head, and all there is to know about it."""

    bundle: Bundle
    seen: Trace
    kind: Kind
    layer: int
    head: int
    row: int
    key: int
    step: MultiHeadStep

    @property
    def side(self) -> str:
        return "encoder" if self.kind == "encoder" else "decoder"

    @property
    def rows(self) -> Tokens:
        return self.seen.sides(self.kind)[0]

    @property
    def columns(self) -> Tokens:
        return self.seen.sides(self.kind)[1]

    @property
    def own(self) -> HeadStep:
        """The head in question."""
        return self.step.heads[self.head]

    @property
    def attention(self) -> AttentionStep:
        return self.own.attention

    @property
    def x(self) -> Tensor:
        """What the attention reads at this row: (width,)."""
        return self.own.query.x[self.row]

    @property
    def stream(self) -> Tensor:
        """What the attention's result is added to: (width,)."""
        assert self.step.before is not None
        return self.step.before[self.row]

    @property
    def norm(self) -> Norm:
        """The norm of this sublayer: after the sum, or before attention (pre-norm)."""
        return sublayer_of(self.bundle.predictor, self.kind, self.layer)[1].norm

    @property
    def column_labels(self) -> tuple[str, ...]:
        """The columns' pieces with their number, which tells apart those that are alike."""
        return labels(self.columns)


def find_piece(tokens: Tokens, word: str, where: str = "the sentence") -> int:
    """The place of a word's first piece, of a piece spelled so, or of a number in the token table."""
    if word not in tokens.words and word in tokens.pieces:
        return tokens.pieces.index(word)
    if word not in tokens.words and word.isdecimal() and 1 <= int(word) <= len(tokens.pieces):
        return int(word) - 1
    pieces = tokens.of_word(tokens.find(word, where))
    spelled = [place for place in pieces if tokens.pieces[place] != SPACE]  # a bare space says nothing
    return (spelled or pieces)[0]


def labels(tokens: Tokens) -> tuple[str, ...]:
    """The pieces with their numbers, which tell apart those that are alike."""
    size = len(str(len(tokens.pieces)))
    return tuple(f"{number:>{size}} {piece}" for number, piece in enumerate(tokens.pieces, start=1))
