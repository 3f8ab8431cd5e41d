"""Models with dependency trees on the command line: training, evaluation, translation, errors."""

import json
import random
from pathlib import Path

import pytest

import heedful
from heedful.data.cleaning import CleaningReport, Pair, clean_pairs
from heedful.data.config import CleaningConfig
from heedful.data.dataset import TokenDataset
from heedful.data.reader import read_pairs
from heedful.model_folder import ModelFolder
from tests.conftest import run_heedful

pytestmark = pytest.mark.long

ANIMALS = ["cat", "dog", "bird", "horse", "mouse", "rabbit", "lion", "tiger", "wolf", "bear"]
SETTINGS = [
    "--preset=demo",
    "--set=model.positions=dependency",
    "--set=tokenizer.model_type=bpe",
    "--set=tokenizer.vocab_size=330",
    "--set=training.max_epochs=2",
    "--set=training.precision=float32",
    "--set=training.processes=1",
    "--set=training.snapshots=0",
    "--set=batching.max_sentences=32",
    "--set=cleaning.max_length_ratio=0",
]
MALFORMED = "cat dog\tcat\t0\ncat dog\tcat\t2 1\ncat dog\tcat\ncat dog\tcat\tCC-BY 2.0\ncat dog\tcat\t0 7\n"


def lines(draw: random.Random, count: int) -> list[str]:
    """Four animals in a random tree; the translation is the root."""
    rows = []
    for _ in range(count):
        words, word_order, heads = draw.sample(ANIMALS, 4), draw.sample(range(1, 5), 4), [0] * 4
        for index, word in enumerate(word_order[1:], start=1):
            heads[word - 1] = draw.choice(word_order[:index])
        rows.append(f"{' '.join(words)}\t{words[word_order[0] - 1]}\t{' '.join(map(str, heads))}")
    return rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Training pairs, test pairs, and a model trained on them."""
    folder, draw = tmp_path_factory.mktemp("trees"), random.Random(5)
    text = "\r\n".join(lines(draw, 3000)) + "\r\n" + MALFORMED
    (folder / "train.tsv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    (folder / "test.tsv").write_text("\n".join(lines(draw, 100)) + "\n")
    result = run_heedful("train", folder / "train.tsv", "-v", folder / "test.tsv", "-o", folder / "model", *SETTINGS)
    assert result.status == 0, result.err
    report = result.err.splitlines()
    for reason, line in (
        ("number of heads differs from number of words", 3001),
        ("heads form a cycle", 3002),
        ("no heads", 3003),
        ("heads are not numbers", 3004),
        ("head beyond the last word", 3005),
    ):
        assert f"dropped 1: {reason} (first: train.tsv:{line})" in report
    return folder


def test_training_keeps_heads_of_every_line(folder: Path) -> None:
    """With a byte-order mark and carriage returns."""
    dataset = TokenDataset.open(folder / "model" / "training" / "data" / "train")
    for index in range(0, len(dataset), 97):
        _, words, heads = dataset.source(index).T.tolist()
        assert set(words) == {1, 2, 3, 4}
        assert list(dict(zip(words, heads, strict=True)).values()).count(0) == 1


def test_translate_depends_on_tree(folder: Path, tmp_path: Path) -> None:
    rows = [line.split("\t") for line in (folder / "test.tsv").read_text().splitlines()]
    (tmp_path / "in.tsv").write_text("".join(f"{source}\t{heads}\n" for source, _, heads in rows))
    model = folder / "model"
    result = run_heedful("translate", model, "-i", tmp_path / "in.tsv", "-o", tmp_path / "out.txt")
    assert result.status == 0, result.err
    assert "warning" not in result.err
    outputs = (tmp_path / "out.txt").read_text().splitlines()
    assert sum(text == target for text, (_, target, _) in zip(outputs, rows, strict=True)) > 95
    engine = heedful.load(model)
    assert engine.name.startswith("PyTorch")
    animals = "lion cat bear wolf"
    texts = [f"{animals}\t{heads}" for heads in ("0 1 1 1", "2 0 2 2", "3 3 0 3", "2 3 4 0")]
    translations = engine.translate(texts, details=True)
    assert [translation.text for translation in translations] == animals.split()
    assert all(link[0] < 4 for translation in translations for link in translation.alternatives[0].alignment)
    assert all(translation.log_probability > -1 for translation in engine.score(texts, animals.split()))
    assert "".join(engine.stream(texts[2])) == "bear"
    assert engine.alternatives(texts[3])[0].translation.text == "wolf"
    with pytest.raises(heedful.HeedfulError, match="number of heads differs"):
        engine.translate(["lion cat\t0"])


def test_translate_long_sentence_keeps_tree(folder: Path) -> None:
    """Text with a tree is never split, whether it has several roots or is long."""
    engine = heedful.load(folder / "model")
    assert engine.model_folder.config.split_sentences
    assert len(engine.split_segments("Lion. Cat! Bear?")) == 3
    assert [segment.text for segment in engine.split_segments(" Lion. Cat! Bear?\t0 0 2\n")] == [
        "",
        "Lion. Cat! Bear?\t0 0 2",
    ]
    long = " ".join(ANIMALS * 9)
    assert len(engine.split_segments(long)) > 1
    assert len(engine.split_segments(f"{long}\t{' '.join(['0'] * 90)}")) == 1


def test_translate_lines_without_tree_are_counted(folder: Path) -> None:
    stdin = b"lion cat\t0 1\nlion cat\n\nlion cat\t1 0 7\nlion cat\t\n"
    for options in ([], ["--stream"]):
        result = run_heedful("translate", folder / "model", *options, stdin=stdin)
        assert result.status == 0, result.err
        assert len(result.out.splitlines()) == 5
        assert "3 of 5 lines were translated without a dependency" in result.err
        assert "(first: line 2, no heads)" in result.err
    texts = result.out.splitlines()
    assert texts[1] == texts[3] == texts[4]


def test_evaluate_reads_heads(folder: Path, tmp_path: Path) -> None:
    test_text = (folder / "test.tsv").read_text()
    (tmp_path / "test.tsv").write_text(test_text + MALFORMED)
    scores_path = tmp_path / "scores.tsv"
    result = run_heedful("evaluate", folder / "model", tmp_path / "test.tsv", "--sentence-scores", scores_path)
    assert result.status == 0, result.err
    assert "100 pairs" in result.out
    assert "dropped 1: heads form a cycle" in result.err
    log_probabilities = [float(row.split("\t")[3]) for row in scores_path.read_text().splitlines()[1:]]
    assert sum(value > -1 for value in log_probabilities) > 95
    rows = [line.split("\t") for line in test_text.splitlines()]
    (tmp_path / "test.jsonl").write_text(
        "".join(
            json.dumps({"source": source, "target": target, "heads": [int(n) for n in heads.split()]}) + "\n"
            for source, target, heads in rows
        )
    )
    json_result = run_heedful("evaluate", folder / "model", tmp_path / "test.jsonl")
    assert json_result.out == result.out


@pytest.mark.parametrize("verb", ["train", "evaluate"])
def test_train_parallel_files_without_trees_is_an_error(folder: Path, tmp_path: Path, verb: str) -> None:
    for name in ("a.en", "a.fr"):
        (tmp_path / name).write_text("lion cat\n" * 9)
    files = [tmp_path / "a.en", tmp_path / "a.fr"]
    options = ["-o", tmp_path / "model", *SETTINGS] if verb == "train" else []
    model = [] if verb == "train" else [folder / "model"]
    result = run_heedful(verb, *model, *files, *options)
    assert result.status == 1
    assert "a.en and a.fr cannot hold" in result.err
    assert "source TAB target TAB heads" in result.err


def test_load_ctranslate2_for_tree_model_is_an_error(folder: Path) -> None:
    result = run_heedful("translate", folder / "model", "lion", "--engine", "ctranslate2")
    assert result.status == 1
    assert "model.positions = 'dependency'" in result.err


def test_explain_and_inspect_of_tree_model_work(folder: Path, tmp_path: Path) -> None:
    model, text = folder / "model", "lion cat bear wolf\t2 0 2 3"
    explanation = run_heedful("explain", model, text, "--word", "bear")
    assert explanation.status == 0, explanation.err
    page = run_heedful("inspect", model, text, "-o", tmp_path / "page.html")
    assert page.status == 0, page.err
    assert page.out.startswith(f"{text} -> cat")
    links = run_heedful("inspect", model, "--alignments", folder / "test.tsv")
    assert links.status == 0, links.err
    assert len(links.out.splitlines()) == 100
    heads = run_heedful("inspect", model, "--heads", folder / "test.tsv")
    assert heads.status == 0, heads.err


def test_load_saved_tree_model_is_identical(folder: Path, tmp_path: Path) -> None:
    bundle = ModelFolder.load(folder / "model")
    bundle.save(tmp_path / "copy")
    text = ["lion cat bear wolf\t2 0 2 3"]
    translations = [heedful.load(path).translate(text)[0] for path in (folder / "model", tmp_path / "copy")]
    assert translations[0] == translations[1]


def test_train_tree_model_with_bpe_dropout_and_guided_attention_works(folder: Path, tmp_path: Path) -> None:
    """BPE-dropout and guided attention with relative tree positions."""
    relative = ["--set=model.positions=relative-dependency", "--set=training.max_updates=4"]
    dropout = run_heedful(
        "train", folder / "train.tsv", "-v", folder / "test.tsv", "-o", tmp_path / "dropout",
        *SETTINGS, *relative, "--set=tokenizer.bpe_dropout=0.3",
    )  # fmt: skip
    assert dropout.status == 0, dropout.err
    first = (folder / "train.tsv").read_text(encoding="utf-8-sig").split("\t")[0]
    (tmp_path / "links.tsv").write_text(f"{first}\t0-1\n")
    guided = run_heedful(
        "train", folder / "train.tsv", "-v", folder / "test.tsv", "-o", tmp_path / "guided",
        *SETTINGS, *relative, f"--set=guided_attention.alignments={tmp_path / 'links.tsv'}",
    )  # fmt: skip
    assert guided.status == 0, guided.err
    assert "training sentences have alignments" in guided.err


def test_compare_tree_positions_beat_sinusoidal(folder: Path, tmp_path: Path) -> None:
    for name in ("sinusoidal", "dependency"):
        (tmp_path / f"{name}.toml").write_text(f'[model]\npositions = "{name}"\n')
    settings = [word for word in SETTINGS if "positions" not in word and "epochs" not in word]
    recipes = [f"--recipe={name}={tmp_path / name}.toml" for name in ("sinusoidal", "dependency")]
    result = run_heedful(
        "compare", folder / "train.tsv", "-v", folder / "test.tsv", "-o", tmp_path / "compared",
        *settings, *recipes, "--updates=150",
    )  # fmt: skip
    assert result.status == 0, result.err
    losses = [float(row.split(" | ")[6]) for row in result.out.splitlines()[2:4]]
    assert losses[1] < losses[0] / 2


def test_train_other_positions_ignore_heads_column(folder: Path) -> None:
    counts = CleaningReport()
    pairs = list(clean_pairs(read_pairs([folder / "train.tsv"]), CleaningConfig(max_length_ratio=0), counts))
    assert Pair("cat dog", "cat") in pairs
    assert not any(pair.heads for pair in pairs)
    assert not any("head" in reason for reason in counts.dropped)
