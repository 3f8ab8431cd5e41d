"""What can be asked of a pass, and what of it makes sense for which family of models."""

from pydantic import Field

from heedful.bundle import Bundle
from heedful.config import Config
from heedful.errors import HeedfulError

LONGEST = 512
"""Tokens of the longest sentence that is recorded: attention takes their square."""
WIDEST_BEAM = 16


class Asked(Config):
    """What is to be recorded."""

    source: str
    """One sentence; of a language model the beginning of a text, of a masked one a text with blanks (__)."""
    prefix: str = ""
    """What the translation must start with, as text ...; not together with a target."""
    prefix_ids: tuple[int, ...] = ()
    """... or exactly, as ids of the target's vocabulary; of a language model in place of the beginning."""
    target: str | None = None
    """The whole translation, to see how the model reads it; else the model writes its own."""
    target_ids: tuple[int, ...] | None = None
    """The same, exactly, as ids; of a model of plain text the whole text, as it went on or was filled in."""
    beam: int | None = Field(None, ge=1, le=WIDEST_BEAM)
    """Hypotheses kept side by side; the model's own setting if not given (a language model follows one). A
    given target is not searched for, but its alternatives are."""
    seed: int | None = Field(None, ge=0, lt=2**31)
    """Draw every word at random instead, by this seed: the same draws the same; not together with a beam."""
    top_k: int = Field(0, ge=0)
    """Draw only among the k likeliest words; 0 for all."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Draw only among the likeliest words that together reach this probability."""
    temperature: float = Field(1.0, ge=0.05, le=20.0)
    """Of drawing, and of the probabilities listed for each step; other search does not use it."""
    off: tuple[str, ...] = Field((), max_length=1024)
    """Heads that are switched off: encoder.0.3, decoder.1.0, cross.1.2, from 0."""
    hidden: tuple[int, ...] = Field((), max_length=LONGEST)
    """Places of source pieces that nobody may look at, from 0: masked like padding; the end cannot be."""


USELESS: dict[str, tuple[str, tuple[str, ...]]] = {
    "language": ("a language model has no source and no translation", ("prefix", "target", "hidden")),
    "mask": (
        "a model that fills in blanks does not write from left to right",
        ("prefix", "prefix_ids", "target", "beam", "seed", "top_k", "top_p"),
    ),
}
"""What a family has no use for, and why."""


def check_asked(bundle: Bundle, asked: Asked) -> None:
    """Refuse what contradicts itself, or what this family of models would have to overlook."""
    given = asked.model_fields_set - {
        name for name in asked.model_fields_set if getattr(asked, name) == Asked.model_fields[name].default
    }
    reason, useless = USELESS.get(bundle.config.model.family, ("", ()))
    wrong = next((name for name in useless if name in given), None)
    if wrong is not None:
        raise HeedfulError(f"{reason}: {wrong} has no effect", hint=f"leave out {wrong}")
    if given & {"target", "target_ids"} and given & {"prefix", "prefix_ids"}:
        raise HeedfulError("prefix and target cannot both be given: a target is the whole translation")
    if "seed" in given and "beam" in given:
        raise HeedfulError("seed and beam cannot both be given: words are drawn, or searched for")
    if given & {"top_k", "top_p"} and "seed" not in given:
        raise HeedfulError("top_k and top_p are of drawing at random", hint="give a seed, or leave them out")
