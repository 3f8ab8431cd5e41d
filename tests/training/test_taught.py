"""The taught head: its loss by hand, that it learns, and that a model says so."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from heedful.bundle import Bundle
from heedful.corpora.filters import clean_sentence
from heedful.corpora.formats import write_tsv
from heedful.corpora.grammar import generate
from heedful.corpora.store import StoreWriter, TokenStore
from heedful.demo import antecedent_link
from heedful.model.config import Architecture
from heedful.progress import Reporter
from heedful.training import taught
from heedful.training.batch import Batch, new_batch
from heedful.training.config import RunConfig, TaughtConfig, TrainingConfig
from heedful.training.preparation import Prepared
from heedful.training.taught import Teacher
from heedful.training.update import batch_loss, new_optimizer, update
from tests.conftest import quick_train_words, run_heedful
from tests.inspection.models import new_bundle, new_tokenizer

SOURCES, TARGETS = [[400, 401, 402], [403, 404]], [[410, 411], [412]]


def taught_batch(sources: list[list[int]], targets: list[list[int]], teacher: Teacher) -> Batch:
    return replace(new_batch(sources, targets), links=teacher.of(sources))


def new_teacher(weight: float = 1.0) -> Teacher:
    config = TaughtConfig(links="links.tsv", layer=2, head=3, weight=weight)
    return Teacher(config, {(400, 401, 402): [(2, 0), (1, 1)], (403, 404): [(0, 1)], (9,): [(0, 0)]})


def test_links_of_a_batch() -> None:
    assert new_teacher().of(SOURCES).tolist() == [[0, 2, 0], [0, 1, 1], [1, 0, 1]]
    assert new_teacher().of([[7]]).shape == (0, 3)


def test_loss_by_hand() -> None:
    model = new_bundle().model.double()
    teacher = new_teacher(weight=0.5)
    batch = taught_batch(SOURCES, TARGETS, teacher)
    seen: dict[str, torch.Tensor] = {}
    model.encode(batch.source, seen.__setitem__)
    weights = seen["encoder.1.self.weights"][:, 2]
    lesson = -(weights[0, 2, 0].log() + weights[0, 1, 1].log() + weights[1, 0, 1].log())
    plain, likelihood = batch_loss(model, batch, 0.1)
    with_lesson, same = batch_loss(model, batch, 0.1, teacher)
    assert float(with_lesson.detach()) == pytest.approx(float((plain + 0.5 * lesson).detach()))
    assert float(likelihood.detach()) == float(same.detach())


def test_a_batch_without_links_loses_nothing_more() -> None:
    model = new_bundle().model
    batch = taught_batch([[7, 8]], [[9]], new_teacher())
    assert batch_loss(model, batch, 0.1, new_teacher())[0] == batch_loss(model, batch, 0.1)[0]


def test_the_head_learns() -> None:
    torch.manual_seed(3)
    model, teacher = new_bundle().model.train(), new_teacher()
    optimizer, config = new_optimizer(model, TrainingConfig()), TrainingConfig()
    batch = taught_batch(SOURCES, TARGETS, teacher)
    for _ in range(60):
        update(model, optimizer, [batch], config, 1e-2, teacher)
    seen: dict[str, torch.Tensor] = {}
    model.eval().encode(batch.source, seen.__setitem__)
    weights = seen["encoder.1.self.weights"][:, 2]
    assert min(weights[0, 2, 0], weights[0, 1, 1], weights[1, 0, 1]) > 0.8


def test_the_whole_way(grammar_pairs: Path, tmp_path: Path) -> None:
    links = tmp_path / "links.tsv"
    write_tsv([(pair.source, link) for pair in generate(600) if (link := antecedent_link(pair))], links)
    settings = ["taught.head=2", f"taught.links={links}"]
    words = [word for setting in settings for word in ("--set", setting)]
    done = run_heedful(*quick_train_words(grammar_pairs, tmp_path / "model"), *words)
    assert done.status == 0, done.err
    assert re.search(r"a taught head: \d+ of \d+ training sentences have links", done.err)
    assert json.loads((tmp_path / "model" / "config.json").read_text())["taught_head"] == [1, 2]
    assert "layer 1 head 2 is a taught head" in (tmp_path / "model" / "README.md").read_text()
    plain = run_heedful(*quick_train_words(grammar_pairs, tmp_path / "plain"))
    assert plain.status == 0
    assert Bundle.load(tmp_path / "plain").config.taught_head is None
    weights = [(tmp_path / name / "weights.safetensors").read_bytes() for name in ("model", "plain")]
    assert weights[0] != weights[1]


@pytest.mark.parametrize("kind", ["word", "bpe"])
def test_which_pieces_are_linked(tmp_path: Path, kind: str) -> None:
    """Links count words, in any spelling of the same characters; the first piece of each is taught."""
    tokenizer = new_tokenizer(kind)
    source = "The unthinkable cafe\u0301\u00a0! was near the street because it was tired."
    (tmp_path / "links.tsv").write_text(f"{source}\t8-1 2-0\n", encoding="utf-8")
    ids = tokenizer.source.encode(clean_sentence(source))
    with StoreWriter(tmp_path / "store", tokenizer.source.size, tokenizer.target.size) as writer:
        writer.add(ids, [400])
    settings = RunConfig(taught=TaughtConfig(links="links.tsv"), model=Architecture(width=8, heads=2))
    prepared = Prepared(settings, tokenizer, TokenStore.open(tmp_path / "store"), [], [])
    teacher = taught.new_teacher(prepared, tmp_path, Reporter(quiet=True))
    assert teacher is not None
    (links,) = teacher.links.values()
    pieces = tokenizer.source.pieces(ids)
    spelled = [tokenizer.source.decode(ids[place:]) for link in links for place in link]
    assert [text.split()[0] for text in spelled[:2]] == ["it", "unthinkable"]
    assert spelled[2].strip().startswith("caf\u00e9\u00a0!")
    assert spelled[3].startswith("The unthinkable")
    assert len(pieces) > 11


@pytest.mark.parametrize(
    ("text", "setting", "problem"),
    [
        (None, "taught.head=1", "no such file"),
        ("", "taught.head=1", "has no links"),
        ("The dog.\tx-1\n", "taught.head=1", "line 1: cannot use"),
        ("The dog.\tx0-1y\n", "taught.head=1", "line 1: cannot use"),
        ("The dog.\nThe cat.\n", "taught.head=1", "has no links"),
        ("The dog.\t0-1\nThe dog.\t0-2\n", "taught.head=1", "line 2: cannot use"),
        ("Nobody said this.\t0-1\n", "taught.head=1", "is among the training pairs"),
        ("The dog.\t0-1\n", "taught.head=3", "no encoder layer 1 with a head 3"),
        ("The dog.\t0-1\n", "tokenizer.dropout=0.1", "always spelled the same"),
    ],
)
def test_mistakes(grammar_pairs: Path, tmp_path: Path, text: str | None, setting: str, problem: str) -> None:
    links = tmp_path / "links.tsv"
    if text is not None:
        links.write_text(text)
    words = ["--set", f"taught.links={links}", "--set", setting]
    if "dropout" in setting:
        words += ["--set", "tokenizer.kind=bpe"]
    done = run_heedful(*quick_train_words(grammar_pairs, tmp_path / "model"), *words)
    assert done.status == 1
    assert problem in done.err
    assert "hint:" in done.err


def test_every_link_of_the_grammar_is_right() -> None:
    for pair in generate(300, held_out=True):
        it, noun = map(int, antecedent_link(pair).split("-"))
        assert pair.source.split()[it] == "it"
        assert pair.source.split()[noun] in pair.nouns
