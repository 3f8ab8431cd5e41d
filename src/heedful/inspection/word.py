"""One word in one head of a trained model: every step of attention in numbers, in the order of the lecture.

Layers, heads and rows count from 0 here, and from 1 in what people read. Vectors are rows: q = x W + b.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from heedful.bundle import Bundle
from heedful.errors import HeedfulError
from heedful.inspection.arithmetic import AttentionStep, Projection, check_place, model_attention
from heedful.inspection.stacks import stack_of
from heedful.inspection.tables import Cell, Explanation, Section, Table, counted, grid
from heedful.inspection.trace import Kind, Tokens, Trace, place, unknown_words
from heedful.inspection.word_row import WordRow, labels
from heedful.model.attention import MultiHeadAttention
from heedful.model.efficient_attention import ProjectedAttention
from heedful.model.relative import RotaryAttention
from heedful.model.residual import Norm
from heedful.model.trees import TreeAttention

STACKS: dict[Kind, str] = {
    "encoder": "encoder, self-attention",
    "decoder": "decoder, masked self-attention",
    "cross": "decoder, attention over the source",
}


def explain_word(
    bundle: Bundle, seen: Trace, kind: Kind, layer: int, head: int, row: int, key: int | None = None
) -> Explanation:
    """How a piece (``row``) looks at all others in a head; ``key`` is the one whose products are shown.

    Without a key it is the one that is looked at most.
    """
    check_place(bundle, kind, layer, head)
    rows, columns = seen.sides(kind)
    _check_row(row, rows)
    step = model_attention(bundle, seen, kind, layer)
    if key is None:
        key = int(step.heads[head].attention.weights[row].argmax())
    _check_row(key, columns)
    word = WordRow(bundle, seen, kind, layer, head, row, key, step)
    taught = kind == "encoder" and bundle.config.taught_head == (layer + 1, head + 1)
    called = "taught head" if taught else "head"
    title = f'"{rows.pieces[row]}" in {called} {head + 1} of layer {layer + 1} ({STACKS[kind]})'
    sections = [make(word) for make in SECTIONS]
    return Explanation(title, tuple(section for section in sections if section is not None), _values(word))


def _check_row(row: int, tokens: Tokens) -> None:
    if not 0 <= row < len(tokens.pieces):
        raise HeedfulError(
            f"there is no piece {row + 1}: the sentence has {len(tokens.pieces)}",
            hint=f"pieces go from 1 to {len(tokens.pieces)}",
        )


def _table(title: str, rows: dict[str, Tensor], foot: dict[str, Tensor] | None = None) -> Table:
    """Vectors as wide as the model, by name, one below the other; the columns are channels from 1."""
    size = len(next(iter(rows.values())))
    below = tuple((name, tuple(vector.tolist())) for name, vector in (foot or {}).items())
    cells = tuple(tuple(vector.tolist()) for vector in rows.values())
    return Table(title, tuple(rows), counted(size), cells, below, long=True)


def _written_out(
    title: str, names: tuple[str, str], left: Tensor, right: Tensor, after: dict[str, float]
) -> Table:
    """A dot product number by number: two vectors, their products, and at the right what these sum to."""
    blank: tuple[Cell, ...] = ("",) * len(after)
    cells = ((*left.tolist(), *blank), (*right.tolist(), *blank), (*(left * right).tolist(), *after.values()))
    return Table(title, (*names, "product"), (*counted(len(left)), *after), cells)


def _tokens(word: WordRow) -> Section:
    if word.kind == "cross":
        tables = [_writing_table(word), _token_table("What is looked at: the source", word.columns)]
    else:
        tables = [_token_table("The sentence" if word.kind == "encoder" else "Who looks", word.rows)]
    return Section("Tokens and ids", "", tuple(tables), tuple(_token_notes(word)))


def _token_table(title: str, tokens: Tokens) -> Table:
    cells = tuple(
        (identity, position, tokens.words[group])
        for position, (identity, group) in enumerate(zip(tokens.ids, tokens.groups, strict=True))
    )
    return Table(title, labels(tokens), ("id", "position", "word"), cells)


def _writing_table(word: WordRow) -> Table:
    """The decoder's rows: what each reads, by which it begins, and what it writes, by which it is called."""
    read = word.seen.read
    cells = tuple(
        (piece, identity, position)
        for position, (piece, identity) in enumerate(zip(read.pieces, read.ids, strict=True))
    )
    return Table(
        "Who looks: the row that writes the word", labels(word.rows), ("reads", "id", "position"), cells
    )


