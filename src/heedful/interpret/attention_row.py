"""One row of one attention head of a trained model, computed step by step in the order of the lecture.

Layers, heads and rows count from 0 here and from 1 in the output. Vectors are rows: q = x W + b.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from heedful.errors import HeedfulError
from heedful.interpret.activations import (
    Activations,
    AttentionKind,
    TokenSequence,
    attention_name,
    check_layer_and_head,
    describe_unknown_words,
    get_stack,
    get_sublayer,
)
from heedful.interpret.arithmetic import build_model_attention
from heedful.interpret.tables import Cell, Explanation, Section, Table, matrix_table, number_labels
from heedful.model_folder import ModelFolder
from heedful.models.base import select_token_ids
from heedful.models.efficient_attention import LinformerAttention
from heedful.models.relative_positions import RotaryAttention, TreeAttention
from heedful.models.sublayers import Norm
from heedful.tokenization.normalization import METASPACE

ATTENTION_DESCRIPTIONS: dict[AttentionKind, str] = {
    "encoder": "encoder, self-attention",
    "decoder": "decoder, masked self-attention",
    "cross": "decoder, cross-attention on the source",
}

VARIANT_NOTES = {
    RotaryAttention: "Rotary positions: q and k are shown after the rotation of their channel pairs by "
    "position / 10000^(2i/d_k); channel 1 in full is before it.",
    TreeAttention: "Tree positions: the distance of two words in the dependency tree is added to that in the sentence.",
    LinformerAttention: "Linformer: words attend to weighted sums of all words; k and v are shown summed, "
    "k = E k and v = F v.",
}


def find_subword(tokens: TokenSequence, word: str, text_name: str = "the sentence") -> int:
    """The position of a word's first subword, of a subword spelled so, or of a number in the token table."""
    if word not in tokens.words and word in tokens.subwords:
        return tokens.subwords.index(word)
    if word not in tokens.words and word.isdecimal() and 1 <= int(word) <= len(tokens.subwords):
        return int(word) - 1
    positions = tokens.positions_of_word(tokens.find_word(word, text_name))
    return next((position for position in positions if tokens.subwords[position] != METASPACE), positions[0])


def explain_row(
    model_folder: ModelFolder,
    activations: Activations,
    kind: AttentionKind,
    layer: int,
    head: int,
    row: int,
    key: int | None = None,
) -> Explanation:
    """How the subword at ``row`` attends to all others; products are shown for ``key``.

    The default key is the one with the largest weight.
    """
    check_layer_and_head(model_folder, kind, layer, head)
    rows, columns = activations.queries_and_keys(kind)
    for position, tokens in ((row, rows), (key or 0, columns)):
        if not 0 <= position < len(tokens.subwords):
            raise HeedfulError(
                f"subword {position + 1} does not exist: the sentence has {len(tokens.subwords)}",
                hint=f"choose a subword from 1 to {len(tokens.subwords)}",
            )
    explainer = RowExplainer(model_folder, activations, kind, layer, head, row, key)
    is_guided = kind == "encoder" and model_folder.config.guided_head == (layer + 1, head + 1)
    head_label = f"{'guided ' * is_guided}head {head + 1} of layer {layer + 1}"
    sections = [
        explainer.token_section(),
        explainer.input_section(),
        explainer.projection_section(),
        explainer.score_section(),
        explainer.weight_section(),
        explainer.value_section(),
        explainer.output_section(),
        explainer.residual_section(),
    ]
    if explainer.is_post_norm:
        sections.append(explainer.norm_section())
    title = f'"{rows.subwords[row]}" in {head_label} ({ATTENTION_DESCRIPTIONS[kind]})'
    return Explanation(title, tuple(sections), explainer.collect_values())


