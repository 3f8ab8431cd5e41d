"""Placeholders, addresses, kept terms and glossary terms come through any translator."""

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

PATIENT = settings(max_examples=80, deadline=None)  # the machine may be busy with other things
Translate = Callable[[list[str]], list[Alternative]]


def kept(text: str) -> list[str]:
    return [text[start:end] for start, end in placeholder_ranges(text)]


def upper(text: str) -> Alternative:
    """Every word in capitals, linked to its source."""
    return Alternative(text.upper(), alignment=tuple((word, word) for word in range(len(text.split()))))


def reverse(text: str) -> Alternative:
    """The words the other way round."""
    words = text.split()
    links = tuple((word, len(words) - 1 - word) for word in range(len(words)))
    return Alternative(" ".join(reversed(words)), alignment=links)


def each(function: Callable[[str], Alternative]) -> Translate:
    return lambda texts: [function(text) for text in texts]


def translated(text: str, translate: Translate, rules: ProtectionRules | None = None) -> str:
    [result] = run_generator(translate_with_rules([text], rules or ProtectionRules()), translate)
    return result.text


class Counting:
    """A translator that remembers the rounds."""

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
def test_find_placeholders_counts(text: str, expected: int) -> None:
    assert len(kept(text)) == expected


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
def test_find_placeholders_ends(text: str, expected: str) -> None:
    assert kept(text) == [expected]


def test_find_spans_terms_match_whole_words() -> None:
    rules = ProtectionRules(keep=("Acme", "New York", "C++"), glossary={"cat": "Katze", "big cat": "Löwe"})
    found = [span.target for span in rules.find_spans("Acme's Acmes acme New York C++ Cat cats big CAT 用Acme吧")]
    assert found == ["Acme", "New York", "C++", "Katze", "Löwe", "Acme"]


def test_find_spans_overlapping_spans_are_merged() -> None:
    text = "at 50 %s now"
    assert [span.target for span in ProtectionRules(keep=("50 %",)).find_spans(text)] == ["50 %s"]
    assert [span.target for span in ProtectionRules(glossary={"s": "x", "now": "y"}).find_spans(text)] == ["%s", "y"]


@pytest.mark.parametrize("rules", [{"keep": ("",)}, {"glossary": {"a": " "}}, {"glossary": {"": "b"}}])
def test_protection_rules_empty_term_raises(rules: dict[str, object]) -> None:
    with pytest.raises(HeedfulError):
        ProtectionRules(**rules)  # type: ignore[arg-type]


def test_translate_without_spans_takes_one_round() -> None:
    translate = Counting(lambda text: Alternative(f" {text} {{x}} ", alignment=((0, 7),)))
    assert run_generator(translate_with_rules(["a b", "", "12"], ProtectionRules()), translate) == [
        Alternative(" a b {x} ", alignment=((0, 7),)),
        Alternative("  {x} ", alignment=((0, 7),)),
        Alternative(" 12 {x} ", alignment=((0, 7),)),
    ]
    assert translate.rounds == [["a b", "", "12"]]


def test_translate_preserved_spans_are_accepted() -> None:
    translate = Counting(reverse)
    assert translated("Hello %s from {name}", translate) == "{name} from %s Hello"
    assert len(translate.rounds) == 1


def test_translate_lost_span_translates_gaps() -> None:
    translate = Counting(upper)
    assert translated("  Hello, %s!  Files: {n} / {n}. See\n{where}.", translate) == (
        "  HELLO, %s!  FILES: {n} / {n}. SEE\n{where}."
    )
    assert translate.rounds[1] == ["Hello,", "Files:", "See"]


def test_translate_only_spans_calls_no_translator() -> None:
    translate = Counting(upper)
    assert translated("{a}: %s (cat)", translate, ProtectionRules(glossary={"cat": "Katze"})) == "{a}: %s (Katze)"
    assert not translate.rounds


@pytest.mark.parametrize("wrong", ["", "%s %s", "{name}%s", "%d", "%sx", "%1$s"])
def test_translate_wrong_placeholder_is_rejected(wrong: str) -> None:
    answers = {"take %s": wrong, "take": "nimm"}
    assert translated("take %s", each(lambda text: Alternative(answers[text]))) == "nimm %s"


def test_translate_spurious_placeholder_keeps_gap() -> None:
    assert translated("take %s", each(lambda text: Alternative("%d"))) == "take %s"


def test_glossary_source_term_in_translation_is_replaced() -> None:
    rules = ProtectionRules(glossary={"cat": "Katze"})
    assert translated("a Cat.", each(lambda text: Alternative("eine Cat.")), rules) == "eine Katze."


def test_glossary_aligned_word_is_replaced() -> None:
    rules, answer = (
        ProtectionRules(glossary={"cat": "liebe Katze"}),
        Alternative("le chat, noir", alignment=((0, 0), (1, 2), (2, 1))),
    )
    [result] = run_generator(translate_with_rules(["the black cat"], rules), lambda texts: [answer])
    assert result == Alternative("le liebe Katze, noir", alignment=((0, 0), (1, 3), (2, 1), (2, 2)))


def test_glossary_target_term_in_translation_is_accepted() -> None:
    translate = Counting(lambda text: Alternative("die Katze"))
    assert translated("the cat", translate, ProtectionRules(glossary={"cat": "Katze"})) == "die Katze"
    assert len(translate.rounds) == 1


