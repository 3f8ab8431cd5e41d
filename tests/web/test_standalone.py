"""The standalone page, opened from disk without network: the same translation, figures and numbers as live."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

import heedful
from heedful.errors import HeedfulError
from heedful.interpret.trace import Trace, compute_trace, load_trace, save_trace
from heedful.interpret.trace_schema import TraceRequest
from heedful.model_folder import ModelFolder
from heedful.web.standalone import (
    PageView,
    build_url_fragment,
    fit_url_to_trace,
    pack_trace,
    parse_url_head,
    render_standalone_page,
)
from tests.conftest import run_heedful
from tests.server.server_process import ask
from tests.web.conftest import TIRED
from tests.web.views import VIEW_SELECTORS

pytestmark = pytest.mark.long

HOSTILE = "</script><img src=x onerror=alert(1)>"
OFFLINE_VIEWS = ["head", "map", "cell", "path", "positions"]
"""Views whose numbers need no server."""


@contextmanager
def open_from_disk(browser: Browser, path: Path) -> Iterator[Page]:
    """Open a file without network; checks that there are no console messages, dialogs or other requests."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, offline=True, reduced_motion="reduce")
    tab = context.new_page()
    problems: list[str] = []
    tab.on("console", lambda message: problems.append(message.text))
    tab.on("pageerror", lambda error: problems.append(str(error)))
    tab.on("dialog", lambda dialog: problems.append(dialog.message))

    def check_request(url: str) -> None:
        if not url.startswith(("data:", "blob:", "about:", path.as_uri())):
            problems.append(url)

    tab.on("request", lambda request: check_request(request.url))
    context.route(re.compile("^https?:"), lambda route: route.abort())
    tab.set_default_timeout(60_000)
    tab.goto(path.as_uri())
    yield tab
    context.close()
    assert not problems, problems


@pytest.fixture(scope="module")
def trace(demo_model: Path) -> Trace:
    return compute_trace(ModelFolder.load(demo_model), TraceRequest(source=TIRED))


def read_numbers(tab: Page, view: str) -> list[str]:
    """The numbers that a view prints, once it is drawn."""
    tab.locator(f".tabs a[href^='#/{view}?']").click()
    host = tab.locator(f"#view-{view}")
    expect(host.locator(VIEW_SELECTORS[view]).first).to_be_visible()
    tab.wait_for_load_state("networkidle")
    return re.findall(r"−?\d+\.\d+", host.inner_text())


def test_saved_page_equals_live_page(page: Page, address: str, browser: Browser, tmp_path: Path) -> None:
    page.goto(f"{address}/#/head?kind=encoder&layer=2&head=3&query=8&key=2&words=no")
    expect(page.get_by_role("heading", name="Encoder self-attention, layer 2, head 3")).to_be_visible()
    live = {view: read_numbers(page, view) for view in OFFLINE_VIEWS}
    translation = page.locator(".result").inner_text()
    maps = page.locator(".map-head").evaluate_all("all => all.map((each) => each.ariaLabel)")
    assert "fatigué" in translation
    with page.expect_download() as download:
        page.get_by_role("button", name="Save this page").click()
    path = tmp_path / download.value.suggested_filename
    download.value.save_as(path)
    assert path.name == "heedful-the-animal-didnt-cross.html"
    assert path.stat().st_size < 8_000_000
    with open_from_disk(browser, path) as tab:
        expect(tab.locator("#view-positions")).to_be_visible()  # where it was saved
        expect(tab.locator(".result")).to_have_text(translation, use_inner_text=True)
        for view in OFFLINE_VIEWS:
            numbers = read_numbers(tab, view)
            assert numbers == live[view], view
            assert numbers or view == "map"
        assert tab.locator(".map-head").evaluate_all("all => all.map((each) => each.ariaLabel)") == maps
        assert "head=3" in tab.url
        assert tab.get_by_role("button", name="Save this page").count() == 0


