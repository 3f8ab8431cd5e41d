"""Every tensor of one pass: a sentence and its translation through the whole model, seen by the observer.

Rows look at columns, everywhere: weights are (heads, queries, keys). Row t of the decoder reads target token
t - 1 (the start for t = 0) and writes token t. A language model has no source: its text is what it reads
and writes. A model that fills in blanks reads its text at once, and writes each word in its own place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count, takewhile
from typing import Literal, get_args

import torch
from torch import Tensor

from heedful.bundle import Bundle
from heedful.corpora.filters import clean_sentence
from heedful.decoding.config import SearchConfig
from heedful.decoding.search import output_limits, search
from heedful.engines.plain_text import filled_ids, places_of_blanks, text_with_blanks
from heedful.errors import HeedfulError
from heedful.model.attention import look_ahead_mask
from heedful.model.config import RECURRENT, ModelConfig
from heedful.places import pieces_of
from heedful.text.spelling import SPACE
from heedful.text.tokenizer import BLANK, END, PAD, Tokenizer

Kind = Literal["encoder", "decoder", "cross"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""Where attention happens: the source on itself, the target on itself, the target on the source."""

START_LABEL, END_LABEL, BLANK_LABEL = "<s>", "</s>", "__"
LABELS = {PAD: START_LABEL, END: END_LABEL}


@dataclass(frozen=True, slots=True)
class Tokens:
    """One side of a pass, as ids, as pieces, and as the words that the pieces make."""

    ids: tuple[int, ...]
    pieces: tuple[str, ...]
    """The pieces as people read them: ▁ stands for a space where words are cut into several pieces."""
    groups: tuple[int, ...]
    """For every piece the number of its word."""
    words: tuple[str, ...]

    def find(self, word: str, where: str = "the sentence") -> int:
        """The place of a word among the words, by its spelling, or else by its number from 1."""
        if word in self.words:
            return self.words.index(word)
        folded = [each.casefold() for each in self.words]
        if word.casefold() in folded:
            return folded.index(word.casefold())
        if word.isdecimal() and 1 <= int(word) <= len(self.words):
            return int(word) - 1
        raise HeedfulError(
            f"the word {word!r} does not stand in {where}",
            hint=f"its words: {' '.join(self.words)} (or give a number from 1 to {len(self.words)})",
        )

    def of_word(self, number: int) -> list[int]:
        """The places of a word's pieces."""
        return [place for place, group in enumerate(self.groups) if group == number]


def tokens_in_words(tokenizer: Tokenizer, ids: Sequence[int], words: Sequence[str]) -> Tokens:
    """The pieces grouped into these words, which make up the text.

    A start, tags before the text, and an end are words of their own.
    """
    inside = tokenizer.within(ids, words)
    silent = list(takewhile(lambda place: inside[place] < 0 and ids[place] != END, range(len(ids))))
    first = [LABELS.get(ids[place]) or tokenizer.pieces([ids[place]])[0] for place in silent]
    labels = [*first, *words, *([END_LABEL] if ids and ids[-1] == END else [])]
    groups = [
        number + len(first) if number >= 0 else (place if place < len(first) else len(labels) - 1)
        for place, number in enumerate(inside)
    ]
    return replace(new_tokens(tokenizer, ids), groups=tuple(groups), words=tuple(labels))


NO_TOKENS = Tokens((), (), (), ())


def new_tokens(tokenizer: Tokenizer, ids: Sequence[int], labels: Mapping[int, str] = LABELS) -> Tokens:
    """The ids with their pieces, grouped into the tokenizer's own words; ``labels`` are names of specials."""
    groups = tokenizer.words(ids)
    words = []
    for number in range(max(groups) + 1):
        own = [identity for identity, group in zip(ids, groups, strict=True) if group == number]
        named = labels.get(own[0])
        # A space that is a word of its own must not vanish.
        words.append(named or tokenizer.decode(own).strip() or "".join(tokenizer.pieces(own)))
    pieces = [labels.get(identity, piece) for identity, piece in zip(ids, tokenizer.pieces(ids), strict=True)]
    if len(words) == len(pieces):  # whole words: the space marks say nothing
        pieces = [piece.removeprefix(SPACE) or piece for piece in pieces]
    return Tokens(tuple(ids), tuple(pieces), tuple(groups), tuple(words))


