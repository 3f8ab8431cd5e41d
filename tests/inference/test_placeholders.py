"""Placeholders, addresses, protected terms and glossary terms survive any translator."""

import random
import re
import time
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.errors import HeedfulError
from heedful.inference.placeholders import translate_with_rules
from heedful.inference.projection import Alignment, TextChunk, join_chunks, run_generator
from heedful.inference.translation import Alternative
from heedful.tokenization.protected_spans import ProtectionRules, placeholder_ranges

EXAMPLES = settings(max_examples=80, deadline=None)  # the machine may be busy
Translate = Callable[[list[str]], list[Alternative]]


def find_placeholders(text: str) -> list[str]:
    return [text[start:end] for start, end in placeholder_ranges(text)]


def upper(text: str) -> Alternative:
    """Every word in capitals, linked to its source."""
    return Alternative(text.upper(), alignment=tuple((word, word) for word in range(len(text.split()))))


def reverse(text: str) -> Alternative:
    """The words in reverse order."""
    words = text.split()
    links = tuple((word, len(words) - 1 - word) for word in range(len(words)))
    return Alternative(" ".join(reversed(words)), alignment=links)


def per_text(function: Callable[[str], Alternative]) -> Translate:
    return lambda texts: [function(text) for text in texts]


def translate_text(text: str, translate: Translate, rules: ProtectionRules | None = None) -> str:
    [result] = run_generator(translate_with_rules([text], rules or ProtectionRules()), translate)
    return result.text


class RecordingTranslator:
    """A translator that records its calls."""

    def __init__(self, function: Callable[[str], Alternative]) -> None:
        self.function, self.rounds = function, list[list[str]]()

    def __call__(self, texts: list[str]) -> list[Alternative]:
        self.rounds.append(texts)
        return [self.function(text) for text in texts]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%s, %1$s, %(name)s, %d, %.2f, %-5d, %lld, %@ and %%", 9),
        ("Hi %{count} %<name>s", 2),
        ("{name} {0} {} {0:.2f} {user.name!r} {{name}} {{ name | upper }} ${name} $NAME$", 9),
        ("{count, plural, one {# file of {total}} other {# files}} left", 1),
        ("See https://example.org/a?b=1#c, www.example.org or me.too+x@mail.example.org.", 3),
        ("100%ige, 5 % des Preises, 50% discount, 100 % sure, $5, US$name, @bob, { a b }, 3 < 4", 0),
        ("{count, plural, one {never closed}", 0),
    ],
)
def test_placeholder_ranges_finds_all_placeholders(text: str, expected: int) -> None:
    assert len(find_placeholders(text)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(see https://example.org/a_(b)).", "https://example.org/a_(b)"),
        ("请看https://example.org/x。谢谢", "https://example.org/x"),
        ("<https://example.org/>", "https://example.org/"),
        ("写信给me@example.org吧", "me@example.org"),
        ("%ss", "%s"),
        ("a {n, select, a {{x}} other {y}} b", "{n, select, a {{x}} other {y}}"),
    ],
)
def test_placeholder_ranges_end_after_placeholder(text: str, expected: str) -> None:
    assert find_placeholders(text) == [expected]


def test_find_spans_terms_match_whole_words() -> None:
    rules = ProtectionRules(keep=("Acme", "New York", "C++"), glossary={"cat": "Katze", "big cat": "Löwe"})
    targets = [span.target for span in rules.find_spans("Acme's Acmes acme New York C++ Cat cats big CAT 用Acme吧")]
    assert targets == ["Acme", "New York", "C++", "Katze", "Löwe", "Acme"]


def test_find_spans_overlapping_spans_are_merged() -> None:
    text = "at 50 %s now"
    assert [span.target for span in ProtectionRules(keep=("50 %",)).find_spans(text)] == ["50 %s"]
    assert [span.target for span in ProtectionRules(glossary={"s": "x", "now": "y"}).find_spans(text)] == ["%s", "y"]


@pytest.mark.parametrize("rules", [{"keep": ("",)}, {"glossary": {"a": " "}}, {"glossary": {"": "b"}}])
def test_protection_rules_empty_term_raises(rules: dict[str, object]) -> None:
    with pytest.raises(HeedfulError):
        ProtectionRules(**rules)  # type: ignore[arg-type]


