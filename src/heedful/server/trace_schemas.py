"""What the routes for seeing inside answer, as OpenAPI describes it."""

from typing import get_args

from heedful.decoding.beam import Fate
from heedful.inspection.asked import Asked
from heedful.inspection.patterns import Reason
from heedful.inspection.trace import KINDS
from heedful.model.config import PLAIN
from heedful.server.documentation import (
    COUNT,
    NUMBER,
    TEXT,
    WORK_ERRORS,
    YES_OR_NO,
    Responses,
    Schema,
    errors,
    list_of,
    model_schema,
    one_of,
    or_null,
    record,
)

TRACE_ERRORS = {**WORK_ERRORS, **errors(404)}
"""Of routes that ask about a trace: it may be forgotten."""
BYTES: Schema = {"type": "string", "format": "binary"}

_KIND = one_of(KINDS)
_PAIR: Schema = {"type": "array", "items": COUNT, "minItems": 2, "maxItems": 2}
_TWO_TEXTS: Schema = {"type": "array", "items": TEXT, "minItems": 2, "maxItems": 2}
_FACTS: dict[str, Schema] = {
    "languages": or_null(_TWO_TEXTS),
    "family": TEXT,
    "task": one_of(["translate", *PLAIN]),
    "depth": _PAIR,
    "layers": record(dict.fromkeys(KINDS, COUNT)),
    "heads": COUNT,
    "arithmetic": YES_OR_NO,
    "width": COUNT,
    "channels": COUNT,
    "feed_forward": COUNT,
    "norm": TEXT,
    "positions": TEXT,
    "activation": TEXT,
    "attention": record({"encoder": TEXT, "decoder": TEXT}),
    "vocabulary": record({"source": COUNT, "target": COUNT}),
    "parameters": COUNT,
    "taught_head": or_null(_PAIR),
    "beam": COUNT,
    "alpha": NUMBER,
    "normalization": TEXT,
    "scaled_embeddings": YES_OR_NO,
    "name": TEXT,
}
MODELS = list_of(
    record(
        {
            **_FACTS,
            "source": TEXT,
            "target": TEXT,
            "zero_shot": YES_OR_NO,
            "folder": TEXT,
            "engine": TEXT,
            "checkpoints": list_of(COUNT),
        }
    )
)


def _by_name(schema: Schema) -> Schema:
    return {"type": "object", "additionalProperties": schema}


_TOKENS: dict[str, Schema] = {
    "ids": list_of(COUNT),
    "pieces": list_of(TEXT),
    "groups": list_of(COUNT),
    "words": list_of(TEXT),
}
_SUMS = record(_TOKENS)
_SIDE = record({**_TOKENS, "spans": list_of(or_null(_PAIR))})
_STEP = record(
    {
        "id": COUNT,
        "logit": NUMBER,
        "log_probability": NUMBER,
        "probability": NUMBER,
        "rank": COUNT,
        "entropy": NUMBER,
        "top": list_of(record({"id": COUNT, "logit": NUMBER, "probability": NUMBER})),
    }
)
_NODE = record(
    {
        "step": COUNT,
        "parent": {"type": "integer", "minimum": -1},
        "id": COUNT,
        "log_probability": NUMBER,
        "total": NUMBER,
        "score": NUMBER,
        "fate": one_of(get_args(Fate)),
    }
)
_HEAD = record(
    {
        "kind": _KIND,
        "layer": COUNT,
        "head": COUNT,
        "badge": TEXT,
        "entropy": NUMBER,
        "spread": NUMBER,
        "end": NUMBER,
    }
)
_TENSOR = record({"dtype": one_of(["F16", "F32", "U8", "I32"]), "shape": list_of(COUNT)})
_RIBBON = record({"layer": COUNT, "head": or_null(COUNT), "caption": TEXT, "links": list_of(_PAIR)})
_PATTERN = record(
    {
        "block": COUNT,
        "rows": list_of(list_of(COUNT)),
        "reasons": list_of(list_of(one_of(get_args(Reason)))),
    }
)
TRACE = record(
    {
        "format": COUNT,
        "id": TEXT,
        "checkpoint": or_null(COUNT),
        "segments": list_of(_TWO_TEXTS),
        "segment": COUNT,
        "model": record(_FACTS),
        "asked": model_schema(Asked),
        "sides": record({"source": _SIDE, "read": _SIDE, "written": _SIDE, "sums": or_null(_SUMS)}),
        "text": record({"source": TEXT}),
        "translation": record(
            {
                "text": TEXT,
                "ids": list_of(COUNT),
                "log_probability": NUMBER,
                "score": NUMBER,
                "complete": YES_OR_NO,
                "given": YES_OR_NO,
                "forced": COUNT,
            }
        ),
        "blanks": or_null(list_of(COUNT)),
        "steps": list_of(_STEP),
        "pieces": _by_name(TEXT),
        "beam": or_null(
            record(
                {
                    "width": COUNT,
                    "alpha": NUMBER,
                    "normalization": TEXT,
                    "space": TEXT,
                    "nodes": list_of(_NODE),
                }
            )
        ),
        "heads": list_of(_HEAD),
        "ribbon": or_null(_RIBBON),
        "patterns": _by_name(_PATTERN),
        "tensors": _by_name(_TENSOR),
        "notes": list_of(TEXT),
    }
)

_CELL: Schema = {"type": ["number", "string"]}
_TABLE = record(
    {
        "title": TEXT,
        "rows": list_of(TEXT),
        "columns": list_of(TEXT),
        "cells": list_of(list_of(_CELL)),
        "foot": list_of(record({"row": TEXT, "cells": list_of(_CELL)})),
    }
)
CELL = record(
    {
        "title": TEXT,
        "values": {"type": "object"},
        "sections": list_of(
            record({"heading": TEXT, "formula": TEXT, "tables": list_of(_TABLE), "notes": list_of(TEXT)})
        ),
    }
)
ALTERNATIVES = record(
    {
        "step": COUNT,
        "alternatives": list_of(
            record({"id": COUNT, "piece": TEXT, "probability": NUMBER, "word": TEXT, "text": TEXT})
        ),
    }
)
TRAINING = record({"metrics": list_of(_by_name(NUMBER)), "running": YES_OR_NO, "checkpoints": list_of(COUNT)})


def file_of(kind: str) -> Responses:
    """The answer of a route that gives a file."""
    return {200: {"description": "The file", "content": {kind: {"schema": BYTES}}}}
