"""Experiments: the page shows the same effects of ablated heads as Python, per word and in total."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from heedful.interpret.activations import ATTENTION_KINDS
from heedful.interpret.trace import compute_trace
from heedful.interpret.trace_schema import TraceRequest
from heedful.model_folder import ModelFolder
from tests.server.server_process import wait_until
from tests.web.conftest import TIRED
from tests.web.page_driver import cells, parse_number

pytestmark = pytest.mark.long  # searches over all heads

KIND_NAMES = {"encoder": "Encoder self-attention", "decoder": "Decoder self-attention", "cross": "Cross-attention"}


@dataclass(frozen=True)
class Model:
    """The demo model, with traces computed in Python."""

    model_folder: ModelFolder

    def manifest(self, ablated_heads: tuple[str, ...] = (), ids: tuple[int, ...] | None = None) -> dict[str, Any]:
        trace_request = TraceRequest(source=TIRED, ablated_heads=ablated_heads, target_ids=ids)
        return compute_trace(self.model_folder, trace_request).manifest

    @property
    def original(self) -> dict[str, Any]:
        return self.manifest()

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(self.original["translation"]["ids"])

    def layers(self) -> list[tuple[str, ...]]:
        """The heads of every attention."""
        model = self.original["model"]
        return [
            tuple(f"{kind}.{layer}.{head}" for head in range(model["heads"]))
            for kind in ATTENTION_KINDS
            for layer in range(model["layers"][kind])
        ]

    def sets(self) -> Iterator[tuple[str, ...]]:
        """Single heads, then pairs, then layers."""
        heads = [head for layer in self.layers() for head in layer]
        yield from ((head,) for head in heads)
        yield from combinations(heads, 2)
        yield from self.layers()


@pytest.fixture(scope="module")
def model(demo_model: Path) -> Model:
    """The demo model."""
    return Model(ModelFolder.load(demo_model))


@pytest.fixture(scope="module")
def pronoun(model: Model) -> tuple[str, ...]:
    """Heads without which the pronoun changes from il to elle."""
    assert "qu'il était" in model.original["translation"]["text"]
    return next(
        ablated_heads
        for ablated_heads in model.sets()
        if "elle" in model.manifest(ablated_heads)["translation"]["text"]
    )


def word_log_probabilities(manifest: dict[str, Any]) -> list[float]:
    """The log-probability of each word."""
    log_probabilities = [0.0] * len(manifest["sides"]["target"]["words"])
    for group, step in zip(manifest["sides"]["target"]["word_ids"], manifest["steps"], strict=True):
        log_probabilities[group] += step["log_probability"]
    return log_probabilities


def press(page: Page, name: str) -> None:
    """Press the button of a head."""
    kind, layer, head = name.split(".")
    label = f"Switch off {KIND_NAMES[kind]}, layer {int(layer) + 1}, head {int(head) + 1}"
    page.get_by_role("button", name=label).press("Enter")


def test_ablated_heads_change_noun(page: Page, address: str, model: Model, pronoun: tuple[str, ...]) -> None:
    """Every value equals Python's, the total adds up, the changed word is marked, and Back undoes it."""
    page.goto(f"{address}/#/experiments")
    for name in pronoun:
        press(page, name)
        expect(page.locator(".toggle:focus")).to_have_attribute("aria-pressed", "true")
    counted = [
        f"{kind}.{int(layer) + 1}.{int(head) + 1}"
        for kind, layer, head in (name.split(".") for name in sorted(pronoun))
    ]
    assert page.url.endswith(f"&off={'%2C'.join(counted)}")  # numbers in the URL count from 1
    before, after = page.locator(".variant").first, page.locator(".variant").last
    expect(after.locator("mark", has_text="elle")).to_be_visible()
    expect(before.locator("mark", has_text="il")).to_be_visible()
    assert before.locator("p").inner_text().strip() == model.original["translation"]["text"]
    assert after.locator("p").inner_text().strip() == model.manifest(pronoun)["translation"]["text"]
    expect(page.locator(".workbench")).to_contain_text("elle")

    table = cells(page.locator(".changes"))
    body, foot = table[1:-1], table[-1]
    expected = word_log_probabilities(model.original), word_log_probabilities(model.manifest(pronoun, model.ids))
    assert [row[0] for row in body] == list(model.original["sides"]["target"]["words"])
    for row, one, other in zip(body, *expected, strict=True):
        assert parse_number(row[1]) == pytest.approx(one, abs=6e-5)
        assert parse_number(row[2]) == pytest.approx(other, abs=6e-5)
        assert parse_number(row[3]) == pytest.approx(other - one, abs=6e-5)
    for column in (1, 2, 3):
        total = math.fsum(parse_number(row[column]) for row in body)
        assert parse_number(foot[column]) == pytest.approx(total, abs=1e-3)
    assert parse_number(foot[3]) == pytest.approx(sum(expected[1]) - sum(expected[0]), abs=6e-5)

    for _ in pronoun:
        page.go_back()
    expect(page.locator(".toggle[aria-pressed=true]")).to_have_count(0)
    expect(page.locator(".changes")).to_have_count(0)


