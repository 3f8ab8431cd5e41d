"""Glossaries: files, terms in any script, terms missing from a translation, and inline terms."""

from pathlib import Path

import pytest

from heedful.data.glossary import TERM_TAGS, Glossary, find_missing_terms, insert_inline_terms, read_glossary
from heedful.errors import HeedfulError
from heedful.tokenization.normalization import clean_sentence
from heedful.tokenization.special_tokens import split_tags, strip_tags


def targets(terms: dict[str, str], text: str) -> list[str]:
    return [term.target for term in Glossary.from_mapping(terms).find_terms(text)]


def test_glossary_lowercase_term_matches_any_case_capitalized_only_itself() -> None:
    terms = {"us": "nous", "US": "États-Unis", "Polish": "polonais"}
    assert targets(terms, "US and us, Us; Polish, polish") == ["États-Unis", "nous", "nous", "polonais"]


def test_glossary_matches_longest_full_words_outside_urls() -> None:
    terms = {"cat": "chat", "black cat": "panthère"}
    assert targets(terms, "A black cat, cats, a cat: https://example.org/cat") == ["panthère", "chat"]


@pytest.mark.parametrize(
    ("source", "text"),
    [("قطة", "رأيت قطة."), ("猫", "我喜欢猫。"), ("cafe\u0301", "un café"), ("C++", "in C++, not C"), ("👋", "hi 👋")],
)
def test_glossary_matches_in_any_script(source: str, text: str) -> None:
    assert targets({source: "x"}, clean_sentence(text)) == ["x"]


def test_glossary_accepts_capital_at_sentence_start() -> None:
    [term] = Glossary.from_mapping({"red house": "maison rouge"}).find_terms("Red house for sale")
    assert term.accepted_forms == ("maison rouge", "Maison rouge")
    assert not find_missing_terms("Maison rouge à vendre", [term])
    [term] = Glossary.from_mapping({"red house": "maison rouge"}).find_terms("A red house")
    assert find_missing_terms("Maison rouge", [term]) == [term]


def test_glossary_counts_each_occurrence_as_full_word() -> None:
    terms = Glossary.from_mapping({"cat": "chat"}).find_terms("cat and cat")
    assert len(find_missing_terms("chat et chats", terms)) == 1
    assert not find_missing_terms("l'chat-chat", terms)
    assert not find_missing_terms("我喜欢猫猫", Glossary.from_mapping({"cat": "猫"}).find_terms("cat and cat"))


def test_inline_terms_put_tags_around_words() -> None:
    text = "The cat, Cat!"
    tagged_text = insert_inline_terms(text, Glossary.from_mapping({"cat": "chat noir"}).find_terms(text))
    assert [part for part, is_tag in split_tags(tagged_text) if is_tag] == [*TERM_TAGS, *TERM_TAGS]
    parts = [part for part, is_tag in split_tags(tagged_text) if not is_tag]
    assert parts == ["The", "cat", "chat noir", ",", "Cat", "chat noir", "!"]
    assert strip_tags(clean_sentence(tagged_text)) == clean_sentence(
        tagged_text
    )  # cleaning removes tags from users' text


def write_file(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_read_glossary_from_every_format(tmp_path: Path) -> None:
    content = "\ufeff# names\r\nSource\tTarget\r\n\r\nred house\trotes  Haus\tnoun\r\ncafe\u0301\tCafé\r\n"
    glossary = read_glossary(write_file(tmp_path / "terms.tsv", content.encode()))
    assert glossary.entries == (("red house", "rotes Haus"), ("café", "Café"))
    glossary = read_glossary(write_file(tmp_path / "terms.csv", b'term;translation\n"a;b";"c, d"\n'))
    assert glossary.entries == (("a;b", "c, d"),)
    glossary = read_glossary(write_file(tmp_path / "plain.csv", "猫,cat\n".encode()))
    assert glossary.entries == (("猫", "cat"),)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"cat\tchat\n\ncat\tminou\n", ":3: the term 'cat' is already in line 1"),
        (b"cat\tchat\ndog\t\n", ":2: no translation of 'dog'"),
        (b"cat\tchat\ndog\n", ":2: no translation of 'dog'"),
        (b"\tchat\n", ":1: no term"),
        (b"# nothing\n", "contains no terms"),
        (b"cat\tch\xe2t\n", ":1: "),
    ],
)
def test_read_glossary_error_names_line(tmp_path: Path, content: bytes, problem: str) -> None:
    with pytest.raises(HeedfulError) as caught:
        read_glossary(write_file(tmp_path / "terms.tsv", content))
    assert problem in caught.value.problem
