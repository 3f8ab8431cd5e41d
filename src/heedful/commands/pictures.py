"""``heedful inspect MODEL "sentence"``: where a model looks, as pictures and as numbers."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from matplotlib.figure import Figure
from torch import Tensor

from heedful.bundle import Bundle
from heedful.errors import HeedfulError
from heedful.files import write_text
from heedful.inspection.arithmetic import check_place
from heedful.inspection.attribution import gradient_matrix, occlusion_matrix, shares, target_rollout
from heedful.inspection.figures import (
    describe_undrawable,
    head_figure,
    heads_figure,
    lines_figure,
    save_figure,
    shares_figure,
    training_figure,
)
from heedful.inspection.figures.maps import LOOKS_FROM
from heedful.inspection.metrics import metrics_path
from heedful.inspection.stacks import attention_layers
from heedful.inspection.trace import KINDS, Kind, Tokens, Trace, by_words, trace, unknown_words
from heedful.progress import Reporter, counted
from heedful.training.devices import chosen_device

FORMATS = {"png": ("png",), "svg": ("svg",), "both": ("png", "svg")}
TITLES = {
    "encoder": "Encoder self-attention",
    "decoder": "Decoder self-attention",
    "cross": "Cross-attention",
}
WORDS_NOTE = "between words: summed over a key's pieces, averaged over a query's (--pieces shows pieces)"


@dataclass(frozen=True, slots=True)
class PictureOptions:
    """What is to be drawn; layer and head count from 1."""

    model: Path
    sentence: str
    output: Path
    target: str | None = None
    form: str = "both"
    pieces: bool = False
    kind: str | None = None
    layer: int | None = None
    head: int | None = None
    word: str | None = None
    device: str = "auto"
    to: str = ""
    """The language to translate into, of a model that writes several."""


def pictures_command(options: PictureOptions, report: Reporter) -> Iterator[str]:
    """Trace the sentence and write what was seen; yields lines to print."""
    _check(options)
    bundle = Bundle.load(options.model, chosen_device(options.device)).writing(options.to)
    _check_places(bundle, options)
    target = None if options.target is None else _readable(options.target)
    seen = trace(bundle, _readable(options.sentence), target)
    yield from write_figures(bundle, seen, options, report)


def write_figures(bundle: Bundle, seen: Trace, options: PictureOptions, report: Reporter) -> Iterator[str]:
    """Pictures of every chosen attention, their numbers, and the training's curves if they are there."""
    views = list(chosen_views(seen, options, bundle.config.taught_head))
    _check_word(views, options)
    if options.word is not None:  # only attentions in which it looks
        views = [view for view in views if _row(view, options) is not None]
    pictures = [picture for view in views for picture in _pictures(view, options)]
    attributions = _attributions(bundle, seen, options)
    pictures += [_attribution_picture(name, matrix, seen, options) for name, matrix in attributions.items()]
    _make_folder(options.output)
    yield f"{_readable(options.sentence)} -> {bundle.tokenizer.target.decode(list(seen.written.ids[:-1]))}"
    if not options.pieces and any(len(side.words) < len(side.pieces) for side in (seen.source, seen.written)):
        yield WORDS_NOTE
    yield from unknown_words(bundle, seen)
    undrawable: set[str] = set()
    with report.task("drawing", len(pictures) + _everything(options), unit="pictures") as task:
        for picture in pictures:
            undrawable |= picture.save(options)
            task.advance()
            yield picture.line(options)
        if _everything(options) and (curves := _training_picture(options.model, report)) is not None:
            undrawable |= curves.save(options)
            task.advance()
            yield curves.line(options)
    name = _numbers_name(options)
    write_text(options.output / name, numbers(seen, views, attributions, options, bundle.config.taught_head))
    yield f"{name}: the exact numbers of the pictures, and the tokens"
    yield f"written to {options.output}"
    if undrawable:
        report.warn(describe_undrawable(undrawable))


@dataclass(frozen=True, slots=True)
class View:
    """One attention of the pass, as it is shown: between words or pieces, all heads or one."""

    kind: Kind
    layer: int  # from 0, as all numbers here
    heads: tuple[int, ...]
    rows: Tokens
    columns: Tokens
    row_labels: tuple[str, ...]
    column_labels: tuple[str, ...]
    weights: Tensor  # (heads shown, queries, keys), float64
    visible: Tensor | None  # (queries, keys)
    taught: int | None = None
    """The head that an extra loss has taught, if it is in this layer."""

    @property
    def name(self) -> str:
        """The beginning of its files' names."""
        return f"{self.kind}-layer-{self.layer + 1}"

    @property
    def looks_from(self) -> str:
        """What a row is: the decoder reads one word and writes the next, and rows are named by either."""
        return (
            LOOKS_FROM
            + {"encoder": "", "decoder": ", the word just read", "cross": ", writing the word"}[self.kind]
        )

    @property
    def title(self) -> str:
        """The beginning of its pictures' titles."""
        return f"{TITLES[self.kind]}, layer {self.layer + 1}"


