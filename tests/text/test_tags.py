"""Tags: only what is put in behind cleaning is one."""

import pytest

from heedful.corpora.filters import clean_sentence
from heedful.errors import HeedfulError
from heedful.text.tags import CLOSE, OPEN, tag, tagged, without_tags
from heedful.text.tokenizer import Tokenizer, TokenizerConfig
from heedful.text.vocabulary import Kind

TEXTS = ["the cat sat on the mat", "the dog sat on the cat", "a mat for the cat"] * 3


def learned(kind: Kind, *tags: str) -> Tokenizer:
    return Tokenizer.train(TEXTS, TokenizerConfig(kind=kind, vocabulary=320), tags)


@pytest.mark.parametrize("kind", ["word", "character", "bpe", "unigram"])
def test_a_tag_is_one_id_before_the_same_pieces(kind: Kind) -> None:
    tokenizer = learned(kind, "de", "fr")
    plain = tokenizer.encode("the cat")
    assert tokenizer.encode(tagged("the cat", "fr")) == [tokenizer.tag("fr"), *plain]
    assert tokenizer.encode_batch([tagged("the cat", "fr", "de"), "the cat"]) == [
        [tokenizer.tag("fr"), tokenizer.tag("de"), *plain],
        plain,
    ]
    assert tokenizer.decode(tokenizer.encode(tagged("the cat", "fr"))) == "the cat"


def test_a_tag_inside_a_text_stands_between_words() -> None:
    tokenizer = learned("bpe", "term")
    ids = tokenizer.encode(f"the {tag('term')} cat sat")
    assert ids == [*tokenizer.encode("the"), tokenizer.tag("term"), *tokenizer.encode("cat sat")]


def test_tags_are_not_learned_from() -> None:
    marked = Tokenizer.train([tagged(text, "fr") for text in TEXTS], TokenizerConfig(vocabulary=320), ["fr"])
    assert marked.vocabulary == learned("bpe", "fr").vocabulary


def test_an_unknown_tag_is_an_error() -> None:
    with pytest.raises(HeedfulError, match="no tag for 'it'"):
        learned("bpe", "fr").encode(tagged("the cat", "it"))


def test_what_a_user_writes_is_never_a_tag() -> None:
    wicked = f"{OPEN}fr{CLOSE}the cat"
    assert clean_sentence(wicked) == "frthe cat"
    assert without_tags(wicked) == "the cat"
