"""Tags: only tags that are added after cleaning are special tokens."""

import pytest

from heedful.errors import HeedfulError
from heedful.tokenization.normalization import clean_sentence
from heedful.tokenization.special_tokens import TAG_CLOSE, TAG_OPEN, add_tags, format_tag, strip_tags
from heedful.tokenization.tokenizer import Tokenizer, TokenizerConfig
from heedful.tokenization.vocabulary import TokenizerType
from heedful.tokenization.vocabulary_training import learn_tokenizer

TEXTS = ["the cat sat on the mat", "the dog sat on the cat", "a mat for the cat"] * 3


def train_tokenizer(model_type: TokenizerType, *tags: str) -> Tokenizer:
    return learn_tokenizer(TEXTS, TokenizerConfig(model_type=model_type, vocab_size=320), tags)


@pytest.mark.parametrize("model_type", ["word", "character", "bpe", "unigram"])
def test_encode_leading_tag_adds_one_id(model_type: TokenizerType) -> None:
    tokenizer = train_tokenizer(model_type, "de", "fr")
    plain = tokenizer.encode("the cat")
    assert tokenizer.encode(add_tags("the cat", "fr")) == [tokenizer.tag_id("fr"), *plain]
    assert tokenizer.encode_batch([add_tags("the cat", "fr", "de"), "the cat"]) == [
        [tokenizer.tag_id("fr"), tokenizer.tag_id("de"), *plain],
        plain,
    ]
    assert tokenizer.decode(tokenizer.encode(add_tags("the cat", "fr"))) == "the cat"


def test_encode_inner_tag_separates_words() -> None:
    tokenizer = train_tokenizer("bpe", "term")
    ids = tokenizer.encode(f"the {format_tag('term')} cat sat")
    assert ids == [*tokenizer.encode("the"), tokenizer.tag_id("term"), *tokenizer.encode("cat sat")]


def test_train_ignores_tags() -> None:
    tokenizer = learn_tokenizer([add_tags(text, "fr") for text in TEXTS], TokenizerConfig(vocab_size=320), ["fr"])
    assert tokenizer.vocabulary == train_tokenizer("bpe", "fr").vocabulary


def test_encode_unknown_tag_raises() -> None:
    with pytest.raises(HeedfulError, match="no tag for 'it'"):
        train_tokenizer("bpe", "fr").encode(add_tags("the cat", "it"))


def test_clean_sentence_removes_tags_of_user_text() -> None:
    user_text = f"{TAG_OPEN}fr{TAG_CLOSE}the cat"
    assert clean_sentence(user_text) == "frthe cat"
    assert strip_tags(user_text) == "the cat"
