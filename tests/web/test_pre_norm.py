"""A model of the other kind: LayerNorm before attention, and words in pieces. All it shows is its own too."""

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from tests.interpret.small_models import new_model_folder
from tests.server.server_process import serve_process
from tests.web.page_driver import Pass, cells, number, open_table, passed
from tests.web.views import visit

pytestmark = pytest.mark.long  # a second model

TEXT = "The animals crossed the street because they were tired."
CELLS = 8


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pass]:
    """A small model of random weights, at a server of its own."""
    folder: Path = tmp_path_factory.mktemp("pre") / "model"
    new_model_folder("bpe", "pre").save(folder)
    with serve_process(folder, "--device", "cpu") as process:
        yield passed(process.address, folder, TEXT)


def test_random_cells_are_the_weights_files(page: Page, other: Pass) -> None:
    chance = random.Random(5)
    for place in range(CELLS):
        kind = ("encoder", "decoder", "cross")[place % 3]
        rows, columns = other.sides(kind)
        layer, head = chance.randrange(2), chance.randrange(4)
        row = chance.randrange(len(rows))
        key = chance.randrange(row + 1) if kind == "decoder" else chance.randrange(len(columns))
        page.goto(other.url("cell", kind=kind, layer=layer + 1, head=head + 1, query=row + 1, key=key + 1))
        steps = page.locator("#view-cell .steps")
        expect(steps).to_have_attribute("data-cell", f"{kind}.{layer}.{head}.{row}.{key}")
        own = other.numpy.attention[kind, layer]
        weight = number(page.locator("#view-cell .cell-summary strong").inner_text())
        assert abs(weight - own.weights[head, row, key]) < 1e-4
        lines = {line[0]: line[1:] for line in cells(steps.locator("[data-step=values] table"))}
        z = [number(text) for text in lines["output z"][: own.z.shape[2]]]
        np.testing.assert_allclose(z, own.z[head, row], atol=2e-4)
        *_, total = cells(steps.locator("[data-step=residual] table"))
        np.testing.assert_allclose([number(each) for each in total[1:9]], own.result[row, :8], atol=2e-4)
        expect(steps.locator("[data-step=norm]")).to_have_count(0)  # the sum goes on as it is


def test_words_sum_subword_weights(page: Page, other: Pass) -> None:
    """Summed over a key's pieces, averaged over a query's: rows still sum to 1."""
    source = other.manifest["sides"]["source"]
    groups = np.array(source["word_ids"])
    assert len(source["words"]) < len(source["subwords"])
    pieces = other.numpy.attention["encoder", 1].weights[2]
    members = (groups[None] == np.arange(len(source["words"]))[:, None]).astype(float)
    words = members @ pieces @ members.T / members.sum(1, keepdims=True)
    np.testing.assert_allclose(words.sum(1), 1)
    for names, weights, unit in ((source["subwords"], pieces, "no"), (source["words"], words, "yes")):
        visit(page, other.address, "head", TEXT, kind="encoder", layer=2, head=3, words=unit)
        figure = page.locator("#view-head .figure").first
        if unit == "no":
            open_table(figure)
        expect(figure.locator(".as-table thead th")).to_have_text(names)
        header, *body = cells(figure.locator(".as-table table"))
        assert [line[0] for line in body] == header[1:] == names
        shown = [[number(cell) for cell in line[1:]] for line in body]
        np.testing.assert_allclose(shown, weights, atol=6e-4)


def test_pre_norm_path_ends_with_norm(page: Page, other: Pass) -> None:
    visit(page, other.address, "path", TEXT, kind="cross", layer=1, head=1, query=2)
    best = int(other.numpy.probabilities[1].argmax())
    guess = page.locator("#view-path .last .predictions li").first
    expect(guess).to_contain_text(f"{other.numpy.probabilities[1, best]:.4f}")


@pytest.mark.parametrize(
    ("lesson", "formula"), [(3, "n = LayerNorm(x)    q = n W^Q + b^Q"), (10, "x + attention(LayerNorm(x))")]
)
def test_lesson_describes_this_model(page: Page, other: Pass, lesson: int, formula: str) -> None:
    visit(page, other.address, "lesson", TEXT, lesson=lesson)
    told = page.locator(".lesson .formula").inner_text()
    assert told.startswith(formula)
    expect(page.locator(".lesson")).to_contain_text("This model is pre-norm")
