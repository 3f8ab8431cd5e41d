"""The lesson: keyboard navigation, questions about the sentence, and answers with the values of the model."""

import math
import re
from decimal import Decimal
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

from heedful.interpret.trace import Trace, compute_trace
from heedful.interpret.trace_schema import TraceRequest
from heedful.model_folder import ModelFolder
from heedful.web.standalone import pack_trace, render_standalone_page
from tests.web.conftest import TIRED
from tests.web.page_driver import MINUS, cells, parse_number

pytestmark = pytest.mark.long  # every step of the lesson

STEPS = 13
IT = 7
"""The index of "it" among the source subwords."""


@pytest.fixture(scope="module")
def trace(demo_model: Path) -> Trace:
    """The trace that the lesson is about."""
    return compute_trace(ModelFolder.load(demo_model), TraceRequest(source=TIRED))


def reveal(page: Page, address: str, step: int) -> tuple[str, list[list[str]]]:
    """The correct answer of a step, and the table below it."""
    page.goto(f"{address}/#/lesson?text={quote(TIRED)}&lesson={step}")
    expect(page.locator(".lesson h2")).to_contain_text(f"{step}. ")
    page.get_by_role("button", name="Show the answer").click()
    answer = page.locator(".verdict strong").inner_text()
    expect(page.locator(".choices .right")).to_have_text(answer)  # it is one of the choices
    return answer, cells(page.locator(".lesson-numbers table").first)


def test_keyboard_visits_all_steps(page: Page, address: str) -> None:
    """Each step has a question with choices and, once answered, values and a link to their view."""
    page.goto(f"{address}/#/lesson")
    titles = set()
    for step in range(1, STEPS + 1):
        heading = page.locator(".lesson h2")
        expect(heading).to_contain_text(f"{step}. ")
        titles.add(heading.inner_text())
        assert step == 1 or f"&lesson={step}" in page.url
        expect(page.locator(".lesson-numbers")).to_have_count(0)
        choices = page.locator(".choices button:not(.small)")
        assert 2 <= choices.count() <= 4
        choices.first.click()
        expect(page.locator(".verdict")).to_contain_text(re.compile("Correct|Not"))
        expect(page.locator(".lesson-numbers table").first).to_be_visible()
        expect(page.locator(".lesson-numbers a")).to_have_attribute("href", re.compile("^#/[a-z]+"))
        page.keyboard.press("ArrowRight")
    assert len(titles) == STEPS
    expect(page.get_by_role("button", name="End", exact=True)).to_be_disabled()
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".lesson h2")).to_contain_text("12. ")
    page.go_back()
    expect(page.locator(".lesson h2")).to_contain_text("13. ")
    page.get_by_role("button", name="← Back").click()
    expect(page.locator(".lesson h2")).to_contain_text("12. ")
    text = page.get_by_label("Text to translate")
    text.press("ArrowLeft")  # moves the caret, not the lesson
    expect(page.locator(".lesson h2")).to_contain_text("12. ")


def test_wrong_prediction_is_explained(page: Page, address: str) -> None:
    page.goto(f"{address}/#/lesson?lesson=3")
    page.locator(".choices").get_by_role("button", name="64").click()
    expect(page.locator(".verdict")).to_contain_text("Not “64” but 16 (64 / 4 = 16")
    expect(page.locator(".choices .wrong")).to_have_text("64")
    page.locator(".choices").get_by_role("button", name="16").click()
    expect(page.locator(".verdict")).to_contain_text("Correct: 16")


def find_example(trace: Trace) -> tuple[str, int, int, int]:
    """The head and row of the last layers in which a pronoun gives another word the largest weight."""
    sides = trace.manifest["sides"]
    candidates = []
    for kind, rows in (("encoder", "source"), ("cross", "target")):
        layer = trace.manifest["model"]["layers"][kind] - 1
        for head, weights in enumerate(trace.activations.weights(kind, layer)):
            for row, subword in enumerate(sides[rows]["subwords"]):
                if subword not in ("it", "il", "elle"):
                    continue
                candidates += [
                    (float(weights[row, key]), (kind, layer, head, row))
                    for key, other in enumerate(sides["source"]["subwords"])
                    if other[0].isalpha() and (kind == "cross" or key != row)
                ]
    return max(candidates)[1]


