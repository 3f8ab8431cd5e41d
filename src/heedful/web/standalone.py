"""The page as a single HTML file: its assets, the URL it opens at, and a trace packed into a size budget.

``heedful inspect -o page.html``, the notebook and the server's download all use this module.
"""

import base64
import gzip
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qsl, urlencode

from safetensors.torch import save

from heedful.devices import select_device
from heedful.errors import HeedfulError
from heedful.files import check_writable, write_text
from heedful.interpret.activations import ATTENTION_KINDS, AttentionKind, TokenSequence, attention_name
from heedful.interpret.attention_row import explain_row, find_subword
from heedful.interpret.attribution import HeadIndex, parse_head
from heedful.interpret.tables import round_floats, to_dict
from heedful.interpret.trace import SavedTrace, Trace, compute_trace, save_trace
from heedful.interpret.trace_schema import TraceRequest
from heedful.model_folder import ModelFolder
from heedful.progress import Reporter
from heedful.web.assets import hash_script, load_assets

# ---- The URL fragment of a page; layers, heads and rows count from 1 there.

SAMPLING_FIELDS = ("seed", "temperature", "top_k", "top_p")
"""URL parameters of sampling; without a seed, the temperature only affects the display."""

REQUEST_PARAMETERS = (
    "model",
    "text",
    "sentence",
    "prefix",
    "off",
    "hidden",
    "beam",
    "checkpoint",
    "seed",
    "top_k",
    "top_p",
)
"""URL parameters that select a trace; a saved page always has its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageView:
    """What to show first; None leaves the choice to the page."""

    view: str | None = None
    """translate, map, head, cell, ..."""
    kind: str | None = None
    layer: int | None = None
    """From 1."""
    head: int | None = None
    """From 1."""
    word: str | None = None
    """The query word, or its number."""
    subwords: bool = False
    """Show subwords instead of words."""


def build_url_fragment(page_view: PageView, manifest: dict[str, Any]) -> str:
    """The URL fragment that opens this view."""
    layers, kinds = manifest["model"]["layers"], _list_kinds(manifest)
    kind: str | None = page_view.kind
    if kind is None:
        kind = kinds[-1 if page_view.word is None else 0]
    elif kind not in kinds:
        raise HeedfulError(f"unknown attention kind {kind!r}", hint=f"choose one of: {', '.join(kinds)}")
    layer = layers[kind] if page_view.layer is None else page_view.layer
    head = 1 if page_view.head is None else page_view.head
    for name, number, maximum in (("layer", layer, layers[kind]), ("head", head, manifest["model"]["heads"])):
        if not 1 <= number <= maximum:
            raise HeedfulError(f"{name} {number} does not exist", hint=f"choose from 1 to {maximum}")
    parameters = {"kind": kind, "layer": str(layer), "head": str(head)}
    if page_view.word is not None:
        queries = manifest["sides"][{"encoder": "source", "decoder": "decoder_input", "cross": "target"}[kind]]
        tokens = TokenSequence(*(tuple(queries[name]) for name in ("ids", "subwords", "word_ids", "words")))
        parameters["query"] = str(find_subword(tokens, page_view.word) + 1)
    if page_view.subwords:
        parameters["words"] = "no"
    selection = (page_view.kind, page_view.layer, page_view.head, page_view.word)
    view = page_view.view or ("translate" if selection == (None, None, None, None) else "head")
    return f"#/{view}?{urlencode(parameters)}"


def fit_url_to_trace(url: str, manifest: dict[str, Any]) -> str:
    """The same view with the request parameters of this trace."""
    path, parameters = _parse_url_fragment(url)
    request = manifest["request"]
    parameters = {name: value for name, value in parameters.items() if name not in REQUEST_PARAMETERS}
    parameters |= {"model": manifest["model"]["name"], "text": request["source"]}
    if request["prefix_ids"]:
        parameters["prefix"] = ".".join(map(str, request["prefix_ids"]))
    if request["ablated_heads"]:
        heads = map(parse_head, request["ablated_heads"])
        parameters["off"] = ",".join(f"{head.kind}.{head.layer + 1}.{head.head + 1}" for head in heads)
    if request["masked_source"]:
        parameters["hidden"] = ".".join(str(position + 1) for position in request["masked_source"])
    if request["beam_size"]:
        parameters["beam"] = str(request["beam_size"])
    if request["seed"] is not None:
        parameters |= {name: str(request[name]) for name in SAMPLING_FIELDS}
    if manifest["checkpoint"] is not None:
        parameters["checkpoint"] = str(manifest["checkpoint"])
    return f"#/{path}?{urlencode(parameters)}"


def parse_url_head(url: str, manifest: dict[str, Any]) -> HeadIndex:
    """The head in the URL, from 0; by default the first head of the last attention layer."""
    _, parameters = _parse_url_fragment(url)
    kinds = _list_kinds(manifest)
    kind = next((kind for kind in kinds if kind == parameters.get("kind")), kinds[-1])
    layers, heads = manifest["model"]["layers"][kind], manifest["model"]["heads"]

    def parse_number(name: str, maximum: int, default: int) -> int:
        text = parameters.get(name, "")
        if not text.isdecimal() or len(text) > 9:  # Python limits the digits of int()
            return default
        return min(int(text), maximum) if int(text) > 0 else default

    return HeadIndex(kind, parse_number("layer", layers, layers) - 1, parse_number("head", heads, 1) - 1)


def _parse_url_fragment(url: str) -> tuple[str, dict[str, str]]:
    path, _, query = url.removeprefix("#").removeprefix("/").partition("?")
    return path if path.isascii() and path.isalpha() else "translate", dict(parse_qsl(query))


def _list_kinds(manifest: dict[str, Any]) -> list[AttentionKind]:
    return [kind for kind in ATTENTION_KINDS if manifest["model"]["layers"][kind]]


# ---- Packing a trace into the size budget.
#
# Tensors are packed by priority. The arithmetic of cells is packed head by head, the selected one first; the
# rows of a head share most values (weights, keys and values of the head), which are stored once.

STANDALONE_BUDGET = 6_000_000
"""Maximum characters of tensors and cells in one file."""

TENSOR_BUDGET_FRACTION = 0.6
"""Maximum share of tensors, so that the selected head's arithmetic fits too."""

