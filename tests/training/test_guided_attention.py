"""Guided attention: its loss by hand, learning, and the note in the model card."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from heedful.data.collate import Batch, collate
from heedful.data.dataset import TokenDataset, TokenDatasetWriter
from heedful.data.demo_corpus.grammar import generate_pairs
from heedful.data.reader import write_tsv
from heedful.model_folder import ModelFolder
from heedful.models.config import ArchitectureConfig
from heedful.progress import Reporter
from heedful.tokenization.normalization import clean_sentence
from heedful.training import guided_attention
from heedful.training.config import GuidedAttentionConfig, RunConfig, TrainingConfig
from heedful.training.guided_attention import GuidedAttention
from heedful.training.preparation import PreparedCorpus
from heedful.training.step import compute_batch_loss, new_optimizer, run_update
from heedful.workflows.demo import antecedent_link
from tests.conftest import quick_train_args, run_heedful
from tests.interpret.small_models import new_model_folder, new_tokenizer

SOURCES, TARGETS = [[400, 401, 402], [403, 404]], [[410, 411], [412]]


def guided_batch(sources: list[list[int]], targets: list[list[int]], guided: GuidedAttention) -> Batch:
    return replace(collate(sources, targets), guided_links=guided.get_links(sources))


def new_guided_attention() -> GuidedAttention:
    config = GuidedAttentionConfig(alignments="links.tsv", layer=2, head=3)
    return GuidedAttention(config, {(400, 401, 402): [(2, 0), (1, 1)], (403, 404): [(0, 1)], (9,): [(0, 0)]})


def test_get_links_returns_links_of_batch() -> None:
    assert new_guided_attention().get_links(SOURCES).tolist() == [[0, 2, 0], [0, 1, 1], [1, 0, 1]]
    assert new_guided_attention().get_links([[7]]).shape == (0, 3)


def test_guided_loss_by_hand() -> None:
    model = new_model_folder().translation_model.double()
    guided = new_guided_attention()
    batch = guided_batch(SOURCES, TARGETS, guided)
    observed: dict[str, torch.Tensor] = {}
    model.encode(batch.source, observed.__setitem__)
    weights = observed["encoder.1.self.weights"][:, 2]
    guided_loss = -(weights[0, 2, 0].log() + weights[0, 1, 1].log() + weights[1, 0, 1].log())
    plain, nll = compute_batch_loss(model, batch, 0.1)
    with_guided_loss, same_nll = compute_batch_loss(model, batch, 0.1, guided)
    assert float(with_guided_loss.detach()) == pytest.approx(float((plain + guided_loss).detach()))
    assert float(nll.detach()) == float(same_nll.detach())


def test_guided_loss_without_links_is_zero() -> None:
    model = new_model_folder().translation_model
    batch = guided_batch([[7, 8]], [[9]], new_guided_attention())
    assert compute_batch_loss(model, batch, 0.1, new_guided_attention())[0] == compute_batch_loss(model, batch, 0.1)[0]


def test_guided_head_learns_its_links() -> None:
    torch.manual_seed(3)
    model, guided = new_model_folder().translation_model.train(), new_guided_attention()
    optimizer, config = new_optimizer(model, TrainingConfig()), TrainingConfig()
    batch = guided_batch(SOURCES, TARGETS, guided)
    for _ in range(60):
        run_update(model, optimizer, [batch], config, 1e-2, guided)
    observed: dict[str, torch.Tensor] = {}
    model.eval().encode(batch.source, observed.__setitem__)
    weights = observed["encoder.1.self.weights"][:, 2]
    assert min(weights[0, 2, 0], weights[0, 1, 1], weights[1, 0, 1]) > 0.8


def test_guided_attention_command_end_to_end(grammar_pairs: Path, tmp_path: Path) -> None:
    links = tmp_path / "links.tsv"
    write_tsv([(pair.source, link) for pair in generate_pairs(600) if (link := antecedent_link(pair))], links)
    settings = ["guided_attention.head=2", f"guided_attention.alignments={links}"]
    args = [arg for setting in settings for arg in ("--set", setting)]
    result = run_heedful(*quick_train_args(grammar_pairs, tmp_path / "model"), *args)
    assert result.status == 0, result.err
    assert re.search(r"guided attention: \d+ of \d+ training sentences have alignments", result.err)
    assert json.loads((tmp_path / "model" / "config.json").read_text())["guided_head"] == [1, 2]
    assert "layer 1 head 2 is guided" in (tmp_path / "model" / "README.md").read_text()
    plain = run_heedful(*quick_train_args(grammar_pairs, tmp_path / "plain"))
    assert plain.status == 0
    assert ModelFolder.load(tmp_path / "plain").config.guided_head is None
    weights = [(tmp_path / name / "weights.safetensors").read_bytes() for name in ("model", "plain")]
    assert weights[0] != weights[1]


@pytest.mark.parametrize("kind", ["word", "bpe"])
def test_load_guided_attention_links_first_subwords(tmp_path: Path, kind: str) -> None:
    """Links count words, in any spelling of the same characters; the first subword of each is guided."""
    tokenizer = new_tokenizer(kind)
    source = "The unthinkable cafe\u0301\u00a0! was near the street because it was tired."
    (tmp_path / "guided_attention.tsv").write_text(f"{source}\t8-1 2-0\n", encoding="utf-8")
    ids = tokenizer.source.encode(clean_sentence(source))
    with TokenDatasetWriter(tmp_path / "store", tokenizer.source.vocab_size, tokenizer.target.vocab_size) as writer:
        writer.add(ids, [400])
    settings = RunConfig(
        guided_attention=GuidedAttentionConfig(alignments="links.tsv"), model=ArchitectureConfig(d_model=8, heads=2)
    )
    prepared = PreparedCorpus(settings, tokenizer, TokenDataset.open(tmp_path / "store"), [], [])
    guided = guided_attention.load_guided_attention(prepared, tmp_path, Reporter(quiet=True))
    assert guided is not None
    (links,) = guided.alignments.values()
    tokens = tokenizer.source.ids_to_tokens(ids)
    texts = [tokenizer.source.decode(ids[position:]) for link in links for position in link]
    assert [rest.split()[0] for rest in texts[:2]] == ["it", "unthinkable"]
    assert texts[2].strip().startswith("caf\u00e9\u00a0!")
    assert texts[3].startswith("The unthinkable")
    assert len(tokens) > 11


@pytest.mark.parametrize(
    ("text", "setting", "problem"),
    [
        (None, "guided_attention.head=1", "no such file"),
        ("", "guided_attention.head=1", "has no alignment links"),
        ("The dog.\tx-1\n", "guided_attention.head=1", "line 1: cannot parse"),
        ("The dog.\tx0-1y\n", "guided_attention.head=1", "line 1: cannot parse"),
        ("The dog.\nThe cat.\n", "guided_attention.head=1", "has no alignment links"),
        ("The dog.\t0-1\nThe dog.\t0-2\n", "guided_attention.head=1", "line 2: cannot parse"),
        ("Not a training sentence.\t0-1\n", "guided_attention.head=1", "are in the training pairs"),
        ("The dog.\t0-1\n", "guided_attention.head=3", "no encoder layer 1 with a head 3"),
        ("The dog.\t0-1\n", "tokenizer.bpe_dropout=0.1", "needs a fixed segmentation"),
    ],
)
def test_invalid_alignments_are_errors(
    grammar_pairs: Path, tmp_path: Path, text: str | None, setting: str, problem: str
) -> None:
    links = tmp_path / "links.tsv"
    if text is not None:
        links.write_text(text)
    args = ["--set", f"guided_attention.alignments={links}", "--set", setting]
    if "dropout" in setting:
        args += ["--set", "tokenizer.model_type=bpe"]
    result = run_heedful(*quick_train_args(grammar_pairs, tmp_path / "model"), *args)
    assert result.status == 1
    assert problem in result.err
    assert "hint:" in result.err


def test_demo_grammar_links_are_correct() -> None:
    for pair in generate_pairs(300, validation=True):
        it, noun = map(int, antecedent_link(pair).split("-"))
        assert pair.source.split()[it] == "it"
        assert pair.source.split()[noun] in pair.nouns