def test_translate_without_spans_takes_one_round() -> None:
    translate = RecordingTranslator(lambda text: Alternative(f" {text} {{x}} ", alignment=((0, 7),)))
    assert run_generator(translate_with_rules(["a b", "", "12"], ProtectionRules()), translate) == [
        Alternative(" a b {x} ", alignment=((0, 7),)),
        Alternative("  {x} ", alignment=((0, 7),)),
        Alternative(" 12 {x} ", alignment=((0, 7),)),
    ]
    assert translate.rounds == [["a b", "", "12"]]


def test_translate_preserved_spans_are_accepted() -> None:
    translate = RecordingTranslator(reverse)
    assert translate_text("Hello %s from {name}", translate) == "{name} from %s Hello"
    assert len(translate.rounds) == 1


def test_translate_lost_span_translates_gaps() -> None:
    translate = RecordingTranslator(upper)
    assert translate_text("  Hello, %s!  Files: {n} / {n}. See\n{where}.", translate) == (
        "  HELLO, %s!  FILES: {n} / {n}. SEE\n{where}."
    )
    assert translate.rounds[1] == ["Hello,", "Files:", "See"]


def test_translate_only_spans_calls_no_translator() -> None:
    translate = RecordingTranslator(upper)
    assert translate_text("{a}: %s (cat)", translate, ProtectionRules(glossary={"cat": "Katze"})) == "{a}: %s (Katze)"
    assert not translate.rounds


@pytest.mark.parametrize("wrong", ["", "%s %s", "{name}%s", "%d", "%sx", "%1$s"])
def test_translate_wrong_placeholder_is_rejected(wrong: str) -> None:
    answers = {"take %s": wrong, "take": "nimm"}
    assert translate_text("take %s", per_text(lambda text: Alternative(answers[text]))) == "nimm %s"


def test_translate_spurious_placeholder_keeps_gap() -> None:
    assert translate_text("take %s", per_text(lambda text: Alternative("%d"))) == "take %s"


def test_glossary_source_term_in_translation_is_replaced() -> None:
    rules = ProtectionRules(glossary={"cat": "Katze"})
    assert translate_text("a Cat.", per_text(lambda text: Alternative("eine Cat.")), rules) == "eine Katze."


def test_glossary_aligned_word_is_replaced() -> None:
    rules, answer = (
        ProtectionRules(glossary={"cat": "liebe Katze"}),
        Alternative("le chat, noir", alignment=((0, 0), (1, 2), (2, 1))),
    )
    [result] = run_generator(translate_with_rules(["the black cat"], rules), lambda texts: [answer])
    assert result == Alternative("le liebe Katze, noir", alignment=((0, 0), (1, 3), (2, 1), (2, 2)))


def test_glossary_target_term_in_translation_is_accepted() -> None:
    translate = RecordingTranslator(lambda text: Alternative("die Katze"))
    assert translate_text("the cat", translate, ProtectionRules(glossary={"cat": "Katze"})) == "die Katze"
    assert len(translate.rounds) == 1


@pytest.mark.parametrize("links", [(), ((0, 1), (1, 1)), ((1, 0), (1, 2)), ((1, 7),)])
def test_glossary_ambiguous_alignment_translates_gaps(links: tuple[tuple[int, int], ...]) -> None:
    answers = {"the cat sleeps": Alternative("dort le chat", alignment=links), "the": Alternative("DIE")}
    result = translate_text(
        "the cat sleeps",
        per_text(lambda text: answers.get(text, Alternative("schläft"))),
        ProtectionRules(glossary={"cat": "Katze"}),
    )
    assert result == "DIE Katze schläft"


def test_translate_links_follow_spans_and_gaps() -> None:
    [result] = run_generator(translate_with_rules(["put (%s) down now"], ProtectionRules()), per_text(upper))
    assert result == Alternative("PUT (%s) DOWN NOW", alignment=((0, 0), (1, 1), (2, 2), (3, 3)))
    wrong = Alternative("jetzt %s setzen", alignment=((0, 0), (1, 0), (2, 2)))
    [result] = run_generator(translate_with_rules(["now %s put"], ProtectionRules()), lambda texts: [wrong])
    assert result.alignment == ((0, 0), (1, 1), (2, 2))


def test_alignment_ignores_links_to_missing_words() -> None:
    assert Alignment("a b", "c", ((0, 0), (1, 5), (9, 0), (-1, 0))).linked_targets == [{0}, set()]
    assert join_chunks([TextChunk("a", "b", ((0, 3),))]).links == ()


