"""The translate view: word probabilities, alternatives, next-word distribution, and the source text field."""

import base64
import json
import math
import re
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import numpy as np
import pytest
from numpy.typing import NDArray
from playwright.sync_api import Locator, Page, expect
from safetensors.numpy import load

from tests.server.server_process import ask
from tests.web.conftest import TIRED

Array = NDArray[np.float64]


def request_manifest(address: str, source: str = TIRED, **fields: Any) -> dict[str, Any]:
    response = ask(address, "/api/trace", {"source": source, **fields})
    assert response.status == 200, response.body
    manifest: dict[str, Any] = response.json
    return manifest


def tensor(address: str, manifest: dict[str, Any], name: str) -> Array:
    body = ask(address, f"/api/trace/{manifest['id']}/tensors?names={name}").body
    return load(body)[name].astype(np.float64)


def softmax(logits: Array, temperature: float = 1.0) -> Array:
    scaled = logits / temperature
    powers = np.exp(scaled - scaled.max())
    return np.asarray(powers / powers.sum())


def percent(value: float) -> str:
    if 0 < value < 0.0001:
        return "<0.01%"
    if 0.995 <= value < 1:
        return ">99.99%" if value > 0.9999 else f"{math.floor(value * 1e4) / 100:.2f}%"
    return f"{value * 100:.{0 if value >= 0.1 or value == 0 else 1 if value >= 0.01 else 2}f}%"


def open_page(page: Page, address: str, fragment: str = "") -> Page:
    page.goto(f"{address}/{fragment}")
    expect(page.locator(".result")).to_contain_text("fatigué")
    return page


def get_url_parameter(page: Page, name: str) -> str | None:
    return parse_qs(urlsplit(page.url).fragment.partition("?")[2]).get(name, [None])[0]


def parse_number(text: str) -> float:
    return float(text.replace("−", "-"))


def test_words_show_probability(page: Page, address: str) -> None:
    """The probability of a word is the product over its subwords."""
    source = "The zorblax was too tired."
    prefix = request_manifest(address, source, target="Le zorblax")["translation"]["ids"]
    page.goto(f"{address}/#/translate?text={quote(source)}&prefix={'.'.join(map(str, prefix))}")
    manifest = request_manifest(address, source, prefix_ids=prefix)
    target = manifest["sides"]["target"]
    assert len(target["ids"]) > len(target["words"])
    probabilities = [1.0] * len(target["words"])
    for step, word in zip(manifest["steps"], target["word_ids"], strict=True):
        probabilities[word] *= step["probability"]
    expect(page.locator(".target-text")).to_have_text(target["words"])
    expect(page.locator(".target-word small")).to_have_text([percent(probability) for probability in probabilities])
    shades = page.locator(".target-word").evaluate_all("all => all.map(w => w.style.getPropertyValue('--p'))")
    np.testing.assert_allclose([float(shade) for shade in shades], probabilities, atol=6e-5)
    expect(page.locator(".note").first).to_contain_text("zorblax")  # it is not in the vocabulary
    count, total = len(manifest["steps"]), manifest["translation"]["log_probability"]
    footer = page.locator(".translation-foot").inner_text()
    assert f"Log-probability −{-total:.4f}" in footer
    assert f"{percent(math.exp(total / count))} per token" in footer


def test_hovered_word_highlights_aligned_words(page: Page, address: str) -> None:
    """By pointer and by keyboard; the weights are those of the layer that the caption names."""
    open_page(page, address)
    manifest = request_manifest(address)
    layer = manifest["alignment"]["layer"]
    weights = tensor(address, manifest, f"decoder.{layer}.cross.weights").mean(0)
    expect(page.locator(".ribbon .legend")).to_contain_text(f"decoder layer {layer + 1}, mean of all heads")

    def read_highlights() -> list[float]:
        script = "all => all.map(w => Number(w.style.getPropertyValue('--w')))"
        highlights: list[float] = page.locator(".source-word").evaluate_all(script)
        return highlights

    for index, action in ((7, "hover"), (13, "focus")):
        word = page.locator(".target-word").nth(index)
        getattr(word, action)()
        expect(page.locator(".ribbon .status-line")).to_contain_text(f"“{manifest['sides']['target']['words'][index]}”")
        np.testing.assert_allclose(read_highlights(), weights[index], atol=1e-3)
        strongest = page.locator(".source-word").nth(int(weights[index].argmax()))
        expect(strongest).to_have_class(re.compile("highlighted"))
    expect(strongest).to_have_text("tired")  # the source of "fatigué", which has the focus
    bands = int((weights[13] >= 0.05).sum())
    expect(page.locator(".band.strong")).to_have_count(bands)


