"""Align the words of sentence pairs by cross-attention.

``find_best_aligner`` selects the attention to read (an ``Aligner``) without gold alignments, by its agreement
with IBM model 1.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from heedful.data.formats.base import ReadOptions
from heedful.data.formats.lines import count_lines, read_lines
from heedful.data.reader import check_inputs, has_pair_per_line, read_pairs
from heedful.data.word_alignment import (
    NULL_WORD,
    WordLink,
    alignment_error_rate,
    alignment_posteriors,
    format_pharaoh,
    parse_gold_links,
    train_ibm_model1,
)
from heedful.errors import HeedfulError
from heedful.files import atomic_write, check_writable
from heedful.inference.loading import load
from heedful.interpret.activations import (
    Activations,
    check_layer_and_head,
    compute_activations,
    regroup_words,
)
from heedful.interpret.heads import Aligner, default_aligner, list_aligners
from heedful.model_folder import ModelFolder
from heedful.progress import Reporter
from heedful.tokenization.dependency_trees import append_heads, find_heads_error
from heedful.tokenization.normalization import split_on_spaces


def find_best_aligner(pass_activations: Sequence[Activations]) -> tuple[Aligner, dict[Aligner, float]]:
    """The aligner that agrees best with IBM model 1 on the pairs, and the agreement of each, 0 to 1.

    Agreement is the mean posterior of the links under IBM model 1.
    """
    pairs = [
        (
            [word.casefold() for word in activations.source.words[activations.tag_count : -1]],
            [word.casefold() for word in activations.target.words[:-1]],
        )
        for activations in pass_activations
    ]
    probabilities = train_ibm_model1(pairs)
    agreement = {}
    for aligner in list_aligners(pass_activations[0]):
        posteriors: list[float] = []
        for activations, (source, target) in zip(pass_activations, pairs, strict=True):
            aligned_source = {target_index: source[i] for i, target_index in aligner.extract_links(activations)}
            posteriors += [
                alignment_posteriors(word, source, probabilities).get(aligned_source.get(position, NULL_WORD), 0.0)
                for position, word in enumerate(target)
            ]
        agreement[aligner] = sum(posteriors) / max(len(posteriors), 1)
    return max(agreement, key=lambda aligner: agreement[aligner]), agreement


# ---- ``heedful inspect --alignments``: one line of links per pair.

MIN_AGREEMENT_GAIN = 0.02
"""Gain in agreement from which another aligner replaces the default."""

ALIGNER_SAMPLE_SIZE, MIN_ALIGNER_PAIRS = 300, 50
"""Pairs to select the aligner on; with fewer than the second the default is used."""


class WordPair(NamedTuple):
    """The words of a pair, and the dependency heads of the source if the model uses them."""

    source: list[str]
    target: list[str]
    heads: str = ""

    def compute_activations(self, model_folder: ModelFolder) -> Activations:
        """The forward pass of the pair."""
        return compute_activations(model_folder, append_heads(" ".join(self.source), self.heads), " ".join(self.target))


def align_files(
    model_path: Path,
    pairs: Sequence[Path],
    output: Path | None,
    gold: Path | None,
    layer_and_head: tuple[int | None, int | None],
    *,
    shifted: bool,
    target_language: str = "",
    device: str,
    report: Reporter,
) -> Iterator[str]:
    """A line in Pharaoh format for each pair, in order, printed or written to ``output``.

    Words are separated by spaces. ``layer_and_head`` counts from 1; by default the best aligner is selected
    on the pairs.
    """
    check_inputs(pairs)
    if output is not None:
        check_writable(output)
    model_folder = load(model_path, device=device, engine="pytorch").model_folder.for_language(target_language)
    aligner = _parse_aligner(model_folder, *layer_and_head, shifted=shifted)
    gold_links = _read_gold(gold) if gold else None
    if gold_links is not None and all(path.is_file() for path in pairs) and has_pair_per_line(pairs):
        _check_gold_length(gold_links, count_lines(pairs[0]), gold)
    word_pairs = read_word_pairs(pairs, model_folder)
    if aligner is None:
        sample = list(islice(word_pairs, ALIGNER_SAMPLE_SIZE))
        if not sample:
            raise HeedfulError(
                f"no pairs in {' and '.join(map(str, pairs))}", hint="write one pair per line: source TAB target"
            )
        usable = [pair for pair in sample if pair.source]
        if not usable:
            raise HeedfulError("no pair has words on both sides", hint="write one pair per line: source TAB target")
        tracked_pairs = report.track(usable, "selecting the aligner", len(usable), "pairs")
        passes = [compute_word_activations(model_folder, pair) for pair in tracked_pairs]
        aligner, reason = choose_aligner(model_folder, passes)
        report.info(f"aligning with {aligner.name} ({reason})")
        word_pairs = chain(sample, word_pairs)
    predicted_links: list[list[WordLink]] = []

    def align_pairs(aligner: Aligner) -> Iterator[str]:
        for pair in report.track(word_pairs, "aligning", unit="pairs"):
            links = aligner.extract_links(compute_word_activations(model_folder, pair)) if pair.source else []
            if gold_links is not None:
                predicted_links.append(links)
            yield format_pharaoh(links)

    if output is None:
        yield from align_pairs(aligner)
    else:
        with atomic_write(output) as file:
            file.writelines(f"{line}\n".encode() for line in align_pairs(aligner))
        report.info(f"alignments written to {output}")
    if gold_links is not None:
        _check_gold_length(gold_links, len(predicted_links), gold)
        sure, possible = [sure for sure, _ in gold_links], [possible for _, possible in gold_links]
        error_rate = alignment_error_rate(predicted_links, sure, possible)
        report.info(f"alignment error rate {error_rate:.2%}, on {len(predicted_links):,} pairs")


def _parse_aligner(model_folder: ModelFolder, layer: int | None, head: int | None, *, shifted: bool) -> Aligner | None:
    if layer is None:
        if head is not None or shifted:
            raise HeedfulError(f"{'--shifted' if head is None else '--head'} needs --layer", hint="add --layer")
        return None
    head_index = None if head is None else head - 1
    check_layer_and_head(model_folder, "cross", layer - 1, head_index)
    return Aligner(layer - 1, head_index, shifted)


def read_word_pairs(paths: Sequence[Path], model_folder: ModelFolder) -> Iterator[WordPair]:
    """The words of every pair; both lists are empty for an unusable line, to keep line numbers aligned."""
    for pair in read_pairs(paths, ReadOptions(model_folder.config.languages)):
        source, target = (
            split_on_spaces(side or "", model_folder.config.unicode_normalization)
            for side in (pair.source, pair.target)
        )
        heads = " ".join(pair.heads.split()) if model_folder.config.model.uses_dependency_trees else ""
        is_usable = source and target and not (heads and find_heads_error(" ".join(source), heads))
        yield WordPair(source, target, heads) if is_usable else WordPair([], [])


def compute_word_activations(model_folder: ModelFolder, pair: WordPair) -> Activations:
    """The cross-attention of a pair, grouped into the words between spaces."""
    activations = pair.compute_activations(model_folder).keep_cross_attention()
    return regroup_words(model_folder, activations, pair.source, pair.target)


def choose_aligner(model_folder: ModelFolder, pass_activations: Sequence[Activations]) -> tuple[Aligner, str]:
    """The default aligner, or one that is clearly better on the pairs; and the reason."""
    default = default_aligner(model_folder.config.model)
    if len(pass_activations) < MIN_ALIGNER_PAIRS:
        return default, f"the default: {len(pass_activations)} pairs are too few to select one"
    best, agreement = find_best_aligner(pass_activations)
    aligner = best if agreement[best] >= agreement[default] + MIN_AGREEMENT_GAIN else default
    return aligner, f"agrees {agreement[aligner]:.0%} with IBM model 1 on {len(pass_activations)} pairs"


def _check_gold_length(gold_links: Sequence[object], pair_count: int, gold: Path | None) -> None:
    if len(gold_links) != pair_count:
        raise HeedfulError(
            f"{gold} has {len(gold_links)} lines for {pair_count} pairs", hint="write one line of links per pair"
        )


def _read_gold(path: Path) -> list[tuple[list[WordLink], list[WordLink]]]:
    """Sure and possible links of every line; counted from 1 if index 0 never occurs."""
    lines = [line.text for line in read_lines(path)]
    try:
        all_links = [link for line in lines for link_group in parse_gold_links(line) for link in link_group]
        first_index = 1 if all_links and min(map(min, all_links)) > 0 else 0
        return [parse_gold_links(line, first_index) for line in lines]
    except HeedfulError as error:
        raise HeedfulError(f"{path}: {error.problem}", hint=error.hint) from None