def test_page_lists_most_important_heads(page: Page, address: str, model: Model) -> None:
    """For the pronoun, each head alone: the same ranking as in Python, and one press tries the first."""
    page.goto(f"{address}/#/experiments")
    target_words = model.original["sides"]["target"]["words"]
    position = target_words.index("il")
    page.locator(".head-ranking select").select_option(str(position))
    page.locator(".head-ranking").get_by_role("button", name="Rank heads").click()
    expect(page.locator(".findings [role=status]")).to_contain_text("Tried")
    singles = [(head,) for layer in model.layers() for head in layer]
    base = word_log_probabilities(model.original)[position]
    changes = {
        ablated_heads: word_log_probabilities(model.manifest(ablated_heads, model.ids))[position] - base
        for ablated_heads in singles
    }
    rows = cells(page.locator(".ranking"))[1:]
    for row in rows:
        if "+" in row[0] or " " not in row[0]:
            continue  # a pair or a layer
        kind, numbers = row[0].split(" ")
        layer, head = numbers.split(".")
        name = f"{kind}.{int(layer) - 1}.{int(head) - 1}"
        assert parse_number(row[1]) == pytest.approx(changes[name,], abs=6e-5)
    assert [parse_number(row[1]) for row in rows] == sorted(parse_number(row[1]) for row in rows)
    assert parse_number(rows[0][1]) <= min(changes.values()) + 6e-5
    assert any("elle" in row[2] for row in rows)

    first = page.locator(".ranking tbody tr", has=page.locator("mark", has_text="elle")).first
    first.get_by_role("button").click()
    expect(page.locator(".variant mark", has_text="elle")).to_be_visible()
    expect(first.get_by_role("button")).to_have_attribute("aria-pressed", "true")


def test_head_pairs_and_layers_when_no_single_head_matters(page: Page, address: str, model: Model) -> None:
    """For a word that no single head changes, pairs of the five strongest heads and layers are tried."""
    singles = [model.manifest((head,), model.ids) for layer in model.layers() for head in layer]
    unaffected_words = [
        group
        for step, group in enumerate(model.original["sides"]["target"]["word_ids"][:-1])
        if all(manifest["steps"][step]["rank"] == 1 for manifest in singles)
    ]
    page.goto(f"{address}/#/experiments")
    page.locator(".head-ranking select").select_option(str(unaffected_words[0]))
    page.locator(".head-ranking .primary").click()
    everything = len(singles) + 5 * 4 // 2 + len(model.layers())
    expect(page.locator(".findings [role=status]")).to_contain_text(f"Tried {everything};")
    rows = cells(page.locator(".ranking"))[1:]
    several = next(row for row in rows if "+" in row[0])
    ablated_heads = []
    for name in several[0].split(" + "):
        kind, numbers = name.split(" ")
        layer, head = numbers.split(".")
        ablated_heads.append(f"{kind}.{int(layer) - 1}.{int(head) - 1}")
    after = word_log_probabilities(model.manifest(tuple(sorted(ablated_heads)), model.ids))[unaffected_words[0]]
    assert parse_number(several[1]) == pytest.approx(
        after - word_log_probabilities(model.original)[unaffected_words[0]], abs=6e-5
    )


