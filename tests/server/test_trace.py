"""The routes behind the page: every mistake is a 400, every field counts, every route asks for the key."""

import gzip
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from heedful.engines.segmented import SegmentedEngine
from heedful.inspection.asked import LONGEST, Asked
from heedful.inspection.record import record
from heedful.inspection.word import explain_word
from heedful.page.assets import assets
from heedful.server.trace import NOT_ON_THE_PAGE
from tests.server.serving import Answer, ask, served

SENTENCE = "The dog was too tired."


@pytest.fixture(scope="module")
def address(engine: SegmentedEngine, quick_model: Path) -> Iterator[str]:
    """A server of a real model."""
    with served(engine, folder=quick_model) as running:
        yield running.address


@pytest.fixture(scope="module")
def made(address: str) -> Any:
    """The trace of one sentence."""
    return trace(address).json


def trace(address: str, source: str = SENTENCE, **more: object) -> Answer:
    return ask(address, "/api/trace", {"source": source, **more})


# ---- mistakes


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({}, "'source': missing"),
        ({"source": 5}, "'source'"),
        ({"source": ["a"]}, "'source'"),
        ({"source": None}, "'source'"),
        ({"source": ""}, "the text is empty"),
        ({"source": " \n "}, "the text is empty"),
        ({"source": "a", "sauce": 1}, "unknown setting 'sauce'"),
        ({"source": "a", "\ud800": 1}, "valid string"),
        ({"source": "a", "model": "xx-yy"}, "there are: en-fr"),
        ({"source": "a", "model": "\ud800"}, "valid string"),
        ({"source": "a", "model": "x" * 521}, "'model'"),
        ({"source": "a", "model": 5}, "'model'"),
        ({"source": "a", "segment": -1}, "'segment'"),
        ({"source": "a", "segment": 1}, "there is no segment 1"),
        ({"source": "a", "segment": 10**30}, "there is no segment"),
        ({"source": "a", "segment": "0"}, "'segment'"),
        ({"source": "a", "segment": 0.5}, "'segment'"),
        ({"source": "a", "segment": True}, "'segment'"),
        ({"source": "a", "checkpoint": 999_999}, "there is no checkpoint of update 999999"),
        ({"source": "a", "checkpoint": -1}, "'checkpoint'"),
        ({"source": "a", "checkpoint": 10**40}, "there is no checkpoint"),
        ({"source": "a", "beam": 0}, "'beam'"),
        ({"source": "a", "beam": 17}, "'beam'"),
        ({"source": "a", "beam": "4"}, "'beam'"),
        ({"source": "a", "temperature": 0}, "'temperature'"),
        ({"source": "a", "temperature": 20.5}, "'temperature'"),
        ({"source": "a", "temperature": "1"}, "'temperature'"),
        ({"source": "a", "off": "cross.0.0"}, "'off'"),
        ({"source": "a", "off": [5]}, "'off.0'"),
        ({"source": "a", "off": ["cross.0"]}, "'cross.0' is not a head"),
        ({"source": "a", "off": ["cross.0.9"]}, "there is no head 10"),
        ({"source": "a", "off": ["cross.9.0"]}, "there is no layer 10"),
        ({"source": "a", "off": ["cross.-1.0"]}, "is not a head"),
        ({"source": "a", "off": ["cross." + "1" * 5000 + ".0"]}, "is not a head"),
        ({"source": "a", "off": ["cross.0.\ud800"]}, "is not a head"),
        ({"source": "a", "off": ["cross.0.0"] * 1025}, "'off'"),
        ({"source": "a", "hidden": 0}, "'hidden'"),
        ({"source": "a", "hidden": ["0"]}, "'hidden.0'"),
        ({"source": "a", "hidden": [True]}, "'hidden.0'"),
        ({"source": "a", "hidden": [0.0]}, "'hidden.0'"),
        ({"source": "a", "hidden": [99]}, "there is no piece 99"),
        ({"source": "a", "hidden": [-1]}, "there is no piece -1"),
        ({"source": "a", "hidden": [10**30]}, "could be hidden"),
        ({"source": "a", "hidden": [0] * (LONGEST + 1)}, "'hidden'"),
        ({"source": "a", "prefix_ids": [0]}, "cannot be written"),
        ({"source": "a", "prefix_ids": [1]}, "cannot be written"),
        ({"source": "a", "prefix_ids": [-5]}, "cannot be written"),
        ({"source": "a", "prefix_ids": [10**30]}, "cannot be written"),
        ({"source": "a", "prefix_ids": ["5"]}, "'prefix_ids.0'"),
        ({"source": "a", "prefix_ids": [5.0]}, "'prefix_ids.0'"),
        ({"source": "a", "prefix_ids": [True]}, "'prefix_ids.0'"),
        ({"source": "a", "prefix_ids": [[5]]}, "'prefix_ids.0'"),
        ({"source": "a", "prefix_ids": [5] * (LONGEST + 1)}, f"at most {LONGEST}"),
        ({"source": "a", "prefix": "le " * 3000}, f"at most {LONGEST}"),
        ({"source": "a", "prefix": "l" * 60_000}, "characters"),
        ({"source": "a", "prefix": "le", "prefix_ids": [5]}, "cannot both be given"),
        ({"source": "a", "target": "le", "target_ids": [5]}, "cannot both be given"),
        ({"source": "a", "target": "", "target_ids": [5]}, "cannot both be given"),
        ({"source": "a", "target": "le", "prefix": "le"}, "cannot both be given"),
        ({"source": "a", "target": "", "prefix_ids": [5]}, "cannot both be given"),
        ({"source": "a", "target_ids": [5], "prefix_ids": [5]}, "cannot both be given"),
        ({"source": "a", "target_ids": [0]}, "cannot be written"),
        ({"source": "a", "target_ids": [5] * (LONGEST + 1)}, f"at most {LONGEST}"),
        ({"source": "a", "target": 5}, "'target'"),
        ({"source": "a", "target": "l" * 60_000}, "characters"),
        ({"source": "a" * 60_000}, "characters"),
    ],
    ids=lambda value: ascii(value)[:50],
)
def test_mistakes(address: str, body: dict[str, object], problem: str) -> None:
    answer = ask(address, "/api/trace", body)
    assert answer.status == 400, answer.body
    assert problem in answer.error
    assert len(answer.body) < 10_000


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b"{" * 50_000,
        b'{"source": "a", "temperature": NaN}',
        b'{"source": "a", "temperature": Infinity}',
        b'{"source": "a", "temperature": 1e400}',
        b'{"source": "a", "beam": ' + b"9" * 5000 + b"}",
        b'{"source": "\xff"}',
    ],
    ids=lambda body: ascii(body)[:40],
)
def test_what_is_no_question(address: str, body: bytes) -> None:
    assert ask(address, "/api/trace", body).status == 400