@dataclass(frozen=True)
class Trace:
    """A sentence, its translation, and every tensor the model computed on the way."""

    source: Tokens
    """What the encoder reads: the sentence and its end; nothing if there is no encoder."""
    read: Tokens
    """What the decoder reads: the start, then the translation; nothing if there is no decoder."""
    written: Tokens
    """What the model writes: the translation, then its end; without a decoder the text, its blanks filled."""
    tensors: dict[str, Tensor]
    """By the observer's names (``encoder.0.self.weights``), without the batch."""
    given: tuple[int, ...] = ()
    """The source as the encoder was given it: PAD for what is hidden, each id with the place of its word in a
    tree if there is one (places.py)."""
    hidden: tuple[int, ...] = ()
    """Places of source pieces that nobody could look at, as if they were padding."""
    sums: Tokens | None = None
    """What the encoder's words look at in place of words (Linformer)."""
    tags: int = 0
    """Tags before the source, each a word of its own that nothing comes from."""

    @property
    def blanks(self) -> list[int] | None:
        """The places that a model without a decoder has filled; None for one that writes all there is."""
        if self.read.ids:
            return None
        return places_of_blanks(self.source.ids)

    @property
    def encoder_ids(self) -> tuple[int, ...]:
        """The source as the encoder has it in its vocabulary, with PAD for what is hidden."""
        return tuple(with_hidden(self.source.ids, self.hidden))

    def visible(self, kind: Kind, layer: int) -> Tensor | None:
        """Who may look at whom in a layer: (queries, keys), True = may; None if all may look at all."""
        pattern = self.tensors.get(f"{place(kind, layer)}.pattern")
        if kind == "decoder":
            ahead = look_ahead_mask(len(self.read.ids))
            return ahead if pattern is None else ahead & pattern
        if not self.hidden:
            return pattern
        rows, columns = self.sides(kind)[0], self.source
        seen = (torch.tensor(self.encoder_ids) != PAD).expand(len(rows.ids), len(columns.ids))
        return seen if pattern is None else seen & pattern

    def weights(self, kind: Kind, layer: int) -> Tensor:
        """Attention weights of a layer (from 0): (heads, queries, keys)."""
        return self.tensors[f"{place(kind, layer)}.weights"]

    def sides(self, kind: Kind) -> tuple[Tokens, Tokens]:
        """Who looks (rows) and what is looked at (columns); rows of cross-attention are named by what
        they write."""
        return {
            "encoder": (self.source, self.sums or self.source),
            "decoder": (self.read, self.read),
            "cross": (self.written, self.source),
        }[kind]

    @cached_property
    def layers(self) -> dict[Kind, int]:
        """Number of layers of each kind."""
        return {
            kind: next(n for n in count() if f"{place(kind, n)}.weights" not in self.tensors)
            for kind in KINDS
        }

    @property
    def has_rollout(self) -> bool:
        """Whether words look at words all the way: not in recurrent models, nor where they look at sums."""
        return self.sums is None and self.layers["encoder"] > 0

    @property
    def heads(self) -> int:
        """Heads of every layer."""
        return self.weights(next(kind for kind in KINDS if self.layers[kind]), 0).size(0)

    def only_cross(self) -> "Trace":
        """The trace without what alignment does not need: many are kept at once."""
        kept = {name: tensor for name, tensor in self.tensors.items() if name.endswith(".cross.weights")}
        return replace(self, tensors=kept)


def with_hidden(ids: Sequence[int], hidden: Sequence[int]) -> list[int]:
    """The ids with PAD at some places: nobody looks there, and all others stay where they are."""
    return [PAD if place in hidden else identity for place, identity in enumerate(ids)]


def place(kind: Kind, layer: int) -> str:
    """The observer's name of an attention: ``encoder.0.self``, ``decoder.1.cross``."""
    return f"{'encoder' if kind == 'encoder' else 'decoder'}.{layer}.{'cross' if kind == 'cross' else 'self'}"


def trace(bundle: Bundle, source: str, target: str | None = None) -> Trace:
    """Run a sentence and its translation (given, or the model's own) through the model; keep everything."""
    source_ids = encoded(bundle, source)
    if target is None:
        target_ids = translated(bundle, source_ids)
    else:
        bundle.check_translates()
        cleaned = clean_sentence(target, bundle.config.normalize)
        target_ids = bundle.tokenizer.target.encode(cleaned)
    return trace_ids(bundle, source_ids, target_ids)


def in_words(bundle: Bundle, seen: Trace, source: Sequence[str], target: Sequence[str]) -> Trace:
    """The same pass, its pieces grouped into the given words."""
    tokenizer = bundle.tokenizer
    form = bundle.config.normalize
    sources, targets = ([clean_sentence(word, form) for word in side] for side in (source, target))
    return replace(
        seen,
        source=tokens_in_words(tokenizer.source, seen.source.ids, sources),
        read=tokens_in_words(tokenizer.target, seen.read.ids, targets),
        written=tokens_in_words(tokenizer.target, seen.written.ids, targets),
    )


def encoded(bundle: Bundle, source: str) -> list[int]:
    """The ids of a sentence that has words; END is not yet there. In one to be filled in there are blanks."""
    if bundle.config.model.family == "mask":
        return text_with_blanks(bundle, source)
    ids = bundle.source_ids(source)
    if not ids:
        raise HeedfulError("the sentence is empty", hint="give a sentence with at least one word")
    return ids


