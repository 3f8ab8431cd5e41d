"""Figures show the given values, labels, order and hatching; and the files are valid."""

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection, QuadMesh
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.text import Text
from PIL import Image
from torch import Tensor

from heedful.errors import HeedfulError
from heedful.interpret.figures.attention_maps import head_figure, heads_figure, lines_figure
from heedful.interpret.figures.lecture_figures import (
    mask_figure,
    measure_saturation,
    positions_figure,
    schedule_figure,
    softmax_figure,
)
from heedful.interpret.figures.style import BASE_FONT, LAST_RESORT_FONT, choose_fonts, describe_undrawable, save_figure
from heedful.interpret.figures.training_curves import training_figure
from heedful.models.attention import causal_mask
from heedful.models.embeddings import sinusoids
from heedful.training.lr_schedule import noam

ROWS, COLUMNS = ["q0", "q1", "q2"], ["k0", "k1", "k2", "k3", "k4"]
UNDRAWABLE = "\U0010fffd"


def random_weights(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).softmax(-1)


def meshes(figure: Figure) -> list[QuadMesh]:
    """The maps, without the color bars."""
    maps = [axes for axes in figure.axes if axes.get_label() not in ("scale", "<colorbar>")]
    return [item for axes in maps for item in axes.collections if isinstance(item, QuadMesh)]


def mesh_values(mesh: QuadMesh) -> np.ma.MaskedArray:
    array = mesh.get_array()
    assert array is not None
    return np.ma.asarray(array)


def label_texts(axes: Axes) -> tuple[list[str], list[str]]:
    return (
        [label.get_text() for label in axes.get_yticklabels()],
        [label.get_text() for label in axes.get_xticklabels()],
    )


def find_hatched_cells(axes: Axes, shape: Sequence[int]) -> np.ndarray:
    """Which cells the hatched shape covers."""
    patches = [patch for patch in axes.patches if isinstance(patch, PathPatch) and patch.get_hatch()]
    return np.array(
        [
            [any(patch.get_path().contains_point((x + 0.5, y + 0.5)) for patch in patches) for x in range(shape[1])]
            for y in range(shape[0])
        ]
    )


