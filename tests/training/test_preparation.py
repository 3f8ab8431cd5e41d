"""From files to token ids: what is kept, what is held out, and what happens twice."""

from pathlib import Path

import pytest

from heedful.choosing import chooser
from heedful.corpora.filters import CleaningConfig, cleaned_pairs
from heedful.corpora.formats import write_tsv
from heedful.corpora.parts import Part
from heedful.errors import HeedfulError
from heedful.progress import Reporter
from heedful.text.tags import OPEN, tagged
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


def test_parts_are_tagged_and_mixed(grammar_pairs: Path, tmp_path: Path) -> None:
    """The same sentences again under a tag are no duplicates, and none of them is held out."""
    parts = (Part((grammar_pairs,), tags=("bt",), share=0.25, held_out=False),)
    result = prepared(Inputs((grammar_pairs,), parts=parts), tmp_path)
    kept = list(cleaned_pairs(tmp_path / "pairs.tsv"))
    assert len(kept) == 1200
    assert [pair.source for pair in kept[600:]] == [tagged(pair.source, "bt") for pair in kept[:600]]
    assert not any(OPEN in pair.source for pair in result.validation)
    tag = result.tokenizer.source.tag("bt")
    first = [result.training.source(i)[0] == tag for i in range(len(result.training))]
    assert result.mixture is not None
    assert first == [False] * result.mixture.sizes[0] + [True] * result.mixture.sizes[1]
    assert result.mixture.counts[1] == round(result.mixture.sizes[0] / 3)
    learned = {result.tokenizer.source.decode(result.training.source(i)) for i in range(len(first))}
    assert not learned & {pair.source for pair in result.validation}, "held out, but learned under a tag"
    assert any(f"{grammar_pairs} (bt): read 600 pairs, kept 600" in line for line in result.summary)


def test_a_tag_before_given_validation_pairs(grammar_pairs: Path, tmp_path: Path) -> None:
    some = list(cleaned_pairs(grammar_pairs))[:7]
    write_tsv(some, tmp_path / "valid.tsv")
    inputs = Inputs(
        (),
        parts=(Part((grammar_pairs,), tags=("fr",)),),
        examined=(Part((tmp_path / "valid.tsv",), tags=("fr",)),),
    )
    result = prepared(inputs, tmp_path / "data")
    assert [pair.source for pair in result.validation] == [tagged(pair.source, "fr") for pair in some]
    assert len(result.training) == 593


def test_the_same_pair_in_two_parts_is_a_duplicate(grammar_pairs: Path, tmp_path: Path) -> None:
    parts = (Part((grammar_pairs,), share=0.5),)
    with pytest.raises(HeedfulError, match="0 of 600 pairs are fit"):
        prepared(Inputs((grammar_pairs,), parts=parts), tmp_path)


def test_a_users_text_is_never_a_tag(tmp_path: Path) -> None:
    write_tsv([(f"{tagged('word', 'fr')} {i}", f"mot {i}") for i in range(9)], tmp_path / "a.tsv")
    prepared(Inputs((tmp_path / "a.tsv",)), tmp_path / "data")
    assert not any(OPEN in pair.source for pair in cleaned_pairs(tmp_path / "data" / "pairs.tsv"))


def test_plain_texts_have_no_tags(tmp_path: Path) -> None:
    with pytest.raises(HeedfulError, match="plain texts cannot be tagged"):
        Inputs((), plain=True, parts=(Part((tmp_path / "a.txt",), tags=("fr",)),))
