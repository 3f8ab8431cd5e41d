"""Document-level translation: training on joined paragraphs, and translating them as one segment."""

from pathlib import Path

import pytest

import heedful
from heedful.config import merge_settings, parse_overrides
from heedful.inference.loading import load
from heedful.progress import Reporter
from heedful.workflows.corpus import CorpusInput, ParagraphSize, join_corpus
from tests.conftest import QUICK_SETTINGS

ATTENTIONS = {
    "full": [],
    "BigBird": ["model.encoder_attention=bigbird", "model.decoder_attention=bigbird", "model.block_size=4"],
    "Linformer": ["model.encoder_attention=linformer", "model.projected_length=8"],
}


@pytest.mark.parametrize("name", ATTENTIONS)
def test_translate_paragraph_is_one_segment(name: str, grammar_pairs: Path, tmp_path: Path) -> None:
    paragraphs = tmp_path / "paragraphs.tsv"
    join_corpus(CorpusInput([grammar_pairs]), paragraphs, ParagraphSize(8))
    settings = merge_settings(parse_overrides(QUICK_SETTINGS), parse_overrides(ATTENTIONS[name]))
    settings = merge_settings(settings, {"training": {"max_updates": 4}, "model": {"max_length": 200}})
    heedful.train(paragraphs, tmp_path / "m", settings=settings, report=Reporter(quiet=True))
    engine = load(tmp_path / "m", engine="pytorch")
    text = paragraphs.read_text().splitlines()[0].split("\t")[0]
    assert text.count(".") + text.count("?") + text.count("!") >= 8
    assert [segment.text for segment in engine.split_segments(text)] == [text]
    assert engine.translate([text])[0].segments == 1
