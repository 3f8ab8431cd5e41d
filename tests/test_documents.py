"""Document-level translation: paragraphs are joined, learned from and translated whole."""

from pathlib import Path

import pytest

import heedful
from heedful.commands.corpus import CorpusInput, join_corpus
from heedful.config import merged, parsed_overrides
from heedful.corpora.paragraphs import ParagraphSize
from heedful.engines.native import NativeEngine
from heedful.progress import Reporter
from tests.conftest import QUICK_SETTINGS

ATTENTIONS = {
    "full": [],
    "BigBird": ["model.encoder_attention=bigbird", "model.decoder_attention=bigbird", "model.block=4"],
    "Linformer": ["model.encoder_attention=linformer", "model.projected_length=8"],
}


@pytest.mark.parametrize("name", ATTENTIONS)
def test_paragraphs_are_read_whole(name: str, grammar_pairs: Path, tmp_path: Path) -> None:
    paragraphs = tmp_path / "paragraphs.tsv"
    join_corpus(CorpusInput([grammar_pairs]), paragraphs, ParagraphSize(8))
    settings = merged(parsed_overrides(QUICK_SETTINGS), parsed_overrides(ATTENTIONS[name]))
    settings = merged(settings, {"training": {"updates": 4}, "model": {"longest": 200}})
    heedful.train(paragraphs, tmp_path / "m", settings=settings, report=Reporter(quiet=True))
    engine = NativeEngine.load(tmp_path / "m")
    text = paragraphs.read_text().splitlines()[0].split("\t")[0]
    assert text.count(".") + text.count("?") + text.count("!") >= 8
    assert [segment.text for segment in engine.segments(text)] == [text]
    assert engine.translate([text])[0].segments == 1