def _token_notes(word: WordRow) -> list[str]:
    rows, row = word.rows, word.row
    notes = [f'This is row {row + 1}, "{rows.pieces[row]}". Rows look at columns.']
    group = rows.groups[row]
    name, pieces = rows.words[group], rows.of_word(group)
    if len(pieces) > 1:
        notes.append(
            f'"{name}" has {len(pieces)} pieces; this is piece {pieces.index(row) + 1}. '
            "--word takes a piece, or a number of the table, as well."
        )
    if rows.words.count(name) > 1:
        groups = [n for n, other in enumerate(rows.words) if other == name]
        numbers = [str(rows.of_word(n)[0] + 1) for n in groups if rows.of_word(n)]
        notes.append(f'"{name}" is there more than once: --word takes its number too ({", ".join(numbers)}).')
    notes += unknown_words(word.bundle, word.seen)
    if word.kind == "encoder" and row in word.seen.hidden:
        notes.append(
            f'"{rows.pieces[row]}" is hidden: the model reads padding here, whose embedding is zero. '
            "Its row is computed all the same, but nobody looks at it."
        )
    if word.kind == "cross":
        read = word.seen.read.pieces[row]
        notes.append(
            f'A row is named by what it writes: row {row + 1} reads "{read}" and writes "{rows.pieces[row]}".'
        )
    return notes


def _vector(word: WordRow) -> Section:
    width = len(word.x)
    if word.layer == 0 and word.kind != "cross":
        scaled = word.bundle.config.model.scale_embeddings
        tables = [_embedded(word)]
        formula = f"embedding{' × sqrt(d_model)' if scaled else ''} + position, d_model = {width}"
        notes = ["Columns are channels. The last row is the sum of the two above it."]
    else:
        origin = (
            f"the self-attention of decoder layer {word.layer + 1}"
            if word.kind == "cross"
            else f"layer {word.layer} of the {word.side}"
        )
        name = "x" if word.step.norm is not None else "stream"
        tables, formula = [_table("", {name: word.stream})], f"{name} = the output of {origin}"
        notes = []
    if word.step.norm is None:  # pre-norm
        tables += _norm_tables("stream", word.stream, word.norm)
        called = _norm_name(word.norm)
        notes.append(f"This model is pre-norm: attention reads {called} of the stream, the last row above.")
    if word.kind == "cross":
        notes.append("Keys and values are made from the encoder's output, the query from the decoder's x.")
    return Section("The vector x", formula, tuple(tables), tuple(notes))


def _embedded(word: WordRow) -> Table:
    embedding = stack_of(word.bundle.predictor, word.kind).embedding
    ids = word.seen.encoder_ids if word.kind == "encoder" else word.rows.ids
    row = embedding.table.weight[ids[word.row]].detach().cpu().double()
    read = word.seen.given if word.kind == "encoder" else word.rows.ids
    places = embedding.places(torch.tensor([read], device=embedding.table.weight.device))
    position = places.expand(1, len(read), -1)[0, word.row].detach().cpu().double()
    name = "x" if word.step.norm is not None else "stream"
    label = f"× sqrt({len(row)}) = {embedding.scale:.4f}"
    scaled = {label: row * embedding.scale} if word.bundle.config.model.scale_embeddings else {}
    return _table(
        "",
        {
            "embedding": row,
            **scaled,
            f"+ position {word.row}": position,
        },
        {f"= {name}": word.stream},
    )


