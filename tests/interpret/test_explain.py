"""`heedful explain`: the printed numbers add up by the printed formulas."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from heedful.errors import HeedfulError
from heedful.interpret.activations import ATTENTION_KINDS, AttentionKind, compute_activations
from heedful.interpret.attention_row import explain_row, find_subword
from heedful.interpret.explain import TOPICS
from heedful.interpret.tables import Explanation, Table, render_text
from heedful.model_folder import ModelFolder
from tests.conftest import run_heedful
from tests.interpret.test_arithmetic import new_random_model

GLOVE_EXCERPT = Path(__file__).parents[1] / "data" / "glove_excerpt.txt"
SENTENCE = "The dog is tired."
PRINTED = 0.5e-4
"""How far a number with four decimals can be from what it stands for."""


class Printed:
    """The tables of a printed explanation by heading, title, row and column, blocks put together again."""

    def __init__(self, text: str) -> None:
        self.sections: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
        heading = title = ""
        columns: list[tuple[int, int, str]] | None = None
        lines = text.split("\n")
        for above, line, below in zip(["", *lines], lines, [*lines[1:], ""], strict=False):
            if found := re.match(r"\d+\. (.+)", line):
                heading, title = found[1], ""
                self.sections[heading] = {}
            elif not line.strip():
                columns = None
            elif line.strip().startswith("─"):
                continue
            elif columns is not None:
                self._row(self.sections[heading].setdefault(title, {}), line, columns)
            elif below.strip().startswith("─"):
                columns = spans(line)
            elif not line.strip().startswith("*"):
                title = title if above else line.strip()

    @staticmethod
    def _row(table: dict[str, dict[str, float]], line: str, columns: list[tuple[int, int, str]]) -> None:
        label, cells = "", {}
        for start, end, text in spans(line):
            name = next((name for left, right, name in columns if end == right or start == left), None)
            if name is None:
                label = text
            elif re.fullmatch(r"-?\d+(\.\d+)?(e[+-]\d+)?|-?inf", text):
                cells[name] = float(text)
        table.setdefault(label, {}).update(cells)

    def only(self, heading: str) -> dict[str, dict[str, float]]:
        (table,) = self.sections[heading].values()
        return table


def spans(line: str) -> list[tuple[int, int, str]]:
    """What stands between two spaces or more: from which column of the terminal, to which, and what."""
    return [
        (cell_len(line[: found.start()]), cell_len(line[: found.end()]), found[0])
        for found in re.finditer(r"\S+(?: \S+)*", line)
    ]


def channels(row: dict[str, float]) -> list[float]:
    return [number for name, number in row.items() if name.isdecimal()]


def check_sums(text: str, heads: int, norm: str = "post") -> Printed:
    """A student with a pocket calculator."""
    printed = Printed(text)
    score = printed.only("One score: the products of one pair")
    (q,) = (row for label, row in score.items() if label.startswith("q of"))
    (k,) = (row for label, row in score.items() if label.startswith("k of"))
    products = channels(score["product"])
    assert len(products) == len(channels(q)) == len(channels(k))
    for product, left, right in zip(products, channels(q), channels(k), strict=True):
        assert product == pytest.approx(left * right, abs=PRINTED * (1 + abs(left) + abs(right)) + PRINTED)
    assert sum(products) == pytest.approx(score["product"]["score"], abs=PRINTED * (len(products) + 1))

    weights = printed.only("All scores, divided and through softmax")
    total = weights.pop("sum")
    assert total["weight"] == 1
    assert sum(row["weight"] for row in weights.values()) == pytest.approx(1, abs=PRINTED * len(weights))
    (divided,) = (name for name in next(iter(weights.values())) if name.startswith("s = score / "))
    assert float(divided.split()[-1]) == pytest.approx(math.sqrt(len(products)), abs=PRINTED)
    for row in weights.values():
        assert row[divided] == pytest.approx(row["score"] / float(divided.split()[-1]), abs=2 * PRINTED)
        share = row["exp(s - max)"] / total["exp(s - max)"]
        assert row["weight"] == pytest.approx(share, abs=3 * PRINTED)

    values = printed.sections["Query, keys and values of this head"]["v of every word"]
    added = printed.only("The weighted sum of the values")
    output = added.pop("output z")
    for channel, whole in output.items():
        parts = [row[channel] for row in added.values()]
        assert sum(parts) == pytest.approx(whole, abs=PRINTED * (len(parts) + 1))
        for label, row in added.items():
            expected = weights[label]["weight"] * values[label][channel]
            assert row[channel] == pytest.approx(expected, abs=PRINTED * (2 + abs(values[label][channel])))

    shares = printed.sections["All heads concatenated, times W^O"]["What each head adds: its z times its rows of W^O"]
    assert sum(label.startswith("head") for label in shares) == heads
    result = shares.pop("output")
    for channel, whole in result.items():
        parts = [row[channel] for row in shares.values()]
        assert sum(parts) == pytest.approx(whole, abs=PRINTED * (len(parts) + 1))

    residual = printed.only("Residual sum")
    stream = residual["x" if norm == "post" else "stream"]
    for channel, whole in residual["sum"].items():
        assert whole == pytest.approx(stream[channel] + residual["output"][channel], abs=3 * PRINTED)
    if norm == "post":
        check_norm(printed.sections["LayerNorm"], residual["sum"])
    return printed


def check_norm(tables: dict[str, dict[str, dict[str, float]]], row: dict[str, float]) -> None:
    numbers = list(row.values())
    facts = next(item for table in tables.values() for item in table.values() if "mean" in item)
    assert facts["mean"] == pytest.approx(sum(numbers) / len(numbers), abs=2 * PRINTED)
    spread = sum((number - facts["mean"]) ** 2 for number in numbers) / len(numbers)
    assert facts["variance"] == pytest.approx(spread, abs=20 * PRINTED)
    table = tables["LayerNorm"]
    for channel, number in row.items():
        normal = (number - facts["mean"]) / math.sqrt(facts["variance"] + 1e-5)
        expected = normal * table["gain"][channel] + table["bias"][channel]
        assert table["× gain + bias"][channel] == pytest.approx(expected, abs=20 * PRINTED)


class TestModel:
    def test_explain_model_printed_numbers_add_up(self, quick_model: Path) -> None:
        done = run_heedful("explain", quick_model, SENTENCE, "--word", "dog", "--head", 2, "--all")
        assert done.status == 0, done.err
        assert done.out.startswith('"dog" in head 2 of layer 1 (encoder, self-attention)\n')
        assert "\x1b" not in done.out
        printed = check_sums(done.out, heads=2)
        x = printed.only("The vector x")
        for channel, whole in x["= x"].items():
            scaled = x["× sqrt(16) = 4.0000"][channel]
            assert scaled == pytest.approx(4 * x["embedding"][channel], abs=5 * PRINTED)
            assert whole == pytest.approx(scaled + x["+ position 1"][channel], abs=3 * PRINTED)
        query = printed.sections["Query, keys and values of this head"]
        full = query["Channel 1 of q in full: x times the first column of W^Q"]["product"]
        assert sum(channels(full)) == pytest.approx(full["sum"], abs=17 * PRINTED)
        assert full["sum"] + full["b"] == pytest.approx(full["q 1"], abs=3 * PRINTED)
        assert query["q of this word"]["2 dog"]["1"] == full["q 1"]

    @pytest.mark.parametrize("kind", ATTENTION_KINDS)
    def test_explain_model_json_agrees_with_text(
        self, quick_model: Path, kind: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        words = [str(quick_model), SENTENCE, "--kind", kind, "--word", "2"]
        words += [] if kind == "encoder" else ["--target", "Le chien est fatigué."]
        called(*words, "--all")
        printed = check_sums(capsys.readouterr().out, heads=2)
        called(*words, "--json")
        text = capsys.readouterr().out
        found: dict[str, Any] = json.loads(text, parse_constant=lambda name: pytest.fail(name))
        weights = printed.only("All scores, divided and through softmax")
        labels = [label for label in weights if label != "sum"]
        assert [label.split()[1] for label in labels] == found["values"]["column_subwords"]
        for label, weight in zip(labels, found["values"]["weights"], strict=True):
            assert weights[label]["weight"] == pytest.approx(weight, abs=PRINTED)
        score = printed.only("One score: the products of one pair")["product"]
        assert channels(score) == pytest.approx(found["values"]["products"], abs=PRINTED)
        assert sum(found["values"]["weights"]) == pytest.approx(1, abs=1e-12)
        hidden = found["values"]["masked"].count("-inf")
        assert hidden == (len(labels) - 2 if kind == "decoder" else 0)

    def test_explain_model_columns_align_in_every_script(self, quick_model: Path) -> None:
        sentence = "The dog 猫 مرحبا 👩‍👩‍👧‍👦 is tired."
        done = run_heedful("explain", quick_model, sentence, "--word", "dog", "--all")
        assert done.status == 0, done.err
        check_sums(done.out.replace("\u200e", ""), heads=2)
        lines = done.out.split("\n")
        start = next(n for n, line in enumerate(lines) if line.strip() == "k of every word")
        table = lines[start + 3 : lines.index("", start)]
        assert len(table) > 20
        assert len({cell_len(line) for line in table}) == 1

    @pytest.mark.parametrize("width", [80, 120])
    def test_explain_model_respects_digits_and_width(
        self, width: int, quick_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("COLUMNS", str(width))
        called(str(quick_model), SENTENCE, "--digits", "7")
        text = capsys.readouterr().out
        assert re.search(r"\d\.\d{7}\b", text)
        assert max(map(cell_len, text.split("\n"))) <= width

    def test_explain_model_shortens_wide_vectors(self, quick_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
        called(str(quick_model), SENTENCE)
        short = capsys.readouterr().out
        called(str(quick_model), SENTENCE, "--all")
        whole = capsys.readouterr().out
        unwrapped = " ".join(short.casefold().split())  # however wide the terminal is
        assert unwrapped.count("channels 1 to 8 of 16; --all shows all") == 4
        assert "--all" not in whole
        residual = Printed(short).only("Residual sum")["sum"]
        assert list(residual) == counted(8)
        assert residual == {name: Printed(whole).only("Residual sum")["sum"][name] for name in counted(8)}

    def test_explain_model_without_target_uses_translation(self, quick_model: Path) -> None:
        done = run_heedful("explain", quick_model, SENTENCE, "--kind", "cross", "--all")
        assert done.status == 0, done.err
        check_sums(done.out, heads=2)


class TestWord:
    """What the command line calls, on small random models."""

    @pytest.mark.parametrize("norm", ["post", "pre"])
    @pytest.mark.parametrize("kind", ATTENTION_KINDS)
    def test_explain_row_sums_match_for_every_kind_and_layer(self, kind: AttentionKind, norm: str) -> None:
        model_folder = new_random_model(norm)
        activations = compute_activations(model_folder, "it was too tired", "il était trop large")
        for layer in range(2):
            explanation = explain_row(model_folder, activations, kind, layer, 2, 1, key=0)
            printed = check_sums(render_text(explanation, width=80), heads=3, norm=norm)
            vector = printed.sections["The vector x"]
            if norm == "pre":
                check_norm(vector, dict(zip(counted(12), explanation.values["stream"], strict=True)))
            assert ("LayerNorm" in printed.sections) == (norm == "post")

    def test_explain_row_with_learned_positions_and_no_biases(self) -> None:
        model_folder = new_random_model(bias=False, positions="learned")
        activations = compute_activations(model_folder, "it was too tired", "")
        explanation = explain_row(model_folder, activations, "encoder", 0, 0, 2)
        text = render_text(explanation)
        check_sums(text, heads=3)
        assert "+ b" not in text.replace("+ bias", "")
        embedded = first_table(explanation, "The vector x")
        scaled, position = embedded.cells[1], embedded.cells[2]
        for whole, left, right in zip(embedded.footer[0][1], scaled, position, strict=True):
            assert whole == pytest.approx(left + right, abs=1e-6)

    def test_explain_row_default_key_has_largest_weight(self) -> None:
        model_folder = new_random_model()
        activations = compute_activations(model_folder, "it was too tired", "")
        values = explain_row(model_folder, activations, "encoder", 1, 1, 0).values
        assert values["key"] == values["weights"].index(max(values["weights"])) + 1

    def test_explain_row_masked_keys_have_score_and_no_weight(self) -> None:
        model_folder = new_random_model()
        activations = compute_activations(model_folder, "it was too tired", "il était trop large")
        values = explain_row(model_folder, activations, "decoder", 0, 0, 1, key=3).values
        assert sum(values["products"]) == pytest.approx(values["scores"][3])
        assert values["weights"][2:] == [0] * (len(values["weights"]) - 2)

    def test_find_subword_by_word_subword_or_number(self) -> None:
        activations = compute_activations(new_random_model(), "it was too tiredest", "")
        tokens = activations.source
        last = tokens.words.index("tiredest")
        pieces = tokens.positions_of_word(last)
        assert len(pieces) > 1
        assert find_subword(tokens, "tiredest") == pieces[0]
        assert find_subword(tokens, tokens.subwords[pieces[1]]) in pieces
        assert find_subword(tokens, str(last + 1)) == pieces[0]
        assert find_subword(tokens, "IT") == 0
        with pytest.raises(HeedfulError, match="'cat' is not in the sentence"):
            find_subword(tokens, "cat")
        text = render_text(explain_row(new_random_model(), activations, "encoder", 0, 0, pieces[0]))
        assert f'"tiredest" has {len(pieces)} subwords; this is subword 1.' in text

    def test_explain_row_out_of_range_is_an_error(self) -> None:
        model_folder = new_random_model()
        activations = compute_activations(model_folder, "it was", "")
        with pytest.raises(HeedfulError, match="subword 100 does not exist"):
            explain_row(model_folder, activations, "encoder", 0, 0, 99)
        with pytest.raises(HeedfulError, match="subword 0 does not exist"):
            explain_row(model_folder, activations, "encoder", 0, 0, 0, key=-1)


def counted(size: int) -> list[str]:
    return [str(number) for number in range(1, size + 1)]


def first_table(explanation: Explanation, heading: str) -> Table:
    return next(section.tables[0] for section in explanation.sections if section.heading == heading)


class TestTopics:
    def test_explain_without_subject_lists_topics(self) -> None:
        alone, helped = run_heedful("explain"), run_heedful("explain", "--help")
        assert alone.status == helped.status == 0
        for topic in (*TOPICS, "glove"):
            assert re.search(rf"^\s*{topic} ", alone.out, re.MULTILINE), topic
            assert re.search(rf"^\s*{topic} ", helped.out, re.MULTILINE), topic

    @pytest.mark.parametrize("topic", TOPICS)
    def test_explain_every_topic_runs(self, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
        called(topic)
        text = capsys.readouterr().out
        called(topic, "--json")
        data = json.loads(capsys.readouterr().out)
        assert text.startswith(data["title"] + "\n")
        for section in data["sections"]:
            assert f". {section['heading']}\n" in text

    def test_explain_topic_writes_text_json_and_figure(self, tmp_path: Path) -> None:
        text = run_heedful("explain", "mask", "--digits", 6)
        assert text.status == 0
        assert "0.377541" in text.out
        picture = tmp_path / "mask.svg"
        data = run_heedful("explain", "mask", "--json", "--figure", picture)
        assert data.status == 0, data.err
        values = json.loads(data.out)["values"]
        assert values["weights"][1][0] == pytest.approx(0.37754066879814546, abs=1e-15)
        assert values["masked_scores"][0] == [0.7, "-inf", "-inf", "-inf"]
        assert picture.read_text().lstrip().startswith("<?xml")

    def test_explain_glove_reads_vectors(self) -> None:
        done = run_heedful("explain", "glove", "--vectors", GLOVE_EXCERPT)
        assert done.status == 0, done.err
        assert done.out.count("-4.37999318") == 2


MODEL = "{model}"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["maks"], "unknown topic or model folder 'maks'; did you mean mask?"),
        (["no/such/folder"], "unknown topic or model folder 'no/such/folder'"),
        (["mask", "--layer", "1"], "topics have no layers"),
        (["mask", SENTENCE], "a sentence belongs to a model"),
        (["mask", "--vectors", "v.txt"], "--vectors has no effect on mask"),
        (["numerical", "--figure", "n.png"], "the topic numerical has no figure"),
        (["mask", "--json", "--digits", "3"], "--json writes every digit"),
        (["glove"], "glove.6B.zip of the Stanford NLP group"),
        (["glove", "--vectors", "absent.txt"], "absent.txt"),
        (["--json"], "nothing to explain"),
        ([MODEL], "no sentence to explain"),
        ([MODEL, " "], "the sentence is empty"),
        ([MODEL, SENTENCE, "--word", "cat"], "the word 'cat' is not in the sentence"),
        ([MODEL, SENTENCE, "--key", "cat"], "the word 'cat' is not in the sentence"),
        ([MODEL, SENTENCE, "--layer", "2"], "layer 2 does not exist: the encoder has 1"),
        ([MODEL, SENTENCE, "--layer", "0"], "layer 0 does not exist"),
        ([MODEL, SENTENCE, "--head", "3"], "head 3 does not exist: each layer has 2"),
        ([MODEL, SENTENCE, "--kind", "both"], "unknown attention kind 'both'"),
        ([MODEL, SENTENCE, "--target", "Le chien."], "--target has no effect on the encoder"),
        ([MODEL, SENTENCE, "--kind", "cross", "--target", " "], "the target is empty"),
        ([MODEL, SENTENCE, "--vectors", "v.txt"], "--vectors has no effect on a model"),
        ([MODEL, SENTENCE, "--figure", "f.png"], "--figure draws topics, not models"),
    ],
)
def test_explain_invalid_options_are_errors(
    words: list[str], expected: str, quick_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HeedfulError) as caught:
        called(*(str(quick_model) if word == MODEL else word for word in words))
    assert expected in f"{caught.value.problem} {caught.value.hint}"
    assert not list(tmp_path.iterdir())


def called(*words: str) -> None:
    """The command line in this process: a mistake costs milliseconds, not a start of Python."""
    from typer.main import get_command

    from heedful.cli.main import app

    get_command(app).main(["explain", *words], standalone_mode=False)


def test_explain_error_prints_message(quick_model: Path) -> None:
    done = run_heedful("explain", quick_model, SENTENCE, "--word", "cat")
    assert done.status == 1
    assert done.out == ""
    assert done.err.startswith("error: the word 'cat' is not in the sentence\n  hint: ")


def test_explain_folder_named_like_topic_prefers_topic(
    quick_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mask").symlink_to(quick_model)
    monkeypatch.chdir(tmp_path)
    assert "The causal mask" in run_heedful("explain", "mask").out
    assert "in head 1 of layer 1" in run_heedful("explain", "./mask", SENTENCE).out
    assert ModelFolder.load(Path("./mask")).config.model.heads == 2