@pytest.mark.parametrize("links", [(), ((0, 1), (1, 1)), ((1, 0), (1, 2)), ((1, 7),)])
def test_glossary_ambiguous_alignment_translates_gaps(links: tuple[tuple[int, int], ...]) -> None:
    answers = {"the cat sleeps": Alternative("dort le chat", alignment=links), "the": Alternative("DIE")}
    result = translated(
        "the cat sleeps",
        each(lambda text: answers.get(text, Alternative("schläft"))),
        ProtectionRules(glossary={"cat": "Katze"}),
    )
    assert result == "DIE Katze schläft"


def test_translate_links_follow_spans_and_gaps() -> None:
    [result] = run_generator(translate_with_rules(["put (%s) down now"], ProtectionRules()), each(upper))
    assert result == Alternative("PUT (%s) DOWN NOW", alignment=((0, 0), (1, 1), (2, 2), (3, 3)))
    wrong = Alternative("jetzt %s setzen", alignment=((0, 0), (1, 0), (2, 2)))
    [result] = run_generator(translate_with_rules(["now %s put"], ProtectionRules()), lambda texts: [wrong])
    assert result.alignment == ((0, 0), (1, 1), (2, 2))


def test_alignment_ignores_links_to_missing_words() -> None:
    assert Alignment("a b", "c", ((0, 0), (1, 5), (9, 0), (-1, 0))).linked_targets == [{0}, set()]
    assert join_chunks([TextChunk("a", "b", ((0, 3),))]).links == ()


def test_run_generator_raises_errors_of_translator() -> None:
    def broken(texts: list[str]) -> list[Alternative]:
        raise HeedfulError("no engine")

    with pytest.raises(HeedfulError, match="no engine"):
        run_generator(translate_with_rules(["a"], ProtectionRules()), broken)


PROTECTED = ["%s", "%1$s", "{name}", "{{x}}", "${y}", "https://example.org/a", "a.b@example.org", "Acme", "%%"]
WORDS = st.sampled_from(["hello", "cat", "Über", "нет", "1,5", "-", "it's", "'cat'", "acme"])
TEXTS = st.lists(WORDS | st.sampled_from(PROTECTED), max_size=12).map(" ".join)


def chaotic(seed: int) -> Translate:
    """Drops, doubles, shuffles and mangles words, with links that mean nothing."""
    source = random.Random(seed)

    def translate(text: str) -> Alternative:
        words = [word for word in text.split() for _ in range(source.choice([0, 1, 1, 1, 2]))]
        source.shuffle(words)
        words = [word.replace("%s", "%d") if source.random() < 0.2 else word for word in words]
        links = [(source.randrange(9), source.randrange(9)) for _ in range(source.randrange(9))]
        return Alternative(" ".join(words), alignment=tuple(links))

    return each(translate)


def protected_words(text: str) -> Counter[str]:
    return Counter(re.findall("|".join(map(re.escape, sorted(PROTECTED, key=len, reverse=True))), text))


@PATIENT
@given(st.lists(TEXTS, max_size=4), st.integers())
def test_translate_random_texts_keep_spans(texts: list[str], seed: int) -> None:
    rules = ProtectionRules(keep=("Acme",), glossary={"cat": "Katze"})
    counting = Counting(lambda text: chaotic(seed)([text])[0])
    for text, result in zip(texts, run_generator(translate_with_rules(texts, rules), counting), strict=True):
        if rules.find_spans(text):
            assert protected_words(result.text) == protected_words(text)
            assert len(re.findall("Katze", result.text)) == text.count("cat")
    assert len(counting.rounds) <= 2


@PATIENT
@given(st.text(max_size=40) | TEXTS, st.booleans())
def test_translate_identity_changes_nothing(text: str, linked: bool) -> None:
    words = range(len(text.split()))
    links = tuple((word, word) for word in words) if linked else ()
    assert (
        translated(text, each(lambda part: Alternative(part, alignment=links)), ProtectionRules(keep=("Acme",))) == text
    )


@PATIENT
@given(TEXTS)
def test_translate_gaps_keep_order(text: str) -> None:
    result = translated(text, each(lambda part: Alternative(part.upper())))
    order = [word for word in text.split() if word in PROTECTED and word != "Acme"]
    assert [word for word in result.split() if word in order] == order


@pytest.mark.parametrize("unit", ["{a,plural,", "{", "a.", "%", "http://", "$a", "x@", "{{", "((", "a "])
def test_translate_long_text_is_fast(unit: str) -> None:
    begun = time.process_time()
    ProtectionRules(keep=("a b", "a."), glossary={"x": "y"}).find_spans(unit * (50_000 // len(unit)))
    assert time.process_time() - begun < 2


@pytest.mark.parametrize("end", [")", ").", "]})", "..."])
def test_translate_address_with_much_punctuation_is_fast(end: str) -> None:
    begun = time.process_time()
    [(start, stop)] = placeholder_ranges("http://a/(b)" + end * (200_000 // len(end)))
    assert (start, stop) == (0, len("http://a/(b)"))
    assert time.process_time() - begun < 2


@pytest.mark.parametrize("lost", ["", "{"])
def test_translate_many_placeholders_is_fast(lost: str) -> None:
    text = "word " + " ".join(f"{{{number}}}" for number in range(8_000))
    begun = time.process_time()
    result = translated(text, each(lambda part: Alternative(part.replace(lost, "") if lost else part)))
    assert result == text
    assert time.process_time() - begun < 10
