"""Short remarks where a reader would be puzzled: an empty strip, names of rows, a beam of one, heads off."""

import re
from pathlib import Path

from playwright.sync_api import Page, expect

from heedful.bundle import Bundle
from heedful.text.tokenizer import PAD
from tests.page.views import visit


def test_the_start_has_an_empty_embedding(page: Page, address: str, demo_model: Path) -> None:
    assert not Bundle.load(demo_model).model.decoder.embedding.table.weight[PAD].any()
    visit(page, address, "path", kind="cross", layer=2, head=1, query=1)
    expect(page.locator(".path")).to_contain_text("whose embedding is exactly zero")
    visit(page, address, "path", kind="cross", layer=2, head=1, query=2)
    expect(page.locator(".explained").first).to_contain_text("This row reads L'")
    expect(page.locator(".path")).not_to_contain_text("exactly zero")


def test_rows_say_what_they_are_named_by(page: Page, address: str) -> None:
    named = {"cross": "named by the word it writes", "decoder": "named by the word it reads"}
    for view in ("head", "cell"):
        for kind, told in named.items():
            visit(page, address, view, kind=kind, layer=1, head=1)
            expect(page.locator(f"#view-{view}")).to_contain_text(told)
        visit(page, address, view, kind="encoder", layer=1, head=1)
        expect(page.locator(f"#view-{view}")).not_to_contain_text("named by the word")


def test_a_beam_of_one_offers_a_wider_one(page: Page, address: str) -> None:
    visit(page, address, "decode")
    page.get_by_role("button", name="Show a beam of 4").click()
    expect(page.get_by_label("Beam width")).to_have_value("4")
    expect(page.get_by_role("button", name="Show a beam of 4")).to_be_hidden()
    assert "beam=4" in page.url


def test_a_head_shows_its_state_and_its_habit(page: Page, address: str) -> None:
    """Whether it is on or off, and apart from that what it does."""
    visit(page, address, "experiments")
    head = page.locator(".off-grid .off-head").first
    state, habit = head.locator("small").first, head.locator(".habit")
    expect(state).to_have_text("on")
    expect(habit).to_have_text(re.compile(r"^(–|[a-z ]+)$"))
    before = habit.inner_text()
    head.click()
    expect(state).to_have_text("off")
    expect(habit).to_have_text(before)
    expect(page.locator(".off-grid")).to_contain_text("Off:")
