"""Multilingual training: validation split, sampling temperature, zero-shot directions."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from heedful.cli.main import app
from heedful.cli.train import parse_direction
from heedful.data.cleaning import Pair
from heedful.data.corpus import CorpusSource, DirectionPairs, Mixture, apply_temperature
from heedful.data.demo_corpus.grammar import generate_pairs
from heedful.data.reader import write_tsv
from heedful.data.splits import split_directions, split_hash
from heedful.errors import HeedfulError
from heedful.generation.config import GenerationConfig
from heedful.model_folder import ModelFolder
from heedful.progress import Reporter
from heedful.tokenization.special_tokens import add_tags, strip_tags
from heedful.workflows.train import _add_reverse_directions, train_directions
from tests.conftest import QUICK_SETTINGS, run_heedful


def set_args(*others: str) -> Iterator[str]:
    for setting in (*QUICK_SETTINGS, *others):
        yield from ("--set", setting)


# ---- validation split


def test_split_directions_validation_pair_is_held_out_in_both_directions() -> None:
    forward = [Pair(add_tags(f"a{n} b", "fr"), f"x{n} y") for n in range(400)]
    backward = [Pair(add_tags(pair.target, "en"), strip_tags(pair.source)) for pair in forward]
    others = [Pair(add_tags(f"a{n} b", "de"), f"z{n}") for n in range(300, 500)]
    result = split_directions(
        [
            DirectionPairs(("en", "fr"), lambda: iter(forward), 400),
            DirectionPairs(("fr", "en"), lambda: iter(backward), 400, reverse=True),
            DirectionPairs(("en", "de"), lambda: iter(others), 200),
        ],
        lambda: iter([*forward, *backward, *others]),
    )
    counts = {name: result.validation_directions.count(name) for name in result.validation_directions}
    assert counts == {("en", "fr"): 20, ("fr", "en"): 20, ("en", "de"): 10}
    assert result.validation_directions[:4] == (("en", "fr"), ("fr", "en"), ("en", "de"), ("en", "fr"))
    held_out = {split_hash(side) for pair in result.validation for side in pair}
    training = [pair for pair in [*forward, *backward, *others] if result.split_filter(pair)]
    sources = {split_hash(pair.source) for pair in result.validation if "y" not in pair.source}
    assert not any(split_hash(side) in sources for pair in training for side in pair)
    assert not any({split_hash(side) for side in pair} <= held_out for pair in training)
    assert len(training) > 900
    assert "20 of en-fr, 20 of fr-en, 10 of en-de" in result.notes[0]


def test_split_directions_without_validation_pair_is_an_error() -> None:
    pairs = [Pair(f"a{n}", "the same") for n in range(9)]
    with pytest.raises(HeedfulError, match="cannot hold out any pair of en-fr") as error:
        split_directions([DirectionPairs(("en", "fr"), lambda: iter(pairs), 9)], lambda: iter(pairs))
    assert "--validation en-fr=FILE" in error.value.hint


# ---- sampling temperature


def new_source(direction: str, fraction: float = 0.0) -> CorpusSource:
    source, target = direction.split("-")
    return CorpusSource((Path("a"),), (source, target), (target,), fraction)


def test_apply_temperature_upsamples_small_directions() -> None:
    sources, sizes = [new_source("en-fr"), new_source("en-de")], (900, 100)
    assert apply_temperature(sources, sizes, 1.0) == tuple(sources)
    fractions = [source.fraction for source in apply_temperature(sources, sizes, 2.0)]
    assert fractions == pytest.approx([0.75, 0.25])  # 30 : 10
    assert Mixture(sizes, tuple(fractions)).counts == (750, 250)
    even_fractions = [source.fraction for source in apply_temperature(sources, sizes, 100.0)]
    assert even_fractions == pytest.approx([0.5, 0.5], abs=0.01)


def test_apply_temperature_divides_fraction_among_files_of_a_direction() -> None:
    sources = [new_source("en-fr"), new_source("en-de"), new_source("en-fr")]
    fractions = [source.fraction for source in apply_temperature(sources, (600, 100, 300), 2.0)]
    assert fractions == pytest.approx([0.5, 0.25, 0.25])


def test_reversed_corpus_source_json_round_trip() -> None:
    [_, reversed_source] = _add_reverse_directions([new_source("en-fr")], both_ways=True)
    assert (reversed_source.direction, reversed_source.tags, reversed_source.reverse) == (("fr", "en"), ("en",), True)
    assert CorpusSource.from_json(reversed_source.to_json()) == reversed_source


def test_apply_temperature_of_one_corpus_is_an_error() -> None:
    with pytest.raises(HeedfulError, match="needs at least two corpora"):
        apply_temperature([CorpusSource((Path("a"),))], (5,), 2.0)


def test_apply_temperature_keeps_given_fractions() -> None:
    corpora = [CorpusSource((Path("a"),)), CorpusSource((Path("b"),), use_for_validation=False)]
    assert [corpus.fraction for corpus in apply_temperature(corpora, (900, 100), 2.0)] == pytest.approx([0.75, 0.25])
    with_fraction = [*corpora, CorpusSource((Path("c"),), fraction=0.2)]  # fixed; the others share the rest
    assert [corpus.fraction for corpus in apply_temperature(with_fraction, (900, 100, 50), 2.0)] == pytest.approx(
        [0.6, 0.2, 0.2]
    )


# ---- the command


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """English to French as TSV, English to "German" (French in capitals) as two files."""
    folder = tmp_path_factory.mktemp("directions")
    pairs = [(pair.source, pair.target) for pair in generate_pairs(500)]
    write_tsv(pairs[:300], folder / "fr.tsv")
    for number, name in enumerate(("train.en", "train.de")):
        sides = [pair[number].upper() if number else pair[number] for pair in pairs[250:]]
        (folder / name).write_text("".join(f"{side}\n" for side in sides), encoding="utf-8")
    zero_shot = [(target, target.upper()) for _, target in pairs[:10]]
    write_tsv(zero_shot, folder / "zero.tsv")
    return folder


def test_train_directions_both_ways(files: Path, tmp_path: Path) -> None:
    directions = ["--direction", f"en-fr={files}/fr.tsv", "--direction", f"en-de={files}/train.en,{files}/train.de"]
    result = run_heedful(
        "train", *directions, "--both-ways", "-o", tmp_path / "model", *set_args("training.sampling_temperature=5")
    )
    assert result.status == 0, result.err
    assert "--to de" in result.out or "--to en" in result.out
    names = ("en-fr", "fr-en", "en-de", "de-en")
    card = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    for name in names:
        assert f"\n{name}: loss " in result.err
        assert f"- {name}: loss " in card
    assert "BLEU" in card.split("- de-en")[1].split("\n")[0]
    assert card.startswith("# Heedful model: en to fr, fr to en, en to de, de to en\n")
    config = ModelFolder.open(tmp_path / "model").config
    assert config.directions == tuple(tuple(name.split("-")) for name in names)
    assert (config.target_languages, config.source_languages) == (("fr", "en", "de"), ("en", "fr", "de"))
    assert config.languages == ("en", "fr")
    prepared = json.loads((tmp_path / "model/training/data/preprocessed.json").read_text(encoding="utf-8"))
    assert len(prepared["validation_directions"]) == 20
    assert [prepared["validation_directions"].count(name.split("-")) for name in names] == [5, 5, 5, 5]
    counts = Mixture(tuple(prepared["sizes"]), tuple(prepared["fractions"])).counts
    assert max(counts) / min(counts) < max(prepared["sizes"]) / min(prepared["sizes"])
    result = run_heedful("translate", tmp_path / "model", "Le chien", "--to", "de")
    assert result.status == 0, result.err


def test_train_directions_validates_a_zero_shot_direction(files: Path, tmp_path: Path) -> None:
    directions = ["--direction", f"en-fr={files}/fr.tsv", "--direction", f"en-de={files}/train.en,{files}/train.de"]
    validation = ["-v", f"fr-de={files}/zero.tsv"]
    result = run_heedful("train", *directions, "--both-ways", *validation, "-o", tmp_path / "model", *set_args())
    assert result.status == 0, result.err
    assert "\nfr-de (zero-shot): loss " in result.err
    assert "\nde-fr (zero-shot): loss " in result.err


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (["--direction", "en-fr"], "invalid direction 'en-fr'"),
        (["--direction", "en=a.tsv"], "cannot read languages 'en'"),
        (["--direction", "en-en=FILE"], "needs two different languages"),
        (["--direction", "en-fr=FILE", "pairs.tsv"], "FILES cannot be combined with --direction"),
        (["--direction", "en-fr=FILE", "--mix", "a.tsv"], "--mix cannot be combined with --direction"),
        (["--direction", "en-fr=FILE", "--from", "model"], "--from cannot be combined with --direction"),
        (["--direction", "en-fr=FILE", "--task", "masked_lm"], "--task cannot be combined with --direction"),
        (["--direction", "en-fr=FILE", "-v", "en-it=FILE"], "cannot validate en-it"),
        (["--direction", "en-fr=FILE", "-v", "FILE"], "invalid direction"),
        (["--direction", "en-fr=missing.tsv"], "missing.tsv"),
        (["--both-ways"], "no directions to train"),
        (["FILE", "--set", "training.sampling_temperature=2", *set_args()], "needs at least two corpora"),
        (
            [
                *("--direction", "en-fr=FILE", "--direction", "en-de=HERE/train.en,HERE/train.de"),
                *("-v", "en-fr=FILE", *set_args()),
            ],
            "no training pairs of .*fr.tsv .* are left",
        ),
    ],
)
def test_train_directions_invalid_options_are_errors(
    args: list[str], problem: str, files: Path, tmp_path: Path
) -> None:
    resolved_args = [arg.replace("FILE", f"{files}/fr.tsv").replace("HERE", str(files)) for arg in args]
    with pytest.raises(HeedfulError, match=problem):
        app(["train", *resolved_args, "-o", str(tmp_path / "model"), "--quiet"], standalone_mode=False)
    assert not (tmp_path / "model").exists()


# ---- zero-shot

VOWELS = {"aa": "a", "ii": "i", "uu": "u", "ee": "e"}
"""Four related languages: the same consonants, each with its own vowel."""
TRAINED_DIRECTIONS = ("aa-ii", "ii-uu", "uu-ee", "ee-aa", "ii-ee")
"""All pairs but that of aa and uu."""
CONSONANTS = "bdfgklmnprst"


def render_sentence(concepts: list[int], language: str) -> str:
    vowel = VOWELS[language]
    return " ".join(f"{CONSONANTS[n]}{vowel}{CONSONANTS[n * 5 % 12]}{vowel}" for n in concepts)


def new_sentences(count: int, seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(12) for _ in range(rng.randint(2, 4))] for _ in range(count)]


@pytest.mark.long
def test_train_directions_translates_a_zero_shot_direction(tmp_path: Path) -> None:
    """Four languages, trained in all directions except those between two of them."""
    directions = []
    for number, name in enumerate(TRAINED_DIRECTIONS):
        source, target = name.split("-")
        path = tmp_path / f"{name}.tsv"
        write_tsv(
            [
                (render_sentence(sentence, source), render_sentence(sentence, target))
                for sentence in new_sentences(400, number)
            ],
            path,
        )
        directions.append(parse_direction(f"{name}={path}"))
    settings = {
        "preset": "demo",
        "tokenizer": {"model_type": "character", "vocab_size": 300},
        "model": {"d_model": 32, "heads": 2, "d_ff": 64, "encoder_layers": 1, "decoder_layers": 1},
        "training": {"max_epochs": 10, "warmup_updates": 100, "threads": 1, "validation_size": 40, "bleu_sentences": 0},
    }
    engine = train_directions(
        directions, tmp_path / "model", both_ways=True, settings=settings, report=Reporter(quiet=True)
    )
    assert engine.model_folder.config.is_zero_shot("aa", "uu")
    unseen = new_sentences(60, 99)
    search = GenerationConfig(beam_size=1, target_language="uu")
    translations = engine.translate([render_sentence(sentence, "aa") for sentence in unseen], search)
    is_correct = [
        translation.text == render_sentence(sentence, "uu")
        for translation, sentence in zip(translations, unseen, strict=True)
    ]
    vowels = [letter for translation in translations for letter in translation.text if letter in "aiue"]
    assert vowels.count("u") / len(vowels) > 0.95  # the language is correct ...
    assert sum(is_correct) / len(is_correct) > 0.3  # ... and so are complete sentences, out of 12^2 to 12^4
