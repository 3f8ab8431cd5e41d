"""Models that read trees, from the command line: trained, evaluated, at work, and what they refuse."""

import json
import random
from pathlib import Path

import pytest

import heedful
from heedful.bundle import Bundle
from heedful.corpora.filters import CleaningConfig, CleaningReport, Pair, clean
from heedful.corpora.formats import read_pairs
from heedful.corpora.store import TokenStore
from heedful.places import unpacked
from tests.conftest import run_heedful

pytestmark = pytest.mark.long

ANIMALS = ["cat", "dog", "bird", "horse", "mouse", "rabbit", "lion", "tiger", "wolf", "bear"]
SETTINGS = [
    "--preset=demo",
    "--set=model.positions=tree",
    "--set=tokenizer.kind=bpe",
    "--set=tokenizer.vocabulary=330",
    "--set=training.epochs=2",
    "--set=training.precision=float32",
    "--set=training.processes=1",
    "--set=training.snapshots=0",
    "--set=batches.sentences=32",
    "--set=cleaning.max_ratio=0",
]
MALFORMED = "cat dog\tcat\t0\ncat dog\tcat\t2 1\ncat dog\tcat\ncat dog\tcat\tCC-BY 2.0\ncat dog\tcat\t0 7\n"


def lines(draw: random.Random, count: int) -> list[str]:
    """Four animals in a random tree; the translation is the root."""
    found = []
    for _ in range(count):
        words, order, heads = draw.sample(ANIMALS, 4), draw.sample(range(1, 5), 4), [0] * 4
        for place, word in enumerate(order[1:], start=1):
            heads[word - 1] = draw.choice(order[:place])
        found.append(f"{' '.join(words)}\t{words[order[0] - 1]}\t{' '.join(map(str, heads))}")
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Training and test pairs, and a model of them."""
    folder, draw = tmp_path_factory.mktemp("trees"), random.Random(5)
    text = "\r\n".join(lines(draw, 3000)) + "\r\n" + MALFORMED
    (folder / "train.tsv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    (folder / "test.tsv").write_text("\n".join(lines(draw, 100)) + "\n")
    result = run_heedful(
        "train", folder / "train.tsv", "-v", folder / "test.tsv", "-o", folder / "model", *SETTINGS
    )
    assert result.status == 0, result.err
    report = result.err.splitlines()
    for reason, line in (
        ("not as many heads as words", 3001),
        ("heads in a circle", 3002),
        ("no heads", 3003),
        ("heads are no numbers", 3004),
        ("a head beyond the last word", 3005),
    ):
        assert f"dropped 1: {reason} (first: train.tsv:{line})" in report
    return folder


def test_the_first_and_every_line_keep_their_heads(folder: Path) -> None:
    """Neither a byte-order mark nor carriage returns get in between."""
    store = TokenStore.open(folder / "model" / "training" / "data" / "training")
    assert store.summary.dtype == "uint64"
    for index in range(0, len(store), 97):
        places = [unpacked(identity) for identity in store.source(index).tolist()]
        assert {word for _, word, _ in places} == {1, 2, 3, 4}
        assert sum(head == 0 for head in {word: head for _, word, head in places}.values()) == 1


def test_it_translates_by_the_tree(folder: Path, tmp_path: Path) -> None:
    given = [line.split("\t") for line in (folder / "test.tsv").read_text().splitlines()]
    (tmp_path / "in.tsv").write_text("".join(f"{source}\t{heads}\n" for source, _, heads in given))
    model = folder / "model"
    result = run_heedful("translate", model, "-i", tmp_path / "in.tsv", "-o", tmp_path / "out.txt")
    assert result.status == 0, result.err
    assert "warning" not in result.err
    found = (tmp_path / "out.txt").read_text().splitlines()
    assert sum(text == target for text, (_, target, _) in zip(found, given, strict=True)) > 95
    engine = heedful.load(model)
    assert engine.name.startswith("PyTorch")
    animals = "lion cat bear wolf"
    texts = [f"{animals}\t{heads}" for heads in ("0 1 1 1", "2 0 2 2", "3 3 0 3", "2 3 4 0")]
    translated = engine.translate(texts, details=True)
    assert [each.text for each in translated] == animals.split()
    assert all(link[0] < 4 for each in translated for link in each.alternatives[0].alignment)
    assert all(each.log_probability > -1 for each in engine.score(texts, animals.split()))
    assert "".join(engine.stream(texts[2])) == "bear"
    assert engine.continuations(texts[3])[0].translation.text == "wolf"
    with pytest.raises(heedful.HeedfulError, match="do not fit: not as many heads as words"):
        engine.translate(["lion cat\t0"])


def test_a_tree_is_never_cut(folder: Path) -> None:
    """Two sentences with two roots are one text, and a long one stays whole."""
    engine = heedful.load(folder / "model")
    assert engine.bundle.config.by_sentence
    assert len(engine.segments("Lion. Cat! Bear?")) == 3
    assert [segment.text for segment in engine.segments(" Lion. Cat! Bear?\t0 0 2\n")] == [
        "",
        "Lion. Cat! Bear?\t0 0 2",
    ]
    long = " ".join(ANIMALS * 9)
    assert len(engine.segments(long)) > 1
    assert len(engine.segments(f"{long}\t{' '.join(['0'] * 90)}")) == 1


def test_lines_without_a_tree_are_told(folder: Path) -> None:
    given = b"lion cat\t0 1\nlion cat\n\nlion cat\t1 0 7\nlion cat\t\n"
    for more in ([], ["--stream"]):
        result = run_heedful("translate", folder / "model", *more, stdin=given)
        assert result.status == 0, result.err
        assert len(result.out.splitlines()) == 5
        assert "3 of 5 lines were translated without a tree" in result.err
        assert "(first: line 2, no heads)" in result.err
    texts = result.out.splitlines()
    assert texts[1] == texts[3] == texts[4]


def test_evaluation_reads_heads(folder: Path, tmp_path: Path) -> None:
    whole = (folder / "test.tsv").read_text()
    (tmp_path / "test.tsv").write_text(whole + MALFORMED)
    each = tmp_path / "each.tsv"
    result = run_heedful("evaluate", folder / "model", tmp_path / "test.tsv", "--each", each)
    assert result.status == 0, result.err
    assert "100 pairs" in result.out
    assert "dropped 1: heads in a circle" in result.err
    likely = [float(row.split("\t")[3]) for row in each.read_text().splitlines()[1:]]
    assert sum(value > -1 for value in likely) > 95
    rows = [line.split("\t") for line in whole.splitlines()]
    (tmp_path / "test.jsonl").write_text(
        "".join(
            json.dumps({"source": source, "target": target, "heads": [int(n) for n in heads.split()]}) + "\n"
            for source, target, heads in rows
        )
    )
    again = run_heedful("evaluate", folder / "model", tmp_path / "test.jsonl")
    assert again.out == result.out


@pytest.mark.parametrize("verb", ["train", "evaluate"])
def test_two_files_hold_no_trees(folder: Path, tmp_path: Path, verb: str) -> None:
    for name in ("a.en", "a.fr"):
        (tmp_path / name).write_text("lion cat\n" * 9)
    files = [tmp_path / "a.en", tmp_path / "a.fr"]
    told = ["-o", tmp_path / "model", *SETTINGS] if verb == "train" else []
    given = [] if verb == "train" else [folder / "model"]
    result = run_heedful(verb, *given, *files, *told)
    assert result.status == 1
    assert "a.en and a.fr hold no trees" in result.err
    assert "source TAB target TAB heads" in result.err


def test_a_quick_engine_is_refused(folder: Path) -> None:
    result = run_heedful("translate", folder / "model", "lion", "--engine", "ctranslate2")
    assert result.status == 1
    assert "model.positions = 'tree'" in result.err


def test_it_can_be_looked_into(folder: Path, tmp_path: Path) -> None:
    model, text = folder / "model", "lion cat bear wolf\t2 0 2 3"
    explained = run_heedful("explain", model, text, "--word", "bear")
    assert explained.status == 0, explained.err
    page = run_heedful("inspect", model, text, "-o", tmp_path / "page.html")
    assert page.status == 0, page.err
    assert page.out.startswith(f"{text} -> cat")
    links = run_heedful("inspect", model, "--alignments", folder / "test.tsv")
    assert links.status == 0, links.err
    assert len(links.out.splitlines()) == 100
    heads = run_heedful("inspect", model, "--heads", folder / "test.tsv")
    assert heads.status == 0, heads.err


def test_a_loaded_model_is_the_saved_one(folder: Path, tmp_path: Path) -> None:
    bundle = Bundle.load(folder / "model")
    bundle.save(tmp_path / "again")
    text = ["lion cat bear wolf\t2 0 2 3"]
    found = [heedful.load(path).translate(text)[0] for path in (folder / "model", tmp_path / "again")]
    assert found[0] == found[1]


def test_words_are_spelled_anew_and_a_head_is_taught(folder: Path, tmp_path: Path) -> None:
    """BPE-dropout, links for a taught head, relative trees, and a comparison with a model without trees."""
    relative = ["--set=model.positions=relative-tree", "--set=training.updates=4"]
    dropout = run_heedful(
        "train", folder / "train.tsv", "-v", folder / "test.tsv", "-o", tmp_path / "dropout",
        *SETTINGS, *relative, "--set=tokenizer.dropout=0.3",
    )  # fmt: skip
    assert dropout.status == 0, dropout.err
    first = (folder / "train.tsv").read_text(encoding="utf-8-sig").split("\t")[0]
    (tmp_path / "links.tsv").write_text(f"{first}\t0-1\n")
    taught = run_heedful(
        "train", folder / "train.tsv", "-v", folder / "test.tsv", "-o", tmp_path / "taught",
        *SETTINGS, *relative, f"--set=taught.links={tmp_path / 'links.tsv'}",
    )  # fmt: skip
    assert taught.status == 0, taught.err
    assert "training sentences have links to learn" in taught.err


def test_models_with_and_without_trees_are_compared(folder: Path, tmp_path: Path) -> None:
    for name in ("sinusoidal", "tree"):
        (tmp_path / f"{name}.toml").write_text(f'[model]\npositions = "{name}"\n')
    settings = [word for word in SETTINGS if "positions" not in word and "epochs" not in word]
    recipes = [f"--recipe={name}={tmp_path / name}.toml" for name in ("sinusoidal", "tree")]
    result = run_heedful(
        "compare", folder / "train.tsv", "-v", folder / "test.tsv", "-o", tmp_path / "compared",
        *settings, *recipes, "--updates=150",
    )  # fmt: skip
    assert result.status == 0, result.err
    losses = [float(row.split(" | ")[6]) for row in result.out.splitlines()[2:4]]
    assert losses[1] < losses[0] / 2


def test_other_models_ignore_the_third_column(folder: Path) -> None:
    counts = CleaningReport()
    pairs = list(clean(read_pairs([folder / "train.tsv"]), CleaningConfig(max_ratio=0), counts))
    assert Pair("cat dog", "cat") in pairs
    assert not any(pair.heads for pair in pairs)
    assert not any("head" in reason for reason in counts.dropped)