def test_saved_head_contains_every_cell(browser: Browser, trace: Trace, tmp_path: Path) -> None:
    """Products of other keys are computed in the page from the saved vectors."""
    path = tmp_path / "page.html"
    fragment = "#/cell?kind=cross&layer=2&head=1&query=3&key=6"
    path.write_text(render_standalone_page(pack_trace(trace, fragment), fragment), encoding="utf-8")
    with open_from_disk(browser, path) as tab:
        expect(tab.locator("#view-cell")).to_contain_text("softmax")
        cell = tab.evaluate(
            """async () => {
              const { EmbeddedSource } = await import("heedful/data/embedded_source.js");
              return new EmbeddedSource().fetchCell("", { kind: "cross", layer: 1, head: 0, row: 2, key: 5 });
            }"""
        )
    values = cell["values"]
    assert values["key"] == 6
    assert values["products"] == [q * k for q, k in zip(values["q"], values["k"][5], strict=True)]
    assert sum(values["products"]) == pytest.approx(values["scores"][5], abs=1e-6)
    expected = trace.activations.weights("cross", 1)[0, 2].tolist()
    assert values["weights"] == pytest.approx(expected, abs=1e-5)
    (products,) = (section for section in cell["sections"] if section["heading"].startswith("One score"))
    assert products["tables"][0]["rows"][1] == f"k of {values['column_subwords'][5]}"
    assert products["tables"][0]["cells"][2][:-1] == values["products"]


def test_hostile_sentence_is_harmless(
    page: Page, address: str, browser: Browser, demo_model: Path, tmp_path: Path
) -> None:
    page.on("dialog", lambda dialog: pytest.fail(dialog.message))
    page.goto(address)
    page.get_by_label("Text to translate").fill(HOSTILE)
    expect(page).to_have_url(re.compile("onerror"))
    expect(page.locator(".result")).not_to_be_empty()
    assert page.locator("img").count() == 0
    path = tmp_path / "page.html"
    trace = compute_trace(ModelFolder.load(demo_model), TraceRequest(source=HOSTILE))
    fragment = "#/head?kind=encoder&layer=2&head=2"
    path.write_text(render_standalone_page(pack_trace(trace, fragment, budget=40_000), fragment), encoding="utf-8")
    assert "<img" not in path.read_text(encoding="utf-8")
    with open_from_disk(browser, path) as tab:
        expect(tab.get_by_label("Text to translate")).to_have_value(HOSTILE)
        expect(tab.get_by_role("heading", name="Encoder self-attention, layer 2, head 2")).to_be_visible()
        assert tab.locator("img").count() == 0


def test_small_budget_omits_largest_tensors(browser: Browser, trace: Trace, tmp_path: Path) -> None:
    small = pack_trace(trace, "#/map", budget=40_000)
    assert "thumbnails.cross" in small.manifest["tensors"]
    assert "decoder.1.cross.weights" in small.manifest["tensors"]  # of the default head
    assert "encoder.0.self.x" not in small.manifest["tensors"]
    assert len(small.tensors) < 40_000
    assert list(small.cells) == ["cross.1.0"]
    assert any("Omitted" in note for note in small.manifest["notes"])
    path = tmp_path / "page.html"
    path.write_text(render_standalone_page(small, "#/map"), encoding="utf-8")
    with open_from_disk(browser, path) as tab:
        expect(tab.locator("#view-map .map-head")).to_have_count(3 * 2 * 4)
        elsewhere = fit_url_to_trace("#/cell?kind=encoder&layer=1&head=1&query=1&key=1", small.manifest)
        tab.goto(f"{path.as_uri()}{elsewhere}")
        expect(tab.locator("#view-cell")).to_contain_text("does not include the arithmetic")