def test_search_stop_button_cancels(page: Page, address: str) -> None:
    routes: list[Route] = []

    def hold_fourth(route: Route) -> None:
        routes.append(route)
        if len(routes) < 4:
            route.continue_()  # the fourth gets no response

    page.goto(f"{address}/#/experiments")
    expect(page.locator(".head-ranking select")).to_be_visible()
    page.route("**/api/trace", hold_fourth)
    page.locator(".head-ranking .primary").click()
    expect(page.locator(".findings progress")).to_have_attribute("max", "24")
    expect(page.locator(".findings")).to_contain_text("Trying 4 of 24")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".findings [role=status]")).to_contain_text("Stopped: tried 3;")
    expect(page.locator(".head-ranking .primary")).to_be_enabled()
    assert len(routes) == 4


def test_layers_can_be_switched_off_and_on(page: Page, address: str, model: Model) -> None:
    page.goto(f"{address}/#/experiments")
    page.get_by_role("button", name="Cross-attention, layer 1 off").click()
    expect(page.locator(".toggle[aria-pressed=true]")).to_have_count(model.original["model"]["heads"])
    without = model.manifest(next(layer for layer in model.layers() if layer[0] == "cross.0.0"))
    expect(page.locator(".variant").last).to_contain_text(without["translation"]["text"])
    page.get_by_role("button", name="Cross-attention, layer 1 on").click()
    expect(page.locator(".toggle[aria-pressed=true]")).to_have_count(0)
    press(page, "decoder.1.2")
    expect(page.locator(".toggle[aria-pressed=true]")).to_have_count(1)
    page.get_by_role("button", name="All on").click()
    expect(page.locator(".toggle[aria-pressed=true]")).to_have_count(0)
    expect(page.get_by_role("button", name="All on")).to_be_disabled()


def test_experiments_empty_text_shows_hint(page: Page, address: str) -> None:
    page.goto(f"{address}/#/experiments")
    page.get_by_label("Text to translate").fill("")
    expect(page.locator("#view-experiments")).to_contain_text("Enter a sentence")
    expect(page.locator(".toggle").first).to_be_hidden()


def test_masked_word_changes_translation(page: Page, address: str, model: Model) -> None:
    """The values equal Python's, with and without an ablated head; the column is hatched; URL and chip are set."""
    position = model.original["sides"]["source"]["words"].index("tired")  # one subword per word
    page.goto(f"{address}/#/experiments")
    source_words = page.get_by_role("group", name="Source words")
    button = source_words.get_by_role("button", name="tired")
    button.press("Enter")
    expect(button).to_have_attribute("aria-pressed", "true")
    expect(button).to_be_focused()
    assert page.url.endswith(f"&hidden={position + 1}")
    expected_text = compute_trace(model.model_folder, TraceRequest(source=TIRED, masked_source=(position,))).manifest[
        "translation"
    ]["text"]
    expect(page.locator(".variant").last).to_contain_text("With “tired” hidden")
    expect(page.locator(".variant").last.locator("p")).to_have_text(re.compile(rf"\s*{re.escape(expected_text)}\s*"))
    for ablated_heads in ((), ("cross.1.2",)):
        for name in ablated_heads:
            press(page, name)
            expect(page.locator(".variant").last).to_contain_text("Without cross 2.3, with “tired” hidden")
        trace_request = TraceRequest(
            source=TIRED, masked_source=(position,), ablated_heads=ablated_heads, target_ids=model.ids
        )
        expected = (
            word_log_probabilities(model.original),
            word_log_probabilities(compute_trace(model.model_folder, trace_request).manifest),
        )
        for row, one, other in zip(cells(page.locator(".changes"))[1:-1], *expected, strict=True):
            assert [parse_number(cell) for cell in row[1:4]] == pytest.approx([one, other, other - one], abs=6e-5)

    page.goto(f"{page.url.replace('/experiments', '/head')}&kind=encoder")
    page.reload()  # the URL holds the complete state
    expect(page.locator(".chip", has_text="Hidden: tired")).to_be_visible()
    for kind in ("encoder", "cross"):
        page.get_by_label("Attention", exact=True).select_option(kind)
        expect(page.locator("#view-head")).to_contain_text("hatched cells are masked")
        table_locator = page.locator("#view-head table").first
        details = page.locator("#view-head details", has_text="Show as table").first

        def show_table(details: Locator = details, table: Locator = table_locator) -> bool:
            details.evaluate("details => { details.open = true; }")  # a redrawn view is closed again
            return table.count() > 0

        wait_until(show_table)
        table = cells(table_locator)
        column = table[0].index("tired")
        assert all(row[column] == "masked" for row in table[1:])
        assert not any("masked" in row[:column] + row[column + 1 :] for row in table[1:])
    page.get_by_role("button", name="Remove: Hidden: tired").click()
    expect(page.locator("#view-head")).not_to_contain_text("hatched")
    assert "hidden" not in page.url
    page.go_back()
    expect(page.locator(".chip", has_text="Hidden: tired")).to_be_visible()
    page.get_by_label("Text to translate").fill("The dog was tired.")  # the hidden position belongs to another sentence
    expect(page.locator(".chip", has_text="Hidden")).to_have_count(0)


