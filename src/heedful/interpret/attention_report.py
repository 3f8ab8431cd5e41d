"""``heedful inspect MODEL "sentence" -o FOLDER``: figures of every attention, and their values as JSON."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from matplotlib.figure import Figure
from torch import Tensor

from heedful.devices import select_device
from heedful.errors import HeedfulError
from heedful.files import write_text
from heedful.interpret.activations import (
    ATTENTION_KINDS,
    Activations,
    AttentionKind,
    TokenSequence,
    aggregate_to_words,
    check_attention_kind,
    check_layer_and_head,
    compute_activations,
    count_attention_layers,
    describe_unknown_words,
)
from heedful.interpret.attribution import gradient_matrix, normalize_attribution, occlusion_matrix, target_rollout
from heedful.interpret.figures.attention_maps import (
    QUERY_LABEL,
    attribution_figure,
    head_figure,
    heads_figure,
    lines_figure,
)
from heedful.interpret.figures.style import describe_undrawable, save_figure
from heedful.interpret.figures.training_curves import training_figure
from heedful.interpret.tables import round_floats
from heedful.model_folder import ModelFolder
from heedful.progress import Reporter, format_count
from heedful.training.metrics_log import metrics_path

IMAGE_FORMATS = {"png": ("png",), "svg": ("svg",), "both": ("png", "svg")}

ATTENTION_TITLES = {
    "encoder": "Encoder self-attention",
    "decoder": "Decoder self-attention",
    "cross": "Cross-attention",
}


@dataclass(frozen=True, slots=True)
class FigureOptions:
    """What to draw; layer and head count from 1."""

    model: Path
    sentence: str
    output: Path
    target: str | None = None
    image_format: str = "both"
    subwords: bool = False
    kind: str | None = None
    layer: int | None = None
    head: int | None = None
    word: str | None = None
    device: str = "auto"
    target_language: str = ""
    """Target language of a multilingual model."""

    def __post_init__(self) -> None:
        for name in ("sentence", "target", "word"):  # invalid UTF-8 on the command line arrives as lone surrogates
            if (text := getattr(self, name)) is not None:
                object.__setattr__(self, name, text.encode("utf-8", "replace").decode())

    @property
    def is_full_report(self) -> bool:
        """Whether everything was requested, not one attention or one word."""
        return (self.kind, self.layer, self.head, self.word) == (None, None, None, None)


def write_attention_report(options: FigureOptions, report: Reporter) -> Iterator[str]:
    """Trace the sentence and write figures of the selected attention, their values, and the training curves.

    Yields lines to print.
    """
    model_folder = _load_model(options)
    activations = compute_activations(model_folder, options.sentence, options.target)
    guided_head = model_folder.config.guided_head
    views = list(_select_views(activations, options, guided_head))
    if options.word is not None:  # only where it is a query
        views_with_word = [view for view in views if _find_row(view, options) is not None]
        if not views_with_word:
            views[0].rows.find_word(options.word)  # its error lists the words
        views = views_with_word
    report_figures = [report_figure for view in views for report_figure in _build_view_figures(view, options)]
    attributions = _compute_attributions(model_folder, activations, options)
    report_figures += [
        _build_attribution_figure(name, matrix, activations, options) for name, matrix in attributions.items()
    ]
    _create_folder(options.output)
    yield f"{options.sentence} -> {model_folder.tokenizer.target.decode(activations.target.ids[:-1])}"
    if not options.subwords and any(
        len(side.words) < len(side.subwords) for side in (activations.source, activations.target)
    ):
        yield "between words: summed over a key's subwords, averaged over a query's (see --subwords)"
    yield from describe_unknown_words(model_folder, activations)
    undrawable: set[str] = set()
    with report.task("drawing", len(report_figures) + options.is_full_report, unit="figures") as task:
        if options.is_full_report and (training_curves := _build_training_figure(options.model, report)) is not None:
            report_figures.append(training_curves)
        for report_figure in report_figures:
            undrawable |= report_figure.save(options)
            task.advance()
            yield report_figure.describe(options)
    # The selection is part of the file name, so that another call does not overwrite it.
    selection = [options.kind, options.layer and f"layer-{options.layer}", options.head and f"head-{options.head}"]
    file_name = "-".join(["weights", *(part for part in selection if part)]) + ".json"
    write_text(options.output / file_name, _format_weights(activations, views, attributions, options, guided_head))
    yield f"{file_name}: the exact values of the figures, and the tokens"
    yield f"written to {options.output}"
    if undrawable:
        report.warning(describe_undrawable(undrawable))


@dataclass(frozen=True, slots=True)
class AttentionView:
    """One attention as it is drawn: between words or subwords, all heads or one."""

    kind: AttentionKind
    layer: int  # from 0
    heads: tuple[int, ...]
    rows: TokenSequence
    columns: TokenSequence
    row_labels: tuple[str, ...]
    column_labels: tuple[str, ...]
    weights: Tensor  # (heads shown, queries, keys), float64
    attention_mask: Tensor | None  # (queries, keys)
    guided_head: int | None = None
    """The head trained with guided attention, if it is in this layer."""

    @property
    def name(self) -> str:
        return f"{self.kind}-layer-{self.layer + 1}"

    @property
    def query_label(self) -> str:
        """What a row is: decoder rows are labeled with the word read, cross rows with the word predicted."""
        suffixes = {"encoder": "", "decoder": " (word read)", "cross": " (word predicted)"}
        return QUERY_LABEL + suffixes[self.kind]

    @property
    def title(self) -> str:
        return f"{ATTENTION_TITLES[self.kind]}, layer {self.layer + 1}"


def _select_views(
    activations: Activations, options: FigureOptions, guided_head: tuple[int, int] | None
) -> Iterator[AttentionView]:
    """Every attention selected by --kind, --layer and --head; the guided head (from 1) is marked."""
    heads = tuple(range(activations.heads)) if options.head is None else (options.head - 1,)
    for kind in ATTENTION_KINDS:
        for layer in range(activations.layers[kind]):
            if options.kind not in (None, kind) or options.layer not in (None, layer + 1):
                continue
            rows, columns = activations.queries_and_keys(kind)
            weights = activations.weights(kind, layer).double()[list(heads)]
            is_projected = kind == "encoder" and activations.projected_keys
            mask = None if is_projected else activations.attention_mask(kind, layer)
            row_labels, column_labels = rows.subwords, columns.subwords
            if not options.subwords:
                row_labels, column_labels = rows.words, columns.words
                weights = aggregate_to_words(weights, rows, columns)
                if mask is not None:  # a word may attend to another if one of its subwords may
                    mask = aggregate_to_words(mask.double(), rows, columns) > 0
            is_guided = kind == "encoder" and guided_head is not None and guided_head[0] == layer + 1
            guided = guided_head[1] - 1 if is_guided and guided_head else None
            yield AttentionView(
                kind, layer, heads, rows, columns, row_labels, column_labels, weights, mask, guided_head=guided
            )


@dataclass(frozen=True, slots=True)
class ReportFigure:
    """A figure with its file name and caption."""

    name: str
    caption: str
    draw: Callable[[], Figure]

    def save(self, options: FigureOptions) -> frozenset[str]:
        """Draw it and write it in every requested format; returns the characters that no font could draw."""
        figure = self.draw()
        paths = [options.output / f"{self.name}.{suffix}" for suffix in IMAGE_FORMATS[options.image_format]]
        return frozenset().union(*(save_figure(figure, path) for path in paths))

    def describe(self, options: FigureOptions) -> str:
        """Its files and its caption."""
        return f"{self.name}.{', .'.join(IMAGE_FORMATS[options.image_format])}: {self.caption}"


def _build_view_figures(view: AttentionView, options: FigureOptions) -> Iterator[ReportFigure]:
    """All heads, their mean and its lines; or the one head and its lines."""
    rows, columns, mask, mean = view.row_labels, view.column_labels, view.attention_mask, view.weights.mean(0)
    if options.head is not None:
        name, title = f"{view.name}-head-{options.head}", f"{view.title}, head {options.head}"
        title += " (guided)" if view.guided_head == options.head - 1 else ""
    else:
        heads_text = format_count(len(view.heads), "head")
        guided_text = "" if view.guided_head is None else f" (head {view.guided_head + 1} is guided)"
        name, title = f"{view.name}-mean", f"{view.title}, mean of {heads_text}{guided_text}"
        all_heads_title = f"{view.title}, {'all ' * (len(view.heads) > 1)}{heads_text}{guided_text}"
        yield ReportFigure(
            view.name,
            all_heads_title,
            lambda: heads_figure(view.weights, rows, columns, all_heads_title, mask, view.query_label),
        )
    yield ReportFigure(name, title, lambda: head_figure(mean, rows, columns, title, mask, view.query_label))
    stem = name.removesuffix("-mean")
    if options.word is None:
        caption = f"{title}, as lines"
        yield ReportFigure(f"{stem}-lines", caption, lambda: lines_figure(mean, rows, columns, title))
    elif (row := _find_row(view, options)) is not None:
        caption = f"{title}: what “{rows[row]}” attends to"
        yield ReportFigure(f"{stem}-word-{row + 1}", caption, lambda: lines_figure(mean, rows, columns, caption, row))


def _find_row(view: AttentionView, options: FigureOptions) -> int | None:
    """The row of --word, if it is a query of this attention."""
    word = options.word or ""
    if options.subwords and word in view.row_labels:
        return view.row_labels.index(word)
    try:
        word_id = view.rows.find_word(word)
    except HeedfulError:
        return None
    return view.rows.positions_of_word(word_id)[0] if options.subwords else word_id


ATTRIBUTION_TITLES: dict[str, str] = {
    "rollout": "Attention rollout: how much of each source word reaches each target word, by weights alone",
    "gradient": "Gradient: which source words each target word depends on (shares)",
    "occlusion": "Occlusion: which source words each target word needs (shares)",
}


def _compute_attributions(
    model_folder: ModelFolder, activations: Activations, options: FigureOptions
) -> dict[str, Tensor]:
    """(target subwords, source subwords) of each method, unless one attention was requested."""
    if not options.is_full_report or not activations.layers["cross"]:
        return {}
    rollout = {"rollout": target_rollout(activations)[0]} if activations.has_rollout else {}
    return rollout | {
        "gradient": gradient_matrix(model_folder, activations).double(),
        "occlusion": occlusion_matrix(model_folder, activations).double(),
    }


def _build_attribution_figure(
    name: str, matrix: Tensor, activations: Activations, options: FigureOptions
) -> ReportFigure:
    rows, columns = activations.queries_and_keys("cross")
    labels, title = (rows.subwords, columns.subwords), ATTRIBUTION_TITLES[name]
    if not options.subwords:
        matrix, labels = aggregate_to_words(matrix, rows, columns), (rows.words, columns.words)
    return ReportFigure(name, title, lambda: attribution_figure(normalize_attribution(matrix), *labels, title))


def _build_training_figure(model: Path, report: Reporter) -> ReportFigure | None:
    if not metrics_path(model).is_file():
        return None
    try:
        figure = training_figure(model)
    except HeedfulError as error:
        report.warning(f"no training curves: {error.problem}")
        return None
    return ReportFigure("training", "loss, scores, learning rate and speed of its training", lambda: figure)


def _format_weights(
    activations: Activations,
    views: list[AttentionView],
    attributions: Mapping[str, Tensor],
    options: FigureOptions,
    guided_head: tuple[int, int] | None,
) -> str:
    """weights.json: tokens, attributions, and the weights of every figure, one row per line."""
    header = {
        "sentence": options.sentence,
        "note": "weights[head][query][key]: rows attend to columns; layers and heads count from 1",
        "between": "subwords" if options.subwords else "words",
        "guided_head": guided_head,
        "source": asdict(activations.source),
        "decoder_input": asdict(activations.decoder_input),
        "target": asdict(activations.target),
    }
    lines = [f"{_to_json(name)}: {_to_json(value)}," for name, value in header.items()]
    for name, matrix in attributions.items():  # between subwords, not normalized
        lines.append(f"{_to_json(name)}: [\n{_format_rows(matrix)}\n],")
    attentions = []
    for view in views:
        view_header = {
            "kind": view.kind,
            "layer": view.layer + 1,
            "heads": [head + 1 for head in view.heads],
            "rows": view.row_labels,
            "columns": view.column_labels,
        }
        heads = ",\n".join(f"[{_format_rows(head)}]" for head in view.weights)
        attentions.append(f'{_to_json(view_header)[:-1]}, "weights": [\n{heads}\n]}}')
    return "\n".join(["{", *lines, '"attention": [', ",\n".join(attentions), "]", "}\n"])


def _format_rows(matrix: Tensor) -> str:
    return ",\n ".join(_to_json(round_floats(row)) for row in matrix.tolist())


def _to_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _load_model(options: FigureOptions) -> ModelFolder:
    """The model, after checking the options."""
    if options.target is not None and not options.target.strip():
        raise HeedfulError("the target is empty", hint="remove --target to use the model's translation")
    if options.image_format not in IMAGE_FORMATS:
        raise HeedfulError(
            f"unknown format {options.image_format!r}", hint=f"choose one of: {', '.join(IMAGE_FORMATS)}"
        )
    if options.kind is not None:
        check_attention_kind(options.kind)
    if options.output.exists() and not options.output.is_dir():
        raise HeedfulError(f"{options.output} is a file", hint="choose a folder for the figures")
    if not options.sentence.strip():
        raise HeedfulError("the sentence is empty", hint="give a sentence with at least one word")
    model_folder = ModelFolder.load(options.model, select_device(options.device)).for_language(options.target_language)
    layers = count_attention_layers(model_folder.config.model)
    deepest_kind = max(ATTENTION_KINDS, key=layers.__getitem__)  # without --kind, the layer must exist there
    kind = deepest_kind if options.kind is None else check_attention_kind(options.kind)
    head = None if options.head is None else options.head - 1
    check_layer_and_head(model_folder, kind, 0 if options.layer is None else options.layer - 1, head)
    return model_folder


def _create_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HeedfulError(f"cannot create {folder}: {error.strerror}", hint="choose another folder") from None
    if not os.access(folder, os.W_OK):
        raise HeedfulError(f"cannot write to {folder}: permission denied", hint="choose another folder")