def svg_texts(path: Path) -> list[str]:
    return ["".join(item.itertext()) for item in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")]


def test_head_figure_has_queries_as_rows_and_keys_as_columns() -> None:
    weights = random_weights(3, 5)
    figure = head_figure(weights, ROWS, COLUMNS, "A head")
    (mesh,) = meshes(figure)
    np.testing.assert_array_equal(mesh_values(mesh), weights.double().numpy())
    axes = figure.axes[0]
    assert label_texts(axes) == (ROWS, COLUMNS)
    assert axes.get_ylim() == (3, 0)  # the first row is on top
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("query Q", "key K")
    assert mesh.get_clim() == (0, 1)
    cells = {text.get_position(): text.get_text() for text in axes.texts}
    assert len(cells) == 15
    assert cells[3.5, 1.5] == f"{weights[1, 3]:.2f}"


def test_head_figure_masked_cells_are_hatched_without_number() -> None:
    attention_mask = causal_mask(4)
    figure = head_figure(random_weights(4, 4), list("abcd"), list("abcd"), attention_mask=attention_mask)
    axes = figure.axes[0]
    np.testing.assert_array_equal(find_hatched_cells(axes, (4, 4)), ~attention_mask.numpy())
    np.testing.assert_array_equal(np.ma.getmaskarray(mesh_values(meshes(figure)[0])), ~attention_mask.numpy())
    assert len(axes.texts) == 10
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["masked"]


def test_head_figure_without_mask_has_no_hatching() -> None:
    figure = head_figure(random_weights(3, 5), ROWS, COLUMNS, attention_mask=torch.ones(3, 5, dtype=torch.bool))
    assert not find_hatched_cells(figure.axes[0], (3, 5)).any()
    assert not figure.legends


@pytest.mark.parametrize("heads", [1, 4, 5, 8])
def test_heads_figure_has_one_map_per_head(heads: int) -> None:
    weights = random_weights(heads, 3, 5)
    figure = heads_figure(weights, ROWS, COLUMNS, "Layer 1")
    maps = meshes(figure)
    assert len(maps) == heads
    for mesh, head in zip(maps, weights, strict=True):
        np.testing.assert_array_equal(mesh_values(mesh), head.double().numpy())
    titles = [axes.get_title(loc="left") for axes in figure.axes[:heads]]
    assert titles == [f"head {number + 1}" for number in range(heads)]
    assert label_texts(figure.axes[0])[0] == ROWS
    assert label_texts(figure.axes[heads - 1])[1] == COLUMNS


def test_lines_figure_of_one_word_draws_lines_by_weight() -> None:
    weights = torch.tensor([[0.2, 0.8, 0.0], [0.9, 0.05, 0.05]])
    figure = lines_figure(weights, ["it", "was"], ["The", "animal", "slept"], "Lines", row=0)
    axes = figure.axes[0]
    (lines,) = [item for item in axes.collections if isinstance(item, LineCollection)]
    segments = [tuple(map(tuple, item)) for item in lines.get_segments()]
    assert ((0, 0.5), (1, 2.5)) not in segments  # no weight, no line
    widths = dict(zip(segments, lines.get_linewidths(), strict=True))
    opacity = dict(zip(segments, np.atleast_2d(lines.get_colors())[:, 3], strict=True))
    strong, weak, other = ((0, 0.5), (1, 1.5)), ((0, 0.5), (1, 0.5)), ((0, 1.5), (1, 0.5))
    assert widths[strong] > widths[weak] > widths[other]
    assert opacity[strong] > opacity[weak] > opacity[other]
    texts = [text.get_text() for text in axes.texts]
    assert texts[:2] == ["it", "was"]
    assert texts[2:8] == ["0.20", "The", "0.80", "animal", "0.00", "slept"]


def test_lines_figure_without_word_prints_no_numbers() -> None:
    figure = lines_figure(random_weights(3, 5), ROWS, COLUMNS)
    assert [text.get_text() for text in figure.axes[0].texts][:8] == ROWS + COLUMNS


@pytest.mark.parametrize("count", [1, 80])
def test_figures_of_any_size_label_all_words(count: int, tmp_path: Path) -> None:
    words = [f"word{number}" for number in range(count)]
    weights = random_weights(count, count)
    for name, figure in (
        ("head", head_figure(weights, words, words, "T", causal_mask(count))),
        ("heads", heads_figure(weights[None].repeat(2, 1, 1), words, words, "T")),
        ("lines", lines_figure(weights, words, words, "T", row=count - 1)),
    ):
        assert save_figure(figure, tmp_path / f"{name}.svg") == frozenset()
        texts = svg_texts(tmp_path / f"{name}.svg")
        assert all(texts.count(word) >= 2 for word in words), name


def test_head_figure_with_hundreds_of_words_labels_some() -> None:
    words = [f"word{number}" for number in range(400)]
    figure = heads_figure(random_weights(2, 400, 400), words, words)
    rows, _ = label_texts(figure.axes[0])
    assert rows[0] == "word0"
    assert 20 < len(rows) < 200
    assert max(figure.get_size_inches()) < 30


def count_overlaps(labels: list[Text], figure: Figure) -> int:
    renderer = FigureCanvasAgg(figure).get_renderer()
    boxes = [label.get_window_extent(renderer) for label in labels]
    return sum(box.overlaps(after) for box, after in pairwise(boxes))


@pytest.mark.parametrize("count", [2, 13, 30, 80])
def test_head_figure_row_labels_do_not_overlap(count: int) -> None:
    words = ["Rindfleischetikettierungsüberwachung"] * count
    figure = head_figure(random_weights(count, count), words, words)
    assert count_overlaps(figure.axes[0].get_yticklabels(), figure) == 0


UNUSUAL_WORDS = ["مرحبا", "中文", "ひらがな", "हिन्दी", "$x_1$", "<b>&", "\\frac", "100%", "a_b", "😀", "\x07", ""]


@pytest.mark.parametrize("draw", [head_figure, lines_figure])
def test_save_figure_svg_keeps_words_as_text(draw: object, tmp_path: Path) -> None:
    weights = random_weights(len(UNUSUAL_WORDS), len(UNUSUAL_WORDS))
    figure = draw(weights, UNUSUAL_WORDS, UNUSUAL_WORDS, "$title_1$")  # type: ignore[operator]
    path = tmp_path / "unusual.svg"
    assert save_figure(figure, path) == frozenset()  # SVG text uses the fonts of the viewer
    texts = svg_texts(path)
    for word in [*UNUSUAL_WORDS[:10], "$title_1$", "�", "∅"]:
        assert word in texts, word


def test_save_figure_svg_is_reproducible(tmp_path: Path) -> None:
    for name in "ab":
        figure = head_figure(random_weights(4, 4), list("abcd"), list("abcd"), "T", causal_mask(4))
        save_figure(figure, tmp_path / f"{name}.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert b"<dc:date>" not in (tmp_path / "a.svg").read_bytes()


def test_save_figure_png_is_valid(tmp_path: Path) -> None:
    save_figure(head_figure(random_weights(3, 5), ROWS, COLUMNS, "T"), tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as image:
        assert image.width > 800
        colors = np.unique(np.asarray(image.convert("RGB")).reshape(-1, 3), axis=0)
        assert round(image.info["dpi"][0]) == 200
    assert len(colors) > 50
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png"]


def test_save_figure_returns_undrawable_characters_without_warning(tmp_path: Path) -> None:
    figure = head_figure(random_weights(1, 2), ["a"], [UNDRAWABLE, "b"])
    assert save_figure(figure, tmp_path / "a.png") == {UNDRAWABLE}
    assert save_figure(figure, tmp_path / "a.svg") == frozenset()


def test_describe_undrawable_names_characters_and_packages() -> None:
    assert describe_undrawable([]) == ""
    assert describe_undrawable("中文") == (
        "no installed font can draw 2 of the characters (U+4E2D U+6587): "
        "install one, such as fonts-noto-cjk, or write SVG"
    )
    assert "U+0939" in describe_undrawable("ह")
    assert "fonts-noto-core" in describe_undrawable("ह")
    assert "…" in describe_undrawable("一二三四五六")


def test_choose_fonts_covers_text() -> None:
    assert choose_fonts(["Grüße", "Привет", "مرحبا"]) == ((BASE_FONT, "sans-serif"), frozenset())
    families, undrawable = choose_fonts([f"a{UNDRAWABLE}"])
    assert families[0] == BASE_FONT
    assert families[-1] == LAST_RESORT_FONT
    assert undrawable == {UNDRAWABLE}
    assert not choose_fonts(["\u200d\ufe0f \n"]).undrawable  # joiners, selectors and spaces need no glyph


def test_figures_ignore_and_keep_caller_settings(tmp_path: Path) -> None:
    with matplotlib.rc_context({"font.size": 40, "axes.facecolor": "black", "svg.fonttype": "path"}):
        before = dict(matplotlib.rcParams)
        save_figure(head_figure(random_weights(3, 5), ROWS, COLUMNS), tmp_path / "a.svg")
        assert dict(matplotlib.rcParams) == before
    save_figure(head_figure(random_weights(3, 5), ROWS, COLUMNS), tmp_path / "b.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


@pytest.mark.parametrize("name", ["a.jpg", "a", "a.svg.gz"])
def test_save_figure_unknown_suffix_is_an_error(name: str, tmp_path: Path) -> None:
    with pytest.raises(HeedfulError, match="png or svg"):
        save_figure(head_figure(random_weights(1, 1), ["a"], ["b"]), tmp_path / name)


def test_save_figure_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(HeedfulError, match="cannot write"):
        save_figure(head_figure(random_weights(1, 1), ["a"], ["b"]), tmp_path / "none" / "a.svg")


@pytest.mark.parametrize("draw", [head_figure, lines_figure])
def test_figures_mismatched_labels_are_an_error(draw: object) -> None:
    with pytest.raises(HeedfulError, match="5 row labels and 3 column labels do not fit weights of shape 3 x 5"):
        draw(random_weights(3, 5), COLUMNS, ROWS)  # type: ignore[operator]


def test_positions_figure_shows_sinusoids_and_products() -> None:
    table, products = meshes(positions_figure(7, 12))
    np.testing.assert_allclose(mesh_values(table), sinusoids(7, 12).numpy(), atol=1e-7)
    square = mesh_values(products)
    assert square.shape == (7, 7)
    np.testing.assert_allclose(np.diag(square), 6)  # sin^2 + cos^2 of six pairs
    np.testing.assert_allclose(np.diag(square, 2), square[0, 2], atol=1e-6)  # depends on the distance only
    with pytest.raises(HeedfulError, match="d_model 5"):
        positions_figure(4, 5)


def test_mask_figure_shows_causal_and_padding_masks() -> None:
    figure = mask_figure(["<s>", "Das", "Tier"], padding=2)
    ahead, padding, both = figure.axes
    expected = np.triu(np.ones((5, 5), bool), 1)
    is_padding = np.broadcast_to(np.arange(5) >= 3, (5, 5))
    np.testing.assert_array_equal(find_hatched_cells(ahead, (5, 5)), expected)
    np.testing.assert_array_equal(find_hatched_cells(padding, (5, 5)), is_padding)
    np.testing.assert_array_equal(find_hatched_cells(both, (5, 5)), expected | is_padding)
    assert label_texts(ahead) == (["<s>", "Das", "Tier", "<pad>", "<pad>"],) * 2
    assert label_texts(mask_figure(3, 0).axes[0])[0] == ["1", "2", "3"]
    with pytest.raises(HeedfulError, match="nothing to mask"):
        mask_figure([])


def test_schedule_figure_draws_noam_curves() -> None:
    figure = schedule_figure([(512, 400), (256, 4000)], updates=1000)
    curve, peak, *_ = figure.axes[0].get_lines()
    steps, rates = map(np.asarray, curve.get_data())
    assert (steps[0], steps[-1], len(steps)) == (1, 1000, 1000)
    assert rates[399] == noam(400, d_model=512, warmup=400) == max(rates) == np.asarray(peak.get_ydata()).item()
    with pytest.raises(HeedfulError, match="nothing to draw"):
        schedule_figure([])


def test_softmax_figure_matches_hand_computation() -> None:
    figure = softmax_figure([112, 96], 8)
    heights = [patch.get_height() for patch in figure.axes[0].patches]  # type: ignore[attr-defined]
    np.testing.assert_allclose(heights, [1, 1.12535e-7, 0.880797, 0.119203], rtol=1e-5)
    with pytest.raises(HeedfulError, match="nothing to compare"):
        softmax_figure([1], 8)


def test_measure_saturation_grows_with_channels_only_without_scaling() -> None:
    plain, divided = measure_saturation([4, 64, 1024], queries=500)
    assert plain[0] < plain[1] < plain[2]
    assert plain[2] > 0.9
    assert max(divided) - min(divided) < 0.05


def test_training_figure_of_a_run_shows_its_metrics(quick_model: Path, tmp_path: Path) -> None:
    lines = (quick_model / "training" / "metrics.jsonl").read_text().splitlines()
    validations = [item["validation_loss"] for item in map(json.loads, lines) if "validation_loss" in item]
    figure = training_figure(quick_model)
    loss, scores, rate, speed = figure.axes
    by_name = {line.get_label(): np.asarray(line.get_ydata()).tolist() for line in loss.get_lines()}
    assert by_name["validation"] == validations
    assert [line.get_label() for line in scores.get_lines()] == ["BLEU", "chrF"]
    assert rate.get_lines()
    assert speed.get_lines()
    save_figure(figure, tmp_path / "training.png")


def test_training_figure_without_validation_or_with_truncated_line(tmp_path: Path) -> None:
    (tmp_path / "training").mkdir()
    line = {"update": 10, "loss": 5.0, "learning_rate": 0.1, "tokens_per_second": 7}
    (tmp_path / "training/metrics.jsonl").write_text(json.dumps(line) + '\n{"update": 20, "lo')
    figure = training_figure(tmp_path)
    assert [text.get_text() for text in figure.axes[1].texts] == ["no validation yet"]
    save_figure(figure, tmp_path / "training.svg")


def test_training_figure_without_metrics_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(HeedfulError, match="no training curves"):
        training_figure(tmp_path)
    (tmp_path / "training").mkdir()
    (tmp_path / "training/metrics.jsonl").write_text("\n")
    with pytest.raises(HeedfulError, match="is empty"):
        training_figure(tmp_path)
