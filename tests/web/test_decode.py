"""The beam tree: every candidate with its fate, and scores that a person can check."""

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.web.test_translate import in_url, manifest_of, number, opened


def path_ids(nodes: list[dict[str, Any]], place: int) -> list[int]:
    found: list[int] = []
    while place >= 0:
        found.insert(0, nodes[place]["id"])
        place = nodes[place]["parent"]
    return found


def test_beam_candidates_show_status_and_chosen_path(page: Page, address: str) -> None:
    opened(page, address, "#/decode?beam=4&step=16")
    manifest = manifest_of(address, beam_size=4)
    nodes = manifest["beam_search"]["nodes"]
    expect(page.locator(".tree-foot .legend")).to_contain_text("Steps")
    told = page.locator(".tree-foot .legend").inner_text()
    window = re.match(r"Steps (\d+) to (\d+) of (\d+)", told)
    assert window, told
    first, last, steps = map(int, window.groups())
    assert (last - first, steps) == (6, nodes[-1]["step"] + 1)
    inside = [place for place, node in enumerate(nodes) if first - 1 <= node["step"] <= last - 1]
    drawn = page.locator(".tree .node").evaluate_all(
        "all => all.map(n => [Number(n.dataset.index), n.getAttribute('class'), n.ariaLabel])"
    )
    assert [place for place, _, _ in drawn] == inside
    written = manifest["sides"]["target"]["ids"]
    for place, shape, label in drawn:
        node = nodes[place]
        assert node["status"] in shape.split()
        assert {"kept": ", kept", "pruned": ", pruned", "finished": ", ends here"}[node["status"]] in label
        assert f"total {node['total']:.4f}".replace("-", "−") in label
        chosen = path_ids(nodes, place) == written[: node["step"] + 1] and node["status"] != "pruned"
        assert ("chosen" in shape.split()) == chosen == ("on the chosen path" in label)
    assert {node["status"] for place, node in enumerate(nodes) if place in inside} == {"kept", "pruned", "finished"}
    expect(page.locator(".tree .edge.pruned").first).to_have_css("stroke-dasharray", "3px, 4px")
    page.get_by_text("Show as table").last.click()
    expect(page.locator("#view-decode .as-table tbody tr")).to_have_count(len(inside))
    expect(page.locator("#view-decode .as-table tbody tr").first).to_contain_text(
        f"{nodes[inside[0]]['score']:.4f}".replace("-", "−")
    )


def test_length_penalty_is_arithmetic(page: Page, address: str) -> None:
    opened(page, address, "#/decode?beam=5")
    manifest = manifest_of(address, beam_size=5)
    ended = sorted((n["score"] for n in manifest["beam_search"]["nodes"] if n["status"] == "finished"), reverse=True)
    assert len(ended) >= 2
    expect(page.locator(".hypotheses .arithmetic")).to_have_count(len(ended))
    lines = page.locator(".hypotheses .arithmetic").all_inner_texts()
    for line, score in zip(lines, ended, strict=True):
        found = re.fullmatch(r"(\S+) / \(\(5 \+ (\d+)\) / 6\)\^(\S+) = (\S+) / (\S+) = (\S+)", line)
        assert found, line
        total, count, alpha, same, penalty, result = map(number, found.groups())
        assert total == same
        assert penalty == pytest.approx(((5 + count) / 6) ** alpha, abs=6e-5)
        assert result == pytest.approx(total / penalty, abs=2e-4)
        assert result == pytest.approx(score, abs=6e-5)
    winner = page.locator(".hypotheses tbody tr", has_text="chosen")
    expect(winner).to_contain_text(manifest["translation"]["text"])


@pytest.mark.long
def test_forced_candidate_changes_translation(page: Page, address: str) -> None:
    opened(page, address, "#/decode?beam=4&step=11")
    before = page.locator(".result").inner_text()
    nodes = manifest_of(address, beam_size=4)["beam_search"]["nodes"]
    current = page.locator(".tree .node[tabindex='0']")
    start = str(current.get_attribute("data-index"))
    current.focus()
    page.keyboard.press("ArrowDown")
    place = int(str(current.get_attribute("data-index")))
    assert nodes[place]["step"] == 10
    page.keyboard.press("Enter")
    expect(page.locator(".chip")).to_contain_text(["Forced start", "Beam of 4"])
    assert in_url(page, "prefix") == ".".join(map(str, path_ids(nodes, place)))
    expect(page.locator(".result")).not_to_have_text(before)
    expect(page.locator(".tree .node.chosen:focus")).to_have_count(1)
    page.go_back()
    expect(page.locator(".result")).to_have_text(before)
    expect(current).to_have_attribute("data-index", start)  # the tree follows the translation
    pruned = page.locator(".tree .node.pruned").first
    place = int(str(pruned.get_attribute("data-index")))
    pruned.click()
    expect(page.locator(".chip").first).to_contain_text("Forced start")
    assert in_url(page, "prefix") == ".".join(map(str, path_ids(nodes, place)))


def test_beam_width_and_steps(page: Page, address: str) -> None:
    opened(page, address, "#/decode")
    page.get_by_label("Beam size").select_option("8")
    manifest = manifest_of(address, beam_size=8)
    finished = sum(node["status"] == "finished" for node in manifest["beam_search"]["nodes"])
    assert finished >= 8
    expect(page.locator(".hypotheses tbody tr")).to_have_count(finished)
    assert in_url(page, "beam") == "8"
    slider = page.locator("#view-decode").get_by_label("Decoding step")
    slider.fill("9")
    expect(page.locator(".target-word[aria-pressed=true]")).to_contain_text(manifest["sides"]["target"]["words"][8])
    expect(page.locator(".tree")).to_contain_text("Step 9")
    later = page.get_by_role("button", name="Later steps")
    while later.is_enabled():
        later.click()
    steps = manifest["beam_search"]["nodes"][-1]["step"] + 1
    expect(page.locator(".tree-foot .legend")).to_contain_text(f"to {steps} of {steps}")
    assert page.evaluate("document.querySelectorAll('.tree *').length") < 1500
    page.get_by_label("Beam size").select_option("1")
    expect(page.locator(".hypotheses tbody tr")).to_have_count(1)
