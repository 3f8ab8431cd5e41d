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
TOLERANCE = 0.5e-4
"""Maximum rounding error of a number with four decimals."""


class PrintedExplanation:
    """The tables of a printed explanation by heading, title, row and column, with split blocks rejoined."""

    def __init__(self, text: str) -> None:
        self.sections: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
        heading = title = ""
        columns: list[tuple[int, int, str]] | None = None
        lines = text.split("\n")
        for above, line, below in zip(["", *lines], lines, [*lines[1:], ""], strict=False):
            if match := re.match(r"\d+\. (.+)", line):
                heading, title = match[1], ""
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
            name = next(
                (name for column_start, column_end, name in columns if end == column_end or start == column_start), None
            )
            if name is None:
                label = text
            elif re.fullmatch(r"-?\d+(\.\d+)?(e[+-]\d+)?|-?inf", text):
                cells[name] = float(text)
        table.setdefault(label, {}).update(cells)

    def only(self, heading: str) -> dict[str, dict[str, float]]:
        (table,) = self.sections[heading].values()
        return table


def spans(line: str) -> list[tuple[int, int, str]]:
    """Texts separated by two or more spaces: first terminal column, last terminal column, text."""
    return [
        (cell_len(line[: match.start()]), cell_len(line[: match.end()]), match[0])
        for match in re.finditer(r"\S+(?: \S+)*", line)
    ]


def channels(row: dict[str, float]) -> list[float]:
    return [number for name, number in row.items() if name.isdecimal()]


def check_printed_sums(text: str, heads: int, norm: str = "post") -> PrintedExplanation:
    """Recompute every printed number from the printed numbers before it."""
    printed = PrintedExplanation(text)
    score = printed.only("One score: the products of one pair")
    (q,) = (row for label, row in score.items() if label.startswith("q of"))
    (k,) = (row for label, row in score.items() if label.startswith("k of"))
    products = channels(score["product"])
    assert len(products) == len(channels(q)) == len(channels(k))
    for product, q_value, k_value in zip(products, channels(q), channels(k), strict=True):
        assert product == pytest.approx(
            q_value * k_value, abs=TOLERANCE * (1 + abs(q_value) + abs(k_value)) + TOLERANCE
        )
    assert sum(products) == pytest.approx(score["product"]["score"], abs=TOLERANCE * (len(products) + 1))

    weights = printed.only("All scores, divided and through softmax")
    total = weights.pop("sum")
    assert total["weight"] == 1
    assert sum(row["weight"] for row in weights.values()) == pytest.approx(1, abs=TOLERANCE * len(weights))
    (divided,) = (name for name in next(iter(weights.values())) if name.startswith("s = score / "))
    assert float(divided.split()[-1]) == pytest.approx(math.sqrt(len(products)), abs=TOLERANCE)
    for row in weights.values():
        assert row[divided] == pytest.approx(row["score"] / float(divided.split()[-1]), abs=2 * TOLERANCE)
        normalized = row["exp(s - max)"] / total["exp(s - max)"]
        assert row["weight"] == pytest.approx(normalized, abs=3 * TOLERANCE)

    values = printed.sections["Query, keys and values of this head"]["v of every word"]
    weighted_values = printed.only("The weighted sum of the values")
    output = weighted_values.pop("output z")
    for channel, total_value in output.items():
        terms = [row[channel] for row in weighted_values.values()]
        assert sum(terms) == pytest.approx(total_value, abs=TOLERANCE * (len(terms) + 1))
        for label, row in weighted_values.items():
            expected = weights[label]["weight"] * values[label][channel]
            assert row[channel] == pytest.approx(expected, abs=TOLERANCE * (2 + abs(values[label][channel])))

    contributions = printed.sections["All heads concatenated, times W^O"][
        "What each head adds: its z times its rows of W^O"
    ]
    assert sum(label.startswith("head") for label in contributions) == heads
    result = contributions.pop("output")
    for channel, total_value in result.items():
        terms = [row[channel] for row in contributions.values()]
        assert sum(terms) == pytest.approx(total_value, abs=TOLERANCE * (len(terms) + 1))

    residual = printed.only("Residual sum")
    stream = residual["x" if norm == "post" else "stream"]
    for channel, total_value in residual["sum"].items():
        assert total_value == pytest.approx(stream[channel] + residual["output"][channel], abs=3 * TOLERANCE)
    if norm == "post":
        check_norm(printed.sections["LayerNorm"], residual["sum"])
    return printed