def test_half_an_emoji_is_a_text(address: str) -> None:
    answer = trace(address, "dog \ud83d", prefix="le \ud83d")
    assert answer.status == 200
    assert answer.json["asked"]["source"] == "dog \ufffd"


def test_a_sentence_that_is_too_long(address: str) -> None:
    """Whole sentences are split where the engine splits them; nothing is cut unsaid."""
    answer = trace(address, "dog " * 600)
    if answer.status == 200:
        told = answer.json
        assert "".join(text + space for text, space in told["segments"]).split() == ["dog"] * 600
        assert len(told["sides"]["source"]["ids"]) <= LONGEST + 1
    else:
        assert answer.status == 400
        assert f"at most {LONGEST}" in answer.error


PLACE = "kind=cross&layer=0&head=0&row=0"


@pytest.mark.parametrize(
    ("path", "status", "problem"),
    [
        ("tensors", 400, "names: Field required"),
        ("tensors?names=", 400, "there is no tensor ''"),
        ("tensors?names=nothing", 400, "there is no tensor 'nothing'"),
        ("tensors?names=lens.ids,nothing", 400, "there is no tensor 'nothing'"),
        ("tensors?names=%ff%00", 400, "there is no tensor"),
        ("tensors?names=" + "a," * 9_000, 400, "there is no tensor"),
        ("tensors?names=" + "a," * 11_000, 400, "names: String should have at most"),
        ("cell", 400, "kind: Field required"),
        ("cell?kind=other&layer=0&head=0&row=0", 400, "kind: Input should be"),
        (f"cell?{PLACE}&key=-1", 400, "key: "),
        (f"cell?{PLACE}&key=999", 400, "there is no piece 1000"),
        ("cell?kind=cross&layer=9&head=0&row=0", 400, "there is no layer 10"),
        ("cell?kind=cross&layer=0&head=9&row=0", 400, "there is no head 10"),
        ("cell?kind=cross&layer=0&head=0&row=999", 400, "there is no piece 1000"),
        ("cell?kind=cross&layer=0&head=0&row=" + "9" * 30, 400, "there is no piece"),
        ("cell?kind=cross&layer=0&head=0&row=" + "9" * 5000, 400, "row: "),
        ("cell?kind=cross&layer=0.5&head=0&row=0", 400, "layer: "),
        ("cell?kind=cross&layer=NaN&head=0&row=0", 400, "layer: "),
        ("cell?kind=cross&layer=0&head=-1&row=0", 400, "head: "),
        ("alternatives", 400, "step: Field required"),
        ("alternatives?step=-1", 400, "step: "),
        ("alternatives?step=999", 400, "there is no step 1000"),
        ("alternatives?step=" + "9" * 30, 400, "there is no step"),
        ("alternatives?step=0&count=0", 400, "count: "),
        ("alternatives?step=0&count=21", 400, "count: "),
        ("alternatives?step=0&count=x", 400, "count: "),
        ("page?view=" + "a" * 20_001, 400, "view: "),
        ("nothing", 404, ""),
    ],
    ids=lambda value: ascii(value)[:50],
)
def test_mistakes_about_a_trace(address: str, made: Any, path: str, status: int, problem: str) -> None:
    answer = ask(address, f"/api/trace/{made['id']}/{path}")
    assert answer.status == status, answer.body
    assert problem in answer.error


