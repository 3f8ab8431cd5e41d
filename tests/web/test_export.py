"""CSV, SVG and PNG through real downloads: well-formed, and with the numbers of the page."""

import csv
import re
from base64 import b64decode
from io import BytesIO
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image
from playwright.sync_api import Page, expect

from heedful.interpret.activations import aggregate_to_words, compute_activations
from heedful.model_folder import ModelFolder
from tests.web.conftest import TIRED

pytestmark = pytest.mark.long

SVG = "{http://www.w3.org/2000/svg}"


def download_file(page: Page, button: str, folder: Path) -> Path:
    with page.expect_download() as download:
        page.get_by_role("button", name=button).first.click()
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return path


def texts(picture: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in picture.iter(f"{SVG}text")]


def test_matrix_exports_csv_svg_png(page: Page, address: str, demo_model: Path, tmp_path: Path) -> None:
    page.goto(f"{address}/#/head?kind=decoder&layer=2&head=2")
    expect(page.get_by_role("heading", name="Decoder self-attention, layer 2, head 2")).to_be_visible()
    activations = compute_activations(ModelFolder.load(demo_model), TIRED)
    expected = aggregate_to_words(
        activations.weights("decoder", 1)[1], activations.decoder_input, activations.decoder_input
    )
    words = list(activations.decoder_input.words)
    path = download_file(page, "Download CSV", tmp_path)
    assert path.name == "heedful-decoder-2-2.csv"
    table = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
    assert table[0][1:] == words
    assert [row[0] for row in table[1:]] == words
    picture = ElementTree.parse(download_file(page, "Download SVG of the matrix", tmp_path)).getroot()
    squares = [element.get("data-value") for element in picture.iter(f"{SVG}rect") if element.get("data-value")]
    assert len(squares) == len(words) ** 2
    for row in range(len(words)):
        for column in range(len(words)):
            square, cell = squares[row * len(words) + column], table[row + 1][column + 1]
            if column > row:
                assert (square, cell) == ("masked", "")
            else:
                assert square == cell
                assert float(cell) == pytest.approx(expected[row, column].item(), abs=1e-3)
    assert set(words) <= set(texts(picture))
    assert any(element.text and "may not attend to" in element.text for element in picture.iter(f"{SVG}title"))
    with Image.open(download_file(page, "Download PNG of the matrix", tmp_path)) as image:
        assert image.size == (2 * int(picture.get("width") or 0), 2 * int(picture.get("height") or 0))
        assert len(image.convert("RGB").getcolors(100_000) or []) > 20


@pytest.mark.parametrize("view", ["translate", "map", "head", "cell", "path", "decode", "positions"])
def test_view_export_contains_sentence_and_numbers(page: Page, address: str, view: str, tmp_path: Path) -> None:
    page.goto(f"{address}/#/{view}?kind=cross&layer=2&head=1&query=3&key=3")
    expect(page.locator(".result")).to_contain_text("fatigué")
    host = page.locator(f"#view-{view}")
    expect(host).to_be_visible()
    page.wait_for_load_state("networkidle")
    picture = ElementTree.parse(download_file(page, "View as SVG", tmp_path)).getroot()
    text = " ".join(texts(picture))
    assert TIRED in text
    assert "fatigué" in text
    printed = set(re.findall(r"−?\d+\.\d{4}", text))
    on_page = set(re.findall(r"−?\d+\.\d{4}", host.inner_text()))
    assert printed <= on_page | set(re.findall(r"−?\d+\.\d{4}", host.text_content() or ""))
    if view in ("translate", "head", "cell", "decode"):
        assert printed
    assert not [element for element in picture.iter() if element.get("class") or element.get("style")]
    with Image.open(download_file(page, "View as PNG", tmp_path)) as image:
        assert len(image.convert("RGB").getcolors(1_000_000) or []) > 5