def test_alternative_rewrites_rest_of_translation(page: Page, address: str) -> None:
    open_page(page, address)
    manifest = request_manifest(address)
    before = page.locator(".result").inner_text()
    page.locator(".target-word").nth(10).press("Enter")  # "il", with the keyboard
    lines = page.locator(".alternatives .alternative")
    expect(lines).to_have_count(8)
    logits = tensor(address, manifest, "logits.10")
    best = np.argsort(-logits)[:8]
    expect(page.locator(".alternative-probability")).to_have_text([percent(softmax(logits)[i]) for i in best])
    assert get_url_parameter(page, "step") == "11"
    choice = page.locator("button.alternative", has_text=re.compile("elle"))
    text = choice.locator(".alternative-text").inner_text()
    choice.press("Enter")
    expect(page.locator(".result")).to_have_text(text)
    assert text != before
    forced = [*manifest["translation"]["ids"][:10], int(str(get_url_parameter(page, "prefix")).split(".")[-1])]
    assert get_url_parameter(page, "prefix") == ".".join(map(str, forced))
    expect(page.locator(".chip")).to_contain_text("Forced start: “L'animal n'a pas traversé la rue parce qu'elle”")
    expect(page.locator(".target-word").nth(10)).to_be_focused()
    page.go_back()
    expect(page.locator(".result")).to_have_text(before)
    expect(page.locator(".chip")).to_have_count(0)
    page.go_forward()
    page.locator(".chip").click()
    expect(page.locator(".result")).to_have_text(before)
    assert get_url_parameter(page, "prefix") is None


def test_alternatives_error_shows_message(address: str) -> None:
    name = request_manifest(address)["id"]
    path = f"/api/trace/{name}/alternatives"
    assert "steps 1 to 16" in ask(address, f"{path}?step=16").error
    assert ask(address, f"{path}?step=0&count=21").status == 400
    assert ask(address, "/api/trace/nothing/alternatives?step=0").status == 404
    result = ask(address, f"{path}?step=15&count=3").json
    assert [set(alternative) for alternative in result["alternatives"]] == [
        {"id", "subword", "probability", "word", "text", "score"}
    ] * 3


def test_end_of_sentence_has_alternatives(page: Page, address: str) -> None:
    open_page(page, address)
    page.locator(".target-word").last.click()
    expect(page.locator(".alternative").first).to_contain_text("the sentence ends here")
    expect(page.locator("button.alternative")).to_have_count(7)  # END itself cannot be forced
    page.get_by_role("button", name="Close alternatives").click()
    expect(page.locator(".alternatives")).to_be_hidden()
    expect(page.locator(".target-word").last).to_be_focused()


def test_changed_settings_shown_as_removable_chips(page: Page, address: str) -> None:
    open_page(page, address, "#/translate?off=cross.2.3,encoder.1.4&beam=3")
    expect(page.locator(".chip")).to_contain_text(
        ["cross-attention layer 2 head 3", "encoder layer 1 head 4", "Beam of 3"]
    )
    page.get_by_role("button", name="Remove: Switched off: cross-attention layer 2 head 3").click()
    expect(page.locator(".chip")).to_have_count(2)
    assert get_url_parameter(page, "off") == "encoder.1.4"


def read_probability_rows(page: Page) -> list[tuple[str, float, float]]:
    """Subword, logit and probability of each row."""
    rows = page.locator(".probability-table tbody tr").evaluate_all(
        "rows => rows.map(r => [...r.children].slice(0, 3).map(c => c.textContent))"
    )
    return [(subword, parse_number(logit), parse_number(probability)) for subword, logit, probability in rows]


