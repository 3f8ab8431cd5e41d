"""The CTranslate2 backend gives the same results as PyTorch on a small trained model."""

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
def pytorch(quick_model: Path) -> Translator:
    return load(quick_model, engine="pytorch")


@pytest.fixture(scope="module")
def ctranslate2(quick_model: Path) -> Translator:
    return load(quick_model, engine="ctranslate2", workers=1)


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("details", [False, True])
def test_ctranslate2_translations_match_pytorch(
    pytorch: Translator, ctranslate2: Translator, beam: int, details: bool
) -> None:
    search = GenerationConfig(beam_size=beam, n_best=beam, max_length_offset=10)
    pytorch_translations = pytorch.translate(SENTENCES, search, details=details)
    ctranslate2_translations = ctranslate2.translate(SENTENCES, search, details=details)
    compared = 0
    for expected, actual in zip(pytorch_translations, ctranslate2_translations, strict=True):
        if beam > 1 and not expected.complete:  # truncated beams may differ
            continue
        compared += 1
        assert actual.text == expected.text
        assert (actual.segments, actual.complete) == (expected.segments, expected.complete)
        assert actual.score == pytest.approx(expected.score, abs=2e-3)
        if details:
            expected_best, actual_best = expected.alternatives[0], actual.alternatives[0]
            assert actual_best.alignment == expected_best.alignment
            assert actual_best.token_log_probabilities == pytest.approx(expected_best.token_log_probabilities, abs=1e-4)
    assert compared


def test_alignment_of_several_sentences_covers_text(pytorch: Translator) -> None:
    """Word indices of the second sentence continue those of the first; leading spaces do not count."""
    text = "  The dog is tired. I am a student."
    (translation,) = pytorch.translate([text], details=True)
    links = translation.alternatives[0].alignment
    assert {source for source, _ in links} <= set(range(8))
    assert {target for _, target in links} <= set(range(len(translation.text.split())))
    first = len(pytorch.translate(["The dog is tired."])[0].text.split())
    assert all((source >= 4) == (target >= first) for source, target in links)


@pytest.mark.parametrize("mark", ["\ufeff", "\0", "\ufeff\0"])
def test_alignment_counts_words_removed_by_cleaning(pytorch: Translator, mark: str) -> None:
    """A byte-order mark between spaces is a word of the text that the model does not see."""

    def links(text: str) -> tuple[WordLink, ...]:
        return pytorch.translate([text], details=True)[0].alternatives[0].alignment

    plain = links("The dog is tired.")
    assert {source for source, _ in plain} >= {1, 2}
    assert links(f"{mark}The dog is tired.") == plain
    assert links(f"{mark} The dog is tired.") == tuple((source + 1, target) for source, target in plain)
    moved = tuple((source + (source > 1), target) for source, target in plain)
    assert links(f"The dog {mark} is tired.") == moved


def test_ctranslate2_prefix_score_and_stream_match_pytorch(pytorch: Translator, ctranslate2: Translator) -> None:
    search = GenerationConfig(beam_size=3)
    texts, prefixes = ["The dog is tired.", "I am a student."], ["Le chat", ""]
    ours, theirs = (engine.translate(texts, search, prefixes) for engine in (pytorch, ctranslate2))
    assert [translation.text for translation in theirs] == [translation.text for translation in ours]
    assert theirs[0].text.startswith("Le chat")
    assert [translation.score for translation in theirs] == pytest.approx(
        [translation.score for translation in ours], abs=1e-3
    )
    greedy = GenerationConfig(beam_size=1)
    for prefix in ("", "Le chat"):
        streamed = "".join(ctranslate2.stream(texts[0], greedy, prefix))
        assert streamed == pytorch.translate(texts[:1], greedy, [prefix])[0].text


def test_ctranslate2_truncation_is_independent_of_batch(ctranslate2: Translator) -> None:
    search = GenerationConfig(beam_size=4, n_best=4, max_length_offset=2)
    texts = ["The dog is tired." * number for number in range(1, 4)] + ["x " * 20, "I am a", "y z " * 8]
    inputs = [SearchInput(ctranslate2.model_folder.source_ids(text, search.target_language), []) for text in texts]
    batched = ctranslate2.backend.search(inputs, search)
    alone = [ctranslate2.backend.search([search_input], search)[0] for search_input in inputs]
    assert not all(hypotheses[0].complete for hypotheses in alone)  # some are truncated
    for ours, theirs in zip(batched, alone, strict=True):
        assert [hypothesis.tokens for hypothesis in ours] == [hypothesis.tokens for hypothesis in theirs]
        assert [hypothesis.score for hypothesis in ours] == pytest.approx(
            [hypothesis.score for hypothesis in theirs], abs=1e-3
        )


@pytest.mark.long
def test_ctranslate2_more_tokens_than_positions_uses_pytorch(pytorch: Translator, ctranslate2: Translator) -> None:
    """CTranslate2 has a maximum number of positions; the backend does not."""
    long = "Le chien est " * (MAX_SINUSOIDAL_POSITIONS // 3 + 10)
    for pair in (["The dog."], [long]), ([long], ["Le chien."]):
        (ours,), (theirs,) = (engine.score(*pair) for engine in (pytorch, ctranslate2))
        assert theirs.token_log_probabilities == ours.token_log_probabilities
    short = ctranslate2.score(["The dog."], ["Le chien."])
    assert ctranslate2.score(["The dog."] * 2, [long, "Le chien."])[1:] == short
    search = GenerationConfig(beam_size=1, max_length_offset=2)
    prefix = ["The dog is tired."], search, [long]
    (ours,), (theirs,) = (engine.translate(*prefix) for engine in (pytorch, ctranslate2))
    assert theirs.text == ours.text
    assert len(theirs.alternatives[0].tokens) > MAX_SINUSOIDAL_POSITIONS


def test_ctranslate2_sampling_uses_pytorch(pytorch: Translator, ctranslate2: Translator) -> None:
    search = GenerationConfig(method="sample", seed=3, max_length_offset=5)
    assert ctranslate2.translate(SENTENCES[:3], search) == pytorch.translate(SENTENCES[:3], search)


def test_load_auto_selects_int8(quick_model: Path) -> None:
    engine = load(quick_model)
    assert engine.name == "CTranslate2 int8"
    assert not (quick_model / "ctranslate2").exists()
    with pytest.raises(HeedfulError, match="unknown engine 'quick'"):
        load(quick_model, engine="quick")  # type: ignore[arg-type]


def test_translate_lines_batches_and_deduplicates(pytorch: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Duplicates are translated once per batch; order and number stay the same, interactive or not."""
    monkeypatch.setattr("heedful.inference.bulk.BATCH_LINES", 3)
    batch_sizes: list[int] = []
    original_translate = pytorch.translate

    def translate(texts: list[str], *args: object, **options: object) -> object:
        batch_sizes.append(len(texts))
        return original_translate(texts, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(pytorch, "translate", translate)
    lines = ["The dog is tired."] * 4 + ["I am a student.", "", "The dog is tired."]
    translations = list(translate_lines(pytorch, iter(lines), GenerationConfig(beam_size=1), interactive=False))
    assert [translation.source for translation in translations] == lines
    assert len({translation.text for translation in translations if translation.source}) == 2
    assert batch_sizes == [1, 3, 1]
    interactive_translations = list(translate_lines(pytorch, iter(lines), GenerationConfig(beam_size=1)))
    assert [translation.text for translation in interactive_translations] == [
        translation.text for translation in translations
    ]