def test_picture_contains_computed_styles(page: Page, address: str, tmp_path: Path) -> None:
    """The color of lines comes from a style sheet: in the file, each line must have it."""
    page.goto(f"{address}/#/head?kind=cross&layer=2&head=1")
    expect(page.locator("svg.lines .attention-line").first).to_be_attached()
    picture = ElementTree.parse(download_file(page, "View as SVG", tmp_path)).getroot()
    lines = [element for element in picture.iter(f"{SVG}line") if element.find(f"{SVG}title") is not None]
    lines += [element for element in picture.iter(f"{SVG}path") if element.find(f"{SVG}title") is not None]
    assert lines
    assert {element.get("stroke") for element in lines} == {"#4c1d95"}


def get_colors(image: Image.Image) -> set[tuple[int, ...]]:
    """The set of colors of an image."""
    return {color for _, color in image.convert("RGB").getcolors(1_000_000) or [] if isinstance(color, tuple)}


def test_picture_starts_with_ribbon(page: Page, address: str, demo_model: Path, tmp_path: Path) -> None:
    page.goto(f"{address}/#/map")
    expect(page.locator(".band.strong").first).to_be_attached()
    expect(page.locator("#view-map .map-head").first).to_be_visible()
    activations = compute_activations(ModelFolder.load(demo_model), TIRED)
    path = download_file(page, "View as SVG", tmp_path)
    assert path.name == "heedful-the-animal-didnt-cross-map.svg"
    view = ElementTree.parse(path).getroot()
    ribbon = ElementTree.parse(download_file(page, "Download SVG of the ribbon", tmp_path)).getroot()
    for picture in (view, ribbon):
        labels = texts(picture)
        assert [*activations.source.words] == labels[
            3 : 3 + len(activations.source.words)
        ]  # after title, sentence, translation
        assert {*activations.target.words} <= set(labels)
        assert len([element for element in picture.iter(f"{SVG}path") if element.get("stroke-width")]) >= 16
    with Image.open(download_file(page, "Download PNG of the ribbon", tmp_path)) as image:
        assert len(get_colors(image)) > 20


@pytest.mark.parametrize(
    ("view", "absent", "present"),
    [
        ("translate", ["‹", "›", "Temperature T", "Choose a head to enlarge it.", "SVG"], ["aligner", "Probability"]),
        ("decode", ["‹", "›", "Beam size"], ["Length penalty"]),
        ("experiments?off=cross.2.1", ["Layer off", "Show all", "Force a word", "All on"], ["off", "Sum"]),
        ("lesson", ["← Back", "Show the answer"], ["Predict, then reveal"]),
        ("training", ["Show values at update"], ["training", "validation"]),
    ],
)
def test_picture_omits_controls(
    page: Page, address: str, tmp_path: Path, view: str, absent: list[str], present: list[str]
) -> None:
    page.goto(f"{address}/#/{view}")
    expect(page.locator(".band.strong").first).to_be_attached()
    for text in present:
        expect(page.locator(".view").get_by_text(text, exact=True).first).to_be_visible()
    page.wait_for_load_state("networkidle")
    picture = ElementTree.parse(download_file(page, "View as SVG", tmp_path)).getroot()
    labels = texts(picture)
    joined_labels = " ".join(labels)
    assert not [text for text in absent if text in labels or (" " in text and text in joined_labels)]
    for text in present:
        assert text in joined_labels
    if view == "translate":
        assert labels.count("Logit") == 1  # the head of the second table is for screen readers only
    if view == "training":  # the samples of the legend: one solid, one dashed
        samples = [element for element in picture.iter(f"{SVG}line") if element.get("stroke-width") == "3"]
        assert {(element.get("stroke"), element.get("stroke-dasharray")) for element in samples} == {
            ("#0072b2", None),
            ("#b84e00", "5 3"),
        }
    expect(page.locator("html")).not_to_have_class(re.compile("exporting"))