def test_next_word_is_the_softmax_of_the_logits(page: Page, address: str) -> None:
    open_page(page, address, "#/translate?step=6")
    manifest = request_manifest(address)
    logits = tensor(address, manifest, "logits.5")
    best = np.argsort(-logits)[:20]
    for temperature in (1.0, 2.5, 0.1):
        page.get_by_label("Temperature T").fill(str(temperature))
        expect(page.locator(".softmax")).to_contain_text(f"/ {temperature:g})")
        probabilities = softmax(logits, temperature)
        rows = read_probability_rows(page)
        assert [subword for subword, _, _ in rows] == [manifest["subwords"][str(i)] for i in best]
        np.testing.assert_allclose([logit for _, logit, _ in rows], logits[best], atol=6e-5)
        np.testing.assert_allclose([probability for *_, probability in rows], probabilities[best], atol=6e-5)
        target_id = manifest["sides"]["target"]["ids"][5]
        expect(page.locator(".softmax strong")).to_have_text(f"{probabilities[target_id]:.4f}")
        nonzero = probabilities[probabilities > 0]
        bits = re.search(r"Entropy (\S+) bits", page.locator(".softmax").inner_text())
        assert bits
        assert parse_number(bits[1]) == pytest.approx(-(nonzero * np.log2(nonzero)).sum(), abs=6e-4)
    assert get_url_parameter(page, "temperature") == "0.1"


def test_formula_matches_values(page: Page, address: str) -> None:
    open_page(page, address)
    text = page.locator(".softmax p").first.inner_text()
    match = re.search(r"exp\((\S+) / (\S+)\) / (\S+) = (\S+) / \S+ = (\S+)\.$", text)
    assert match, text
    logit, temperature, total, power, probability = map(parse_number, match.groups())
    assert math.exp(logit / temperature) == pytest.approx(power, rel=1e-4)
    assert power / total == pytest.approx(probability, abs=1e-4)
    powers = np.exp(tensor(address, request_manifest(address), "logits.0"))
    assert total == pytest.approx(powers.sum(), rel=1e-5)


def test_step_selection_selects_word(page: Page, address: str) -> None:
    open_page(page, address)
    slider = page.locator("#view-translate").get_by_label("Decoding step")
    slider.fill("8")
    expect(page.locator(".target-word[aria-pressed=true]")).to_contain_text("rue")
    expect(page.locator("#view-translate .step-status")).to_contain_text(
        "Step 8 of 16: after “L'animal n'a pas traversé la”"
    )
    page.locator(".target-word").nth(1).click()
    expect(slider).to_have_value("2")
    expect(page.locator(".alternatives")).to_be_visible()
    slider.press("ArrowRight")
    expect(page.locator(".alternatives")).to_be_hidden()
    expect(page.locator(".target-word[aria-pressed=true]")).to_contain_text("n'")
    before = page.locator(".result").inner_text()
    expect(page.locator(".probability-table button.written")).to_have_text("▁n'")
    page.locator(".probability-table button").nth(1).click()
    expect(page.locator(".result")).not_to_have_text(before)
    expect(page.locator(".probability-table button.written")).to_be_focused()
    page.go_back()
    expect(page.locator(".result")).to_have_text(before)


@pytest.mark.long
def test_several_sentences_are_translated_and_selected(page: Page, address: str) -> None:
    open_page(page, address)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    texts = [TIRED, "The dog was tired.", "The street was too wide."]
    page.get_by_label("Text to translate").fill(f"{texts[0]} {texts[1]}\n\n{texts[2]}")
    translations = ask(address, "/api/translate", {"text": texts, "source": "en", "target": "fr"}).json["translations"]
    sentences = page.locator(".sentence")
    expect(sentences).to_have_text([translation["text"] for translation in translations])
    expect(page.locator(".sentence[aria-pressed=true]")).to_have_text(translations[0]["text"])
    sentences.nth(2).press("Enter")
    expect(sentences.nth(2)).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".source-word")).to_have_text(["The", "street", "was", "too", "wide", ".", "</s>"])
    assert get_url_parameter(page, "sentence") == "3"
    page.locator(".translation-foot").get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_focused()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == f"{translations[0]['text']} {translations[1]['text']}\n\n{translations[2]['text']}"
    page.go_back()
    expect(sentences.first).to_have_attribute("aria-pressed", "true")


