"""Models of plain text, from the command line: trained, taken up again, at work, and what they refuse."""

import json
import math
from pathlib import Path

import pytest
import torch

from heedful.data.cleaning import Pair
from heedful.data.demo_corpus.grammar import generate_pairs
from heedful.inference.text_generation import encode_blanks
from heedful.model_folder import ModelFolder
from heedful.models.factory import new_model
from heedful.tokenization.special_tokens import MASK
from heedful.training.validation import score_language_model
from tests.conftest import run_heedful

pytestmark = pytest.mark.long

SETTINGS = [
    "--preset=demo",
    "--set=tokenizer.vocab_size=700",
    "--set=tokenizer.model_type=bpe",
    "--set=training.max_epochs=2",
    "--set=training.precision=float32",
    "--set=training.processes=1",
    "--set=training.validation_size=50",
]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "english.txt"
    path.write_text("".join(f"{pair.source}\n" for pair in generate_pairs(3000)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def language(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("language") / "model"
    result = run_heedful("train", "--task", "causal_lm", texts, "-o", folder, *SETTINGS)
    assert result.status == 0, result.err
    assert f"try it: heedful generate {folder}" in result.out
    return folder


@pytest.fixture(scope="module")
def masked(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("masked") / "model"
    result = run_heedful("train", "--task", "masked_lm", texts, "-o", folder, *SETTINGS)
    assert result.status == 0, result.err
    assert "accuracy" in result.err
    return folder


def test_generate_continues_prompt(language: Path) -> None:
    call = ["generate", language, "The animal", "-n", "3", "--seed", "5", "--top-k", "5", "--temperature", "0.7"]
    result = run_heedful(*call)
    assert result.status == 0, result.err
    lines = result.out.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("The animal") for line in lines)
    assert run_heedful(*call).out == result.out
    known = {word for pair in generate_pairs(3000) for word in pair.source.replace(".", " .").split()}
    written = [word for line in lines for word in line.replace(".", " .").split()]
    assert sum(word in known for word in written) > 0.6 * len(written)


def test_fill_predicts_blanks(masked: Path) -> None:
    result = run_heedful("fill", masked, "The __ is tired. __", "--top", "3")
    assert result.status == 0, result.err
    rows = [line.split("\t") for line in result.out.splitlines()]
    assert [row[0] for row in rows] == ["1", "1", "1", "2", "2", "2"]
    chances = [float(row[1]) for row in rows]
    assert chances[0] >= chances[1] >= chances[2] > 0


def test_evaluate_language_model_reports_unigram_baseline(language: Path, masked: Path, tmp_path: Path) -> None:
    others = tmp_path / "others.txt"
    others.write_text("".join(f"{pair.source}\n" for pair in generate_pairs(300, seed=7)), encoding="utf-8")
    for model, what in ((language, "subwords"), (masked, "masked subwords")):
        result = run_heedful("evaluate", model, others)
        assert result.status == 0, result.err
        head, loss, found, chance = result.out.splitlines()
        assert head.startswith("300 lines")
        assert head.endswith(what)
        assert float(found.split()[1].rstrip("%")) > 2 * float(chance.split()[1].rstrip("%")) > 0
        assert float(loss.split()[3]) < float(chance.split("perplexity ")[1].split()[0])


def test_unigram_baseline_matches_hand_computation(masked: Path) -> None:
    """All three pieces of a language model's only line: END once, and the word twice."""
    config = ModelFolder.load(masked).config.model.model_copy(update={"architecture": "causal_lm"})
    bundle = ModelFolder.load(masked)
    [word] = bundle.tokenizer.target.encode("The")
    text = bundle.tokenizer.target.decode([word, word])
    assert bundle.tokenizer.target.encode(text) == [word, word]
    found = score_language_model(new_model(config).eval(), bundle.tokenizer, [Pair(text, text)])
    assert found.subwords == 3
    assert found.unigram_accuracy == pytest.approx(2 / 3)
    assert found.unigram_loss == pytest.approx(-(2 / 3) * math.log(2 / 3) - (1 / 3) * math.log(1 / 3))


@pytest.mark.parametrize(("text", "blanks"), [("The __ is tired.", 1), ("__", 1), ("a ___b__ c", 2), ("no blank", 0)])
def test_encode_blanks_gives_one_mask_per_blank(masked: Path, text: str, blanks: int) -> None:
    bundle = ModelFolder.load(masked)
    ids = encode_blanks(bundle, text)
    assert ids.count(MASK) == blanks
    if text.startswith("The"):
        whole = bundle.tokenizer.source.encode("The is tired.")
        assert [i for i in ids if i != MASK] == whole


@pytest.mark.parametrize(
    ("family", "text", "kind"), [("causal_lm", "The animal", "decoder"), ("masked_lm", "The __ is tired.", "encoder")]
)
def test_inspect_and_explain_support_language_models(
    family: str, text: str, kind: str, language: Path, masked: Path, tmp_path: Path
) -> None:
    folder = {"causal_lm": language, "masked_lm": masked}[family]
    drawn = run_heedful("inspect", folder, text, "-o", tmp_path / "pictures", "--format", "png", "--layer", "1")
    assert drawn.status == 0, drawn.err
    names = {path.name for path in (tmp_path / "pictures").iterdir()}
    assert {f"{kind}-layer-1.png", "weights-layer-1.json"} <= names
    assert not [name for name in names if "cross" in name or "rollout" in name]
    word = "animal" if family == "causal_lm" else "__"
    told = run_heedful("explain", folder, text, "--layer", "1", "--head", "2", "--word", word, "--json")
    assert told.status == 0, told.err
    values = json.loads(told.out)["values"]
    assert (values["kind"], values["layer"], values["head"]) == (kind, 1, 2)
    assert values["row_subwords"][values["row"] - 1].strip("▁") == word
    assert sum(values["weights"]) == pytest.approx(1)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["translate", "LANGUAGE", "a"], "this is a language model, which does not translate"),
        (["translate", "MASKED", "a"], "this is a masked language model"),
        (["evaluate", "LANGUAGE", "TEXTS", "--beam", "3"], "is a language model"),
        (["evaluate", "MASKED", "/dev/null"], "no text in"),
        (["serve", "LANGUAGE", "--engine", "ctranslate2"], "only translates"),
        (["explain", "LANGUAGE", "The animal", "--kind", "cross"], "no cross attention"),
        (["inspect", "MASKED", "no blank", "-o", "x.html"], "there is no blank"),
        (["inspect", "LANGUAGE", "--grammar"], "this is a language model"),
        (["generate", "MASKED", "a"], "does not generate text"),
        (["fill", "LANGUAGE", "a __"], "does not fill in blanks"),
        (["fill", "MASKED", "a"], "there is no blank"),
        (["generate", "LANGUAGE", "a " * 200], "the prompt has"),
        (["train", "--task", "paint", "TEXTS", "-o", "x"], "unknown task 'paint'"),
        (["train", "--task", "masked_lm", "missing.txt", "-o", "x"], "missing.txt"),
        (["train", "--set", "model.architecture=masked_lm", "TEXTS", "-o", "x"], "trains on plain text"),
    ],
)
def test_language_model_invalid_command_raises(
    words: list[str], problem: str, language: Path, masked: Path, texts: Path
) -> None:
    places = {"LANGUAGE": language, "MASKED": masked, "TEXTS": texts}
    result = run_heedful(*(places.get(word, word) for word in words))
    assert result.status != 0
    assert problem in result.err
    assert "Traceback" not in result.err


