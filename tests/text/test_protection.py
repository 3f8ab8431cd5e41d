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
from heedful.text.protection import Rules, Translated, drive, translate_protected
from heedful.text.spans import placeholder_ranges
from heedful.text.translated import Alignment, Piece, joined

PATIENT = settings(max_examples=80, deadline=None)  # the machine may be busy with other things
Translate = Callable[[list[str]], list[Translated]]


def kept(text: str) -> list[str]:
    return [text[start:end] for start, end in placeholder_ranges(text)]


def upper(text: str) -> Translated:
    """Every word in capitals, linked to its source."""
    return Translated(text.upper(), tuple((word, word) for word in range(len(text.split()))))


def reverse(text: str) -> Translated:
    """The words the other way round."""
    words = text.split()
    links = tuple((word, len(words) - 1 - word) for word in range(len(words)))
    return Translated(" ".join(reversed(words)), links)


def each(function: Callable[[str], Translated]) -> Translate:
    return lambda texts: [function(text) for text in texts]


def translated(text: str, translate: Translate, rules: Rules | None = None) -> str:
    [result] = drive(translate_protected([text], rules or Rules()), translate)
    return result.text


class Counting:
    """A translator that remembers the rounds."""

    def __init__(self, function: Callable[[str], Translated]) -> None:
        self.function, self.rounds = function, list[list[str]]()

    def __call__(self, texts: list[str]) -> list[Translated]:
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
def test_placeholders_are_found(text: str, expected: int) -> None:
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
def test_where_placeholders_end(text: str, expected: str) -> None:
    assert kept(text) == [expected]


def test_terms_are_whole_words() -> None:
    rules = Rules(keep=("Acme", "New York", "C++"), glossary={"cat": "Katze", "big cat": "Löwe"})
    found = [span.target for span in rules.spans("Acme's Acmes acme New York C++ Cat cats big CAT 用Acme吧")]
    assert found == ["Acme", "New York", "C++", "Katze", "Löwe", "Acme"]


def test_overlapping_things_are_kept_as_one() -> None:
    text = "at 50 %s now"
    assert [span.target for span in Rules(keep=("50 %",)).spans(text)] == ["50 %s"]
    assert [span.target for span in Rules(glossary={"s": "x", "now": "y"}).spans(text)] == ["%s", "y"]


@pytest.mark.parametrize("rules", [{"keep": ("",)}, {"glossary": {"a": " "}}, {"glossary": {"": "b"}}])
def test_empty_terms_are_refused(rules: dict[str, object]) -> None:
    with pytest.raises(HeedfulError):
        Rules(**rules)  # type: ignore[arg-type]


def test_text_without_spans_takes_one_round_and_is_untouched() -> None:
    translate = Counting(lambda text: Translated(f" {text} {{x}} ", ((0, 7),)))
    assert drive(translate_protected(["a b", "", "12"], Rules()), translate) == [
        Translated(" a b {x} ", ((0, 7),)),
        Translated("  {x} ", ((0, 7),)),
        Translated(" 12 {x} ", ((0, 7),)),
    ]
    assert translate.rounds == [["a b", "", "12"]]


def test_a_translation_that_keeps_everything_is_taken() -> None:
    translate = Counting(reverse)
    assert translated("Hello %s from {name}", translate) == "{name} from %s Hello"
    assert len(translate.rounds) == 1


def test_otherwise_the_parts_between_are_translated() -> None:
    translate = Counting(upper)
    assert translated("  Hello, %s!  Files: {n} / {n}. See\n{where}.", translate) == (
        "  HELLO, %s!  FILES: {n} / {n}. SEE\n{where}."
    )
    assert translate.rounds[1] == ["Hello,", "Files:", "See"]


def test_nothing_but_spans_needs_no_translator() -> None:
    translate = Counting(upper)
    assert translated("{a}: %s (cat)", translate, Rules(glossary={"cat": "Katze"})) == "{a}: %s (Katze)"
    assert not translate.rounds


@pytest.mark.parametrize("wrong", ["", "%s %s", "{name}%s", "%d", "%sx", "%1$s"])
def test_lost_doubled_and_altered_placeholders_are_seen(wrong: str) -> None:
    answers = {"take %s": wrong, "take": "nimm"}
    assert translated("take %s", each(lambda text: Translated(answers[text]))) == "nimm %s"


def test_a_part_gets_no_placeholder_from_its_translation() -> None:
    assert translated("take %s", each(lambda text: Translated("%d"))) == "take %s"


def test_glossary_puts_its_term_where_the_source_stands() -> None:
    rules = Rules(glossary={"cat": "Katze"})
    assert translated("a Cat.", each(lambda text: Translated("eine Cat.")), rules) == "eine Katze."


def test_glossary_follows_links() -> None:
    rules, answer = (
        Rules(glossary={"cat": "liebe Katze"}),
        Translated("le chat, noir", ((0, 0), (1, 2), (2, 1))),
    )
    [result] = drive(translate_protected(["the black cat"], rules), lambda texts: [answer])
    assert result == Translated("le liebe Katze, noir", ((0, 0), (1, 3), (2, 1), (2, 2)))


def test_glossary_accepts_its_term() -> None:
    translate = Counting(lambda text: Translated("die Katze"))
    assert translated("the cat", translate, Rules(glossary={"cat": "Katze"})) == "die Katze"
    assert len(translate.rounds) == 1