TENSOR_PRIORITY = (
    "thumbnails",
    "lens",
    "mask",
    "positions",
    "weights",
    "residual",
    "embedding",
    "memory",
    "states",
    "logits",
    "scores",
    "q",
    "k",
    "v",
    "heads",
    "output",
    "x",
)
"""Kinds of tensors, most important first."""

SHARED_VALUES = ("w_query", "b_query", "k", "v")
"""Values that all rows of a head share."""

OMITTED_VALUES = ("w_key", "b_key", "w_value", "b_value", "w_output", "b_output")
"""Values that no view uses."""


@dataclass(frozen=True)
class PackedTrace:
    """A trace as a page embeds it."""

    manifest: dict[str, Any]
    tensors: str
    """A safetensors file in base64."""
    cells: dict[str, str]
    """The arithmetic of heads by name (cross.1.0): gzipped JSON in base64."""


def pack_trace(
    trace: Trace | SavedTrace,
    url: str = "",
    *,
    name: str = "",
    checkpoint: int | None = None,
    budget: int = STANDALONE_BUDGET,
) -> PackedTrace:
    """Pack a trace into the budget; ``url`` selects what is packed first."""
    if isinstance(trace, Trace):
        manifest = trace.export_manifest(name=name or "model", checkpoint=checkpoint)
    else:
        manifest = dict(trace.manifest)
    head = parse_url_head(url, manifest)
    tensors, omitted = _pack_tensors(trace, head, int(budget * TENSOR_BUDGET_FRACTION))
    has_cells = isinstance(trace, Trace) and manifest["model"]["has_arithmetic"]
    cells = _pack_heads(cast("Trace", trace), head, budget - len(tensors)) if has_cells else {}
    manifest["tensors"] = {key: spec for key, spec in manifest["tensors"].items() if key not in omitted}
    manifest["notes"] = [*manifest["notes"], *_describe_omissions(manifest, omitted, cells)]
    return PackedTrace(manifest, tensors, cells)