def test_train_init_encoder_from_masked_lm_copies_encoder(masked: Path, grammar_pairs: Path, tmp_path: Path) -> None:
    words = ["train", grammar_pairs, "-o", tmp_path / "m", *SETTINGS, "--set", f"training.init_encoder_from={masked}"]
    result = run_heedful(*words, "--set", "training.max_updates=1", "--set", "training.learning_rate=1e-9")
    assert result.status == 0, result.err
    assert "parameters from" in result.err
    told = next(line for line in result.err.splitlines() if "; overrides: " in line)
    assert "model." not in told  # the shape of the encoder is not what the user said
    ours, theirs = ModelFolder.load(tmp_path / "m"), ModelFolder.load(masked)
    assert ours.tokenizer.source.vocabulary == theirs.tokenizer.source.vocabulary
    for name, weight in theirs.model.encoder.named_parameters():  # type: ignore[union-attr, operator]
        found = dict(ours.translation_model.encoder.named_parameters())[name]  # type: ignore[union-attr, operator]
        torch.testing.assert_close(found, weight, rtol=0, atol=1e-6)
    wrong = run_heedful(*words[:3], tmp_path / "n", *words[4:], "--set", "model.d_model=16", "--set", "model.heads=2")
    assert wrong.status == 1
    assert "they are taken from the encoder" in wrong.err
    other = run_heedful(
        "train", grammar_pairs, "-o", tmp_path / "o", "--set", f"training.init_encoder_from={tmp_path / 'm'}"
    )
    assert "is not a masked language model" in other.err
