"""The page of a pre-norm model with subwords shows the values of the model."""

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from tests.interpret.small_models import new_model_folder
from tests.server.server_process import serve_folders
from tests.web.page_driver import TracedSentence, cells, open_table, parse_number, trace_sentence
from tests.web.views import open_view

pytestmark = pytest.mark.long  # a second model

TEXT = "The animals crossed the street because they were tired."
CELLS = 8


@pytest.fixture(scope="module")
def pre_norm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TracedSentence]:
    """A trace of a small untrained model, from its own server."""
    folder: Path = tmp_path_factory.mktemp("pre") / "model"
    new_model_folder("bpe", "pre").save(folder)
    with serve_folders(folder) as address:
        yield trace_sentence(address, folder, TEXT)


def test_random_cells_match_numpy(page: Page, pre_norm: TracedSentence) -> None:
    rng = random.Random(5)
    for index in range(CELLS):
        kind = ("encoder", "decoder", "cross")[index % 3]
        rows, columns = pre_norm.sides(kind)
        layer, head = rng.randrange(2), rng.randrange(4)
        row = rng.randrange(len(rows))
        key = rng.randrange(row + 1) if kind == "decoder" else rng.randrange(len(columns))
        page.goto(pre_norm.url("cell", kind=kind, layer=layer + 1, head=head + 1, query=row + 1, key=key + 1))
        steps = page.locator("#view-cell .steps")
        expect(steps).to_have_attribute("data-cell", f"{kind}.{layer}.{head}.{row}.{key}")
        attention = pre_norm.numpy.attention[kind, layer]
        weight = parse_number(page.locator("#view-cell .cell-summary strong").inner_text())
        assert abs(weight - attention.weights[head, row, key]) < 1e-4
        lines = {line[0]: line[1:] for line in cells(steps.locator("[data-step=values] table"))}
        z = [parse_number(text) for text in lines["output z"][: attention.z.shape[2]]]
        np.testing.assert_allclose(z, attention.z[head, row], atol=2e-4)
        *_, total = cells(steps.locator("[data-step=residual] table"))
        np.testing.assert_allclose([parse_number(cell) for cell in total[1:9]], attention.result[row, :8], atol=2e-4)
        expect(steps.locator("[data-step=norm]")).to_have_count(0)  # the sum is not normalized


def test_words_sum_subword_weights(page: Page, pre_norm: TracedSentence) -> None:
    """Summed over the subwords of a key, averaged over those of a query: rows still sum to 1."""
    source = pre_norm.manifest["sides"]["source"]
    groups = np.array(source["word_ids"])
    assert len(source["words"]) < len(source["subwords"])
    subword_weights = pre_norm.numpy.attention["encoder", 1].weights[2]
    members = (groups[None] == np.arange(len(source["words"]))[:, None]).astype(float)
    word_weights = members @ subword_weights @ members.T / members.sum(1, keepdims=True)
    np.testing.assert_allclose(word_weights.sum(1), 1)
    for names, weights, unit in ((source["subwords"], subword_weights, "no"), (source["words"], word_weights, "yes")):
        open_view(page, pre_norm.address, "head", TEXT, kind="encoder", layer=2, head=3, words=unit)
        figure = page.locator("#view-head .figure").first
        if unit == "no":
            open_table(figure)
        expect(figure.locator(".as-table thead th")).to_have_text(names)
        header, *body = cells(figure.locator(".as-table table"))
        assert [line[0] for line in body] == header[1:] == names
        values = [[parse_number(cell) for cell in line[1:]] for line in body]
        np.testing.assert_allclose(values, weights, atol=6e-4)


def test_pre_norm_path_ends_with_norm(page: Page, pre_norm: TracedSentence) -> None:
    open_view(page, pre_norm.address, "path", TEXT, kind="cross", layer=1, head=1, query=2)
    best = int(pre_norm.numpy.probabilities[1].argmax())
    guess = page.locator("#view-path .last .predictions li").first
    expect(guess).to_contain_text(f"{pre_norm.numpy.probabilities[1, best]:.4f}")


@pytest.mark.parametrize(
    ("lesson", "formula"), [(3, "n = LayerNorm(x)    q = n W^Q + b^Q"), (10, "x + attention(LayerNorm(x))")]
)
def test_lesson_describes_this_model(page: Page, pre_norm: TracedSentence, lesson: int, formula: str) -> None:
    open_view(page, pre_norm.address, "lesson", TEXT, lesson=lesson)
    formula_text = page.locator(".lesson .formula").inner_text()
    assert formula_text.startswith(formula)
    expect(page.locator(".lesson")).to_contain_text("This model is pre-norm")