def test_saved_page_other_sentence_needs_server(browser: Browser, trace: Trace, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(render_standalone_page(pack_trace(trace, budget=40_000), "#/map"), encoding="utf-8")
    with open_from_disk(browser, path) as tab:
        expect(tab.locator("#view-map .map-head")).to_have_count(3 * 2 * 4)
        field = tab.get_by_label("Text to translate")
        expect(field).not_to_be_editable()
        expect(tab.locator(".workbench-source")).to_contain_text("heedful serve MODEL")
        tab.goto(f"{path.as_uri()}#/map?text=Another+one.")
        expect(tab.get_by_role("alert")).to_contain_text("contains one sentence")
        tab.reload()  # does not help
        expect(tab.get_by_role("alert")).to_contain_text("contains one sentence")
        tab.get_by_role("button", name="Show the saved sentence").click()
        expect(tab.get_by_role("alert")).to_be_hidden()
        expect(field).to_have_value(TIRED)
        expect(tab.locator("#view-map .map-head")).to_have_count(3 * 2 * 4)


def test_saved_search_is_marked_fixed(browser: Browser, trace: Trace, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(render_standalone_page(pack_trace(trace, budget=40_000), "#/decode"), encoding="utf-8")
    with open_from_disk(browser, path) as tab:
        view = tab.locator("#view-decode")
        expect(view.locator(".intro")).to_contain_text("cannot be changed in a saved page")
        expect(view.locator(".controls")).to_contain_text("fixed in a saved page")
        expect(view.get_by_text("Choose any candidate")).to_have_count(0)


def test_model_without_languages_shows_folder_name(browser: Browser, trace: Trace, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    packed = pack_trace(trace, name="my-model", budget=40_000)
    packed.manifest["model"] = {**packed.manifest["model"], "languages": None}
    path.write_text(render_standalone_page(packed, "#/translate"), encoding="utf-8")
    with open_from_disk(browser, path) as tab:
        expect(tab.get_by_label("Model", exact=True).locator("option")).to_have_text(["my-model"])


def test_sources_have_same_methods(page: Page, address: str) -> None:
    page.goto(address)
    live, embedded = page.evaluate(
        """async () => {
          const { ServerSource } = await import("heedful/data/server_source.js");
          const { EmbeddedSource } = await import("heedful/data/embedded_source.js");
          const named = (kind) => Object.getOwnPropertyNames(kind.prototype).sort();
          return [named(ServerSource), named(EmbeddedSource)];
        }"""
    )
    assert embedded == [name for name in live if name != "fetchLanguages"]  # only for servers without PyTorch


def test_show_in_notebook_works_in_iframe(browser: Browser, trace: Trace, demo_model: Path, tmp_path: Path) -> None:
    """In the srcdoc of an iframe there is no URL: links and Back must still work."""
    other_trace = heedful.trace(demo_model, TIRED)
    assert other_trace.fingerprint == trace.fingerprint
    html_page = heedful.show(other_trace, kind="encoder", layer=2, head=1, word="it", height=700)
    path = tmp_path / "notebook.html"
    path.write_text(f"<!doctype html><meta charset=utf-8>{html_page._repr_html_()}", encoding="utf-8")
    with open_from_disk(browser, path) as tab:
        frame = tab.frame_locator("iframe")
        expect(frame.get_by_role("heading", name="Encoder self-attention, layer 2, head 1")).to_be_visible()
        expect(frame.locator(".result")).to_contain_text("fatigué")
        frame.get_by_role("link", name="Map").click()
        expect(frame.locator("#view-map .map-head")).to_have_count(3 * 2 * 4)
        tab.evaluate("history.back()")
        expect(frame.get_by_role("heading", name="Encoder self-attention, layer 2, head 1")).to_be_visible()
        assert tab.url == path.as_uri()


def test_trace_file_is_shown(browser: Browser, trace: Trace, tmp_path: Path) -> None:
    save_trace(trace, tmp_path / "record.safetensors")
    heedful.show(tmp_path / "record.safetensors", view="map").save(tmp_path / "page.html")
    with open_from_disk(browser, tmp_path / "page.html") as tab:
        expect(tab.locator("#view-map .map-head")).to_have_count(3 * 2 * 4)


def test_inspect_html_output_writes_page(browser: Browser, demo_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    result = run_heedful("inspect", demo_model, "It slept.", "-o", path, "--kind", "encoder", "--head", "2")
    assert result.status == 0, result.err
    assert "it works offline" in result.out
    with open_from_disk(browser, path) as tab:
        expect(tab.get_by_role("heading", name="Encoder self-attention, layer 2, head 2")).to_be_visible()


def test_inspect_safetensors_output_writes_trace(demo_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "record.safetensors"
    result = run_heedful("inspect", demo_model, TIRED, "-o", path)
    assert result.status == 0, result.err
    assert "fatigué" in result.out
    assert load_trace(path).manifest["translation"]["text"].endswith("fatigué.")
    wrong = run_heedful("inspect", demo_model, TIRED, "-o", tmp_path / "page.html", "--layer", "9")
    assert (wrong.status, "layer 9 does not exist" in wrong.err) == (1, True)
    wrong = run_heedful("inspect", demo_model, TIRED, "-o", tmp_path / "page.html", "--format", "png")
    assert (wrong.status, "--format" in wrong.err) == (1, True)
    assert not (tmp_path / "page.html").exists()


def test_server_downloads_trace_file(address: str, tmp_path: Path) -> None:
    manifest = ask(address, "/api/trace", {"source": TIRED}).json
    path = tmp_path / "record.safetensors"
    path.write_bytes(ask(address, f"/api/trace/{manifest['id']}/record").body)
    loaded = load_trace(path)
    assert loaded.manifest["steps"] == manifest["steps"]
    assert set(loaded.tensors) == set(manifest["tensors"])
    assert ask(address, "/api/trace/unknown/record").status == 404
    assert ask(address, "/api/trace/unknown/page").status == 404


def test_policy_allows_no_foreign_script(page: Page, address: str) -> None:
    response = ask(address, "/")
    policy = response.headers["content-security-policy"]
    (scripts,) = (directive for directive in policy.split("; ") if directive.startswith("script-src"))
    assert re.fullmatch(r"script-src 'self' 'sha256-[\w+/=]+'", scripts)
    assert "frame-ancestors 'none'" in policy
    page.goto(address)
    expect(page.locator(".result")).to_contain_text("fatigué")
    page.expects_errors = True  # type: ignore[attr-defined]
    page.evaluate(
        """() => {
          const script = document.createElement("script");
          script.textContent = "window.broken = true";
          document.head.append(script);
        }"""
    )
    assert page.evaluate("window.broken") is None


def test_url_fragment_round_trip(trace: Trace) -> None:
    manifest = {**trace.manifest, "checkpoint": None}
    manifest["model"] = {**manifest["model"], "name": "en-fr"}
    assert build_url_fragment(PageView(), manifest) == "#/translate?kind=cross&layer=2&head=1"
    it = build_url_fragment(PageView(word="it", head=3, subwords=True), manifest)
    assert it == "#/head?kind=encoder&layer=2&head=3&query=8&words=no"
    assert parse_url_head(it, manifest) == ("encoder", 1, 2)
    assert parse_url_head("#/head?kind=decoder&layer=99&head=mean", manifest) == ("decoder", 1, 0)
    fragment = fit_url_to_trace(f"{it}&text=other&off=cross.1.1&model=de-en", manifest)
    assert fragment.startswith("#/head?kind=encoder&layer=2&head=3&query=8&words=no&model=en-fr&text=The+animal")
    assert "off=" not in fragment
    without = {**manifest, "request": {**manifest["request"], "ablated_heads": ["cross.0.3", "encoder.1.0"]}}
    assert "&off=cross.1.4%2Cencoder.2.1" in fit_url_to_trace(it, without)  # numbers in the URL count from 1
    for wrong in (PageView(kind="sideways"), PageView(layer=3), PageView(head=0), PageView(word="dragon")):
        with pytest.raises(HeedfulError):
            build_url_fragment(wrong, manifest)


def test_given_translation_is_noted(browser: Browser, demo_model: Path, tmp_path: Path) -> None:
    """A given translation or prefix is marked as given."""
    model_folder = ModelFolder.load(demo_model)
    for trace_request, note in (
        (TraceRequest(source=TIRED, target="Le chien."), "This translation was given"),
        (TraceRequest(source=TIRED, prefix="Le chien"), "The start \u201cLe chien\u201d was given"),
    ):
        path = tmp_path / "page.html"
        path.write_text(
            render_standalone_page(pack_trace(compute_trace(model_folder, trace_request), budget=40_000)),
            encoding="utf-8",
        )
        with open_from_disk(browser, path) as tab:
            expect(tab.locator(".note").first).to_contain_text(note)


def test_probabilities_without_logits_at_any_temperature(browser: Browser, demo_model: Path, tmp_path: Path) -> None:
    """A trace may be requested at another temperature; the page shows probabilities at temperature 1."""
    hot = compute_trace(ModelFolder.load(demo_model), TraceRequest(source=TIRED, temperature=3.0))
    small = pack_trace(hot, budget=40_000)
    assert "logits.0" not in small.manifest["tensors"]
    path = tmp_path / "page.html"
    path.write_text(render_standalone_page(small), encoding="utf-8")
    with open_from_disk(browser, path) as tab:
        step = hot.manifest["steps"][0]
        expect(tab.locator(".softmax strong")).to_have_text(f"{step['probability']:.4f}")
        probabilities = hot.activations.tensors["logits"][0].double().softmax(-1)
        cell = tab.locator(".probability-table tbody tr").nth(1).locator("td").nth(1)
        expect(cell).to_have_text(f"{probabilities.topk(2).values[1]:.4f}")
