"""Language models on the command line: training, initialization from one, generation, blanks, invalid commands."""

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
def causal_lm(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("causal_lm") / "model"
    result = run_heedful("train", "--task", "causal_lm", texts, "-o", folder, *SETTINGS)
    assert result.status == 0, result.err
    assert f"try it: heedful generate {folder}" in result.out
    return folder


@pytest.fixture(scope="module")
def masked_lm(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("masked_lm") / "model"
    result = run_heedful("train", "--task", "masked_lm", texts, "-o", folder, *SETTINGS)
    assert result.status == 0, result.err
    assert "accuracy" in result.err
    return folder


def test_generate_continues_prompt(causal_lm: Path) -> None:
    args = ["generate", causal_lm, "The animal", "-n", "3", "--seed", "5", "--top-k", "5", "--temperature", "0.7"]
    result = run_heedful(*args)
    assert result.status == 0, result.err
    lines = result.out.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("The animal") for line in lines)
    assert run_heedful(*args).out == result.out
    vocabulary = {word for pair in generate_pairs(3000) for word in pair.source.replace(".", " .").split()}
    generated_words = [word for line in lines for word in line.replace(".", " .").split()]
    assert sum(word in vocabulary for word in generated_words) > 0.6 * len(generated_words)


def test_fill_predicts_blanks(masked_lm: Path) -> None:
    result = run_heedful("fill", masked_lm, "The __ is tired. __", "--top", "3")
    assert result.status == 0, result.err
    rows = [line.split("\t") for line in result.out.splitlines()]
    assert [row[0] for row in rows] == ["1", "1", "1", "2", "2", "2"]
    probabilities = [float(row[1]) for row in rows]
    assert probabilities[0] >= probabilities[1] >= probabilities[2] > 0


def test_evaluate_language_model_reports_unigram_baseline(causal_lm: Path, masked_lm: Path, tmp_path: Path) -> None:
    other_texts = tmp_path / "others.txt"
    other_texts.write_text("".join(f"{pair.source}\n" for pair in generate_pairs(300, seed=7)), encoding="utf-8")
    for model, unit in ((causal_lm, "subwords"), (masked_lm, "masked subwords")):
        result = run_heedful("evaluate", model, other_texts)
        assert result.status == 0, result.err
        summary, loss, accuracy, unigram = result.out.splitlines()
        assert summary.startswith("300 lines")
        assert summary.endswith(unit)
        assert float(accuracy.split()[1].rstrip("%")) > 2 * float(unigram.split()[1].rstrip("%")) > 0
        assert float(loss.split()[3]) < float(unigram.split("perplexity ")[1].split()[0])


def test_unigram_baseline_matches_hand_computation(masked_lm: Path) -> None:
    """A text of three subwords: a word twice, and END."""
    config = ModelFolder.load(masked_lm).config.model.model_copy(update={"architecture": "causal_lm"})
    model_folder = ModelFolder.load(masked_lm)
    [word] = model_folder.tokenizer.target.encode("The")
    text = model_folder.tokenizer.target.decode([word, word])
    assert model_folder.tokenizer.target.encode(text) == [word, word]
    score = score_language_model(new_model(config).eval(), model_folder.tokenizer, [Pair(text, text)])
    assert score.subwords == 3
    assert score.unigram_accuracy == pytest.approx(2 / 3)
    assert score.unigram_loss == pytest.approx(-(2 / 3) * math.log(2 / 3) - (1 / 3) * math.log(1 / 3))


@pytest.mark.parametrize(("text", "blanks"), [("The __ is tired.", 1), ("__", 1), ("a ___b__ c", 2), ("no blank", 0)])
def test_encode_blanks_gives_one_mask_per_blank(masked_lm: Path, text: str, blanks: int) -> None:
    model_folder = ModelFolder.load(masked_lm)
    ids = encode_blanks(model_folder, text)
    assert ids.count(MASK) == blanks
    if text.startswith("The"):
        expected = model_folder.tokenizer.source.encode("The is tired.")
        assert [i for i in ids if i != MASK] == expected


@pytest.mark.parametrize(
    ("architecture", "text", "kind"),
    [("causal_lm", "The animal", "decoder"), ("masked_lm", "The __ is tired.", "encoder")],
)
def test_inspect_and_explain_support_language_models(
    architecture: str, text: str, kind: str, causal_lm: Path, masked_lm: Path, tmp_path: Path
) -> None:
    folder = {"causal_lm": causal_lm, "masked_lm": masked_lm}[architecture]
    inspection = run_heedful("inspect", folder, text, "-o", tmp_path / "pictures", "--format", "png", "--layer", "1")
    assert inspection.status == 0, inspection.err
    names = {path.name for path in (tmp_path / "pictures").iterdir()}
    assert {f"{kind}-layer-1.png", "weights-layer-1.json"} <= names
    assert not [name for name in names if "cross" in name or "rollout" in name]
    word = "animal" if architecture == "causal_lm" else "__"
    explanation = run_heedful("explain", folder, text, "--layer", "1", "--head", "2", "--word", word, "--json")
    assert explanation.status == 0, explanation.err
    values = json.loads(explanation.out)["values"]
    assert (values["kind"], values["layer"], values["head"]) == (kind, 1, 2)
    assert values["row_subwords"][values["row"] - 1].strip("▁") == word
    assert sum(values["weights"]) == pytest.approx(1)


@pytest.mark.parametrize(
    ("args", "problem"),
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
    args: list[str], problem: str, causal_lm: Path, masked_lm: Path, texts: Path
) -> None:
    paths = {"LANGUAGE": causal_lm, "MASKED": masked_lm, "TEXTS": texts}
    result = run_heedful(*(paths.get(arg, arg) for arg in args))
    assert result.status != 0
    assert problem in result.err
    assert "Traceback" not in result.err


def test_train_init_encoder_from_masked_lm_copies_encoder(masked_lm: Path, grammar_pairs: Path, tmp_path: Path) -> None:
    args = ["train", grammar_pairs, "-o", tmp_path / "m", *SETTINGS, "--set", f"training.init_encoder_from={masked_lm}"]
    result = run_heedful(*args, "--set", "training.max_updates=1", "--set", "training.learning_rate=1e-9")
    assert result.status == 0, result.err
    assert "parameters from" in result.err
    overrides = next(line for line in result.err.splitlines() if "; overrides: " in line)
    assert "model." not in overrides  # the shape of the encoder is not an override of the user
    ours, theirs = ModelFolder.load(tmp_path / "m"), ModelFolder.load(masked_lm)
    assert ours.tokenizer.source.vocabulary == theirs.tokenizer.source.vocabulary
    for name, weight in theirs.model.encoder.named_parameters():  # type: ignore[union-attr, operator]
        copied_weight = dict(ours.translation_model.encoder.named_parameters())[name]  # type: ignore[union-attr, operator]
        torch.testing.assert_close(copied_weight, weight, rtol=0, atol=1e-6)
    wrong = run_heedful(*args[:3], tmp_path / "n", *args[4:], "--set", "model.d_model=16", "--set", "model.heads=2")
    assert wrong.status == 1
    assert "they are taken from the encoder" in wrong.err
    other = run_heedful(
        "train", grammar_pairs, "-o", tmp_path / "o", "--set", f"training.init_encoder_from={tmp_path / 'm'}"
    )
    assert "is not a masked language model" in other.err
