"""Annotations of the page: zero embeddings, row labels, a beam of one, ablated heads."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from heedful.model_folder import ModelFolder
from heedful.tokenization.special_tokens import PAD
from tests.web.views import open_view

pytestmark = pytest.mark.long  # labels of all views


def test_start_token_has_zero_embedding(page: Page, address: str, demo_model: Path) -> None:
    assert not ModelFolder.load(demo_model).translation_model.decoder.embedding.table.weight[PAD].any()
    open_view(page, address, "path", kind="cross", layer=2, head=1, query=1)
    expect(page.locator(".path")).to_contain_text("whose embedding is zero")
    open_view(page, address, "path", kind="cross", layer=2, head=1, query=2)
    expect(page.locator(".description").first).to_contain_text("This row reads L'")
    expect(page.locator(".path")).not_to_contain_text("embedding is zero")


def test_row_labels_name_queries(page: Page, address: str) -> None:
    named = {"cross": "named after the word it writes", "decoder": "named after the word it reads"}
    for view in ("head", "cell"):
        for kind, label in named.items():
            open_view(page, address, view, kind=kind, layer=1, head=1)
            expect(page.locator(f"#view-{view}")).to_contain_text(label)
        open_view(page, address, view, kind="encoder", layer=1, head=1)
        expect(page.locator(f"#view-{view}")).not_to_contain_text("named after the word")


def test_beam_of_one_offers_wider_beam(page: Page, address: str) -> None:
    open_view(page, address, "decode")
    page.get_by_role("button", name="Use a beam of 4").click()
    expect(page.get_by_label("Beam size")).to_have_value("4")
    expect(page.get_by_role("button", name="Use a beam of 4")).to_be_hidden()
    assert "beam=4" in page.url


def test_head_shows_state_and_pattern(page: Page, address: str) -> None:
    """Whether the head is on or off, and separately its attention pattern."""
    open_view(page, address, "experiments")
    head = page.locator(".head-toggles .toggle").first
    state, pattern = head.locator("small").first, head.locator(".attention-pattern")
    expect(state).to_have_text("on")
    expect(pattern).to_have_text(re.compile(r"^(–|[a-z ]+)$"))
    before = pattern.inner_text()
    head.click()
    expect(state).to_have_text("off")
    expect(pattern).to_have_text(before)
    expect(page.locator(".head-toggles")).to_contain_text("Off:")