def test_model_selection_follows_link(page: Page, address: str, trace: Trace) -> None:
    """The default is the pronoun with the largest weight on another word; a head in the URL takes precedence."""
    kind, layer, head, row = find_example(trace)
    rows = trace.manifest["sides"]["source" if kind == "encoder" else "target"]["subwords"]
    page.goto(f"{address}/#/lesson?text={quote(TIRED)}&lesson=3")
    example = page.locator(".example")
    expect(example).to_contain_text(f"layer {layer + 1}, head {head + 1}")
    expect(example).to_contain_text(f"“{rows[row]}”")
    expect(example).to_contain_text("It was chosen by weight")
    selected_url = f"{address}/#/lesson?text={quote(TIRED)}&lesson=3&kind=encoder&layer=1&head=2&query={IT + 1}"
    page.goto(selected_url)
    expect(example).to_contain_text("We follow “it” in encoder self-attention, layer 1, head 2")
    example.get_by_role("link", name="Use the default example").click()
    expect(example).to_contain_text(f"“{rows[row]}”")
    expect(example.get_by_role("link")).to_have_count(0)


def test_answers_about_attention_match_trace(page: Page, address: str, trace: Trace) -> None:
    """Ids, scores, weights and heads of the example that the lesson follows."""
    kind, layer, head, row = find_example(trace)
    assert kind == "cross"
    tensors, subwords = trace.activations.tensors, trace.activations.source.subwords
    scores = tensors[f"decoder.{layer}.cross.q"][head, row] @ tensors[f"decoder.{layer}.cross.k"][head].T
    weights = tensors[f"decoder.{layer}.cross.weights"][:, row]

    answer, table = reveal(page, address, 1)
    assert answer == "different ids"  # of "The" and "the"
    assert dict(table[1:])["The"] != dict(table[1:])["the"]
    answer, table = reveal(page, address, 4)
    assert answer == subwords[scores.argmax()]
    assert parse_number(table[3][-1]) == pytest.approx(float(scores.max()), abs=1e-3)
    answer, _ = reveal(page, address, 5)
    assert parse_number(answer) == pytest.approx(float(scores.max()) / 4, abs=1e-3)
    answer, table = reveal(page, address, 7)
    assert float(answer.rstrip("%")) == pytest.approx(100 * float(weights[head].max()), abs=0.6)
    assert table[1][0] == subwords[weights[head].argmax()]
    assert parse_number(table[1][3]) == pytest.approx(float(weights[head].max()), abs=1e-4)
    answer, table = reveal(page, address, 9)
    assert answer == subwords[weights.mean(0).argmax()]
    assert [row[1] for row in table[1:-1]] == [subwords[row.argmax()] for row in weights]


def test_prediction_possible_from_shown_values(page: Page, address: str) -> None:
    """The excerpt above the question is enough to find the answer of steps 4, 8, 9 and 12."""
    answer, _ = reveal(page, address, 4)
    query, *keys = excerpt(page)
    scores = {name: float(np.dot(numbers, query[1])) for name, numbers in keys}
    assert max(scores, key=lambda name: scores[name]) == f"k of {answer}"
    answer, _ = reveal(page, address, 8)
    contributions = {name: abs(weight * value) for name, (weight, value) in excerpt(page)}
    assert max(contributions, key=lambda name: contributions[name]) == answer
    answer, _ = reveal(page, address, 9)
    means = {name: sum(numbers) for name, numbers in excerpt(page)}
    assert max(means, key=lambda name: means[name]) == answer
    answer, _ = reveal(page, address, 12)
    (_, [first]), (_, [second]) = excerpt(page)[:2]
    match = re.search(r"has probability (0\.\d+)", page.locator(".question").inner_text())
    assert match
    assert float(match[1]) * math.exp(second - first) == pytest.approx(parse_number(answer), rel=1e-3)


def excerpt(page: Page) -> list[tuple[str, list[float]]]:
    """The table above the question, by the names of its rows."""
    table = page.locator(".lesson > div:not(.lesson-numbers) table").first
    return [(name, [parse_number(cell) for cell in row]) for name, *row in cells(table)[1:]]


def test_printed_sums_add_up(page: Page, address: str) -> None:
    """To the last printed digit."""
    _, table = reveal(page, address, 4)
    assert sum_printed(table[3][1:-1]) == Decimal(to_ascii_minus(table[3][-1]))
    for step, columns in ((7, (2, 3)), (8, (3,)), (13, (1,))):
        _, table = reveal(page, address, step)
        foot = -2 if step == 13 else -1
        for column in columns:
            assert sum_printed([row[column] for row in table[1:foot]]) == Decimal(
                to_ascii_minus(table[foot][column])
            ), step
    verdict = page.locator(".verdict").inner_text()
    match = re.search(r"exp\((.*?)\) = (0\.\d+)", verdict)
    assert match
    assert f"{math.exp(parse_number(match[1])):.4f}" == match[2]
    _, table = reveal(page, address, 2)
    for word, position, x in zip(*(row[1:] for row in table[1:4]), strict=True):
        assert Decimal(to_ascii_minus(word)) + Decimal(to_ascii_minus(position)) == Decimal(to_ascii_minus(x))