def _norm_name(norm: Norm) -> str:
    return "LayerNorm" if isinstance(norm, nn.LayerNorm) else "RMSNorm"


def _norm_tables(name: str, x: Tensor, norm: Norm) -> list[Table]:
    """Each step of a norm. RMSNorm has no mean and no bias."""
    epsilon = norm.eps or 0.0
    gain = norm.weight.detach().cpu().double()
    if isinstance(norm, nn.RMSNorm):
        square = x.pow(2).mean()
        root = (square + epsilon).sqrt()
        facts: tuple[Cell, ...] = (square.item(), root.item())
        columns: tuple[str, ...] = ("mean of squares", f"sqrt(mean + {epsilon:g})")
        rows = {f"{name} / sqrt(...)": x / root, "gain": gain}
        last = {"× gain": x / root * gain}
    else:
        mean, variance = x.mean(), x.var(unbiased=False)
        root = (variance + epsilon).sqrt()
        bias, normal = norm.bias.detach().cpu().double(), (x - mean) / root
        facts = (mean.item(), variance.item(), root.item())
        columns = ("mean", "variance", f"sqrt(variance + {epsilon:g})")
        rows = {f"{name} - mean": x - mean, "/ sqrt(...)": normal, "gain": gain, "bias": bias}
        last = {"× gain + bias": normal * gain + bias}
    return [Table("", (f"of the {name}",), columns, (facts,)), _table(_norm_name(norm), rows, last)]


def _projections(word: WordRow) -> Section:
    attention, own = word.attention, word.own
    channels = counted(attention.query.size(1))
    row = labels(word.rows)[word.row]
    bias = "" if own.query.bias is None else " + b"
    return Section(
        "Query, keys and values of this head",
        f"q = x W^Q{bias}, k = x W^K{bias}, v = x W^V{bias}; d_k = {len(channels)} channels",
        (
            grid("q of this word", (row,), channels, [attention.query[word.row].tolist()]),
            grid("k of every word", word.column_labels, channels, attention.key.tolist()),
            grid("v of every word", word.column_labels, channels, attention.value.tolist()),
            _first_channel(own.query, word.row),
        ),
        _kind_notes(own.module),
    )


def _kind_notes(module: MultiHeadAttention | None) -> tuple[str, ...]:
    """What other kinds of attention do with queries, keys and values."""
    if isinstance(module, RotaryAttention):
        return (
            "Rotary positions: q and k are shown after their pairs of channels were turned by "
            "position / 10000^(2i/d_k); channel 1 in full is before.",
        )
    if isinstance(module, TreeAttention):
        return ("Positions in a tree: to the distance of two words in the sentence comes that in its tree.",)
    if isinstance(module, ProjectedAttention):
        return ("Linformer: words look at sums of all words; k and v are shown summed, k = E k and v = F v.",)
    return ()


def _first_channel(query: Projection, row: int) -> Table:
    x, weight = query.x[row], query.weight[:, 0]
    after = {"sum": (x @ weight).item()}
    if query.bias is not None:
        after["b"] = query.bias[0].item()
    after["q 1"] = query.result[row, 0].item()
    return _written_out(
        "Channel 1 of q in full: x times the first column of W^Q", ("x", "W^Q"), x, weight, after
    )


def _products(word: WordRow) -> Section:
    attention, row, key = word.attention, word.row, word.key
    names = (f"q of {word.rows.pieces[row]}", f"k of {word.columns.pieces[key]}")
    after = {"score": attention.scores[row, key].item()}
    table = _written_out("", names, attention.query[row], attention.key[key], after)
    most = int(attention.weights[row].argmax()) == key
    return Section(
        "One score: the products of one pair",
        "score = q · k = sum over channels of q_c × k_c",
        (table,),
        (f'"{word.columns.pieces[key]}" is looked at most here; --key takes another word.',) if most else (),
    )