def test_cell_of_masked_key_shows_arithmetic(page: Page, address: str, model: Model) -> None:
    """Its score is shown, then masked; the other weights sum to 1."""
    position = model.original["sides"]["source"]["words"].index("tired")
    page.goto(
        f"{address}/#/cell?text={TIRED}&kind=cross&layer=2&head=1&query=3&key={position + 1}&hidden={position + 1}"
    )
    expect(page.locator("#view-cell .cell-summary")).to_contain_text("may not attend to tired")
    softmax = page.locator("#view-cell [data-step=softmax]")
    if (more := softmax.get_by_role("button", name="Show all")).count():
        more.click()
    *rows, total = cells(softmax.locator("table"))[1:]
    assert [n for n, row in enumerate(rows) if row[3] == "masked"] == [position]
    assert parse_number(rows[position][5]) == 0
    assert parse_number(total[5]) == pytest.approx(1, abs=1e-4)
    assert sum(parse_number(row[5]) for row in rows) == pytest.approx(1, abs=len(rows) * 6e-5)


def test_cancelled_search_keeps_other_requests(page: Page, address: str) -> None:
    """The user may ablate the head that is being tried: stopping the search must not cancel that request."""
    held_routes: list[Route] = []

    def hold(route: Route) -> None:
        request_body = route.request.post_data_json
        if request_body.get("ablated_heads") == ["encoder.0.0"] and "target_ids" in request_body:
            held_routes.append(route)
        else:
            route.continue_()

    page.route("**/api/trace", hold)
    page.goto(f"{address}/#/experiments")
    page.get_by_role("button", name="Rank heads").click()
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    press(page, "encoder.0.0")
    expect(page.locator(".chip")).to_contain_text("encoder layer 1 head 1")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".findings")).to_contain_text("Stopped")
    [route] = held_routes  # one request, shared by both
    route.continue_()
    expect(page.locator(".changes tfoot")).to_be_visible()
    expect(page.get_by_role("alert")).to_be_hidden()


def test_truncated_translation_end_not_counted(page: Page, address: str) -> None:
    page.goto(address)
    sums = page.evaluate(
        """async () => {
          const { summarizeTrace, scoreWords, sumScores } = await import("heedful/parts/comparison.js");
          const trace = await (await fetch("/api/trace", { method: "POST",
            headers: { "Content-Type": "application/json" },
            body: '{"source": "The dog was tired."}' })).json();
          const sum = (trace) => sumScores(scoreWords(trace)), whole = sum(trace);
          const cut = { ...trace, translation: { ...trace.translation, complete: false } };
          return { whole, cut: sum(cut), end: trace.steps.at(-1).log_probability,
            own: trace.translation.log_probability, small: sum(summarizeTrace(trace)),
            share: JSON.stringify(summarizeTrace(trace)).length / JSON.stringify(trace).length };
        }"""
    )
    assert sums["whole"] == pytest.approx(sums["own"], abs=1e-9)
    assert sums["cut"] == pytest.approx(sums["whole"] - sums["end"], abs=1e-9)
    assert sums["small"] == sums["whole"]
    assert sums["share"] < 0.3  # hundreds are stored