def chosen_views(
    seen: Trace, options: PictureOptions, taught_head: tuple[int, int] | None = None
) -> Iterator[View]:
    """Every attention that --kind, --layer and --head leave; a taught head (from 1) is marked."""
    for kind in KINDS:
        if options.kind not in (None, kind):
            continue
        for layer in range(seen.layers[kind]):
            if options.layer in (None, layer + 1):
                view = _view(seen, kind, layer, options)
                taught = kind == "encoder" and taught_head is not None and taught_head[0] == layer + 1
                yield replace(view, taught=taught_head[1] - 1) if taught and taught_head else view


def _view(seen: Trace, kind: Kind, layer: int, options: PictureOptions) -> View:
    rows, columns = seen.sides(kind)
    heads = tuple(range(seen.heads)) if options.head is None else (options.head - 1,)
    weights = seen.weights(kind, layer).double()[list(heads)]
    visible = None if kind == "encoder" and seen.sums else seen.visible(kind, layer)
    if options.pieces:
        return View(kind, layer, heads, rows, columns, rows.pieces, columns.pieces, weights, visible)
    if visible is not None:  # a word may look at another as soon as one of its pieces may
        visible = by_words(visible.double(), rows, columns) > 0
    weights = by_words(weights, rows, columns)
    return View(kind, layer, heads, rows, columns, rows.words, columns.words, weights, visible)


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure to be drawn, with the name of its files and what it shows."""

    name: str
    caption: str
    draw: Callable[[], Figure]

    def save(self, options: PictureOptions) -> frozenset[str]:
        """Draw it and write it in every wanted format; returns what no font could draw."""
        figure = self.draw()
        lacking = [save_figure(figure, options.output / f"{self.name}.{form}") for form in _forms(options)]
        return frozenset().union(*lacking)

    def line(self, options: PictureOptions) -> str:
        """Its files and its caption."""
        first, *more = _forms(options)
        return f"{self.name}.{first}{''.join(f', .{form}' for form in more)}: {self.caption}"


def _pictures(view: View, options: PictureOptions) -> Iterator[Picture]:
    """All heads, their mean and its lines; or the one head and its lines."""
    rows, columns, visible = view.row_labels, view.column_labels, view.visible
    mean = view.weights.mean(0)
    if options.head is not None:
        name, title = f"{view.name}-head-{options.head}", f"{view.title}, head {options.head}"
        title += " (taught)" if view.taught == options.head - 1 else ""
        yield Picture(name, title, lambda: head_figure(mean, rows, columns, title, visible, view.looks_from))
    else:
        heads = counted(len(view.heads), "head")
        name, title = f"{view.name}-mean", f"{view.title}, mean of {heads}"
        title += "" if view.taught is None else f" (head {view.taught + 1} was taught)"
        every = f"{view.title}, {'all ' * (len(view.heads) > 1)}{heads}"
        every += "" if view.taught is None else f" (head {view.taught + 1} was taught)"
        yield Picture(
            view.name,
            every,
            lambda: heads_figure(view.weights, rows, columns, every, visible, view.looks_from),
        )
        yield Picture(name, title, lambda: head_figure(mean, rows, columns, title, visible, view.looks_from))
    stem = name.removesuffix("-mean")
    if options.word is None:
        caption = f"{title}, as lines"
        yield Picture(f"{stem}-lines", caption, lambda: lines_figure(mean, rows, columns, title))
    elif (row := _row(view, options)) is not None:
        caption = f"{title}: where “{rows[row]}” looks"
        yield Picture(
            f"{stem}-word-{row + 1}", caption, lambda: lines_figure(mean, rows, columns, caption, row)
        )


def _row(view: View, options: PictureOptions) -> int | None:
    """The row of --word, if it stands on the side that looks."""
    word = _readable(options.word or "")
    if options.pieces and word in view.row_labels:
        return view.row_labels.index(word)
    try:
        number = view.rows.find(word)
    except HeedfulError:
        return None
    return view.rows.of_word(number)[0] if options.pieces else number


ATTRIBUTIONS: dict[str, str] = {
    "rollout": "Attention rollout: how much of each source word arrives, if weights alone moved it",
    "gradient": "Gradient: which source words the choice of each word hangs on (shares)",
    "occlusion": "Occlusion: which source words each word would miss if they were hidden (shares)",
}


def _attributions(bundle: Bundle, seen: Trace, options: PictureOptions) -> dict[str, Tensor]:
    """(written pieces, source pieces) of each method, unless one attention was asked for."""
    if not _everything(options) or not seen.layers["cross"]:
        return {}
    rolled = {"rollout": target_rollout(seen)[0]} if seen.has_rollout else {}
    return rolled | {
        "gradient": gradient_matrix(bundle, seen).double(),
        "occlusion": occlusion_matrix(bundle, seen).double(),
    }


def _attribution_picture(name: str, matrix: Tensor, seen: Trace, options: PictureOptions) -> Picture:
    rows, columns = seen.sides("cross")
    shown = matrix if options.pieces else by_words(matrix, rows, columns)
    labels = (rows.pieces, columns.pieces) if options.pieces else (rows.words, columns.words)
    return Picture(
        name, ATTRIBUTIONS[name], lambda: shares_figure(shares(shown), *labels, ATTRIBUTIONS[name])
    )


def _everything(options: PictureOptions) -> bool:
    """Whether all there is to see was asked for, not one attention or one word."""
    return (options.kind, options.layer, options.head, options.word) == (None, None, None, None)


def _numbers_name(options: PictureOptions) -> str:
    """weights.json; what was asked for stands in the name, so that a second look keeps the first's."""
    kind = [options.kind] if options.kind else []
    layer = [f"layer-{options.layer}"] if options.layer else []
    head = [f"head-{options.head}"] if options.head else []
    return "-".join(["weights", *kind, *layer, *head]) + ".json"