def test_ctrl_enter_translates_immediately(page: Page, address: str) -> None:
    open_page(page, address)
    field = page.get_by_label("Text to translate")
    page.evaluate("window.setTimeout = () => 1")  # the typing delay never ends
    field.fill("The dog was tired.")
    assert get_url_parameter(page, "text") == TIRED
    field.press("Control+Enter")
    expect(page.locator(".source-word").nth(1)).to_have_text("dog")
    assert get_url_parameter(page, "text") == "The dog was tired."


@pytest.mark.long
def test_empty_or_very_long_text_is_handled(page: Page, address: str) -> None:
    open_page(page, address)
    field = page.get_by_label("Text to translate")
    field.fill("  ")
    expect(page.locator(".result")).to_contain_text("Type or paste text")
    expect(page.locator(".ribbon")).to_be_hidden()
    field.fill((TIRED + " ") * 165)
    expect(page.locator(".sentence")).to_have_count(165)
    expect(page.locator(".sentence").last).to_contain_text("fatigué")
    assert page.evaluate("document.querySelectorAll('*').length") < 5000
    field.fill("tired and " * 1000)  # one sentence, split at the maximum length
    expect(page.locator(".source-word").first).to_have_text("tired")
    expect(page.locator(".sentence").last).not_to_have_text("…")
    assert page.evaluate("document.querySelectorAll('*').length") < 5000
    page.expects_errors = True  # type: ignore[attr-defined]
    field.fill("tired " * 9000)
    expect(page.get_by_role("alert")).to_contain_text("the maximum is 50000 per request")
    expect(page.locator(".result")).to_contain_text("No translation")
    field.fill(TIRED)
    expect(page.locator(".result")).to_contain_text("fatigué")
    expect(page.get_by_role("alert")).to_be_hidden()


def test_right_to_left_words_run_from_right(page: Page, address: str) -> None:
    arabic = "لا هو"
    page.goto(f"{address}/#/translate?text={quote(arabic)}")
    source_words = page.locator(".source-word")
    expect(source_words).to_have_text(["لا", "هو", "</s>"])

    def left_edge(word: Locator) -> float:
        box = word.bounding_box()
        assert box
        return box["x"]

    assert left_edge(source_words.nth(0)) > left_edge(source_words.nth(1)) > left_edge(source_words.nth(2))
    field = page.get_by_label("Text to translate")
    assert field.evaluate("f => getComputedStyle(f).direction") == "rtl"


def test_translate_fits_phone(page: Page, address: str) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    open_page(page, address)
    page.locator(".target-word").first.click()
    expect(page.locator(".alternative")).to_have_count(8)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def open_standalone(page: Page, address: str, prefixes: list[str]) -> dict[str, Any]:
    """Open the page with an embedded trace, as in an exported file, that has only these tensors."""
    manifest = request_manifest(address)
    tensor_names = [name for name in manifest["tensors"] if any(name.startswith(prefix) for prefix in prefixes)]
    tensors = ask(address, f"/api/trace/{manifest['id']}/tensors?names={','.join(tensor_names)}").body
    manifest["tensors"] = {name: manifest["tensors"][name] for name in tensor_names}
    embedded = {"manifest": manifest, "tensors": base64.b64encode(tensors).decode(), "cells": {}, "view": "#/translate"}
    script = json.dumps(embedded).replace("<", "\\u003c")
    html = ask(address, "/").body.decode()
    html = html.replace("<noscript>", f'<script type="application/json" id="heedful-trace">{script}</script><noscript>')
    page.route(f"{address}/", lambda route: route.fulfill(body=html, content_type="text/html"))
    page.route("**/api/**", lambda route: route.abort())
    page.goto(f"{address}/")
    return manifest


