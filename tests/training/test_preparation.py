"""From files to token ids: cleaning, validation split, mixtures, and loading a finished corpus."""

from pathlib import Path

import pytest

from heedful.data.cleaning import read_cleaned_pairs
from heedful.data.config import CleaningConfig
from heedful.data.corpus import CorpusInputs, CorpusSource, make_sources
from heedful.data.reader import write_tsv
from heedful.errors import HeedfulError
from heedful.progress import Reporter
from heedful.tokenization.special_tokens import TAG_OPEN, add_tags
from heedful.training.preparation import PreparedCorpus, prepare
from heedful.training.run import make_config_chooser

QUIET = Reporter(quiet=True)
SETTINGS = {"preset": "tiny", "tokenizer": {"vocab_size": 600}}


def prepare_corpus(inputs: CorpusInputs, folder: Path, **settings: object) -> PreparedCorpus:
    return prepare(inputs, folder, CleaningConfig(), make_config_chooser({**SETTINGS, **settings}), QUIET)


def test_prepare_every_pair_is_training_or_validation(grammar_pairs: Path, tmp_path: Path) -> None:
    result = prepare_corpus(CorpusInputs(make_sources((grammar_pairs,))), tmp_path)
    tokenizer = result.tokenizer
    learned = {
        (tokenizer.source.decode(result.dataset.source(i)), tokenizer.target.decode(result.dataset.target(i)))
        for i in range(len(result.dataset))
    }
    held_out = {(pair.source, pair.target) for pair in result.validation}
    everything = {(pair.source, pair.target) for pair in read_cleaned_pairs(grammar_pairs)}
    assert learned | held_out == everything
    assert not {source for source, _ in learned} & {source for source, _ in held_out}
    assert not {target for _, target in learned} & {target for _, target in held_out}


def test_prepare_finished_corpus_is_loaded(grammar_pairs: Path, tmp_path: Path) -> None:
    first = prepare_corpus(CorpusInputs(make_sources((grammar_pairs,))), tmp_path)
    second = prepare_corpus(CorpusInputs(make_sources((Path("missing.tsv"),))), tmp_path)
    assert second.summary == first.summary
    assert second.config == first.config


def test_prepare_given_validation_pairs_are_not_in_training(grammar_pairs: Path, tmp_path: Path) -> None:
    some = list(read_cleaned_pairs(grammar_pairs))[:7]
    write_tsv(some, tmp_path / "valid.tsv")
    result = prepare_corpus(
        CorpusInputs(make_sources((grammar_pairs,)), make_sources((tmp_path / "valid.tsv",))), tmp_path / "data"
    )
    assert result.validation == some
    assert len(result.dataset) == 593
    assert "left out 7 training pairs that the validation set has too" in result.summary


def test_prepare_long_pairs_are_dropped(grammar_pairs: Path, tmp_path: Path) -> None:
    result = prepare_corpus(CorpusInputs(make_sources((grammar_pairs,))), tmp_path, model={"max_length": 14})
    assert result.dataset.source_lengths.max() < 14
    assert result.dataset.target_lengths.max() < 14
    assert any("more than 14 tokens" in line for line in result.summary)


def test_prepare_without_distinct_targets_is_an_error(tmp_path: Path) -> None:
    write_tsv([(f"word {i}", "the same") for i in range(50)], tmp_path / "a.tsv")
    with pytest.raises(HeedfulError, match=r"cannot hold out any pair of"):
        prepare_corpus(CorpusInputs(make_sources((tmp_path / "a.tsv",))), tmp_path / "data")


def test_prepare_auto_vocabulary_has_room_for_many_characters(tmp_path: Path) -> None:
    """A small Chinese corpus has more characters than a small vocabulary has room for."""
    pairs = [(f"number {i}", chr(0x4E00 + i) + chr(0x5E00 + i)) for i in range(900)]
    write_tsv(pairs, tmp_path / "a.tsv")
    result = prepare(
        CorpusInputs(make_sources((tmp_path / "a.tsv",))),
        tmp_path / "data",
        CleaningConfig(),
        make_config_chooser({}),
        QUIET,
    )
    assert result.tokenizer.target.vocab_size > 1800


def test_prepare_tags_and_mixes_sources(grammar_pairs: Path, tmp_path: Path) -> None:
    """The same sentences with a tag are not duplicates, and are not used for validation."""
    sources = (CorpusSource((grammar_pairs,), tags=("bt",), fraction=0.25, use_for_validation=False),)
    result = prepare_corpus(CorpusInputs((*make_sources((grammar_pairs,)), *sources)), tmp_path)
    cleaned = list(read_cleaned_pairs(tmp_path / "cleaned.tsv"))
    assert len(cleaned) == 1200
    assert [pair.source for pair in cleaned[600:]] == [add_tags(pair.source, "bt") for pair in cleaned[:600]]
    assert not any(TAG_OPEN in pair.source for pair in result.validation)
    tag = result.tokenizer.source.tag_id("bt")
    first = [result.dataset.source(i)[0] == tag for i in range(len(result.dataset))]
    assert result.mixture is not None
    assert first == [False] * result.mixture.sizes[0] + [True] * result.mixture.sizes[1]
    assert result.mixture.counts[1] == round(result.mixture.sizes[0] / 3)
    learned = {result.tokenizer.source.decode(result.dataset.source(i)) for i in range(len(first))}
    assert not learned & {pair.source for pair in result.validation}, (
        "validation sentences are in the training set with a tag"
    )
    assert any(f"{grammar_pairs} (bt): read 600 pairs, kept 600" in line for line in result.summary)


def test_prepare_tags_given_validation_pairs(grammar_pairs: Path, tmp_path: Path) -> None:
    some = list(read_cleaned_pairs(grammar_pairs))[:7]
    write_tsv(some, tmp_path / "valid.tsv")
    inputs = CorpusInputs(
        sources=(CorpusSource((grammar_pairs,), tags=("fr",)),),
        validation_sources=(CorpusSource((tmp_path / "valid.tsv",), tags=("fr",)),),
    )
    result = prepare_corpus(inputs, tmp_path / "data")
    assert [pair.source for pair in result.validation] == [add_tags(pair.source, "fr") for pair in some]
    assert len(result.dataset) == 593


def test_prepare_same_pair_in_two_sources_is_a_duplicate(grammar_pairs: Path, tmp_path: Path) -> None:
    sources = (CorpusSource((grammar_pairs,), fraction=0.5),)
    with pytest.raises(HeedfulError, match="0 of 600 pairs are usable"):
        prepare_corpus(CorpusInputs((*make_sources((grammar_pairs,)), *sources)), tmp_path)


def test_prepare_escapes_tags_in_user_text(tmp_path: Path) -> None:
    write_tsv([(f"{add_tags('word', 'fr')} {i}", f"mot {i}") for i in range(9)], tmp_path / "a.tsv")
    prepare_corpus(CorpusInputs(make_sources((tmp_path / "a.tsv",))), tmp_path / "data")
    assert not any(TAG_OPEN in pair.source for pair in read_cleaned_pairs(tmp_path / "data" / "cleaned.tsv"))


def test_corpus_inputs_tagged_plain_text_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(HeedfulError, match="plain texts cannot be tagged"):
        CorpusInputs(plain_text=True, sources=(CorpusSource((tmp_path / "a.txt",), tags=("fr",)),))
