"""Guided attention: a small extra loss trains one encoder head to follow given alignments.

What heads learn by themselves, in a small model, need not be what a lecture wants to show. A model with a
guided head says so wherever it is inspected.
"""

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from heedful.config import Settings
from heedful.data.formats.lines import read_lines
from heedful.errors import HeedfulError
from heedful.models.base import Model
from heedful.progress import Reporter
from heedful.tokenization.dependency_trees import SentenceIds, get_token_ids
from heedful.tokenization.normalization import split_on_spaces
from heedful.training.config import GuidedAttentionConfig
from heedful.training.preparation import PreparedCorpus

ALIGNMENTS_FILE = "guided_attention.tsv"

FORMAT_HINT = "one line: source TAB links such as 7-1, meaning that word 7 should attend to word 1 (from 0)"


@dataclass(frozen=True, slots=True)
class GuidedAttention:
    """The alignments of all sentences, by token ids."""

    config: GuidedAttentionConfig
    alignments: Mapping[tuple[int, ...], Sequence[tuple[int, int]]]
    """(query position, key position) links."""

    def get_links(self, sources: Sequence[SentenceIds]) -> Tensor:
        """The links of a batch: (links, 3), columns sentence, query and key."""
        links = [
            (sentence, query, key)
            for sentence, source in enumerate(sources)
            for query, key in self.alignments.get(tuple(get_token_ids(source)), ())
        ]
        return torch.tensor(links, dtype=torch.int64).view(-1, 3)

    def encode(self, model: Model, source: Tensor, links: Tensor) -> tuple[Tensor, Tensor]:
        """Encoder output, and -log of the attention weight of each link, summed: a link counts like a target token."""
        activations: dict[str, Tensor] = {}
        memory = model.encode(source, activations.__setitem__)
        weights = activations[f"encoder.{self.config.layer - 1}.self.weights"]  # (sentences, heads, queries, keys)
        sentence, query, key = links.to(source.device).unbind(1)
        link_weights = weights[sentence, self.config.head - 1, query, key]
        return memory, -link_weights.clamp(min=1e-9).log().sum()


def check_alignments(settings: Settings) -> None:
    """Raise before any work if the alignment file cannot be used."""
    path = _alignments_path(settings)
    if not any(links for _, links in _read_alignments(path)):
        raise HeedfulError(f"{path} has no alignment links", hint=FORMAT_HINT)


def copy_alignments(settings: Settings, folder: Path) -> None:
    """Copy the user's alignments into the run folder, so that resuming does not need the file."""
    shutil.copyfile(_alignments_path(settings), folder / ALIGNMENTS_FILE)


def load_guided_attention(prepared: PreparedCorpus, folder: Path, report: Reporter) -> GuidedAttention:
    """The guided attention of a run; ``folder`` holds its copy of the alignments."""
    config, tokenizer = prepared.config.guided_attention, prepared.tokenizer.source
    alignments = {}
    for source, word_links in _read_alignments(folder / ALIGNMENTS_FILE):
        words = split_on_spaces(source, prepared.config.cleaning.unicode_normalization)
        token_ids = tokenizer.encode(" ".join(words))
        word_indices = tokenizer.align_to_words(token_ids, words)
        alignments[tuple(token_ids)] = [
            (word_indices.index(query), word_indices.index(key)) for query, key in word_links
        ]
    dataset = prepared.dataset
    aligned_count = sum(
        bool(alignments.get(tuple(get_token_ids(dataset.source(number).tolist())))) for number in range(len(dataset))
    )
    if not aligned_count:
        raise HeedfulError(f"none of the sentences in {config.alignments} are in the training pairs", hint=FORMAT_HINT)
    report.info(f"guided attention: {aligned_count:,} of {len(dataset):,} training sentences have alignments")
    return GuidedAttention(config, alignments)


def _alignments_path(settings: Settings) -> Path:
    return Path(settings["guided_attention"]["alignments"]).expanduser()


def _read_alignments(path: Path) -> Iterator[tuple[str, list[tuple[int, int]]]]:
    """Each source with its (query, key) links."""
    for line in read_lines(path):
        source, _, pairs = line.text.partition("\t")
        words = split_on_spaces(source)
        matches = [re.fullmatch(r"(\d{1,9})-(\d{1,9})", pair) for pair in pairs.split()]
        links = [(int(link[1]), int(link[2])) for link in matches if link]
        if not words or not all(matches) or any(max(link) >= len(words) for link in links):
            raise HeedfulError(f"{path}, line {line.number}: cannot parse {line.text!r}", hint=FORMAT_HINT)
        yield source, links
