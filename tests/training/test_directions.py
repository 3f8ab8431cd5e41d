"""Several directions in one training: what is held out, what is seen, and a direction that was never seen."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from heedful.api import _ways, train_directions
from heedful.bundle import Bundle
from heedful.cli import app
from heedful.commands.training import direction_part
from heedful.corpora.filters import Pair
from heedful.corpora.formats import write_tsv
from heedful.corpora.grammar import generate
from heedful.corpora.parts import Mixture, Part
from heedful.corpora.split import split_hash
from heedful.decoding.config import SearchConfig
from heedful.errors import HeedfulError
from heedful.progress import Reporter
from heedful.text.tags import tagged, without_tags
from heedful.training.directions import DirectionPairs, held_out_of_each, tempered
from tests.conftest import QUICK_SETTINGS, run_heedful


def quick(*others: str) -> Iterator[str]:
    for setting in (*QUICK_SETTINGS, *others):
        yield from ("--set", setting)


# ---- what is held out


def test_what_is_held_out_one_way_is_not_learned_the_other_way() -> None:
    forth = [Pair(tagged(f"a{n} b", "fr"), f"x{n} y") for n in range(400)]
    back = [Pair(tagged(pair.target, "en"), without_tags(pair.source)) for pair in forth]
    others = [Pair(tagged(f"a{n} b", "de"), f"z{n}") for n in range(300, 500)]
    found = held_out_of_each(
        [
            DirectionPairs(("en", "fr"), lambda: iter(forth), 400),
            DirectionPairs(("fr", "en"), lambda: iter(back), 400, reverse=True),
            DirectionPairs(("en", "de"), lambda: iter(others), 200),
        ],
        lambda: iter([*forth, *back, *others]),
    )
    counts = {name: found.examined.count(name) for name in found.examined}
    assert counts == {("en", "fr"): 20, ("fr", "en"): 20, ("en", "de"): 10}
    assert found.examined[:4] == (("en", "fr"), ("fr", "en"), ("en", "de"), ("en", "fr"))
    held = {split_hash(side) for pair in found.validation for side in pair}
    learned = [pair for pair in [*forth, *back, *others] if found.learns(pair)]
    sources = {split_hash(pair.source) for pair in found.validation if "y" not in pair.source}
    assert not any(split_hash(side) in sources for pair in learned for side in pair)
    assert not any({split_hash(side) for side in pair} <= held for pair in learned)
    assert len(learned) > 900
    assert "20 of en-fr, 20 of fr-en, 10 of en-de" in found.notes[0]


def test_a_direction_that_cannot_be_examined_is_named() -> None:
    pairs = [Pair(f"a{n}", "the same") for n in range(9)]
    with pytest.raises(HeedfulError, match="no pair of en-fr can be held out") as caught:
        held_out_of_each([DirectionPairs(("en", "fr"), lambda: iter(pairs), 9)], lambda: iter(pairs))
    assert "--validation en-fr=FILE" in caught.value.hint


# ---- how much of each is seen


def part(direction: str, share: float = 0.0) -> Part:
    source, target = direction.split("-")
    return Part((Path("a"),), (source, target), (target,), share)


def test_temperature_lifts_small_directions() -> None:
    parts, sizes = [part("en-fr"), part("en-de")], (900, 100)
    assert tempered(parts, sizes, 1.0) == tuple(parts)
    shares = [each.share for each in tempered(parts, sizes, 2.0)]
    assert shares == pytest.approx([0.75, 0.25])  # 30 : 10
    assert Mixture(sizes, tuple(shares)).counts == (750, 250)
    even = [each.share for each in tempered(parts, sizes, 100.0)]
    assert even == pytest.approx([0.5, 0.5], abs=0.01)


def test_files_of_one_direction_share_its_share() -> None:
    parts = [part("en-fr"), part("en-de"), part("en-fr")]
    shares = [each.share for each in tempered(parts, (600, 100, 300), 2.0)]
    assert shares == pytest.approx([0.5, 0.25, 0.25])


def test_a_part_comes_back_from_json() -> None:
    [_, turned] = _ways([part("en-fr")], both=True)
    assert (turned.direction, turned.tags, turned.reverse) == (("fr", "en"), ("en",), True)
    assert Part.from_json(turned.to_json()) == turned


def test_temperature_of_one_corpus_is_an_error() -> None:
    with pytest.raises(HeedfulError, match="here is one alone"):
        tempered([Part((Path("a"),))], (5,), 2.0)


def test_temperature_weighs_corpora() -> None:
    corpora = [Part((Path("a"),)), Part((Path("b"),), held_out=False)]
    assert [each.share for each in tempered(corpora, (900, 100), 2.0)] == pytest.approx([0.75, 0.25])
    told = [*corpora, Part((Path("c"),), share=0.2)]  # stays, and the others have the rest
    assert [each.share for each in tempered(told, (900, 100, 50), 2.0)] == pytest.approx([0.6, 0.2, 0.2])


# ---- the command


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """English to French as TSV, English to "German" (French in capitals) as two files."""
    folder = tmp_path_factory.mktemp("directions")
    pairs = [(pair.source, pair.target) for pair in generate(500)]
    write_tsv(pairs[:300], folder / "fr.tsv")
    for number, name in enumerate(("train.en", "train.de")):
        sides = [pair[number].upper() if number else pair[number] for pair in pairs[250:]]
        (folder / name).write_text("".join(f"{side}\n" for side in sides), encoding="utf-8")
    zero_shot = [(target, target.upper()) for _, target in pairs[:10]]
    write_tsv(zero_shot, folder / "zero.tsv")
    return folder


def test_train_directions_both_ways(files: Path, tmp_path: Path) -> None:
    directions = [
        "--direction",
        f"en-fr={files}/fr.tsv",
        "--direction",
        f"en-de={files}/train.en,{files}/train.de",
    ]
    done = run_heedful(
        "train", *directions, "--both-ways", "-o", tmp_path / "model", *quick("training.temperature=5")
    )
    assert done.status == 0, done.err
    assert "--to de" in done.out or "--to en" in done.out
    names = ("en-fr", "fr-en", "en-de", "de-en")
    card = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    for name in names:
        assert f"\n{name}: loss " in done.err
        assert f"- {name}: loss " in card
    assert "BLEU" in card.split("- de-en")[1].split("\n")[0]
    assert card.startswith("# Heedful model: en to fr, fr to en, en to de, de to en\n")
    config = Bundle.open(tmp_path / "model").config
    assert config.directions == tuple(tuple(name.split("-")) for name in names)
    assert (config.targets, config.sources) == (("fr", "en", "de"), ("en", "fr", "de"))
    assert config.languages == ("en", "fr")
    prepared = json.loads((tmp_path / "model/training/data/prepared.json").read_text(encoding="utf-8"))
    assert len(prepared["examined"]) == 20
    assert [prepared["examined"].count(name.split("-")) for name in names] == [5, 5, 5, 5]
    counts = Mixture(tuple(prepared["sizes"]), tuple(prepared["shares"])).counts
    assert max(counts) / min(counts) < max(prepared["sizes"]) / min(prepared["sizes"])
    done = run_heedful("translate", tmp_path / "model", "Le chien", "--to", "de")
    assert done.status == 0, done.err


def test_validation_may_be_of_a_direction_that_is_not_learned(files: Path, tmp_path: Path) -> None:
    words = [
        "--direction",
        f"en-fr={files}/fr.tsv",
        "--direction",
        f"en-de={files}/train.en,{files}/train.de",
    ]
    given = ["-v", f"fr-de={files}/zero.tsv"]
    done = run_heedful("train", *words, "--both-ways", *given, "-o", tmp_path / "model", *quick())
    assert done.status == 0, done.err
    assert "\nfr-de (zero-shot): loss " in done.err
    assert "\nde-fr (zero-shot): loss " in done.err


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--direction", "en-fr"], "cannot read the direction 'en-fr'"),
        (["--direction", "en=a.tsv"], "cannot read languages 'en'"),
        (["--direction", "en-en=FILE"], "is of no two languages"),
        (["--direction", "en-fr=FILE", "pairs.tsv"], "FILES does not go with directions"),
        (["--direction", "en-fr=FILE", "--mix", "a.tsv"], "--mix does not go with directions"),
        (["--direction", "en-fr=FILE", "--from", "model"], "--from does not go with directions"),
        (["--direction", "en-fr=FILE", "--task", "mask"], "--task does not go with directions"),
        (["--direction", "en-fr=FILE", "-v", "en-it=FILE"], "en-it cannot be validated"),
        (["--direction", "en-fr=FILE", "-v", "FILE"], "cannot read the direction"),
        (["--direction", "en-fr=missing.tsv"], "missing.tsv"),
        (["--both-ways"], "no directions to learn"),
        (["FILE", "--set", "training.temperature=2", *quick()], "here is one alone"),
        (
            [
                *("--direction", "en-fr=FILE", "--direction", "en-de=HERE/train.en,HERE/train.de"),
                *("-v", "en-fr=FILE", *quick()),
            ],
            "no pair of .*fr.tsv .* is left to learn from",
        ),
    ],
)
def test_mistakes(words: list[str], problem: str, files: Path, tmp_path: Path) -> None:
    filled = [word.replace("FILE", f"{files}/fr.tsv").replace("HERE", str(files)) for word in words]
    with pytest.raises(HeedfulError, match=problem):
        app(["train", *filled, "-o", str(tmp_path / "model"), "--quiet"], standalone_mode=False)
    assert not (tmp_path / "model").exists()


# ---- zero-shot

VOWELS = {"aa": "a", "ii": "i", "uu": "u", "ee": "e"}
"""Four related languages: the same consonants, each with a vowel of its own."""
LEARNED = ("aa-ii", "ii-uu", "uu-ee", "ee-aa", "ii-ee")
"""All pairs but that of aa and uu."""
CONSONANTS = "bdfgklmnprst"


def said(concepts: list[int], language: str) -> str:
    vowel = VOWELS[language]
    return " ".join(f"{CONSONANTS[n]}{vowel}{CONSONANTS[n * 5 % 12]}{vowel}" for n in concepts)


def new_sentences(count: int, seed: int) -> list[list[int]]:
    chance = random.Random(seed)
    return [[chance.randrange(12) for _ in range(chance.randint(2, 4))] for _ in range(count)]


@pytest.mark.long
def test_a_direction_that_was_never_seen_is_translated(tmp_path: Path) -> None:
    """Of four languages all directions are learned but those between two; asked for is one of these."""
    parts = []
    for number, name in enumerate(LEARNED):
        source, target = name.split("-")
        path = tmp_path / f"{name}.tsv"
        write_tsv([(said(each, source), said(each, target)) for each in new_sentences(400, number)], path)
        parts.append(direction_part(f"{name}={path}"))
    settings = {
        "preset": "demo",
        "tokenizer": {"kind": "character", "vocabulary": 300},
        "model": {
            "width": 32,
            "heads": 2,
            "feed_forward_width": 64,
            "encoder_layers": 1,
            "decoder_layers": 1,
        },
        "training": {"epochs": 10, "warmup": 100, "threads": 1, "held_out": 40, "bleu_sentences": 0},
    }
    engine = train_directions(
        parts, tmp_path / "model", both_ways=True, settings=settings, report=Reporter(quiet=True)
    )
    assert engine.bundle.config.is_zero_shot("aa", "uu")
    unseen = new_sentences(60, 99)
    search = SearchConfig(beam=1, language="uu")
    found = engine.translate([said(each, "aa") for each in unseen], search)
    right = [text.text == said(each, "uu") for text, each in zip(found, unseen, strict=True)]
    vowels = [letter for text in found for letter in text.text if letter in "aiue"]
    assert vowels.count("u") / len(vowels) > 0.95  # the language is right ...
    assert sum(right) / len(right) > 0.3  # ... and whole sentences are, of 12 ^ 2 to 12 ^ 4