def sum_printed(printed: list[str]) -> Decimal:
    """The exact sum of printed numbers."""
    return sum((Decimal(to_ascii_minus(text)) for text in printed), Decimal(0))


def to_ascii_minus(printed: str) -> str:
    """A printed number with an ASCII minus sign."""
    return printed.replace(MINUS, "-")


def test_answers_about_decoding_match_trace(page: Page, address: str, trace: Trace) -> None:
    """Decoder, next word and search, at the step of the example."""
    manifest = trace.manifest
    _, layer, head, row = find_example(trace)
    cross = trace.activations.weights("cross", layer)[head]
    answer, table = reveal(page, address, 11)
    assert int(answer) == cross.numel()
    assert [line[1] for line in table[1:]] == [trace.activations.source.subwords[line.argmax()] for line in cross]
    top = manifest["steps"][row]["top"]
    answer, table = reveal(page, address, 12)
    assert parse_number(answer) == pytest.approx(top[1]["probability"], abs=1e-6)
    assert parse_number(table[1][2]) == pytest.approx(top[0]["probability"], abs=1e-6)
    _, table = reveal(page, address, 13)
    assert parse_number(table[-2][1]) == pytest.approx(manifest["translation"]["log_probability"], abs=1e-6)


def test_decoder_input_shown_before_request(page: Page, address: str, trace: Trace) -> None:
    page.goto(f"{address}/#/lesson?text={quote(TIRED)}&lesson=6")
    input_subwords = trace.manifest["sides"]["decoder_input"]["subwords"]
    expect(page.locator(".lesson-tokens li")).to_have_text(list(input_subwords))
    expect(page.locator(".question")).to_contain_text(f"of these {len(input_subwords)} tokens")


def test_link_opens_cell_and_back(page: Page, address: str, trace: Trace) -> None:
    _, layer, head, row = find_example(trace)
    reveal(page, address, 7)
    expect(page.get_by_role("link", name="Back to the lesson")).to_be_hidden()
    page.get_by_role("link", name="Show this head").click()
    heading = page.locator("#view-head h3").first
    expect(heading).to_have_text(f"Cross-attention, layer {layer + 1}, head {head + 1}")
    assert f"query={row + 1}" in page.url
    page.get_by_role("link", name="Back to the lesson").click()
    expect(page.locator(".lesson h2")).to_have_text("7. Softmax")
    expect(page.locator(".verdict strong")).to_be_visible()  # the answer is still shown
    reveal(page, address, 6)
    page.get_by_role("link", name="Show the causal mask").click()
    expect(heading).to_contain_text("Decoder self-attention")
    page.get_by_role("link", name="Back to the lesson").click()
    page.get_by_role("button", name="Next →").click()
    expect(page.locator(".example")).to_contain_text(f"cross-attention, layer {layer + 1}, head {head + 1}")


def test_lesson_works_in_saved_page(browser: Browser, trace: Trace, tmp_path: Path) -> None:
    """The lesson needs no server; views that do are not listed, and a link to them shows a message."""
    path = tmp_path / "lesson.html"
    path.write_text(render_standalone_page(pack_trace(trace)), encoding="utf-8")
    tab = browser.new_page()
    messages: list[str] = []
    tab.on("console", lambda message: messages.append(message.text))
    tab.on("pageerror", lambda error: messages.append(str(error)))
    tab.goto(path.as_uri())
    tab.get_by_role("link", name="Lesson", exact=True).click()
    expect(tab.locator(".lesson h2")).to_have_text("1. Tokens")
    for step in range(2, STEPS + 1):
        tab.keyboard.press("ArrowRight")
        expect(tab.locator(".lesson h2")).to_contain_text(f"{step}. ")
        tab.get_by_role("button", name="Show the answer").click()
        expect(tab.locator(".lesson-numbers table").first).to_be_visible()
    for view in ("experiments", "training"):
        expect(tab.locator(f".tabs a[href^='#/{view}']")).to_have_count(0)
        tab.evaluate(f"location.hash = location.hash.replace('#/lesson', '#/{view}')")
        expect(tab.locator(f"#view-{view}")).to_contain_text("need a running server: heedful serve MODEL")
        tab.go_back()
        expect(tab.locator(".lesson h2")).to_contain_text("13. ")
    tab.close()
    assert not messages, messages


def test_formulas_match_post_norm_model(page: Page, address: str) -> None:
    """As in the cell view: with biases, and the norm after the sum."""
    for step, formula in ((3, "q = x W^Q + b^Q"), (10, "LayerNorm(x + attention(x))")):
        page.goto(f"{address}/#/lesson?text={quote(TIRED)}&lesson={step}")
        expect(page.locator(".lesson h2")).to_contain_text(f"{step}. ")
        assert page.locator(".lesson .formula").inner_text().startswith(formula)