def _pack_tensors(trace: Trace | SavedTrace, head: HeadIndex, budget: int) -> tuple[str, set[str]]:
    """The tensors that fit, in base64, and the names of the omitted ones."""
    index = trace.tensors
    names = list(index) if isinstance(index, dict) else list(index.entries)
    head_weights = f"{attention_name(head.kind, head.layer)}.weights"
    remaining_bytes, selected = budget * 3 // 4, {}  # base64 encodes three bytes as four characters
    for name in sorted(names, key=lambda name: (name != head_weights, _get_tensor_priority(name))):
        size = index[name].nbytes if isinstance(index, dict) else index.size([name])
        if size <= remaining_bytes:
            remaining_bytes -= size
            selected[name] = index[name] if isinstance(index, dict) else index.get(name)
    return base64.b64encode(save(selected)).decode(), set(names) - set(selected)


def _get_tensor_priority(name: str) -> int:
    parts = name.split(".")
    return next(
        (rank for rank, part in enumerate(TENSOR_PRIORITY) if part in (parts[0], parts[-1])), len(TENSOR_PRIORITY)
    )


def _pack_heads(trace: Trace, selected_head: HeadIndex, budget: int) -> dict[str, str]:
    """The arithmetic of as many heads as fit, closest to the selected one first."""
    all_heads = [
        HeadIndex(kind, layer, head)
        for kind in ATTENTION_KINDS
        for layer in range(trace.activations.layers[kind])
        for head in range(trace.activations.heads)
    ]

    def distance(head: HeadIndex) -> tuple[bool, bool, bool]:
        """The selected head, those of its layer, those of its kind, then all others."""
        return head != selected_head, head[:2] != selected_head[:2], head.kind != selected_head.kind

    packed_heads: dict[str, str] = {}
    for head in sorted(all_heads, key=distance):
        cells = _pack_head(trace, head)
        if packed_heads and len(cells) > budget:
            break
        budget -= len(cells)
        packed_heads[head.name] = cells
    return packed_heads


def _pack_head(trace: Trace, head: HeadIndex) -> str:
    """Every row of a head; values that rows share are stored once, in ``parts``."""
    parts: dict[str, int] = {}
    shared_values: dict[str, int] = {}

    def store_part(part: Any) -> int:
        text = json.dumps(round_floats(part), ensure_ascii=False, separators=(",", ":"))
        return parts.setdefault(text, len(parts))

    rows = []
    for row in range(len(trace.activations.queries_and_keys(head.kind)[0].subwords)):
        explanation = explain_row(trace.model_folder, trace.activations, *head, row)
        shared_values = shared_values or {name: store_part(explanation.values[name]) for name in SHARED_VALUES}
        row_values = {
            name: value for name, value in explanation.values.items() if name not in SHARED_VALUES + OMITTED_VALUES
        }
        row_data = to_dict(replace(explanation, values=row_values))
        row_data["values"] = shared_values | {name: store_part(value) for name, value in row_data["values"].items()}
        for section in row_data["sections"]:
            section["tables"] = [store_part(table) for table in section["tables"]]
        rows.append(row_data)
    text = f'{{"parts":[{",".join(parts)}],"rows":{json.dumps(rows, ensure_ascii=False)}}}'
    return base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()


def _describe_omissions(manifest: dict[str, Any], omitted: set[str], cells: dict[str, str]) -> list[str]:
    """Notes on what the file does not contain."""
    notes = []
    if omitted:
        kinds = [TENSOR_PRIORITY[rank] for rank in sorted(set(map(_get_tensor_priority, omitted)))]
        notes.append(f"Omitted to keep this file small: some of {', '.join(kinds)}.")
    layers = manifest["model"]["layers"]
    if manifest["model"]["has_arithmetic"] and len(cells) < sum(layers.values()) * manifest["model"]["heads"]:
        head_text = f"of {len(cells)} heads" if len(cells) > 1 else "of one head" if cells else "of no head"
        notes.append(f"This file contains the arithmetic {head_text}; a running server shows every head.")
    return notes


