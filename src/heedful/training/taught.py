"""The taught head: one encoder head is shown, by a small extra loss, where it should look.

Heads find their own work, and in a small model it need not be what a lecture would like to show. Teaching
one makes its picture plain; a model with a taught head says so wherever it is looked at.
"""

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from heedful.config import Settings
from heedful.corpora.filters import spaced_words
from heedful.corpora.lines import read_lines
from heedful.errors import HeedfulError
from heedful.model.predictor import Predictor
from heedful.places import pieces_of
from heedful.progress import Reporter
from heedful.training.config import TaughtConfig
from heedful.training.preparation import Prepared

LINKS = "links.tsv"
SHAPE = "a line is: source TAB links such as 7-1, which say that word 7 should look at word 1 (from 0)"


@dataclass(frozen=True, slots=True)
class Teacher:
    """The links of all sentences, by their ids."""

    config: TaughtConfig
    links: Mapping[tuple[int, ...], Sequence[tuple[int, int]]]
    """(query piece, key piece)."""

    def of(self, sources: Sequence[Sequence[int]]) -> Tensor:
        """The links of a batch: (links, 3) of sentence, query and key."""
        found = [
            (number, query, key)
            for number, source in enumerate(sources)
            for query, key in self.links.get(tuple(pieces_of(source)), ())
        ]
        return torch.tensor(found, dtype=torch.int64).view(-1, 3)

    def encode(self, model: Predictor, source: Tensor, links: Tensor) -> tuple[Tensor, Tensor]:
        """The memory, and the loss: - log of the weight on each right key, summed, times ``weight``."""
        seen: dict[str, Tensor] = {}
        memory = model.encode(source, seen.__setitem__)
        weights = seen[f"encoder.{self.config.layer - 1}.self.weights"]  # (sentences, heads, queries, keys)
        sentence, query, key = links.to(source.device).unbind(1)
        right = weights[sentence, self.config.head - 1, query, key]
        return memory, -self.config.weight * right.clamp(min=1e-9).log().sum()


def check_links(settings: Settings) -> None:
    """An error at once if there are links and they cannot be used."""
    path = _links_path(settings)
    if path and not any(links for _, links in _read_links(path)):
        raise HeedfulError(f"{path} has no links", hint=SHAPE)


def keep_links(settings: Settings, folder: Path) -> None:
    """Copy the user's links into the run, which may go on after the file has gone."""
    path = _links_path(settings)
    if path:
        shutil.copyfile(path, folder / LINKS)


def new_teacher(prepared: Prepared, folder: Path, report: Reporter) -> Teacher | None:
    """The teacher that the settings ask for, if any; ``folder`` holds the links of the run."""
    config, tokenizer = prepared.config.taught, prepared.tokenizer.source
    if not config.links:
        return None
    links = {}
    for source, wanted in _read_links(folder / LINKS):
        words = spaced_words(source, prepared.config.cleaning.normalize)
        ids = tokenizer.encode(" ".join(words))
        inside = tokenizer.within(ids, words)
        links[tuple(ids)] = [(inside.index(query), inside.index(key)) for query, key in wanted]
    store = prepared.training
    known = sum(
        bool(links.get(tuple(pieces_of(store.source(number).tolist())))) for number in range(len(store))
    )
    if not known:
        raise HeedfulError(f"none of the sentences in {config.links} is among the training pairs", hint=SHAPE)
    report.say(f"a taught head: {known:,} of {len(store):,} training sentences have links to learn")
    return Teacher(config, links)


def _links_path(settings: Settings) -> Path | None:
    links = TaughtConfig.checked(settings.get("taught", {})).links
    return Path(links).expanduser() if links else None


def _read_links(path: Path) -> Iterator[tuple[str, list[tuple[int, int]]]]:
    """Each source, and (query, key) of its links."""
    for line in read_lines(path):
        source, _, pairs = line.text.partition("\t")
        words = spaced_words(source)
        found = [re.fullmatch(r"(\d{1,9})-(\d{1,9})", pair) for pair in pairs.split()]
        links = [(int(link[1]), int(link[2])) for link in found if link]
        if not words or not all(found) or any(max(link) >= len(words) for link in links):
            raise HeedfulError(f"{path}, line {line.number}: cannot use {line.text!r}", hint=SHAPE)
        yield source, links