def _weights(word: WordRow) -> Section:
    attention, row = word.attention, word.row
    hidden = attention.masked[row]
    powers = (hidden - hidden.max()).exp()
    columns = {"score": attention.scores[row], f"s = score / {attention.divisor:.4f}": attention.scaled[row]}
    if attention.bias is not None:
        columns["+ distance"] = attention.bias[row]
    if attention.bias is not None or attention.visible is not None:
        columns["masked" if attention.visible is not None else "sum"] = hidden
    columns |= {"exp(s - max)": powers, "weight": attention.weights[row]}
    cells = tuple(zip(*(column.tolist() for column in columns.values()), strict=True))
    table = Table("", word.column_labels, tuple(columns), cells)
    notes = [
        f"max = {hidden.max():.4f}, the largest of s. Subtracting it changes no weight.",
        f"weight = exp(s - max) / {powers.sum():.4f}",
    ]
    if word.kind == "decoder":
        notes.append("Words that are not yet written are masked with -inf: exp(-inf) = 0, so they weigh 0.")
    if f"{place(word.kind, word.layer)}.pattern" in word.seen.tensors:
        notes.append("BigBird: words outside the blocks that this one sees are masked in the same way.")
    elif attention.visible is not None and word.kind != "decoder":
        notes.append("Hidden words are masked with -inf, like padding: exp(-inf) = 0, so they weigh 0.")
    return Section(
        "All scores, divided and through softmax",
        _softmax_formula(attention),
        (table.with_sum_row(only=("exp(s - max)", "weight")),),
        tuple(notes),
    )


def _softmax_formula(attention: AttentionStep) -> str:
    channels = attention.query.size(1)
    divided = f"s = score / sqrt(d_k), d_k = {channels}" if attention.scale is None else "s = score"
    return f"{divided}; weight = softmax(s{'' if attention.bias is None else ' + distance'})"


def _contributions(word: WordRow) -> Section:
    attention, row = word.attention, word.row
    table = grid(
        "weight × v",
        word.column_labels,
        counted(attention.value.size(1)),
        attention.contributions[row].tolist(),
    )
    foot = (("output z", tuple(attention.output[row].tolist())),)
    values = "v" if attention.distance_values is None else "(v + a of the distance)"
    return Section(
        "The weighted sum of the values",
        f"z = sum over words of weight × {values}",
        (Table(table.title, table.rows, table.columns, table.cells, foot),),
    )


def _joined(word: WordRow) -> Section:
    step, head = word.step, word.head
    outputs = {f"head {n}": each.attention.output[word.row] for n, each in enumerate(step.heads, start=1)}
    shares = _shares(word)
    assert step.w_output is not None
    size = word.attention.value.size(1)
    own = outputs[f"head {head + 1}"]
    column = step.w_output[head * size : (head + 1) * size, 0]
    after = {"sum": shares[f"head {head + 1}"][0].item()}
    bias = "" if step.b_output is None else " + b"
    return Section(
        "All heads side by side, times W^O",
        f"output = Concat({', '.join(outputs)}) W^O{bias}",
        (
            _table("z of every head", outputs),
            _table(
                "What each head adds: its z times its rows of W^O",
                shares,
                {"output": step.projected[word.row]},
            ),
            _written_out(f"Channel 1 of head {head + 1} in full", ("z", "W^O"), own, column, after),
        ),
    )


def _shares(word: WordRow) -> dict[str, Tensor]:
    """What each head and the bias add to the output: they sum to it."""
    step, size = word.step, word.attention.value.size(1)
    assert step.w_output is not None
    shares = {
        f"head {n + 1}": each.attention.output[word.row] @ step.w_output[n * size : (n + 1) * size]
        for n, each in enumerate(step.heads)
    }
    return shares if step.b_output is None else shares | {"b": step.b_output}