# ---- The page as one file: styles, scripts and a trace; it works from disk and offline.
#
# Relative imports do not resolve in data: URLs, so modules import bare names (heedful/...) that the import
# map resolves to data: URLs. The Content-Security-Policy forbids all requests.

ENTRY_SCRIPT = 'import "heedful/main.js";'


def render_standalone_page(packed_trace: PackedTrace, url: str = "", *, base: str = "") -> str:
    """A page with this trace that opens at ``url``, a URL fragment; ``base`` is its base URL, if any."""
    assets = load_assets()
    modules = {
        f"heedful/{name}": f"data:text/javascript;base64,{base64.b64encode(asset.content).decode()}"
        for name, asset in sorted(assets.items())
        if name.endswith(".js")
    }
    import_map = _to_script_json({"imports": modules})
    page_data = {
        "manifest": packed_trace.manifest,
        "tensors": packed_trace.tensors,
        "cells": packed_trace.cells,
        "view": fit_url_to_trace(url, packed_trace.manifest),
    }
    scripts = (
        f'<script type="application/json" id="heedful-trace">{_to_script_json(page_data)}</script>\n'
        f'<script type="module">{ENTRY_SCRIPT}</script>'
    )
    policy = (
        f"default-src 'none'; script-src {hash_script(import_map)} {hash_script(ENTRY_SCRIPT)} data:; "
        "style-src 'unsafe-inline'; img-src data: blob:; form-action 'none'"
    )
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    if base:
        head += f'\n<base href="{base}">'
    html = assets["index.html"].content.decode()
    for pattern, text in (
        (r'<meta charset="utf-8">', f'<meta charset="utf-8">\n{head}'),
        (r'<script type="importmap">.*?</script>', f'<script type="importmap">{import_map}</script>'),
        (r'<script type="module" src="/page/main.js"></script>', scripts),
        (r"<noscript>.*?</noscript>", "<noscript>This page needs JavaScript.</noscript>"),
    ):
        html, count = re.subn(pattern, lambda _, text=text: text, html, flags=re.DOTALL)  # type: ignore[misc]
        assert count == 1, f"index.html contains {pattern} {count} times"
    return re.sub(
        r'<link rel="stylesheet" href="/page/([^"]+)">',
        lambda link: f"<style>\n{assets[link[1]].content.decode()}</style>",
        html,
    )


def _to_script_json(value: Any) -> str:
    """JSON that is safe inside a script element: </script> and <!-- cannot occur."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


# ---- ``heedful inspect MODEL "sentence" -o page.html`` (or trace.safetensors).


@dataclass(frozen=True, slots=True)
class TraceExportOptions:
    """What to trace, and where to write it."""

    model: Path
    sentence: str
    output: Path
    target: str | None
    device: str
    page_view: Mapping[str, Any]
    """Fields of ``PageView``."""
    target_language: str = ""
    """Target language of a multilingual model."""


def export_trace(options: TraceExportOptions, report: Reporter) -> Iterator[str]:
    """Write the file; yields lines to print."""
    check_writable(options.output)
    model_folder = ModelFolder.load(options.model, select_device(options.device)).for_language(options.target_language)
    trace = compute_trace(model_folder, TraceRequest(source=options.sentence, target=options.target))
    name = options.model.resolve().name
    url = build_url_fragment(PageView(**options.page_view), trace.manifest)
    yield f"{options.sentence} -> {trace.manifest['translation']['text']}"
    yield from trace.manifest["notes"]
    if options.output.suffix.lower() == ".safetensors":
        save_trace(trace, options.output, name=name)
        yield f"{options.output}: {len(trace.tensors.entries)} tensors, and the manifest in its metadata"
        return
    report.info("writing the page")
    page = pack_trace(trace, url, name=name)
    write_text(options.output, render_standalone_page(page, url))
    yield from page.manifest["notes"][len(trace.manifest["notes"]) :]
    yield f"{options.output}: open it in a browser; it works offline"