@dataclass
class RowExplainer:
    """The sections of an explanation, one for each step."""

    model_folder: ModelFolder
    activations: Activations
    kind: AttentionKind
    layer: int
    head: int
    row: int
    key: int | None

    def __post_init__(self) -> None:
        row = self.row
        self.name = attention_name(self.kind, self.layer)
        self.rows, self.columns = self.activations.queries_and_keys(self.kind)
        self.row_labels, self.column_labels = _number_subwords(self.rows), _number_subwords(self.columns)
        self.step = build_model_attention(self.model_folder, self.activations, self.kind, self.layer)
        self.head_step = self.step.heads[self.head]
        self.attention = self.head_step.attention
        self.weights = self.attention.weights[row]  # (keys,)
        self.key_position = int(self.weights.argmax()) if self.key is None else self.key
        self.x = self.head_step.query.x[row]  # what the attention reads: (d_model,)
        assert self.step.residual_input is not None
        self.stream = self.step.residual_input[row]  # what its output is added to: (d_model,)
        self.is_post_norm = self.step.norm is not None
        self.stream_name = "x" if self.is_post_norm else "stream"
        self.norm = get_sublayer(self.model_folder.model, self.kind, self.layer)[1].norm

    def token_section(self) -> Section:
        rows, row, decoder_input = self.rows, self.row, self.activations.decoder_input
        if self.kind == "cross":
            cells = tuple(zip(decoder_input.subwords, decoder_input.ids, range(len(decoder_input.ids)), strict=True))
            title = "Queries: the row that writes each word"
            tables = [
                Table(title, self.row_labels, ("reads", "id", "position"), cells),
                _token_table("Keys: the source", self.columns),
            ]
        else:
            tables = [_token_table("The sentence" if self.kind == "encoder" else "Queries", rows)]
        notes = [f'This is row {row + 1}, "{rows.subwords[row]}". Rows attend to columns.']
        word = rows.words[rows.word_ids[row]]
        positions = rows.positions_of_word(rows.word_ids[row])
        if len(positions) > 1:
            notes.append(
                f'"{word}" has {len(positions)} subwords; this is subword {positions.index(row) + 1}. '
                "--word also takes a subword or a number of this table."
            )
        if rows.words.count(word) > 1:
            first_positions = [
                rows.positions_of_word(word_id)[:1] for word_id, other in enumerate(rows.words) if other == word
            ]
            numbers = ", ".join(str(position + 1) for first in first_positions for position in first)
            notes.append(f'"{word}" occurs more than once: --word also takes its number ({numbers}).')
        notes += describe_unknown_words(self.model_folder, self.activations)
        if self.kind == "encoder" and row in self.activations.masked_source:
            notes.append(
                f'"{rows.subwords[row]}" is masked: the model reads padding here, whose embedding is zero. '
                "Its row is still computed, but nothing attends to it."
            )
        if self.kind == "cross":
            notes.append(
                f'A row is labeled with what it writes: row {row + 1} reads "{decoder_input.subwords[row]}" and writes '
                f'"{rows.subwords[row]}".'
            )
        return Section("Tokens and ids", "", tuple(tables), tuple(notes))

    def input_section(self) -> Section:
        if self.layer == 0 and self.kind != "cross":
            is_scaled = self.model_folder.config.model.scale_embeddings
            tables = [self._embedding_table()]
            formula = f"embedding{' × sqrt(d_model)' if is_scaled else ''} + position, d_model = {len(self.x)}"
            notes = ["Columns are channels. The last row is the sum of the two above it."]
        else:
            origin = f"layer {self.layer} of the {'encoder' if self.kind == 'encoder' else 'decoder'}"
            if self.kind == "cross":
                origin = f"the self-attention of decoder layer {self.layer + 1}"
            tables = [_vector_table("", {self.stream_name: self.stream})]
            formula, notes = f"{self.stream_name} = the output of {origin}", []
        if not self.is_post_norm:
            tables += _norm_tables("stream", self.stream, self.norm)
            notes.append(f"This model is pre-norm: attention reads {_norm_name(self.norm)} of the stream, as above.")
        if self.kind == "cross":
            notes.append("Keys and values come from the encoder's output, the query from the decoder's x.")
        return Section("The vector x", formula, tuple(tables), tuple(notes))

    def _embedding_table(self) -> Table:
        embedding = get_stack(self.model_folder.model, self.kind).embedding
        tokens = self.activations.encoder_input if self.kind == "encoder" else torch.tensor([self.rows.ids])
        vector = embedding.table.weight[select_token_ids(tokens)[0, self.row]].detach().cpu().double()
        positions = embedding.position_vectors(tokens.to(embedding.table.weight.device))
        position = positions.expand(1, tokens.size(1), -1)[0, self.row].detach().cpu().double()
        vectors = {"embedding": vector}
        if self.model_folder.config.model.scale_embeddings:
            vectors[f"× sqrt({len(vector)}) = {embedding.scale:.4f}"] = vector * embedding.scale
        vectors[f"+ position {self.row}"] = position
        return _vector_table("", vectors, {f"= {self.stream_name}": self.stream})

    def projection_section(self) -> Section:
        attention, query, row = self.attention, self.head_step.query, self.row
        x, first_column = query.x[row], query.weight[:, 0]
        totals = {"sum": (x @ first_column).item()}
        if query.bias is not None:
            totals["b"] = query.bias[0].item()
        totals["q 1"] = query.result[row, 0].item()
        bias = "" if query.bias is None else " + b"
        first_channel = "Channel 1 of q in full: x times the first column of W^Q"
        return Section(
            "Query, keys and values of this head",
            f"q = x W^Q{bias}, k = x W^K{bias}, v = x W^V{bias}; d_k = {attention.query.size(1)} channels",
            (
                matrix_table("q of this word", (self.row_labels[row],), "", attention.query[row : row + 1]),
                matrix_table("k of every word", self.column_labels, "", attention.key),
                matrix_table("v of every word", self.column_labels, "", attention.value),
                _dot_product_table(first_channel, ("x", "W^Q"), x, first_column, totals),
            ),
            tuple(note for variant, note in VARIANT_NOTES.items() if isinstance(self.head_step.module, variant)),
        )

    def score_section(self) -> Section:
        key_subword = self.columns.subwords[self.key_position]
        table = _dot_product_table(
            "",
            (f"q of {self.rows.subwords[self.row]}", f"k of {key_subword}"),
            self.attention.query[self.row],
            self.attention.key[self.key_position],
            {"score": self.attention.scores[self.row, self.key_position].item()},
        )
        is_largest = int(self.weights.argmax()) == self.key_position
        notes = (f'"{key_subword}" has the largest weight here; --key selects another word.',) if is_largest else ()
        return Section(
            "One score: the products of one pair", "score = q · k = sum over channels of q_c × k_c", (table,), notes
        )

    def weight_section(self) -> Section:
        attention, row = self.attention, self.row
        has_mask = attention.attention_mask is not None
        masked_scores = attention.masked_scores[row]
        exponentials = (masked_scores - masked_scores.max()).exp()
        columns = {"score": attention.scores[row], f"s = score / {attention.divisor:.4f}": attention.scaled_scores[row]}
        if attention.bias is not None:
            columns["+ distance"] = attention.bias[row]
        if attention.bias is not None or has_mask:
            columns["masked" if has_mask else "sum"] = masked_scores
        columns |= {"exp(s - max)": exponentials, "weight": self.weights}
        table = matrix_table("", self.column_labels, tuple(columns), torch.stack(list(columns.values()), dim=1))
        notes = [
            f"max = {masked_scores.max():.4f}, the largest of s. Subtracting it changes no weight.",
            f"weight = exp(s - max) / {exponentials.sum():.4f}",
        ]
        if self.kind == "decoder":
            notes.append("Words that are not yet written are masked with -inf: exp(-inf) = 0, so their weight is 0.")
        if f"{self.name}.pattern" in self.activations.tensors:
            notes.append("BigBird: words outside the visible blocks are masked in the same way.")
        elif has_mask and self.kind != "decoder":
            notes.append("Masked words get -inf, like padding: exp(-inf) = 0, so their weight is 0.")
        scaling = f" / sqrt(d_k), d_k = {attention.query.size(1)}" if attention.scale is None else ""
        return Section(
            "All scores, divided and through softmax",
            f"s = score{scaling}; weight = softmax(s{'' if attention.bias is None else ' + distance'})",
            (table.with_sum_row(only=("exp(s - max)", "weight")),),
            tuple(notes),
        )

    def value_section(self) -> Section:
        attention = self.attention
        table = matrix_table("weight × v", self.column_labels, "", attention.contributions[self.row])
        footer = (("output z", tuple(attention.output[self.row].tolist())),)
        values = "v" if attention.distance_values is None else "(v + a of the distance)"
        return Section(
            "The weighted sum of the values",
            f"z = sum over words of weight × {values}",
            (replace(table, footer=footer),),
        )

    def output_section(self) -> Section:
        step, head_name = self.step, f"head {self.head + 1}"
        outputs = {f"head {number}": head.attention.output[self.row] for number, head in enumerate(step.heads, 1)}
        contributions = self._head_contributions()
        assert step.w_output is not None
        head_size = len(outputs[head_name])
        column = step.w_output[self.head * head_size : (self.head + 1) * head_size, 0]
        totals = {"sum": contributions[head_name][0].item()}
        sum_title = "What each head adds: its z times its rows of W^O"
        return Section(
            "All heads concatenated, times W^O",
            f"output = Concat({', '.join(outputs)}) W^O{'' if step.b_output is None else ' + b'}",
            (
                _vector_table("z of every head", outputs),
                _vector_table(sum_title, contributions, {"output": step.projected[self.row]}),
                _dot_product_table(
                    f"Channel 1 of {head_name} in full", ("z", "W^O"), outputs[head_name], column, totals
                ),
            ),
        )

    def _head_contributions(self) -> dict[str, Tensor]:
        """What each head and the bias add to the output: they sum to it."""
        step = self.step
        assert step.w_output is not None
        head_weights = step.w_output.chunk(len(step.heads))
        contributions = {
            f"head {number}": head.attention.output[self.row] @ weight
            for number, (head, weight) in enumerate(zip(step.heads, head_weights, strict=True), 1)
        }
        return contributions if step.b_output is None else contributions | {"b": step.b_output}

    def residual_section(self) -> Section:
        vectors = {self.stream_name: self.stream} if self.step.has_residual else {}
        vectors["output"] = self.step.projected[self.row]
        table = _vector_table("", vectors, {"sum": self.step.residual[self.row]})
        notes: tuple[str, ...] = ()
        if not self.is_post_norm:
            notes = ("A pre-norm model passes this sum on; the next sublayer normalizes it.", self._precision_note())
        formula = (
            f"{self.stream_name} + output" if self.step.has_residual else "output alone: this model has no residuals"
        )
        return Section("Residual sum", formula, (table,), notes)

    def norm_section(self) -> Section:
        assert self.step.norm is not None
        return Section(
            _norm_name(self.norm),
            "(sum - mean) / sqrt(variance + eps) × gain + bias"
            if isinstance(self.norm, nn.LayerNorm)
            else "sum / sqrt(mean of squares + eps) × gain",
            tuple(_norm_tables("sum", self.step.residual[self.row], self.step.norm)),
            (self._precision_note(),),
        )

    def _precision_note(self) -> str:
        model_output = self.activations.tensors[f"{self.name}.residual"][self.row].double()
        max_difference = (model_output - self.step.output[self.row]).abs().max().item()
        return f"Computed in float64; the model's float32 pass differs by at most {max_difference:.0e}."

    def collect_values(self) -> dict[str, Any]:
        """Every number by name, as lists."""
        attention, head, step, row = self.attention, self.head_step, self.step, self.row
        tensors = {
            "stream": self.stream,
            "x": self.x,
            "q": attention.query[row],
            "k": attention.key,
            "v": attention.value,
            "products": attention.products(row, self.key_position),
            "scores": attention.scores[row],
            "scaled": attention.scaled_scores[row],
            "bias": None if attention.bias is None else attention.bias[row],
            "v_distance": None if attention.distance_values is None else attention.distance_values[row],
            "masked": attention.masked_scores[row],
            "weights": self.weights,
            "contributions": attention.contributions[row],
            "z": attention.output[row],
            "w_query": head.query.weight,
            "b_query": head.query.bias,
            "w_key": head.key.weight,
            "b_key": head.key.bias,
            "w_value": head.value.weight,
            "b_value": head.value.bias,
            "w_output": step.w_output,
            "b_output": step.b_output,
            "norm_gain": self.norm.weight,
            "norm_bias": getattr(self.norm, "bias", None),
            "heads": step.concat[row].view(len(step.heads), -1),
            "output": step.projected[row],
            "residual": step.residual[row],
            "result": step.output[row],
        }
        return {
            "kind": self.kind,
            "layer": self.layer + 1,
            "head": self.head + 1,
            "row": row + 1,
            "key": self.key_position + 1,
            "row_subwords": self.rows.subwords,
            "row_ids": self.rows.ids,
            "column_subwords": self.columns.subwords,
            "column_ids": self.columns.ids,
            "divisor": attention.divisor,
            "head_shares": {name: vector.tolist() for name, vector in self._head_contributions().items()},
            "norm": "post" if self.is_post_norm else None,
            **{name: None if tensor is None else tensor.tolist() for name, tensor in tensors.items()},
        }