@pytest.mark.parametrize(
    "view", ["#/cell?kind=x&layer=" + "9" * 5000, "%ff%fe", "#//?&=&", "<script>"], ids=ascii
)
def test_a_page_opens_whatever_the_view(address: str, made: Any, view: str) -> None:
    answer = ask(address, f"/api/trace/{made['id']}/page?view={quote(view, safe='%')}")
    assert answer.status == 200
    assert b"<script>\x22" not in answer.body


@pytest.mark.parametrize(
    "name", ["nothing", "a" * 10_000, "%ff%00", "..", "%F0%9F%90%95"], ids=lambda name: name[:9]
)
@pytest.mark.parametrize(
    "path", ["tensors?names=lens.ids", f"cell?{PLACE}", "alternatives?step=0", "page", "record"]
)
def test_names_of_no_trace(address: str, name: str, path: str) -> None:
    answer = ask(address, f"/api/trace/{name}/{path}")
    assert answer.status == 404
    assert answer.error


# ---- every field counts


def test_every_field_makes_another_trace(address: str, made: Any) -> None:
    """What is accepted has an effect, on the name and on what is told."""
    [model] = ask(address, "/api/models").json
    assert len(model["checkpoints"]) > 1
    first, *_, last = model["checkpoints"]
    changes: list[dict[str, object]] = [
        {"segment": 1},
        {"checkpoint": first},
        {"checkpoint": last},
        {"beam": 2},
        {"beam": 3},
        {"temperature": 2.0},
        {"off": ["cross.0.1"]},
        {"off": ["cross.0.0"]},
        {"prefix": "un"},
        {"prefix_ids": [30]},
        {"target": "un"},
        {"target_ids": [31]},
        {"target_ids": []},
    ]
    two = f"{SENTENCE} The cat slept."
    found = [trace(address, two, **change) for change in changes]
    assert [answer.status for answer in found] == [200] * len(changes)
    told = [answer.json for answer in found]
    assert len({each["id"] for each in [made, *told]}) == len(changes) + 1
    numbers = [json.dumps([each["steps"], each["beam"], each["sides"]]) for each in [made, *told]]
    assert len(set(numbers)) >= len(numbers) - 1  # the last checkpoint may be the model itself
    assert [each["checkpoint"] for each in told[1:3]] == [first, last]


def test_the_same_weights_at_a_checkpoint_are_another_trace(address: str, made: Any) -> None:
    """Else the one would be told as the other."""
    checkpoint = ask(address, "/api/models").json[0]["checkpoints"][-1]
    assert trace(address, checkpoint=checkpoint).json["checkpoint"] == checkpoint
    again = trace(address).json
    assert again["checkpoint"] is None
    assert again["id"] == made["id"]


def test_the_beam_of_a_given_target_is_that_of_its_alternatives(address: str) -> None:
    def texts(beam: int) -> list[str]:
        name = trace(address, target="le chien", beam=beam).json["id"]
        found = ask(address, f"/api/trace/{name}/alternatives?step=1&count=20").json["alternatives"]
        return [each["text"] for each in found]

    assert texts(1) != texts(8)


@pytest.mark.parametrize(
    ("text", "segment", "chosen"),
    [("One. Two.", 0, "One."), ("One. Two.", 1, "Two."), ("\n\nOne. Two.", 0, "One.")],
)
def test_which_sentence(address: str, text: str, segment: int, chosen: str) -> None:
    told = trace(address, text, segment=segment).json
    assert told["asked"]["source"] == chosen
    assert told["segments"][told["segment"]][0] == chosen
    assert "".join(part + space for part, space in told["segments"]) == text


# ---- answers


