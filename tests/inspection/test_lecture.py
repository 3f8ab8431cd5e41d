"""The lecture's examples: right numbers, and every slip of the documents named."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from heedful.errors import HeedfulError
from heedful.inspection.lecture import TOPICS, glove, layer, mask, numerical, positions, schedule, text
from heedful.inspection.lecture import thinking_machines as thinking
from heedful.inspection.tables import Explanation, rendered, to_json
from heedful.text.word_vectors import WordVectors, write_word_vectors

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
VECTORS = SHARED / "glove50_sample.txt"
needs_vectors = pytest.mark.skipif(not VECTORS.is_file(), reason="word vectors are not beside the repository")


def flat(explanation: Explanation, width: int = 100) -> str:
    """The text without line breaks, to find sentences in."""
    return re.sub(r"\s+", " ", rendered(explanation, width=width))


@pytest.mark.parametrize("name", TOPICS)
@pytest.mark.parametrize("width", [80, 120])
def test_every_topic_fits_and_is_json(name: str, width: int) -> None:
    explanation = TOPICS[name]()
    lines = rendered(explanation, width=width).split("\n")
    assert max(map(len, lines)) <= width
    assert all(section.tables or section.notes for section in explanation.sections)
    json.loads(to_json(explanation), parse_constant=lambda constant: pytest.fail(constant))


def test_thinking_machines() -> None:
    values = thinking().values
    assert values["weights"] == pytest.approx([0.8807970779778823, 0.11920292202211755], abs=1e-15)
    assert values["unscaled_weights"][0] == pytest.approx(0.9999998874648379, abs=1e-15)
    assert values["gradient"][0] == pytest.approx(0.10499358540350662)
    assert values["unscaled_gradient"][0] == pytest.approx(1.12535149e-07)
    said = flat(thinking())
    for sentence in ("saturates", "It is the other way round: they vanish", "0.99999989", "weighs 0.1142"):
        assert sentence in said


def test_numerical() -> None:
    values = numerical().values
    assert values["Q"] == [[1, 0, 2], [2, 2, 2], [2, 1, 3]]
    assert values["scores"] == [[2, 4, 4], [4, 16, 12], [4, 12, 10]]
    np.testing.assert_allclose(values["unscaled"]["output"][0], [1.9366210617, 6.6831053083, 1.5950684075])
    np.testing.assert_allclose(values["scaled"]["output"][0], [1.8638742024, 6.3193710122, 1.7041886963])
    np.testing.assert_allclose(values["rounded"]["output"], [[2, 7, 1.5], [2, 8, 0], [2, 7.8, 0.3]])
    said = flat(numerical())
    assert "gives these inputs only" in said
    assert "leaves the division out" in said
    assert "weights that were rounded first" in said


def test_mask() -> None:
    values = mask().values
    np.testing.assert_allclose(values["weights"][1], [0.37754067, 0.62245933, 0, 0], atol=1e-8)
    assert values["masked_scores"][0][1] == -np.inf
    assert np.isnan(values["strict_weights"][0]).all()
    assert values["hi_how_are_you"]["largest_error"] == pytest.approx(0.185, abs=5e-4)
    said = flat(mask())
    assert "prints 0.37 for 0.3775 and 0.31 for 0.3156: truncated, not rounded" in said
    assert re.search(r"I -> <start> 0\.3775 0\.37 0\.38 truncated", said)
    assert said.count(" truncated ") == 2
    assert said.count(" right ") == 8
    assert "The document's formula is too strict" in said
    assert 'The row of "are" sums to 1.1' in said


def test_positions() -> None:
    values = positions().values
    np.testing.assert_allclose(values["d_model_4"][3], [0.14112, -0.98999, 0.0299955, 0.99955], atol=1e-5)
    dots = {tuple(each["positions"]): each["value"] for each in values["dot_products"]}
    assert dots[100, 100] == pytest.approx(256, abs=1e-4)
    assert dots[3, 10] == pytest.approx(dots[50, 57], abs=1e-4)
    assert values["wavelengths_512"][-1] == pytest.approx(60611.47716626105)
    said = flat(positions())
    assert "count positions from 1" in said
    assert "One of the documents adds them to q, k and v" in said


def test_schedule() -> None:
    values = schedule().values
    assert values["peak"] == pytest.approx(0.0006987712429686843)
    assert values["peak"] == max(values["rates"].values())
    assert values["big_peak"] == pytest.approx(0.0004941058844013092)
    assert "Step 0 is undefined" in flat(schedule())


def test_layer() -> None:
    values = layer().values
    assert values["feed_forward"]["before_relu"] == [[5.0, -0.5, -2.0], [0.0, 1.5, -1.5]]  # by hand
    assert values["matrix_product"] == [[33, 39, 43], [33, 25, 49], [69, 86, 88]]
    np.testing.assert_allclose(values["feed_forward"]["output"], [[5.1, -0.1], [0.1, 1.4]])
    np.testing.assert_allclose(values["residual"][0], [6.1, 1.9])
    np.testing.assert_allclose(values["layer_norm"]["output"][0][3], 1.3416354199689269)


def test_text() -> None:
    values = text().values
    assert values["tokens"] == ["AI", "changes", "the", "world", "."]
    assert values["one_hot"] == [[1, 0, 0], [0, 0, 1]]
    assert values["bag_of_words"] == [1, 0, 1]
    np.testing.assert_allclose(values["tf_idf"][0], [0.4054651081, 1.0986122887, 0], atol=1e-10)
    np.testing.assert_allclose(values["smooth_tf_idf"][1], [0.7898069291, 0, 0.6133555370], atol=1e-10)
    assert "That is a bag of words (multi-hot)" in flat(text())


@needs_vectors
class TestGlove:
    def test_the_notebook_comes_out(self) -> None:
        explanation = glove(VECTORS)
        ten, one = explanation.values["ten_heads"], explanation.values["single_head"]
        printed = [-4.37999318, -1.99506183, -2.05712457, -0.08937276, -1.72769596]
        assert [round(number, 8) for number in ten["output"][0][:5]] == printed
        printed = [-4.31502585, -3.90981072, -2.11083877, -1.51211468, -1.90636801]
        assert [round(number, 8) for number in one["output"][0][:5]] == printed
        fresh = [-3.768362124914277, -3.4189102289334885, -2.0560980808709273]
        np.testing.assert_allclose(one["fresh_seed_output"][0][:3], fresh, rtol=1e-12)
        np.testing.assert_allclose(ten["weights"][0][2][1], 0.2530138549122838, rtol=1e-9)
        assert explanation.values["king_man_woman"][0]["word"] == "queen"

    def test_all_values_of_the_shared_file(self) -> None:
        expected = json.loads((SHARED / "seed_vectors.json").read_text())["glove_notebook"]
        values = glove(VECTORS).values
        close = {"rtol": 1e-9, "atol": 1e-12}
        np.testing.assert_allclose(
            values["ten_heads"]["output"][0], expected["ten_heads"]["output0"], **close
        )
        single = expected["single_head"]
        np.testing.assert_allclose(values["single_head"]["output"][0], single["output0"], **close)
        np.testing.assert_allclose(values["single_head"]["weights"], single["weights"], **close)

    def test_what_it_says(self) -> None:
        said = flat(glove(VECTORS))
        for sentence in (
            "All 8 printed decimals agree",
            "after 7,500 draws",
            "run twice",
            "50 / 10 = 5",
            "W^O",
        ):
            assert sentence in said
        assert max(map(len, rendered(glove(VECTORS), width=80).split("\n"))) <= 80


class TestOtherVectors:
    def write(self, path: Path, words: str, size: int) -> Path:
        rng = np.random.default_rng(3)
        write_word_vectors(
            path, WordVectors(tuple(words.split()), rng.normal(size=(len(words.split()), size)))
        )
        return path

    def test_they_are_said_to_differ(self, tmp_path: Path) -> None:
        path = self.write(tmp_path / "v.txt", "the cat sat on table king man woman queen", 20)
        said = flat(glove(path))
        assert "these are not the notebook's vectors" in said
        assert "agree" not in said

    def test_a_word_is_missing(self, tmp_path: Path) -> None:
        path = self.write(tmp_path / "v.txt", "the cats sat on table king man woman queen", 20)
        with pytest.raises(HeedfulError, match="'cat' is not among the 9 words") as caught:
            glove(path)
        assert "cats" in caught.value.hint

    def test_size_that_does_not_split(self, tmp_path: Path) -> None:
        path = self.write(tmp_path / "v.txt", "the cat sat on table king man woman queen", 7)
        with pytest.raises(HeedfulError, match="7 numbers a word do not split into 10 heads"):
            glove(path)