def _number_subwords(tokens: TokenSequence) -> tuple[str, ...]:
    """The subwords with their numbers, which distinguish equal ones."""
    digits = len(str(len(tokens.subwords)))
    return tuple(f"{number:>{digits}} {subword}" for number, subword in enumerate(tokens.subwords, start=1))


def _token_table(title: str, tokens: TokenSequence) -> Table:
    words = [tokens.words[word_id] for word_id in tokens.word_ids]
    cells = tuple(zip(tokens.ids, range(len(tokens.ids)), words, strict=True))
    return Table(title, _number_subwords(tokens), ("id", "position", "word"), cells)


def _vector_table(title: str, rows: dict[str, Tensor], footer: dict[str, Tensor] | None = None) -> Table:
    """Vectors of d_model numbers by name; columns are channels from 1."""
    footer_rows = tuple((name, tuple(vector.tolist())) for name, vector in (footer or {}).items())
    table = matrix_table(title, tuple(rows), "", [vector.tolist() for vector in rows.values()])
    return replace(table, footer=footer_rows, is_wide_vector=True)


def _dot_product_table(
    title: str, names: tuple[str, str], left: Tensor, right: Tensor, totals: dict[str, float]
) -> Table:
    """A dot product number by number: two vectors, their products, and the totals."""
    padding: tuple[Cell, ...] = ("",) * len(totals)
    cells = ((*left.tolist(), *padding), (*right.tolist(), *padding), (*(left * right).tolist(), *totals.values()))
    return Table(title, (*names, "product"), (*number_labels(len(left)), *totals), cells)