def test_a_cell_holds_what_the_page_uses_and_no_more(
    address: str, made: Any, engine: SegmentedEngine
) -> None:
    answer = ask(address, f"/api/trace/{made['id']}/cell?{PLACE}")
    values = answer.json["values"]
    assert not NOT_ON_THE_PAGE & values.keys()
    assert len(values["w_query"]) == engine.bundle.config.model.width
    files = ("views/cell.js", "parts/arithmetic.js", "parts/lesson_steps.js", "parts/lesson_place.js")
    scripts = "".join(assets()[name].content.decode() for name in files)
    assert "values.w_query" in scripts
    assert not [name for name in NOT_ON_THE_PAGE if re.search(rf"\b{name}\b", scripts)]


def test_a_cell_is_small_in_a_wide_model() -> None:
    from tests.inspection.models import new_bundle

    bundle = new_bundle(width=128, heads=4, layers=(1, 1))
    engine = _Engine(bundle)
    with served(engine) as running:
        name = trace(running.address).json["id"]
        path = f"/api/trace/{name}/cell?kind=encoder&layer=0&head=1&row=2"
        assert len(ask(running.address, path).body) < 200_000
        squeezed = ask(running.address, path, headers={"Accept-Encoding": "gzip"})
    assert len(squeezed.body) < 80_000


class _Engine(SegmentedEngine):
    """A model that is not asked to translate; it only has to be looked into."""

    name = "none"

    def _searched(self, jobs: Any, settings: Any, details: bool) -> Any:
        from heedful.engines.segmented import EMPTY

        return [[EMPTY] for _ in jobs]

    def _scored(self, sources: Any, targets: Any) -> Any:
        raise NotImplementedError

    def _written(self, ids: Any, prefix: Any, settings: Any) -> Any:
        raise NotImplementedError

    def _watched(self, ids: Any, hypothesis: Any) -> Any:
        raise NotImplementedError


def test_squeezed_answers_are_the_same(address: str, made: Any) -> None:
    for path in (f"cell?{PLACE}", "tensors?names=encoder.0.self.weights,logits.0"):
        plain, squeezed = (
            ask(address, f"/api/trace/{made['id']}/{path}", headers=headers)
            for headers in ({}, {"Accept-Encoding": "br, gzip"})
        )
        assert "content-encoding" not in plain.headers
        assert squeezed.headers["content-encoding"] == "gzip"
        assert plain.headers["vary"] == squeezed.headers["vary"] == "Accept-Encoding"
        assert gzip.decompress(squeezed.body) == plain.body


def test_numbers_are_exact_and_those_of_a_cell_nearly(
    address: str, made: Any, engine: SegmentedEngine
) -> None:
    """A cell has nine digits, more than a float32 holds."""
    exact = record(engine.bundle, Asked(source=SENTENCE))
    for mine, theirs in zip(exact.manifest["steps"], made["steps"], strict=True):
        assert theirs["id"] == mine["id"]
        for name in ("log_probability", "logit", "entropy"):  # other threads round otherwise
            assert theirs[name] == pytest.approx(mine[name], rel=1e-5, abs=1e-6)
    told = ask(address, f"/api/trace/{made['id']}/cell?{PLACE}").json["values"]
    values = explain_word(exact.bundle, exact.seen, "cross", 0, 0, 0).values
    assert told["q"] == pytest.approx(values["q"], rel=1e-8)
    assert told["q"] != values["q"]


# ---- keys


def test_every_route_of_the_data_asks_for_the_key(engine: SegmentedEngine, quick_model: Path) -> None:
    with served(engine, folder=quick_model, api_keys=("secret",)) as running:
        address, key = running.address, {"Authorization": "Bearer secret"}
        for path in ("/", "/page/main.js", "/page/style.css"):
            assert ask(address, path).status == 200  # the page itself is no secret
        assert trace(address).status == 403
        name = ask(address, "/api/trace", {"source": SENTENCE}, headers=key).json["id"]
        described = ask(address, "/openapi.json").json["paths"]
        own = [path for path in described if path.startswith("/api/")]
        assert len(own) == 12
        query = f"names=lens.ids&{PLACE}&step=0"
        for path in own:
            [method] = described[path]
            asked = (
                f"{path.replace('{name}', name)}?{query}",
                {"source": SENTENCE} if method == "post" else None,
            )
            assert ask(address, *asked).status == 403, path
            assert ask(address, *asked, headers={"Authorization": "Bearer wrong"}).status == 403, path
            assert ask(address, *asked, headers=key).status != 403, path


def test_a_question_without_the_key_is_refused_before_its_body_is_read(engine: SegmentedEngine) -> None:
    with served(engine, api_keys=("secret",)) as running:
        host, port = running.address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(b"POST /api/trace HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 403")