def _residual(word: WordRow) -> Section:
    name = "x" if word.step.norm is not None else "stream"
    rows = {name: word.stream, "output": word.step.projected[word.row]}
    if not word.step.summed:
        del rows[name]
    table = _table("", rows, {"sum": word.step.residual[word.row]})
    pre = "A pre-norm model goes on with this sum as it is; the next sublayer normalises it."
    notes = () if word.step.norm is not None else (pre, _agreement(word))
    formula = f"{name} + output" if word.step.summed else "output alone: this model has no residuals"
    return Section("Residual sum", formula, (table,), notes)


def _norm(word: WordRow) -> Section | None:
    if word.step.norm is None:
        return None
    return Section(
        _norm_name(word.step.norm),
        "(sum - mean) / sqrt(variance + eps) × gain + bias"
        if isinstance(word.step.norm, nn.LayerNorm)
        else "sum / sqrt(mean of squares + eps) × gain",
        tuple(_norm_tables("sum", word.step.residual[word.row], word.step.norm)),
        (_agreement(word),),
    )


def _agreement(word: WordRow) -> str:
    own = word.seen.tensors[f"{place(word.kind, word.layer)}.residual"][word.row].double()
    apart = (own - word.step.output[word.row]).abs().max().item()
    return f"Computed in 64 bits; the model's own pass, in 32 bits, is within {apart:.0e} of the last row."


SECTIONS: tuple[Callable[[WordRow], Section | None], ...] = (
    _tokens,
    _vector,
    _projections,
    _products,
    _weights,
    _contributions,
    _joined,
    _residual,
    _norm,
)
"""In the order of the lecture."""


def _values(word: WordRow) -> dict[str, Any]:
    attention, row, step = word.attention, word.row, word.step
    return {
        "kind": word.kind,
        "layer": word.layer + 1,
        "head": word.head + 1,
        "row": row + 1,
        "key": word.key + 1,
        "row_pieces": word.rows.pieces,
        "row_ids": word.rows.ids,
        "column_pieces": word.columns.pieces,
        "column_ids": word.columns.ids,
        "stream": word.stream.tolist(),
        "x": word.x.tolist(),
        "q": attention.query[row].tolist(),
        "k": attention.key.tolist(),
        "v": attention.value.tolist(),
        "products": attention.products(row, word.key).tolist(),
        "scores": attention.scores[row].tolist(),
        "divisor": attention.divisor,
        "scaled": attention.scaled[row].tolist(),
        "bias": None if attention.bias is None else attention.bias[row].tolist(),
        "v_distance": None if attention.distance_values is None else attention.distance_values[row].tolist(),
        "masked": attention.masked[row].tolist(),
        "weights": attention.weights[row].tolist(),
        "contributions": attention.contributions[row].tolist(),
        "z": attention.output[row].tolist(),
        "w_query": word.own.query.weight.tolist(),
        "b_query": _listed(word.own.query.bias),
        "w_key": word.own.key.weight.tolist(),
        "b_key": _listed(word.own.key.bias),
        "w_value": word.own.value.weight.tolist(),
        "b_value": _listed(word.own.value.bias),
        "w_output": None if step.w_output is None else step.w_output.tolist(),
        "b_output": _listed(step.b_output),
        "norm_gain": word.norm.weight.tolist(),
        "norm_bias": _listed(getattr(word.norm, "bias", None)),
        "heads": step.concat[row].view(len(step.heads), -1).tolist(),
        "head_shares": {name: share.tolist() for name, share in _shares(word).items()},
        "output": step.projected[row].tolist(),
        "residual": step.residual[row].tolist(),
        "norm": None if step.norm is None else "post",
        "result": step.output[row].tolist(),
    }


def _listed(bias: Tensor | None) -> list[float] | None:
    numbers: list[float] | None = None if bias is None else bias.tolist()
    return numbers
