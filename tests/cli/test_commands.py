"""The functions of the commands, called in this process: a command prints what its library function returns."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from heedful.cli.main import app
from heedful.errors import HeedfulError
from heedful.model_folder import ModelFolder
from tests.conftest import quick_train_args

SENTENCE = "The animal was tired."


def invoke(*args: str | Path) -> str:
    """The output of a command; errors are raised."""
    result = CliRunner().invoke(app, list(map(str, args)), catch_exceptions=False, standalone_mode=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def write_po(path: Path) -> Path:
    path.write_text(
        'msgid ""\nmsgstr "Language: fr\\n"\n\nmsgid "The animal was tired."\nmsgstr ""\n', encoding="utf-8"
    )
    return path


def test_version_is_printed() -> None:
    assert invoke("--version").startswith("heedful ")


def test_train_writes_a_model(grammar_pairs: Path, tmp_path: Path) -> None:
    invoke(*quick_train_args(grammar_pairs, tmp_path / "model"), "--quiet")
    assert ModelFolder.load(tmp_path / "model").config.languages == ("en", "fr")
    with pytest.raises(HeedfulError, match="already"):
        invoke(*quick_train_args(grammar_pairs, tmp_path / "model"), "--quiet")


def test_translate_texts_files_and_documents(quick_model: Path, tmp_path: Path) -> None:
    options = ("--engine", "exact", "--quiet")
    expected = invoke("translate", quick_model, SENTENCE, *options)
    (tmp_path / "in.txt").write_text(f"{SENTENCE}\n", encoding="utf-8")
    invoke("translate", quick_model, "-i", tmp_path / "in.txt", "-o", tmp_path / "out.txt", *options)
    assert (tmp_path / "out.txt").read_text(encoding="utf-8") == expected
    line = json.loads(invoke("translate", quick_model, SENTENCE, "--format", "jsonl", "--n-best", "2", *options))
    assert line["source"] == SENTENCE
    document = write_po(tmp_path / "fr.po")
    invoke("translate", quick_model, "-i", document, "-o", tmp_path / "out.po", *options)
    assert "#, fuzzy" in (tmp_path / "out.po").read_text(encoding="utf-8")
    with pytest.raises(HeedfulError, match="require a PO, TMX or XLIFF file"):
        invoke("translate", quick_model, SENTENCE, "--mark", "comment", *options)


def test_translate_with_ray_rejects_documents(quick_model: Path, tmp_path: Path) -> None:
    args = ("translate", quick_model, "-i", write_po(tmp_path / "fr.po"), "-o", tmp_path / "out", "--ray", "local")
    with pytest.raises(HeedfulError, match="do not work with --ray"):
        invoke(*args, "--mark", "comment")
    with pytest.raises(HeedfulError, match="cannot be split into lines"):
        invoke(*args)


def test_evaluate_reports_scores(quick_model: Path, grammar_pairs: Path, tmp_path: Path) -> None:
    (tmp_path / "test.tsv").write_text(
        "".join(f"{line}\n" for line in grammar_pairs.read_text(encoding="utf-8").splitlines()[:20]), encoding="utf-8"
    )
    output = invoke("evaluate", quick_model, tmp_path / "test.tsv", "--quiet")
    assert "BLEU" in output
    assert "perplexity" in output


def test_inspect_aligns_reports_and_draws(quick_model: Path, grammar_pairs: Path, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("\n".join(grammar_pairs.read_text(encoding="utf-8").splitlines()[:12]) + "\n", encoding="utf-8")
    invoke("inspect", quick_model, "--alignments", pairs, "-o", tmp_path / "pairs.align", "--quiet")
    assert len((tmp_path / "pairs.align").read_text().splitlines()) == 12
    assert "head" in invoke("inspect", quick_model, "--heads", pairs, "--quiet")
    invoke("inspect", quick_model, SENTENCE, "-o", tmp_path / "page.html", "--quiet")
    assert (tmp_path / "page.html").read_bytes().startswith(b"<!doctype html>")
    figures = tmp_path / "figures"
    invoke("inspect", quick_model, SENTENCE, "-o", figures, "--format", "svg", "--kind", "cross", "--quiet")
    assert list(figures.glob("cross-*.svg"))
    with pytest.raises(HeedfulError, match="--format has no effect"):
        invoke("inspect", quick_model, SENTENCE, "-o", tmp_path / "other.html", "--format", "svg")


def test_explain_prints_each_step(quick_model: Path) -> None:
    assert "softmax" in invoke("explain", "thinking-machines")
    assert "softmax" in invoke("explain", quick_model, SENTENCE, "--layer", "1", "--head", "1", "--word", "tired")


def test_corpus_commands_write_pairs(grammar_pairs: Path, quick_model: Path, tmp_path: Path) -> None:
    assert "600" in invoke("corpus", "stats", grammar_pairs)
    invoke("corpus", "clean", grammar_pairs, "-o", tmp_path / "clean.tsv")
    invoke("corpus", "split", grammar_pairs, "-o", tmp_path / "split", "--validation-size", "30")
    invoke("corpus", "join", grammar_pairs, "-o", tmp_path / "joined.tsv")
    invoke("corpus", "convert", grammar_pairs, "-o", tmp_path / "pairs.tmx", "--languages", "en-fr")
    (tmp_path / "mono.txt").write_text(f"{SENTENCE}\n" * 3, encoding="utf-8")
    back_translated = tmp_path / "back.tsv"
    with pytest.raises(HeedfulError, match="all 3 lines were rejected"):  # the model has hardly learned anything
        invoke("corpus", "back-translate", quick_model, tmp_path / "mono.txt", "-o", back_translated, "--quiet")
    counts = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in tmp_path.rglob("*.tsv")}
    assert counts["train.tsv"] + counts["validation.tsv"] == counts["clean.tsv"]
    assert counts["joined.tsv"] < counts["clean.tsv"]
    assert (tmp_path / "pairs.tmx").read_text(encoding="utf-8").count("<tu>") == 600


def test_export_verifies_the_model(quick_model: Path, tmp_path: Path) -> None:
    output = invoke("export", quick_model, "--to", "ctranslate2", "-o", tmp_path / "export")
    assert "verified" in output
    assert (tmp_path / "export" / "model.bin").is_file()
