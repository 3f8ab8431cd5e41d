"""Which models a format can express. What is not surely expressible is refused, not written wrongly."""

from collections.abc import Mapping

from heedful.errors import HeedfulError
from heedful.model.config import ModelConfig

Choices = Mapping[str, tuple[str | bool, ...]]
"""Settings of a model of which only some values can be expressed."""
WITHOUT_EFFECT = frozenset(
    {
        "dropout",  # of training only
        "attention_dropout",
        "activation_dropout",
        "block",  # of attention that no format expresses
        "window_blocks",
        "global_blocks",
        "random_blocks",
        "projected_length",
    }
)
"""Settings that change nothing in a model with full attention that is not trained any more.

What else a format can express is its own list: a new setting has to be thought about for each of them.
"""


def why_not(program: str, config: ModelConfig, choices: Choices, every: frozenset[str]) -> str:
    """Why a program cannot run a model; empty if it can. Of the settings ``every`` any value will do."""
    for name in type(config).model_fields:
        if name in choices and getattr(config, name) not in choices[name]:
            return f"{program} cannot express model.{name} = {getattr(config, name)!r}"
        if name not in choices and name not in every:
            return f"{program} cannot express model.{name}"
    return ""


def refusal(what: str, reason: str, config: ModelConfig, choices: Choices) -> HeedfulError:
    """The error of an export, with what could be done."""
    others = [
        f"one trained with model.{name} = {' or '.join(str(value).lower() for value in values)} can be"
        for name, values in choices.items()
        if getattr(config, name) not in values
    ]
    own = "heedful translate and heedful serve run this one as it is"
    return HeedfulError(f"this cannot be {what}: {reason}", hint="; ".join([*others[:1], own]))
