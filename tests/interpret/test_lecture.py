"""The lecture's examples: correct values, and notes on every error of the documents."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from heedful.data.word_vectors import WordVectors
from heedful.errors import HeedfulError
from heedful.interpret.explain import TOPICS
from heedful.interpret.lecture.attention import explain_mask, explain_numerical, explain_thinking_machines
from heedful.interpret.lecture.layer_parts import explain_layer, explain_positions, explain_schedule
from heedful.interpret.lecture.text_representations import explain_glove, explain_text
from heedful.interpret.tables import Explanation, render_text, to_json
from tests.data.word_vector_files import write_word_vectors

GLOVE_EXCERPT = Path(__file__).parents[1] / "data" / "glove_excerpt.txt"


def render_in_one_line(explanation: Explanation, width: int = 100) -> str:
    """The text without line breaks, to find sentences in."""
    return re.sub(r"\s+", " ", render_text(explanation, width=width))


@pytest.mark.parametrize("name", TOPICS)
@pytest.mark.parametrize("width", [80, 120])
def test_topic_fits_width_and_is_valid_json(name: str, width: int) -> None:
    explanation = TOPICS[name]()
    lines = render_text(explanation, width=width).split("\n")
    assert max(map(len, lines)) <= width
    assert all(section.tables or section.notes for section in explanation.sections)
    json.loads(to_json(explanation), parse_constant=lambda constant: pytest.fail(constant))


def test_explain_thinking_machines_values_and_notes() -> None:
    values = explain_thinking_machines().values
    assert values["weights"] == pytest.approx([0.8807970779778823, 0.11920292202211755], abs=1e-15)
    assert values["unscaled_weights"][0] == pytest.approx(0.9999998874648379, abs=1e-15)
    assert values["gradient"][0] == pytest.approx(0.10499358540350662)
    assert values["unscaled_gradient"][0] == pytest.approx(1.12535149e-07)
    text = render_in_one_line(explain_thinking_machines())
    for sentence in ("saturates", "It is the other way round: they vanish", "0.99999989", "weighs 0.1142"):
        assert sentence in text


def test_explain_numerical_values_and_notes() -> None:
    values = explain_numerical().values
    assert values["Q"] == [[1, 0, 2], [2, 2, 2], [2, 1, 3]]
    assert values["scores"] == [[2, 4, 4], [4, 16, 12], [4, 12, 10]]
    np.testing.assert_allclose(values["unscaled"]["output"][0], [1.9366210617, 6.6831053083, 1.5950684075])
    np.testing.assert_allclose(values["scaled"]["output"][0], [1.8638742024, 6.3193710122, 1.7041886963])
    np.testing.assert_allclose(values["rounded"]["output"], [[2, 7, 1.5], [2, 8, 0], [2, 7.8, 0.3]])
    text = render_in_one_line(explain_numerical())
    assert "gives these inputs only" in text
    assert "leaves the division out" in text
    assert "weights that were rounded first" in text


def test_explain_mask_values_and_notes() -> None:
    values = explain_mask().values
    np.testing.assert_allclose(values["weights"][1], [0.37754067, 0.62245933, 0, 0], atol=1e-8)
    assert values["masked_scores"][0][1] == -np.inf
    assert np.isnan(values["strict_weights"][0]).all()
    assert values["hi_how_are_you"]["largest_error"] == pytest.approx(0.185, abs=5e-4)
    text = render_in_one_line(explain_mask())
    assert "prints 0.37 for 0.3775 and 0.31 for 0.3156: truncated, not rounded" in text
    assert re.search(r"I -> <start> 0\.3775 0\.37 0\.38 truncated", text)
    assert text.count(" truncated ") == 2
    assert text.count(" right ") == 8
    assert "The document's formula is too strict" in text
    assert 'The row of "are" sums to 1.1' in text


def test_explain_positions_values_and_notes() -> None:
    values = explain_positions().values
    np.testing.assert_allclose(values["d_model_4"][3], [0.14112, -0.98999, 0.0299955, 0.99955], atol=1e-5)
    dots = {tuple(item["positions"]): item["value"] for item in values["dot_products"]}
    assert dots[100, 100] == pytest.approx(256, abs=1e-4)
    assert dots[3, 10] == pytest.approx(dots[50, 57], abs=1e-4)
    assert values["wavelengths_512"][-1] == pytest.approx(60611.47716626105)
    text = render_in_one_line(explain_positions())
    assert "count positions from 1" in text
    assert "One of the documents adds them to q, k and v" in text


def test_explain_schedule_values_and_notes() -> None:
    values = explain_schedule().values
    assert values["peak"] == pytest.approx(0.0006987712429686843)
    assert values["peak"] == max(values["rates"].values())
    assert values["big_peak"] == pytest.approx(0.0004941058844013092)
    assert "Step 0 is undefined" in render_in_one_line(explain_schedule())


def test_explain_layer_values() -> None:
    values = explain_layer().values
    assert values["feed_forward"]["before_relu"] == [[5.0, -0.5, -2.0], [0.0, 1.5, -1.5]]  # by hand
    assert values["matrix_product"] == [[33, 39, 43], [33, 25, 49], [69, 86, 88]]
    np.testing.assert_allclose(values["feed_forward"]["output"], [[5.1, -0.1], [0.1, 1.4]])
    np.testing.assert_allclose(values["residual"][0], [6.1, 1.9])
    np.testing.assert_allclose(values["layer_norm"]["output"][0][3], 1.3416354199689269)


def test_explain_text_values_and_notes() -> None:
    values = explain_text().values
    assert values["tokens"] == ["AI", "changes", "the", "world", "."]
    assert values["one_hot"] == [[1, 0, 0], [0, 0, 1]]
    assert values["bag_of_words"] == [1, 0, 1]
    np.testing.assert_allclose(values["tf_idf"][0], [0.4054651081, 1.0986122887, 0], atol=1e-10)
    np.testing.assert_allclose(values["smooth_tf_idf"][1], [0.7898069291, 0, 0.6133555370], atol=1e-10)
    assert "That is a bag of words (multi-hot)" in render_in_one_line(explain_text())


class TestGlove:
    def test_explain_glove_reproduces_notebook(self) -> None:
        explanation = explain_glove(GLOVE_EXCERPT)
        ten, one = explanation.values["ten_heads"], explanation.values["single_head"]
        printed = [-4.37999318, -1.99506183, -2.05712457, -0.08937276, -1.72769596]
        assert [round(number, 8) for number in ten["output"][0][:5]] == printed
        printed = [-4.31502585, -3.90981072, -2.11083877, -1.51211468, -1.90636801]
        assert [round(number, 8) for number in one["output"][0][:5]] == printed
        fresh = [-3.768362124914277, -3.4189102289334885, -2.0560980808709273]
        np.testing.assert_allclose(one["fresh_seed_output"][0][:3], fresh, rtol=1e-12)
        np.testing.assert_allclose(ten["weights"][0][2][1], 0.2530138549122838, rtol=1e-9)
        assert explanation.values["king_man_woman"][0]["word"] == "queen"

    def test_explain_glove_notes(self) -> None:
        text = render_in_one_line(explain_glove(GLOVE_EXCERPT))
        for sentence in ("All 8 printed decimals agree", "after 7,500 draws", "run twice", "50 / 10 = 5", "W^O"):
            assert sentence in text
        assert max(map(len, render_text(explain_glove(GLOVE_EXCERPT), width=80).split("\n"))) <= 80


class TestOtherVectors:
    def write(self, path: Path, words: str, size: int) -> Path:
        rng = np.random.default_rng(3)
        write_word_vectors(path, WordVectors(tuple(words.split()), rng.normal(size=(len(words.split()), size))))
        return path

    def test_explain_glove_other_vectors_reports_difference(self, tmp_path: Path) -> None:
        path = self.write(tmp_path / "v.txt", "the cat sat on table king man woman queen", 20)
        text = render_in_one_line(explain_glove(path))
        assert "these are not the notebook's vectors" in text
        assert "agree" not in text

    def test_explain_glove_missing_word_is_an_error(self, tmp_path: Path) -> None:
        path = self.write(tmp_path / "v.txt", "the cats sat on table king man woman queen", 20)
        with pytest.raises(HeedfulError, match="'cat' is not among the 9 words") as error:
            explain_glove(path)
        assert "cats" in error.value.hint

    def test_explain_glove_indivisible_size_is_an_error(self, tmp_path: Path) -> None:
        path = self.write(tmp_path / "v.txt", "the cat sat on table king man woman queen", 7)
        with pytest.raises(HeedfulError, match="7 numbers per word do not split into 10 heads"):
            explain_glove(path)