@pytest.mark.parametrize("links", [(), ((0, 1), (1, 1)), ((1, 0), (1, 2)), ((1, 7),)])
def test_glossary_without_a_sure_place_splits(links: tuple[tuple[int, int], ...]) -> None:
    answers = {"the cat sleeps": Translated("dort le chat", links), "the": Translated("DIE")}
    result = translated(
        "the cat sleeps",
        each(lambda text: answers.get(text, Translated("schläft"))),
        Rules(glossary={"cat": "Katze"}),
    )
    assert result == "DIE Katze schläft"


def test_links_lead_to_the_span_and_over_parts() -> None:
    [result] = drive(translate_protected(["put (%s) down now"], Rules()), each(upper))
    assert result == Translated("PUT (%s) DOWN NOW", ((0, 0), (1, 1), (2, 2), (3, 3)))
    wrong = Translated("jetzt %s setzen", ((0, 0), (1, 0), (2, 2)))
    [result] = drive(translate_protected(["now %s put"], Rules()), lambda texts: [wrong])
    assert result.links == ((0, 0), (1, 1), (2, 2))


def test_links_that_lead_nowhere_are_left_out() -> None:
    assert Alignment("a b", "c", ((0, 0), (1, 5), (9, 0), (-1, 0))).linked == [{0}, set()]
    assert joined([Piece("a", "b", ((0, 3),))]).links == ()


def test_drive_passes_errors_of_the_translator_on() -> None:
    def broken(texts: list[str]) -> list[Translated]:
        raise HeedfulError("no engine")

    with pytest.raises(HeedfulError, match="no engine"):
        drive(translate_protected(["a"], Rules()), broken)


PROTECTED = [
    "%s",
    "%1$s",
    "{name}",
    "{{x}}",
    "${y}",
    "https://example.org/a",
    "a.b@example.org",
    "Acme",
    "%%",
]
WORDS = st.sampled_from(["hello", "cat", "Über", "нет", "1,5", "-", "it's", "'cat'", "acme"])
TEXTS = st.lists(WORDS | st.sampled_from(PROTECTED), max_size=12).map(" ".join)


def chaotic(seed: int) -> Translate:
    """Drops, doubles, shuffles and mangles words, with links that mean nothing."""
    source = random.Random(seed)

    def translate(text: str) -> Translated:
        words = [word for word in text.split() for _ in range(source.choice([0, 1, 1, 1, 2]))]
        source.shuffle(words)
        words = [word.replace("%s", "%d") if source.random() < 0.2 else word for word in words]
        links = [(source.randrange(9), source.randrange(9)) for _ in range(source.randrange(9))]
        return Translated(" ".join(words), tuple(links))

    return each(translate)


def protected_words(text: str) -> Counter[str]:
    return Counter(re.findall("|".join(map(re.escape, sorted(PROTECTED, key=len, reverse=True))), text))


@PATIENT
@given(st.lists(TEXTS, max_size=4), st.integers())
def test_nothing_protected_is_lost_or_doubled(texts: list[str], seed: int) -> None:
    rules = Rules(keep=("Acme",), glossary={"cat": "Katze"})
    counting = Counting(lambda text: chaotic(seed)([text])[0])
    for text, result in zip(texts, drive(translate_protected(texts, rules), counting), strict=True):
        if rules.spans(text):
            assert protected_words(result.text) == protected_words(text)
            assert len(re.findall("Katze", result.text)) == text.count("cat")
    assert len(counting.rounds) <= 2


@PATIENT
@given(st.text(max_size=40) | TEXTS, st.booleans())
def test_identity_changes_nothing(text: str, linked: bool) -> None:
    words = range(len(text.split()))
    links = tuple((word, word) for word in words) if linked else ()
    assert translated(text, each(lambda part: Translated(part, links)), Rules(keep=("Acme",))) == text


@PATIENT
@given(TEXTS)
def test_order_is_kept_when_the_parts_are_translated(text: str) -> None:
    result = translated(text, each(lambda part: Translated(part.upper())))
    order = [word for word in text.split() if word in PROTECTED and word != "Acme"]
    assert [word for word in result.split() if word in order] == order


@pytest.mark.parametrize("unit", ["{a,plural,", "{", "a.", "%", "http://", "$a", "x@", "{{", "((", "a "])
def test_long_texts_take_no_time(unit: str) -> None:
    begun = time.process_time()
    Rules(keep=("a b", "a."), glossary={"x": "y"}).spans(unit * (50_000 // len(unit)))
    assert time.process_time() - begun < 2


@pytest.mark.parametrize("end", [")", ").", "]})", "..."])
def test_an_address_and_much_punctuation(end: str) -> None:
    begun = time.process_time()
    [(start, stop)] = placeholder_ranges("http://a/(b)" + end * (200_000 // len(end)))
    assert (start, stop) == (0, len("http://a/(b)"))
    assert time.process_time() - begun < 2


@pytest.mark.parametrize("lost", ["", "{"])
def test_many_different_placeholders_take_no_time(lost: str) -> None:
    text = "word " + " ".join(f"{{{number}}}" for number in range(8_000))
    begun = time.process_time()
    result = translated(text, each(lambda part: Translated(part.replace(lost, "") if lost else part)))
    assert result == text
    assert time.process_time() - begun < 10
