"""A glossary: its file, its terms in any script, what a translation lacks, terms inside a source."""

from pathlib import Path

import pytest

from heedful.corpora.filters import clean_sentence
from heedful.corpora.terms import read_glossary
from heedful.errors import HeedfulError
from heedful.text.glossary import TERM_TAGS, Glossary, missing_terms, with_inline_terms
from heedful.text.tags import parts, without_tags


def targets(terms: dict[str, str], text: str) -> list[str]:
    return [term.target for term in Glossary.of(terms).terms(text)]


def test_small_letters_are_found_with_any_capitals_and_capitals_only_as_they_stand() -> None:
    terms = {"us": "nous", "US": "États-Unis", "Polish": "polonais"}
    assert targets(terms, "US and us, Us; Polish, polish") == ["États-Unis", "nous", "nous", "polonais"]


def test_whole_words_the_longest_first_and_not_inside_addresses() -> None:
    terms = {"cat": "chat", "black cat": "panthère"}
    assert targets(terms, "A black cat, cats, a cat: https://example.org/cat") == ["panthère", "chat"]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("قطة", "رأيت قطة."),
        ("猫", "我喜欢猫。"),
        ("cafe\u0301", "un café"),
        ("C++", "in C++, not C"),
        ("👋", "hi 👋"),
    ],
)
def test_any_script(source: str, text: str) -> None:
    assert targets({source: "x"}, clean_sentence(text)) == ["x"]


def test_a_capital_at_the_beginning_may_stay() -> None:
    [term] = Glossary.of({"red house": "maison rouge"}).terms("Red house for sale")
    assert term.forms == ("maison rouge", "Maison rouge")
    assert not missing_terms("Maison rouge à vendre", [term])
    [term] = Glossary.of({"red house": "maison rouge"}).terms("A red house")
    assert missing_terms("Maison rouge", [term]) == [term]


def test_every_occurrence_needs_a_place_of_its_own_and_whole_words() -> None:
    terms = Glossary.of({"cat": "chat"}).terms("cat and cat")
    assert len(missing_terms("chat et chats", terms)) == 1
    assert not missing_terms("l'chat-chat", terms)
    assert not missing_terms("我喜欢猫猫", Glossary.of({"cat": "猫"}).terms("cat and cat"))


def test_inline_terms_are_tags_around_words() -> None:
    text = "The cat, Cat!"
    written = with_inline_terms(text, Glossary.of({"cat": "chat noir"}).terms(text))
    assert [part for part, is_tag in parts(written) if is_tag] == [*TERM_TAGS, *TERM_TAGS]
    words = [part for part, is_tag in parts(written) if not is_tag]
    assert words == ["The", "cat", "chat noir", ",", "Cat", "chat noir", "!"]
    assert without_tags(clean_sentence(written)) == clean_sentence(written)  # no user's text has tags


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_files(tmp_path: Path) -> None:
    content = "\ufeff# names\r\nSource\tTarget\r\n\r\nred house\trotes  Haus\tnoun\r\ncafe\u0301\tCafé\r\n"
    found = read_glossary(written(tmp_path / "terms.tsv", content.encode()))
    assert found.entries == (("red house", "rotes Haus"), ("café", "Café"))
    found = read_glossary(written(tmp_path / "terms.csv", b'term;translation\n"a;b";"c, d"\n'))
    assert found.entries == (("a;b", "c, d"),)
    found = read_glossary(written(tmp_path / "plain.csv", "猫,cat\n".encode()))
    assert found.entries == (("猫", "cat"),)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"cat\tchat\n\ncat\tminou\n", ":3: the term 'cat' stands in line 1 already"),
        (b"cat\tchat\ndog\t\n", ":2: no translation of 'dog'"),
        (b"cat\tchat\ndog\n", ":2: no translation of 'dog'"),
        (b"\tchat\n", ":1: no term"),
        (b"# nothing\n", "has no terms"),
        (b"cat\tch\xe2t\n", ":1: "),
    ],
)
def test_faults_of_files_name_the_line(tmp_path: Path, content: bytes, problem: str) -> None:
    with pytest.raises(HeedfulError) as caught:
        read_glossary(written(tmp_path / "terms.tsv", content))
    assert problem in caught.value.problem