def _norm_name(norm: Norm) -> str:
    return "LayerNorm" if isinstance(norm, nn.LayerNorm) else "RMSNorm"


def _norm_tables(name: str, x: Tensor, norm: Norm) -> list[Table]:
    """Each step of a norm; RMSNorm has no mean and no bias."""
    epsilon = norm.eps or 0.0
    gain = norm.weight.detach().cpu().double()
    if isinstance(norm, nn.RMSNorm):
        mean_square = x.pow(2).mean()
        root = (mean_square + epsilon).sqrt()
        statistics = {"mean of squares": mean_square, f"sqrt(mean + {epsilon:g})": root}
        rows = {f"{name} / sqrt(...)": x / root, "gain": gain}
        result = {"× gain": x / root * gain}
    else:
        mean, variance = x.mean(), x.var(unbiased=False)
        root = (variance + epsilon).sqrt()
        bias, normalized = norm.bias.detach().cpu().double(), (x - mean) / root
        statistics = {"mean": mean, "variance": variance, f"sqrt(variance + {epsilon:g})": root}
        rows = {f"{name} - mean": x - mean, "/ sqrt(...)": normalized, "gain": gain, "bias": bias}
        result = {"× gain + bias": normalized * gain + bias}
    cells = tuple(value.item() for value in statistics.values())
    return [Table("", (f"of the {name}",), tuple(statistics), (cells,)), _vector_table(_norm_name(norm), rows, result)]