def test_translate_without_server_shows_error(page: Page, address: str) -> None:
    """Alternatives come from the manifest, and nothing can be forced; missing logits are handled."""
    manifest = open_standalone(page, address, ["thumbnails", "decoder.1.cross.weights", "logits.0"])
    expect(page.locator(".band.strong").first).to_be_attached()
    page.locator(".target-word").nth(1).click()
    top = manifest["steps"][1]["top"]
    expect(page.locator(".alternative-probability")).to_have_text(
        [percent(alternative["probability"]) for alternative in top[:8]]
    )
    expect(page.locator("button.alternative")).to_have_count(0)
    expect(page.locator(".alternatives")).to_contain_text("heedful serve")
    expect(page.get_by_label("Temperature T")).to_be_disabled()  # logits.1 is not in the file
    np.testing.assert_allclose(
        [probability for *_, probability in read_probability_rows(page)],
        [alternative["probability"] for alternative in top],
        atol=6e-5,
    )
    page.locator(".target-word").first.click()
    expect(page.get_by_label("Temperature T")).to_be_enabled()
    expect(page.get_by_role("alert")).to_be_hidden()


@pytest.mark.long
def test_forced_prefix_survives_sentence_selection(page: Page, address: str) -> None:
    """A forced prefix of one sentence stays when another is selected, also in a link."""
    text = "The dog was tired. The animal was tired."
    open_page(page, address, f"#/translate?step=2&text={quote(text)}")
    first = page.locator(".sentence").first
    page.locator(".probability-table button").nth(1).click()
    expect(page.locator(".chips")).to_contain_text("Forced start")
    expect(first).not_to_have_text("…")
    forced = first.inner_text()
    page.locator(".sentence").nth(1).click()
    expect(page.locator(".sentence").nth(1)).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".chips")).not_to_contain_text("Forced start")
    expect(first).to_have_text(forced)
    page.reload()
    expect(first).to_have_text(forced)
    first.click()
    expect(page.locator(".chips")).to_contain_text("Forced start")
    expect(first).to_have_text(forced)


def test_workbench_collapse_button_hides_text_field(page: Page, address: str) -> None:
    open_page(page, address, "#/head")
    page.get_by_role("button", name="Collapse").click()
    expect(page.get_by_label("Text to translate")).to_be_hidden()
    expect(page.locator(".collapsed-summary")).to_contain_text("tired. → L'animal")
    page.get_by_role("button", name="Expand").click()
    expect(page.get_by_label("Text to translate")).to_be_visible()


def test_unknown_characters_show_warning(page: Page, untrained_address: str) -> None:
    page.goto(f"{untrained_address}/#/translate?text={quote('العربية لغة جميلة')}")
    expect(page.locator(".notes")).to_contain_text("The model is unsure")


def test_format_percent_never_rounds_to_0_or_100(page: Page, address: str) -> None:
    page.goto(address)
    values = [0, 1e-6, 0.0001, 0.0123, 0.4, 0.994, 0.9961, 0.99999, 1]
    texts = page.evaluate("async values => values.map((await import('heedful/parts/dom.js')).formatPercent)", values)
    assert texts == ["0%", "<0.01%", "0.01%", "1.2%", "40%", "99%", "99.61%", ">99.99%", "100%"]
    assert texts == [percent(value) for value in values]


def test_chosen_alternative_is_translation(page: Page, address: str) -> None:
    """Choosing the current word changes nothing."""
    open_page(page, address)
    before = page.locator(".result").inner_text()
    page.locator(".target-word").nth(7).click()
    chosen = page.locator("button.alternative", has=page.locator(".badge", has_text="written"))
    expect(chosen.locator(".alternative-text")).to_have_text(before)
    chosen.press("Enter")
    expect(page.locator(".alternatives")).to_be_hidden()
    expect(page.locator(".target-word").nth(7)).to_be_focused()
    assert get_url_parameter(page, "prefix") is None