def test_run_generator_raises_errors_of_translator() -> None:
    def fail(texts: list[str]) -> list[Alternative]:
        raise HeedfulError("no engine")

    with pytest.raises(HeedfulError, match="no engine"):
        run_generator(translate_with_rules(["a"], ProtectionRules()), fail)


PROTECTED = ["%s", "%1$s", "{name}", "{{x}}", "${y}", "https://example.org/a", "a.b@example.org", "Acme", "%%"]
WORDS = st.sampled_from(["hello", "cat", "Über", "нет", "1,5", "-", "it's", "'cat'", "acme"])
TEXTS = st.lists(WORDS | st.sampled_from(PROTECTED), max_size=12).map(" ".join)


def random_translator(seed: int) -> Translate:
    """Drops, repeats, shuffles and changes words, with random links."""
    rng = random.Random(seed)

    def translate(text: str) -> Alternative:
        words = [word for word in text.split() for _ in range(rng.choice([0, 1, 1, 1, 2]))]
        rng.shuffle(words)
        words = [word.replace("%s", "%d") if rng.random() < 0.2 else word for word in words]
        links = [(rng.randrange(9), rng.randrange(9)) for _ in range(rng.randrange(9))]
        return Alternative(" ".join(words), alignment=tuple(links))

    return per_text(translate)


def count_placeholders(text: str) -> Counter[str]:
    return Counter(re.findall("|".join(map(re.escape, sorted(PROTECTED, key=len, reverse=True))), text))


@EXAMPLES
@given(st.lists(TEXTS, max_size=4), st.integers())
def test_translate_random_texts_keep_spans(texts: list[str], seed: int) -> None:
    rules = ProtectionRules(keep=("Acme",), glossary={"cat": "Katze"})
    translate = RecordingTranslator(lambda text: random_translator(seed)([text])[0])
    for text, result in zip(texts, run_generator(translate_with_rules(texts, rules), translate), strict=True):
        if rules.find_spans(text):
            assert count_placeholders(result.text) == count_placeholders(text)
            assert len(re.findall("Katze", result.text)) == text.count("cat")
    assert len(translate.rounds) <= 2


@EXAMPLES
@given(st.text(max_size=40) | TEXTS, st.booleans())
def test_translate_identity_changes_nothing(text: str, linked: bool) -> None:
    links = tuple((word, word) for word in range(len(text.split()))) if linked else ()
    assert (
        translate_text(text, per_text(lambda gap: Alternative(gap, alignment=links)), ProtectionRules(keep=("Acme",)))
        == text
    )


@EXAMPLES
@given(TEXTS)
def test_translate_gaps_keep_order(text: str) -> None:
    result = translate_text(text, per_text(lambda gap: Alternative(gap.upper())))
    placeholders = [word for word in text.split() if word in PROTECTED and word != "Acme"]
    assert [word for word in result.split() if word in placeholders] == placeholders


MAX_CPU_SECONDS = 60
"""A hundred times what linear code needs for the inputs below; quadratic code needs more than that."""


@pytest.mark.parametrize("unit", ["{a,plural,", "{", "a.", "%", "http://", "$a", "x@", "{{", "((", "a "])
def test_find_spans_long_text_is_linear(unit: str) -> None:
    start_time = time.process_time()
    ProtectionRules(keep=("a b", "a."), glossary={"x": "y"}).find_spans(unit * (200_000 // len(unit)))
    assert time.process_time() - start_time < MAX_CPU_SECONDS


@pytest.mark.parametrize("end", [")", ").", "]})", "..."])
def test_placeholder_ranges_address_with_much_punctuation_is_linear(end: str) -> None:
    start_time = time.process_time()
    [(start, stop)] = placeholder_ranges("http://a/(b)" + end * (800_000 // len(end)))
    assert (start, stop) == (0, len("http://a/(b)"))
    assert time.process_time() - start_time < MAX_CPU_SECONDS


@pytest.mark.parametrize("removed", ["", "{"])
def test_translate_many_placeholders_is_linear(removed: str) -> None:
    text = "word " + " ".join(f"{{{number}}}" for number in range(16_000))
    start_time = time.process_time()
    result = translate_text(text, per_text(lambda gap: Alternative(gap.replace(removed, "") if removed else gap)))
    assert result == text
    assert time.process_time() - start_time < MAX_CPU_SECONDS
