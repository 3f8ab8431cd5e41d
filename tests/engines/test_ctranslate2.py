"""The CTranslate2 engine on a small trained model gives what PyTorch gives."""

from pathlib import Path

import pytest

from heedful.api import load
from heedful.decoding.config import SearchConfig
from heedful.engines.ctranslate2 import POSITIONS
from heedful.engines.lines import translate_lines
from heedful.engines.segmented import Job, SegmentedEngine
from heedful.errors import HeedfulError
from heedful.text.links import Link

SENTENCES = [
    "The dog is tired.",
    "",
    " I am a student.\n\nThe animal didn't cross the street. ",
    "你好 👋 مرحبا",
    "The dog is tired.",
    "x" * 3000,
]


@pytest.fixture(scope="module")
def native(quick_model: Path) -> SegmentedEngine:
    return load(quick_model, engine="pytorch")


@pytest.fixture(scope="module")
def quick(quick_model: Path) -> SegmentedEngine:
    return load(quick_model, engine="ctranslate2", workers=1)


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("details", [False, True])
def test_same_translations(native: SegmentedEngine, quick: SegmentedEngine, beam: int, details: bool) -> None:
    search = SearchConfig(beam=beam, n_best=beam, extra_length=10)
    ours = native.translate(SENTENCES, search, details=details)
    theirs = quick.translate(SENTENCES, search, details=details)
    compared = 0
    for mine, other in zip(ours, theirs, strict=True):
        if beam > 1 and not mine.complete:  # a beam that is cut off may be cut off otherwise
            continue
        compared += 1
        assert other.text == mine.text
        assert (other.segments, other.complete) == (mine.segments, mine.complete)
        assert other.score == pytest.approx(mine.score, abs=2e-3)
        if details:
            best, same = mine.alternatives[0], other.alternatives[0]
            assert same.alignment == best.alignment
            assert same.token_log_probabilities == pytest.approx(best.token_log_probabilities, abs=1e-4)
    assert compared


def test_links_reach_over_the_whole_text(native: SegmentedEngine) -> None:
    """Words of the second sentence are counted on from the first, and from the space before it."""
    text = "  The dog is tired. I am a student."
    (translation,) = native.translate([text], details=True)
    links = translation.alternatives[0].alignment
    assert {source for source, _ in links} <= set(range(8))
    assert {target for _, target in links} <= set(range(len(translation.text.split())))
    first = len(native.translate(["The dog is tired."])[0].text.split())
    assert all((source >= 4) == (target >= first) for source, target in links)


@pytest.mark.parametrize("mark", ["\ufeff", "\0", "\ufeff\0"])
def test_links_count_words_that_are_not_read(native: SegmentedEngine, mark: str) -> None:
    """A byte-order mark between spaces is a word of the text, but none that the model reads."""

    def links(text: str) -> tuple[Link, ...]:
        return native.translate([text], details=True)[0].alternatives[0].alignment

    plain = links("The dog is tired.")
    assert {source for source, _ in plain} >= {1, 2}
    assert links(f"{mark}The dog is tired.") == plain
    assert links(f"{mark} The dog is tired.") == tuple((one + 1, other) for one, other in plain)
    moved = tuple((one + (one > 1), other) for one, other in plain)
    assert links(f"The dog {mark} is tired.") == moved


def test_prefix_score_and_stream(native: SegmentedEngine, quick: SegmentedEngine) -> None:
    search = SearchConfig(beam=3)
    texts, prefixes = ["The dog is tired.", "I am a student."], ["Le chat", ""]
    ours, theirs = (engine.translate(texts, search, prefixes) for engine in (native, quick))
    assert [each.text for each in theirs] == [each.text for each in ours]
    assert theirs[0].text.startswith("Le chat")
    assert [each.score for each in theirs] == pytest.approx([each.score for each in ours], abs=1e-3)
    greedy = SearchConfig(beam=1)
    for prefix in ("", "Le chat"):
        streamed = "".join(quick.stream(texts[0], greedy, prefix))
        assert streamed == native.translate(texts[:1], greedy, [prefix])[0].text


def test_a_sentence_that_does_not_end_is_cut_alike_alone_and_in_company(quick: SegmentedEngine) -> None:
    search = SearchConfig(beam=4, n_best=4, extra_length=2)
    texts = ["The dog is tired." * number for number in range(1, 4)] + ["x " * 20, "I am a", "y z " * 8]
    jobs = [Job(number, quick._encoded(text, search), []) for number, text in enumerate(texts)]
    together = quick._searched(jobs, search, False)
    alone = [quick._searched([job], search, False)[0] for job in jobs]
    assert not all(each[0].complete for each in alone)  # or nothing was tried
    for ours, theirs in zip(together, alone, strict=True):
        assert [each.tokens for each in ours] == [each.tokens for each in theirs]
        assert [each.score for each in ours] == pytest.approx([each.score for each in theirs], abs=1e-3)


@pytest.mark.long
def test_more_tokens_than_positions(native: SegmentedEngine, quick: SegmentedEngine) -> None:
    """CTranslate2's table of positions ends; the engine does not."""
    long = "Le chien est " * (POSITIONS // 3 + 10)
    for pair in (["The dog."], [long]), ([long], ["Le chien."]):
        (ours,), (theirs,) = (engine.score(*pair) for engine in (native, quick))
        assert theirs.token_log_probabilities == ours.token_log_probabilities
    short = quick.score(["The dog."], ["Le chien."])
    assert quick.score(["The dog."] * 2, [long, "Le chien."])[1:] == short
    search = SearchConfig(beam=1, extra_length=2)
    prefix = ["The dog is tired."], search, [long]
    (ours,), (theirs,) = (engine.translate(*prefix) for engine in (native, quick))
    assert theirs.text == ours.text
    assert len(theirs.alternatives[0].tokens) > POSITIONS


def test_sampling_is_pytorchs(native: SegmentedEngine, quick: SegmentedEngine) -> None:
    search = SearchConfig(method="sample", seed=3, extra_length=5)
    assert quick.translate(SENTENCES[:3], search) == native.translate(SENTENCES[:3], search)


def test_auto_is_the_quickest(quick_model: Path) -> None:
    engine = load(quick_model)
    assert engine.name == "CTranslate2 int8"
    assert (quick_model / "ctranslate2" / "int8" / "model.bin").exists()
    with pytest.raises(HeedfulError, match="no engine 'quick'"):
        load(quick_model, engine="quick")  # type: ignore[arg-type]


def test_lines_in_windows(native: SegmentedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Duplicates are translated once a window; order and number are kept, waiting or not."""
    monkeypatch.setattr("heedful.engines.lines.WINDOW", 3)
    asked: list[int] = []
    real = native.translate

    def counting(texts: list[str], *rest: object, **named: object) -> object:
        asked.append(len(texts))
        return real(texts, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(native, "translate", counting)
    lines = ["The dog is tired."] * 4 + ["I am a student.", "", "The dog is tired."]
    found = list(translate_lines(native, iter(lines), SearchConfig(beam=1), waiting=False))
    assert [each.source for each in found] == lines
    assert len({each.text for each in found if each.source}) == 2
    assert asked == [1, 3, 1]
    waited = list(translate_lines(native, iter(lines), SearchConfig(beam=1)))
    assert [each.text for each in waited] == [each.text for each in found]
