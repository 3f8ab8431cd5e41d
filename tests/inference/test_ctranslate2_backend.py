"""The CTranslate2 engine on a small trained model gives what PyTorch gives."""

from pathlib import Path

import pytest

from heedful.convert.compatibility import MAX_SINUSOIDAL_POSITIONS
from heedful.data.word_alignment import WordLink
from heedful.errors import HeedfulError
from heedful.generation.config import GenerationConfig
from heedful.inference.bulk import translate_lines
from heedful.inference.loading import load
from heedful.inference.translation import SearchInput
from heedful.inference.translator import Translator

SENTENCES = [
    "The dog is tired.",
    "",
    " I am a student.\n\nThe animal didn't cross the street. ",
    "你好 👋 مرحبا",
    "The dog is tired.",
    "x" * 3000,
]


@pytest.fixture(scope="module")
def native(quick_model: Path) -> Translator:
    return load(quick_model, engine="pytorch")


@pytest.fixture(scope="module")
def quick(quick_model: Path) -> Translator:
    return load(quick_model, engine="ctranslate2", workers=1)


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("details", [False, True])
def test_ctranslate2_translations_match_pytorch(
    native: Translator, quick: Translator, beam: int, details: bool
) -> None:
    search = GenerationConfig(beam_size=beam, n_best=beam, max_length_offset=10)
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


def test_alignment_of_several_sentences_covers_text(native: Translator) -> None:
    """Words of the second sentence are counted on from the first, and from the space before it."""
    text = "  The dog is tired. I am a student."
    (translation,) = native.translate([text], details=True)
    links = translation.alternatives[0].alignment
    assert {source for source, _ in links} <= set(range(8))
    assert {target for _, target in links} <= set(range(len(translation.text.split())))
    first = len(native.translate(["The dog is tired."])[0].text.split())
    assert all((source >= 4) == (target >= first) for source, target in links)


@pytest.mark.parametrize("mark", ["\ufeff", "\0", "\ufeff\0"])
def test_alignment_counts_words_removed_by_cleaning(native: Translator, mark: str) -> None:
    """A byte-order mark between spaces is a word of the text, but none that the model reads."""

    def links(text: str) -> tuple[WordLink, ...]:
        return native.translate([text], details=True)[0].alternatives[0].alignment

    plain = links("The dog is tired.")
    assert {source for source, _ in plain} >= {1, 2}
    assert links(f"{mark}The dog is tired.") == plain
    assert links(f"{mark} The dog is tired.") == tuple((one + 1, other) for one, other in plain)
    moved = tuple((one + (one > 1), other) for one, other in plain)
    assert links(f"The dog {mark} is tired.") == moved


def test_ctranslate2_prefix_score_and_stream_match_pytorch(native: Translator, quick: Translator) -> None:
    search = GenerationConfig(beam_size=3)
    texts, prefixes = ["The dog is tired.", "I am a student."], ["Le chat", ""]
    ours, theirs = (engine.translate(texts, search, prefixes) for engine in (native, quick))
    assert [each.text for each in theirs] == [each.text for each in ours]
    assert theirs[0].text.startswith("Le chat")
    assert [each.score for each in theirs] == pytest.approx([each.score for each in ours], abs=1e-3)
    greedy = GenerationConfig(beam_size=1)
    for prefix in ("", "Le chat"):
        streamed = "".join(quick.stream(texts[0], greedy, prefix))
        assert streamed == native.translate(texts[:1], greedy, [prefix])[0].text


def test_ctranslate2_truncation_is_independent_of_batch(quick: Translator) -> None:
    search = GenerationConfig(beam_size=4, n_best=4, max_length_offset=2)
    texts = ["The dog is tired." * number for number in range(1, 4)] + ["x " * 20, "I am a", "y z " * 8]
    jobs = [SearchInput(quick.model_folder.source_ids(text, search.target_language), []) for text in texts]
    together = quick.backend.search(jobs, search)
    alone = [quick.backend.search([job], search)[0] for job in jobs]
    assert not all(each[0].complete for each in alone)  # or nothing was tried
    for ours, theirs in zip(together, alone, strict=True):
        assert [each.tokens for each in ours] == [each.tokens for each in theirs]
        assert [each.score for each in ours] == pytest.approx([each.score for each in theirs], abs=1e-3)


@pytest.mark.long
def test_ctranslate2_more_tokens_than_positions_uses_pytorch(native: Translator, quick: Translator) -> None:
    """CTranslate2's table of positions ends; the engine does not."""
    long = "Le chien est " * (MAX_SINUSOIDAL_POSITIONS // 3 + 10)
    for pair in (["The dog."], [long]), ([long], ["Le chien."]):
        (ours,), (theirs,) = (engine.score(*pair) for engine in (native, quick))
        assert theirs.token_log_probabilities == ours.token_log_probabilities
    short = quick.score(["The dog."], ["Le chien."])
    assert quick.score(["The dog."] * 2, [long, "Le chien."])[1:] == short
    search = GenerationConfig(beam_size=1, max_length_offset=2)
    prefix = ["The dog is tired."], search, [long]
    (ours,), (theirs,) = (engine.translate(*prefix) for engine in (native, quick))
    assert theirs.text == ours.text
    assert len(theirs.alternatives[0].tokens) > MAX_SINUSOIDAL_POSITIONS


def test_ctranslate2_sampling_uses_pytorch(native: Translator, quick: Translator) -> None:
    search = GenerationConfig(method="sample", seed=3, max_length_offset=5)
    assert quick.translate(SENTENCES[:3], search) == native.translate(SENTENCES[:3], search)


def test_load_auto_selects_int8(quick_model: Path) -> None:
    engine = load(quick_model)
    assert engine.name == "CTranslate2 int8"
    assert (quick_model / "ctranslate2" / "int8" / "model.bin").exists()
    with pytest.raises(HeedfulError, match="unknown engine 'quick'"):
        load(quick_model, engine="quick")  # type: ignore[arg-type]


def test_translate_lines_batches_and_deduplicates(native: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Duplicates are translated once a window; order and number are kept, waiting or not."""
    monkeypatch.setattr("heedful.inference.bulk.BATCH_LINES", 3)
    asked: list[int] = []
    real = native.translate

    def counting(texts: list[str], *rest: object, **named: object) -> object:
        asked.append(len(texts))
        return real(texts, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(native, "translate", counting)
    lines = ["The dog is tired."] * 4 + ["I am a student.", "", "The dog is tired."]
    found = list(translate_lines(native, iter(lines), GenerationConfig(beam_size=1), interactive=False))
    assert [each.source for each in found] == lines
    assert len({each.text for each in found if each.source}) == 2
    assert asked == [1, 3, 1]
    waited = list(translate_lines(native, iter(lines), GenerationConfig(beam_size=1)))
    assert [each.text for each in waited] == [each.text for each in found]