def test_strips_stay_sharp_with_badges_beside(page: Page, address: str, tmp_path: Path) -> None:
    page.goto(f"{address}/#/path")
    expect(page.locator(".path .strip").first).to_be_visible()
    picture = ElementTree.parse(download_file(page, "View as SVG", tmp_path)).getroot()
    strips = list(picture.iter(f"{SVG}image"))
    channels = page.locator(".path .strip").first.evaluate("(canvas) => canvas.width")
    with Image.open(BytesIO(b64decode((strips[-1].get("href") or "").split(",")[1]))) as image:
        assert image.width >= 2 * float(strips[-1].get("width") or 0)
        assert len(get_colors(image)) <= channels
    labels = {element.text: element for element in picture.iter(f"{SVG}text")}
    forward, badge = labels["forward"], labels["output"]  # “feed-” is on the line above
    assert float(badge.get("x") or 0) > float(forward.get("x") or 0) + 50


def test_unusual_characters_stay_well_formed(page: Page, address: str, tmp_path: Path) -> None:
    unusual = 'a\u0007b <&> "]]>"'  # the bell character is invalid in XML
    page.goto(f"{address}/#/head?kind=encoder&layer=1&head=1")
    page.get_by_label("Text to translate").fill(unusual)
    expect(page.locator(".status-line").first).to_be_visible()
    expect(page).to_have_url(re.compile("%5D%5D%3E"))
    page.wait_for_load_state("networkidle")
    picture = ElementTree.parse(download_file(page, "Download SVG of the matrix", tmp_path)).getroot()
    assert {"&", "<", "\ufffd"} <= set(texts(picture))
    ElementTree.parse(download_file(page, "View as SVG", tmp_path))
    rows = list(csv.reader(download_file(page, "Download CSV", tmp_path).read_text("utf-8").splitlines()))
    assert len(rows) == len(rows[0])


def test_large_matrix_drawn_as_image(page: Page, address: str) -> None:
    page.goto(address)
    text = page.evaluate(
        """async () => {
          const { renderMatrixSvg } = await import("heedful/export/matrix_svg.js");
          const { serializeSvg } = await import("heedful/export/svg.js");
          const names = (count) => Array.from({ length: count }, (_, i) => `w${i}`);
          const values = new Float32Array(211 * 199).fill(0.5);
          const figure = { title: "Huge", rows: names(211), columns: names(199), values, describe: () => "" };
          return serializeSvg(renderMatrixSvg(figure));
        }"""
    )
    picture = ElementTree.fromstring(text.encode())
    (image,) = picture.iter(f"{SVG}image")
    assert float(image.get("width") or 0) / float(image.get("height") or 0) == pytest.approx(199 / 211)
    assert len(text) < 100_000


def test_large_matrix_masked_cells_hatched(page: Page, address: str) -> None:
    """One image with transparent masked cells, on top of hatching."""
    page.goto(address)
    expect(page.locator(".map-head").first).to_be_visible()
    result = page.evaluate(
        """async () => {
          const { renderMatrixSvg, MAX_SQUARES } = await import("heedful/export/matrix_svg.js");
          const names = Array.from({ length: 210 }, (_, i) => String(i));
          const values = new Float32Array(210 * 210).fill(0.5);
          const picture = renderMatrixSvg({ title: "Large", rows: names, columns: names, values,
            isMasked: (row, column) => column > row, describe: () => "" });
          const path = picture.querySelector("path[data-value=masked]");
          const image = new Image();
          image.src = picture.querySelector("image").getAttribute("href");
          await image.decode();
          const pen = new OffscreenCanvas(210, 210).getContext("2d", { willReadFrequently: true });
          pen.drawImage(image, 0, 0);
          const alpha = (x, y) => pen.getImageData(x, y, 1, 1).data[3];
          return { many: 210 * 210 > MAX_SQUARES, fill: path.getAttribute("fill"),
            runs: path.getAttribute("d").split("z").length - 1, patterns: picture.querySelector("pattern").id,
            alphas: [alpha(1, 0), alpha(209, 3), alpha(0, 0), alpha(3, 209)] };
        }"""
    )
    assert result["many"]
    assert result["fill"] == f"url(#{result['patterns']})"
    assert result["runs"] == 209  # a run in each row but the last
    assert result["alphas"] == [0, 0, 255, 255]
