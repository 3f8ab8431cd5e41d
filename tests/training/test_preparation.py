"""From files to token ids: what is kept, what is held out, and what happens twice."""

from pathlib import Path

import pytest

from heedful.choosing import chooser
from heedful.corpora.filters import CleaningConfig, cleaned_pairs
from heedful.corpora.formats import write_tsv
from heedful.errors import HeedfulError
from heedful.progress import Reporter
from heedful.training.preparation import Inputs, Prepared, prepare

QUIET = Reporter(quiet=True)
SETTINGS = {"preset": "tiny", "tokenizer": {"vocabulary": 600}}


def prepared(inputs: Inputs, folder: Path, **settings: object) -> Prepared:
    return prepare(inputs, folder, CleaningConfig(), chooser({**SETTINGS, **settings}), QUIET)


def test_every_pair_is_learned_or_held_out(grammar_pairs: Path, tmp_path: Path) -> None:
    result = prepared(Inputs((grammar_pairs,)), tmp_path)
    tokenizer = result.tokenizer
    learned = {
        (
            tokenizer.source.decode(result.training.source(i)),
            tokenizer.target.decode(result.training.target(i)),
        )
        for i in range(len(result.training))
    }
    held_out = {(pair.source, pair.target) for pair in result.validation}
    everything = {(pair.source, pair.target) for pair in cleaned_pairs(grammar_pairs)}
    assert learned | held_out == everything
    assert not {source for source, _ in learned} & {source for source, _ in held_out}
    assert not {target for _, target in learned} & {target for _, target in held_out}


def test_finished_work_is_not_done_again(grammar_pairs: Path, tmp_path: Path) -> None:
    first = prepared(Inputs((grammar_pairs,)), tmp_path)
    again = prepared(Inputs((Path("gone.tsv"),)), tmp_path)
    assert again.summary == first.summary
    assert again.config == first.config


def test_given_validation_pairs_are_not_learned(grammar_pairs: Path, tmp_path: Path) -> None:
    some = list(cleaned_pairs(grammar_pairs))[:7]
    write_tsv(some, tmp_path / "valid.tsv")
    result = prepared(Inputs((grammar_pairs,), (tmp_path / "valid.tsv",)), tmp_path / "data")
    assert result.validation == some
    assert len(result.training) == 593
    assert "left out 7 training pairs that the validation set has too" in result.summary


def test_too_many_tokens(grammar_pairs: Path, tmp_path: Path) -> None:
    result = prepared(Inputs((grammar_pairs,)), tmp_path, model={"longest": 14})
    assert result.training.source_lengths.max() < 14
    assert result.training.target_lengths.max() < 14
    assert any("more than 14 tokens" in line for line in result.summary)


def test_translations_that_all_recur(tmp_path: Path) -> None:
    write_tsv([(f"word {i}", "the same") for i in range(50)], tmp_path / "a.tsv")
    with pytest.raises(HeedfulError, match=r"no pair of .* can be held out"):
        prepared(Inputs((tmp_path / "a.tsv",)), tmp_path / "data")


def test_auto_suits_many_characters(tmp_path: Path) -> None:
    """A small Chinese corpus has more characters than a small vocabulary has room for."""
    pairs = [(f"number {i}", chr(0x4E00 + i) + chr(0x5E00 + i)) for i in range(900)]
    write_tsv(pairs, tmp_path / "a.tsv")
    result = prepare(Inputs((tmp_path / "a.tsv",)), tmp_path / "data", CleaningConfig(), chooser({}), QUIET)
    assert result.tokenizer.target.size > 1800
