"""The beam tree: every candidate with its status, and scores that can be recomputed."""

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.web.test_translate import get_url_parameter, open_page, parse_number, request_manifest


def path_ids(nodes: list[dict[str, Any]], index: int) -> list[int]:
    ids: list[int] = []
    while index >= 0:
        ids.insert(0, nodes[index]["id"])
        index = nodes[index]["parent"]
    return ids


def test_beam_candidates_show_status_and_chosen_path(page: Page, address: str) -> None:
    open_page(page, address, "#/decode?beam=4&step=16")
    manifest = request_manifest(address, beam_size=4)
    nodes = manifest["beam_search"]["nodes"]
    expect(page.locator(".tree-foot .legend")).to_contain_text("Steps")
    legend = page.locator(".tree-foot .legend").inner_text()
    match = re.match(r"Steps (\d+) to (\d+) of (\d+)", legend)
    assert match, legend
    first, last, steps = map(int, match.groups())
    assert (last - first, steps) == (6, nodes[-1]["step"] + 1)
    visible_indexes = [index for index, node in enumerate(nodes) if first - 1 <= node["step"] <= last - 1]
    drawn = page.locator(".tree .node").evaluate_all(
        "all => all.map(n => [Number(n.dataset.index), n.getAttribute('class'), n.ariaLabel])"
    )
    assert [index for index, _, _ in drawn] == visible_indexes
    target_ids = manifest["sides"]["target"]["ids"]
    for index, class_names, label in drawn:
        node = nodes[index]
        assert node["status"] in class_names.split()
        assert {"kept": ", kept", "pruned": ", pruned", "finished": ", ends here"}[node["status"]] in label
        assert f"total {node['total']:.4f}".replace("-", "−") in label
        is_chosen = path_ids(nodes, index) == target_ids[: node["step"] + 1] and node["status"] != "pruned"
        assert ("chosen" in class_names.split()) == is_chosen == ("on the chosen path" in label)
    assert {node["status"] for index, node in enumerate(nodes) if index in visible_indexes} == {
        "kept",
        "pruned",
        "finished",
    }
    expect(page.locator(".tree .edge.pruned").first).to_have_css("stroke-dasharray", "3px, 4px")
    page.get_by_text("Show as table").last.click()
    expect(page.locator("#view-decode .as-table tbody tr")).to_have_count(len(visible_indexes))
    expect(page.locator("#view-decode .as-table tbody tr").first).to_contain_text(
        f"{nodes[visible_indexes[0]]['score']:.4f}".replace("-", "−")
    )


def test_length_penalty_arithmetic_adds_up(page: Page, address: str) -> None:
    open_page(page, address, "#/decode?beam=5")
    manifest = request_manifest(address, beam_size=5)
    finished_scores = sorted(
        (n["score"] for n in manifest["beam_search"]["nodes"] if n["status"] == "finished"), reverse=True
    )
    assert len(finished_scores) >= 2
    expect(page.locator(".hypotheses .arithmetic")).to_have_count(len(finished_scores))
    lines = page.locator(".hypotheses .arithmetic").all_inner_texts()
    for line, score in zip(lines, finished_scores, strict=True):
        match = re.fullmatch(r"(\S+) / \(\(5 \+ (\d+)\) / 6\)\^(\S+) = (\S+) / (\S+) = (\S+)", line)
        assert match, line
        total, count, alpha, repeated_total, penalty, result = map(parse_number, match.groups())
        assert total == repeated_total
        assert penalty == pytest.approx(((5 + count) / 6) ** alpha, abs=6e-5)
        assert result == pytest.approx(total / penalty, abs=2e-4)
        assert result == pytest.approx(score, abs=6e-5)
    winner = page.locator(".hypotheses tbody tr", has_text="chosen")
    expect(winner).to_contain_text(manifest["translation"]["text"])


@pytest.mark.long
def test_forced_candidate_changes_translation(page: Page, address: str) -> None:
    open_page(page, address, "#/decode?beam=4&step=11")
    before = page.locator(".result").inner_text()
    nodes = request_manifest(address, beam_size=4)["beam_search"]["nodes"]
    current = page.locator(".tree .node[tabindex='0']")
    start = str(current.get_attribute("data-index"))
    current.focus()
    page.keyboard.press("ArrowDown")
    index = int(str(current.get_attribute("data-index")))
    assert nodes[index]["step"] == 10
    page.keyboard.press("Enter")
    expect(page.locator(".chip")).to_contain_text(["Forced start", "Beam of 4"])
    assert get_url_parameter(page, "prefix") == ".".join(map(str, path_ids(nodes, index)))
    expect(page.locator(".result")).not_to_have_text(before)
    expect(page.locator(".tree .node.chosen:focus")).to_have_count(1)
    page.go_back()
    expect(page.locator(".result")).to_have_text(before)
    expect(current).to_have_attribute("data-index", start)  # the tree follows the translation
    pruned = page.locator(".tree .node.pruned").first
    index = int(str(pruned.get_attribute("data-index")))
    pruned.click()
    expect(page.locator(".chip").first).to_contain_text("Forced start")
    assert get_url_parameter(page, "prefix") == ".".join(map(str, path_ids(nodes, index)))


def test_beam_size_and_step_controls_update_tree(page: Page, address: str) -> None:
    open_page(page, address, "#/decode")
    page.get_by_label("Beam size").select_option("8")
    manifest = request_manifest(address, beam_size=8)
    finished = sum(node["status"] == "finished" for node in manifest["beam_search"]["nodes"])
    assert finished >= 8
    expect(page.locator(".hypotheses tbody tr")).to_have_count(finished)
    assert get_url_parameter(page, "beam") == "8"
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