def translated(bundle: Bundle, source_ids: Sequence[int]) -> list[int]:
    """The model's own translation of one sentence, taken whole; or the text as it goes on or is filled."""
    family = bundle.config.model.family
    if family == "mask":
        return filled_ids(bundle, source_ids, source_ids)
    source = torch.tensor([[*source_ids, END]], device=bundle.writer.output.weight.device)
    settings = bundle.config.search.model_copy(
        update={"method": "beam", "n_best": 1, "beam": usual_beam(bundle)}
    )
    limits = output_room(bundle, source, settings)
    prefix = source_ids if family == "language" else ()
    return list(search(bundle.writer, source, settings, limits=limits, prefixes=[prefix])[0][0].tokens)


def usual_beam(bundle: Bundle) -> int:
    """Hypotheses that a model keeps unless told otherwise; one that goes on with a text follows one line."""
    return 1 if bundle.config.model.family == "language" else bundle.config.search.beam


def output_room(bundle: Bundle, source: Tensor, settings: SearchConfig) -> list[int]:
    """``output_limits`` of a pass that is looked into: it reads the start and all that is written."""
    longest = bundle.writer.longest
    return output_limits(source, settings, None if longest is None else longest - 1)


@torch.inference_mode()
def trace_ids(
    bundle: Bundle, source_ids: Sequence[int], target_ids: Sequence[int], hidden: Sequence[int] = ()
) -> Trace:
    """``trace`` of a pair that is already ids; ``hidden`` are places of the source that nobody looks at."""
    model = bundle.predictor.eval()
    device = model.output.weight.device
    seen: dict[str, Tensor] = {}
    source = torch.tensor([[*with_hidden(source_ids, hidden), END]], device=device)
    before = torch.tensor([[PAD, *target_ids]], device=device)
    seen["logits"] = model.logits(model(source, before, seen.__setitem__))
    return Trace(
        *_sides(bundle, pieces_of(source_ids), target_ids),
        {name: tensor[0].cpu() for name, tensor in seen.items()},
        tuple(source[0].tolist()),
        tuple(hidden),
        _sums(bundle.config.model),
        _tags(bundle, source_ids),
    )


def _sides(
    bundle: Bundle, source_ids: Sequence[int], target_ids: Sequence[int]
) -> tuple[Tokens, Tokens, Tokens]:
    """What was the source, what was read and what was written, as far as the model has such a side."""
    tokenizer, family = bundle.tokenizer, bundle.config.model.family
    labels = {**LABELS, BLANK: BLANK_LABEL} if family == "mask" else LABELS
    return (
        NO_TOKENS if family == "language" else new_tokens(tokenizer.source, [*source_ids, END], labels),
        NO_TOKENS if family == "mask" else new_tokens(tokenizer.target, [PAD, *target_ids]),
        new_tokens(tokenizer.target, [*target_ids, END]),
    )


def _tags(bundle: Bundle, source_ids: Sequence[int]) -> int:
    """How many tags stand before the text."""
    first_text = bundle.tokenizer.source.vocabulary.silent
    return sum(1 for _ in takewhile(lambda identity: BLANK < identity < first_text, pieces_of(source_ids)))


def _sums(model: ModelConfig) -> Tokens | None:
    """The sums of a Linformer, as if they were words: Σ1, Σ2, ..."""
    if model.family in (*RECURRENT, "language") or model.encoder_attention != "linformer":
        return None
    count = model.projected_length
    names = tuple(f"Σ{number}" for number in range(1, count + 1))
    return Tokens(tuple(range(count)), names, tuple(range(count)), names)


def unknown_words(bundle: Bundle, seen: Trace) -> list[str]:
    """A remark on words that a model of whole words has to spell, having never learned them; or nothing."""
    if bundle.tokenizer.source.kind != "word":
        return []
    source = seen.source if seen.source.ids else seen.read
    unknown = [word for number, word in enumerate(source.words) if len(source.of_word(number)) > 1]
    if not unknown:
        return []
    listed = ", ".join(dict.fromkeys(unknown))
    return [f"Not in this model's vocabulary, so spelled in pieces that it has hardly learned: {listed}."]


def by_words(weights: Tensor, rows: Tokens, columns: Tokens) -> Tensor:
    """Weights between words instead of pieces: summed over a key's pieces, averaged over a query's.

    Rows still sum to 1 (to 0 for a word that has no piece of its own).
    (..., query pieces, key pieces) -> (..., query words, key words)
    """
    return _membership(rows, weights, mean=True) @ word_sums(weights, columns)


def word_sums(values: Tensor, tokens: Tokens) -> Tensor:
    """Numbers of pieces added up to numbers of words: (..., pieces) -> (..., words)."""
    return values @ _membership(tokens, values, mean=False).T


def _membership(tokens: Tokens, like: Tensor, mean: bool) -> Tensor:
    """(words, pieces): 1 where a piece belongs to a word, or its share of the word."""
    groups = torch.tensor(tokens.groups, device=like.device)
    belongs = (torch.arange(len(tokens.words), device=like.device)[:, None] == groups).to(like.dtype)
    return belongs / belongs.sum(1, keepdim=True).clamp(min=1) if mean else belongs