def _training_picture(model: Path, report: Reporter) -> Picture | None:
    if not metrics_path(model).is_file():
        return None
    try:
        figure = training_figure(model)
    except HeedfulError as error:
        report.warn(f"no picture of the training: {error.problem}")
        return None
    return Picture("training", "loss, scores, learning rate and speed of its training", lambda: figure)


def numbers(
    seen: Trace,
    views: list[View],
    attributions: Mapping[str, Tensor],
    options: PictureOptions,
    taught_head: tuple[int, int] | None = None,
) -> str:
    """weights.json: tokens, what each word hangs on, and every picture's attention, a row a line."""
    head = {
        "sentence": _readable(options.sentence),
        "note": "weights[head][query][key]: rows look at columns; layers and heads count from 1",
        "between": "pieces" if options.pieces else "words",
        "taught_head": taught_head,
        "source": asdict(seen.source),
        "read": asdict(seen.read),
        "written": asdict(seen.written),
    }
    lines = [f"{_json(name)}: {_json(value)}," for name, value in head.items()]
    for name, matrix in attributions.items():  # between pieces, in full: no shares
        rows = [_json([_exact(number) for number in row]) for row in matrix.tolist()]
        lines += [f"{_json(name)}: [", ",\n ".join(rows), "],"]
    return "\n".join(["{", *lines, '"attention": [', ",\n".join(map(_attention_json, views)), "]", "}\n"])


def _attention_json(view: View) -> str:
    described = _json(
        {
            "kind": view.kind,
            "layer": view.layer + 1,
            "heads": [head + 1 for head in view.heads],
            "rows": view.row_labels,
            "columns": view.column_labels,
        }
    )
    heads = ",\n".join(
        "[" + ",\n ".join(_json([_exact(weight) for weight in row]) for row in head) + "]"
        for head in view.weights.tolist()
    )
    return f'{described[:-1]}, "weights": [\n{heads}\n]}}'


def _exact(weight: float) -> float:
    """Nine digits: all that float32 holds."""
    return float(f"{weight:.9g}")


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _forms(options: PictureOptions) -> tuple[str, ...]:
    return FORMATS[options.form]


def _readable(text: str) -> str:
    """Bytes of the command line that are no UTF-8 arrive as halves of surrogate pairs."""
    return text.encode("utf-8", "replace").decode()


def _check(options: PictureOptions) -> None:
    """What can be known to be wrong before the model is loaded."""
    if options.target is not None and not options.target.strip():
        raise HeedfulError("the target is empty", hint="leave out --target for the model's own translation")
    if options.form not in FORMATS:
        raise HeedfulError(f"there is no format {options.form!r}", hint=f"formats: {', '.join(FORMATS)}")
    if options.kind is not None and options.kind not in KINDS:
        raise HeedfulError(f"there is no attention {options.kind!r}", hint=f"kinds: {', '.join(KINDS)}")
    if options.output.exists() and not options.output.is_dir():
        raise HeedfulError(f"{options.output} is a file", hint="name a folder for the pictures")
    if not options.sentence.strip():
        raise HeedfulError("the sentence is empty", hint="give a sentence with at least one word")


def _check_places(bundle: Bundle, options: PictureOptions) -> None:
    """A layer that one stack has is enough, unless the kind is given."""
    layer = 0 if options.layer is None else options.layer - 1
    head = None if options.head is None else options.head - 1
    layers = attention_layers(bundle.config.model)
    deepest = max(KINDS, key=layers.__getitem__)
    check_place(bundle, next((kind for kind in KINDS if kind == options.kind), deepest), layer, head)


def _check_word(views: list[View], options: PictureOptions) -> None:
    if options.word is not None and all(_row(view, options) is None for view in views):
        views[0].rows.find(_readable(options.word))  # its error names the words there are


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HeedfulError(f"cannot make the folder {folder}: {error.strerror}") from None
    if not os.access(folder, os.W_OK):
        raise HeedfulError(f"cannot write to {folder}: permission denied", hint="name another folder")