def check_norm(tables: dict[str, dict[str, dict[str, float]]], row: dict[str, float]) -> None:
    numbers = list(row.values())
    statistics = next(item for table in tables.values() for item in table.values() if "mean" in item)
    assert statistics["mean"] == pytest.approx(sum(numbers) / len(numbers), abs=2 * TOLERANCE)
    variance = sum((number - statistics["mean"]) ** 2 for number in numbers) / len(numbers)
    assert statistics["variance"] == pytest.approx(variance, abs=20 * TOLERANCE)
    table = tables["LayerNorm"]
    for channel, number in row.items():
        normalized = (number - statistics["mean"]) / math.sqrt(statistics["variance"] + 1e-5)
        expected = normalized * table["gain"][channel] + table["bias"][channel]
        assert table["× gain + bias"][channel] == pytest.approx(expected, abs=20 * TOLERANCE)


class TestModel:
    def test_explain_model_printed_numbers_add_up(self, quick_model: Path) -> None:
        result = run_heedful("explain", quick_model, SENTENCE, "--word", "dog", "--head", 2, "--all")
        assert result.status == 0, result.err
        assert result.out.startswith('"dog" in head 2 of layer 1 (encoder, self-attention)\n')
        assert "\x1b" not in result.out
        printed = check_printed_sums(result.out, heads=2)
        x = printed.only("The vector x")
        for channel, total in x["= x"].items():
            scaled = x["× sqrt(16) = 4.0000"][channel]
            assert scaled == pytest.approx(4 * x["embedding"][channel], abs=5 * TOLERANCE)
            assert total == pytest.approx(scaled + x["+ position 1"][channel], abs=3 * TOLERANCE)
        query = printed.sections["Query, keys and values of this head"]
        full = query["Channel 1 of q in full: x times the first column of W^Q"]["product"]
        assert sum(channels(full)) == pytest.approx(full["sum"], abs=17 * TOLERANCE)
        assert full["sum"] + full["b"] == pytest.approx(full["q 1"], abs=3 * TOLERANCE)
        assert query["q of this word"]["2 dog"]["1"] == full["q 1"]

    @pytest.mark.parametrize("kind", ATTENTION_KINDS)
    def test_explain_model_json_agrees_with_text(
        self, quick_model: Path, kind: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        args = [str(quick_model), SENTENCE, "--kind", kind, "--word", "2"]
        args += [] if kind == "encoder" else ["--target", "Le chien est fatigué."]
        run_explain(*args, "--all")
        printed = check_printed_sums(capsys.readouterr().out, heads=2)
        run_explain(*args, "--json")
        text = capsys.readouterr().out
        data: dict[str, Any] = json.loads(text, parse_constant=lambda name: pytest.fail(name))
        weights = printed.only("All scores, divided and through softmax")
        labels = [label for label in weights if label != "sum"]
        assert [label.split()[1] for label in labels] == data["values"]["column_subwords"]
        for label, weight in zip(labels, data["values"]["weights"], strict=True):
            assert weights[label]["weight"] == pytest.approx(weight, abs=TOLERANCE)
        score = printed.only("One score: the products of one pair")["product"]
        assert channels(score) == pytest.approx(data["values"]["products"], abs=TOLERANCE)
        assert sum(data["values"]["weights"]) == pytest.approx(1, abs=1e-12)
        hidden = data["values"]["masked"].count("-inf")
        assert hidden == (len(labels) - 2 if kind == "decoder" else 0)

    def test_explain_model_columns_align_in_every_script(self, quick_model: Path) -> None:
        sentence = "The dog 猫 مرحبا 👩‍👩‍👧‍👦 is tired."
        result = run_heedful("explain", quick_model, sentence, "--word", "dog", "--all")
        assert result.status == 0, result.err
        check_printed_sums(result.out.replace("\u200e", ""), heads=2)
        lines = result.out.split("\n")
        start = next(n for n, line in enumerate(lines) if line.strip() == "k of every word")
        table = lines[start + 3 : lines.index("", start)]
        assert len(table) > 20
        assert len({cell_len(line) for line in table}) == 1

    @pytest.mark.parametrize("columns", [80, 120])
    def test_explain_model_respects_digits_and_width(
        self, columns: int, quick_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("COLUMNS", str(columns))
        run_explain(str(quick_model), SENTENCE, "--digits", "7")
        text = capsys.readouterr().out
        assert re.search(r"\d\.\d{7}\b", text)
        assert max(map(cell_len, text.split("\n"))) <= columns

    def test_explain_model_shortens_wide_vectors(self, quick_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
        run_explain(str(quick_model), SENTENCE)
        short = capsys.readouterr().out
        run_explain(str(quick_model), SENTENCE, "--all")
        complete = capsys.readouterr().out
        unwrapped = " ".join(short.casefold().split())  # independent of the terminal width
        assert unwrapped.count("channels 1 to 8 of 16; --all shows all") == 4
        assert "--all" not in complete
        residual = PrintedExplanation(short).only("Residual sum")["sum"]
        assert list(residual) == number_names(8)
        assert residual == {
            name: PrintedExplanation(complete).only("Residual sum")["sum"][name] for name in number_names(8)
        }

    def test_explain_model_without_target_uses_translation(self, quick_model: Path) -> None:
        result = run_heedful("explain", quick_model, SENTENCE, "--kind", "cross", "--all")
        assert result.status == 0, result.err
        check_printed_sums(result.out, heads=2)


class TestWord:
    """The functions that the command line calls, on small random models."""

    @pytest.mark.parametrize("norm", ["post", "pre"])
    @pytest.mark.parametrize("kind", ATTENTION_KINDS)
    def test_explain_row_sums_match_for_every_kind_and_layer(self, kind: AttentionKind, norm: str) -> None:
        model_folder = new_random_model(norm)
        activations = compute_activations(model_folder, "it was too tired", "il était trop large")
        for layer in range(2):
            explanation = explain_row(model_folder, activations, kind, layer, 2, 1, key=0)
            printed = check_printed_sums(render_text(explanation, width=80), heads=3, norm=norm)
            vector = printed.sections["The vector x"]
            if norm == "pre":
                check_norm(vector, dict(zip(number_names(12), explanation.values["stream"], strict=True)))
            assert ("LayerNorm" in printed.sections) == (norm == "post")

    def test_explain_row_with_learned_positions_and_no_biases(self) -> None:
        model_folder = new_random_model(bias=False, positions="learned")
        activations = compute_activations(model_folder, "it was too tired", "")
        explanation = explain_row(model_folder, activations, "encoder", 0, 0, 2)
        text = render_text(explanation)
        check_printed_sums(text, heads=3)
        assert "+ b" not in text.replace("+ bias", "")
        embedded = first_table(explanation, "The vector x")
        scaled, position = embedded.cells[1], embedded.cells[2]
        for total, scaled_value, position_value in zip(embedded.footer[0][1], scaled, position, strict=True):
            assert total == pytest.approx(scaled_value + position_value, abs=1e-6)

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
        positions = tokens.positions_of_word(last)
        assert len(positions) > 1
        assert find_subword(tokens, "tiredest") == positions[0]
        assert find_subword(tokens, tokens.subwords[positions[1]]) in positions
        assert find_subword(tokens, str(last + 1)) == positions[0]
        assert find_subword(tokens, "IT") == 0
        with pytest.raises(HeedfulError, match="'cat' is not in the sentence"):
            find_subword(tokens, "cat")
        text = render_text(explain_row(new_random_model(), activations, "encoder", 0, 0, positions[0]))
        assert f'"tiredest" has {len(positions)} subwords; this is subword 1.' in text

    def test_explain_row_out_of_range_is_an_error(self) -> None:
        model_folder = new_random_model()
        activations = compute_activations(model_folder, "it was", "")
        with pytest.raises(HeedfulError, match="subword 100 does not exist"):
            explain_row(model_folder, activations, "encoder", 0, 0, 99)
        with pytest.raises(HeedfulError, match="subword 0 does not exist"):
            explain_row(model_folder, activations, "encoder", 0, 0, 0, key=-1)


def number_names(size: int) -> list[str]:
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
        run_explain(topic)
        text = capsys.readouterr().out
        run_explain(topic, "--json")
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
        result = run_heedful("explain", "glove", "--vectors", GLOVE_EXCERPT)
        assert result.status == 0, result.err
        assert result.out.count("-4.37999318") == 2


MODEL = "{model}"


@pytest.mark.parametrize(
    ("args", "expected"),
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
    args: list[str], expected: str, quick_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HeedfulError) as error:
        run_explain(*(str(quick_model) if arg == MODEL else arg for arg in args))
    assert expected in f"{error.value.problem} {error.value.hint}"
    assert not list(tmp_path.iterdir())


def run_explain(*args: str) -> None:
    """Run the command line in this process, which is much faster than a new one."""
    from typer.main import get_command

    from heedful.cli.main import app

    get_command(app).main(["explain", *args], standalone_mode=False)


def test_explain_error_prints_message(quick_model: Path) -> None:
    result = run_heedful("explain", quick_model, SENTENCE, "--word", "cat")
    assert result.status == 1
    assert result.out == ""
    assert result.err.startswith("error: the word 'cat' is not in the sentence\n  hint: ")


def test_explain_folder_named_like_topic_prefers_topic(
    quick_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mask").symlink_to(quick_model)
    monkeypatch.chdir(tmp_path)
    assert "The causal mask" in run_heedful("explain", "mask").out
    assert "in head 1 of layer 1" in run_heedful("explain", "./mask", SENTENCE).out
    assert ModelFolder.load(Path("./mask")).config.model.heads == 2
