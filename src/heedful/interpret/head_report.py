"""Reports on all heads over many sentences: their attention patterns, and which one resolves the pronoun "it"."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import fmean

from torch import Tensor

from heedful.data.demo_corpus.grammar import DEMO_PAIRS, GrammarPair, generate_pairs, split_words
from heedful.data.demo_corpus.lexicon import NOUNS
from heedful.data.reader import check_inputs
from heedful.data.word_alignment import alignment_error_rate
from heedful.errors import HeedfulError
from heedful.evaluation.metrics import exact_match
from heedful.inference.loading import load
from heedful.inference.translator import Translator
from heedful.interpret.activations import (
    Activations,
    AttentionKind,
    aggregate_to_words,
    compute_activations,
    regroup_words,
    sum_over_words,
)
from heedful.interpret.alignment import (
    ALIGNER_SAMPLE_SIZE,
    choose_aligner,
    compute_word_activations,
    find_best_aligner,
    read_word_pairs,
)
from heedful.interpret.attribution import HeadIndex, gradient_attribution, occlusion_attribution
from heedful.interpret.heads import Aligner, compute_head_profiles, list_aligners
from heedful.interpret.tables import Explanation, Section, Table
from heedful.model_folder import ModelFolder
from heedful.progress import Reporter

# ---- Which head resolves "it"? Measured on sentences of the demo grammar, whose antecedents are known.
#
# Three rows are probed: "it" and the adjective in the encoder, and il/elle in cross-attention; for comparison
# also gradient and occlusion of il/elle.

ATTRIBUTION_METHODS: dict[str, Callable[[ModelFolder, Activations, int, int | None], Tensor]] = {
    "gradient": gradient_attribution,
    "occlusion": occlusion_attribution,
}


@dataclass(frozen=True, slots=True)
class AntecedentProbe:
    """One way to find the antecedent."""

    method: str
    """attention, gradient or occlusion."""
    row: str
    """it, adjective or pronoun."""
    index: HeadIndex | None = None
    """The head, if the method is attention."""

    @property
    def label(self) -> str:
        """Such as 'encoder 2.1, row of "it"': head 1 of layer 2."""
        row_name = {"it": 'row of "it"', "adjective": "row of the adjective", "pronoun": "il/elle"}[self.row]
        if self.index is None:
            return f"{self.method} of {row_name}"
        return f"{self.index.label}, {row_name}"


@dataclass(frozen=True, slots=True)
class AntecedentAccuracy:
    """How often a probe finds the antecedent."""

    top1: float
    """The antecedent gets the highest weight of all words."""
    preferred: float
    """It gets more weight than the other noun; chance is 0.5."""
    preferred_if_genders_differ: float
    """The same for nouns of different gender, where il/elle depends on the antecedent."""
    sentences: int


def measure_antecedents(
    model_folder: ModelFolder, pairs: Iterable[GrammarPair]
) -> dict[AntecedentProbe, AntecedentAccuracy]:
    """The accuracy of every probe, best first (by ``top1``), on the pairs with an antecedent."""
    outcomes: defaultdict[AntecedentProbe, list[tuple[bool, bool, bool]]] = defaultdict(list)
    for pair in pairs:
        if pair.antecedent is None or pair.adjective is None or pair.pronoun is None:
            continue
        source, target = split_words(pair.source), split_words(pair.target)
        activations = compute_activations(model_folder, pair.source, pair.target)
        activations = regroup_words(model_folder, activations, source, target)
        antecedent = pair.antecedent[1]
        other_noun = next(position for noun in pair.nouns if (position := source.index(noun)) != antecedent)
        pair_genders_differ = genders_differ(pair)
        for probe, weights in _compute_probe_weights(model_folder, activations, pair):
            is_top1 = int(weights[: len(source)].argmax()) == antecedent
            outcomes[probe].append((is_top1, bool(weights[antecedent] > weights[other_noun]), pair_genders_differ))
    accuracies = {}
    for probe, rows in outcomes.items():
        if_genders_differ = [is_preferred for _, is_preferred, is_decisive in rows if is_decisive]
        accuracies[probe] = AntecedentAccuracy(
            top1=fmean(row[0] for row in rows),
            preferred=fmean(row[1] for row in rows),
            preferred_if_genders_differ=fmean(if_genders_differ) if if_genders_differ else math.nan,
            sentences=len(rows),
        )
    return dict(sorted(accuracies.items(), key=lambda item: -item[1].top1))


def genders_differ(pair: GrammarPair) -> bool:
    """Whether il/elle depends on the antecedent."""
    return len({NOUNS[noun].gender for noun in pair.nouns}) > 1


def _compute_probe_weights(
    model_folder: ModelFolder, activations: Activations, pair: GrammarPair
) -> Iterator[tuple[AntecedentProbe, Tensor]]:
    """Every probe with one value for each source word."""
    assert pair.antecedent is not None
    assert pair.adjective is not None
    assert pair.pronoun is not None
    probed_rows: dict[AttentionKind, dict[str, int]] = {
        "encoder": {"it": pair.antecedent[0], "adjective": pair.adjective},
        "cross": {"pronoun": pair.pronoun},
    }
    for kind, rows in probed_rows.items():
        for layer in range(activations.layers[kind]):
            weights = aggregate_to_words(activations.weights(kind, layer), *activations.queries_and_keys(kind))
            for head in range(activations.heads):
                for name, row in rows.items():
                    yield AntecedentProbe("attention", name, HeadIndex(kind, layer, head)), weights[head, row]
    step = activations.target.positions_of_word(pair.pronoun)[-1]
    other_pronoun = "elle" if activations.target.words[pair.pronoun] == "il" else "il"
    contrast_id = model_folder.tokenizer.target.encode(f"qu'{other_pronoun}")[-1]
    for method, attribution in ATTRIBUTION_METHODS.items():
        subword_attribution = attribution(model_folder, activations, step, contrast_id)
        yield AntecedentProbe(method, "pronoun"), sum_over_words(subword_attribution, activations.source)


# ---- ``heedful inspect --heads`` and ``--grammar``: reports over many sentences.

SELECTION_SENTENCES, TEST_SENTENCES = 300, 1000
"""Sentences on which the best probe is selected, and others on which it is tested."""

SELECTION_SEED, TEST_SEED = 101, 102


def report_heads(
    model_path: Path, pairs: Sequence[Path], *, target_language: str = "", device: str, report: Reporter
) -> Explanation:
    """The profile of every head, on the first pairs of the files."""
    check_inputs(pairs)
    model_folder = load(model_path, device=device, engine="pytorch").model_folder.for_language(target_language)
    sample = [pair for pair in islice(read_word_pairs(pairs, model_folder), ALIGNER_SAMPLE_SIZE) if pair.source]
    if not sample:
        raise HeedfulError(
            "no usable pairs", hint="write one pair per line, source TAB target, or give two parallel files"
        )
    tracked_sample = report.track(sample, "reading", len(sample), "pairs")
    profiles = compute_head_profiles(pair.compute_activations(model_folder) for pair in tracked_sample)
    aligner, reason = choose_aligner(model_folder, [compute_word_activations(model_folder, pair) for pair in sample])
    columns = {
        "entropy": "entropy",
        "distance": "distance",
        "previous": "previous_weight",
        "itself": "self_weight",
        "next": "next_weight",
        "end": "sink_weight",
        "alignment": "alignment_score",
        "pattern": "pattern",
    }
    cells = [[getattr(profile, name) for name in columns.values()] for profile in profiles]
    section = Section(
        "Attention pattern of each head",
        "entropy in bits; mean weight on the previous token, itself, the next token, and the end; "
        "alignment: how far it links single words of both languages",
        (
            Table(
                "",
                tuple(HeadIndex(profile.kind, profile.layer, profile.head).label for profile in profiles),
                tuple(columns),
                tuple(tuple("" if cell is None else cell for cell in row) for row in cells),
                digits=2,
            ),
        ),
        (f"The aligner is {aligner.name} ({reason}).", *_note_guided_head(model_folder)),
    )
    return Explanation(f"What the heads of {model_path} do, on {len(sample)} sentences", (section,))


def report_grammar(model_path: Path, *, device: str, report: Reporter) -> Explanation:
    """Which head resolves "it", and how well words are aligned, on unseen grammar sentences."""
    translator = load(model_path, device=device, engine="pytorch")
    report.info(f"selecting on {SELECTION_SENTENCES} sentences, testing on {TEST_SENTENCES:,} with unseen noun pairs")
    sections = _antecedent_section(translator, report), _alignment_section(translator.model_folder, report)
    return Explanation(f"What the heads of {model_path} resolve, on unseen sentences", sections)


def _antecedent_section(translator: Translator, report: Reporter) -> Section:
    model_folder = translator.model_folder
    selection_pairs = generate_pairs(SELECTION_SENTENCES, SELECTION_SEED, validation=True)
    test_pairs = generate_pairs(TEST_SENTENCES, TEST_SEED, validation=True)
    selection_accuracies, accuracies = (
        measure_antecedents(model_folder, report.track(pairs, "finding antecedents", len(pairs), "sentences"))
        for pairs in (selection_pairs, test_pairs)
    )
    best_probes: dict[tuple[str, str], AntecedentProbe] = {}
    for probe in selection_accuracies:  # best first
        best_probes.setdefault((probe.method, probe.row), probe)
    cells = [
        (accuracy.top1, accuracy.preferred, accuracy.preferred_if_genders_differ)
        for accuracy in (accuracies[probe] for probe in best_probes.values())
    ]
    translations = [translation.text for translation in translator.translate([pair.source for pair in test_pairs])]
    exact_match_rate = exact_match(translations, [pair.target for pair in test_pairs])
    return Section(
        'What does "it" refer to?',
        f"how often each probe finds the right noun, on {TEST_SENTENCES:,} sentences",
        (
            Table(
                "",
                tuple(probe.label for probe in best_probes.values()),
                ("top 1", "preferred", "genders differ"),
                tuple(tuple(f"{rate:.1%}" for rate in row) for row in cells),
            ),
        ),
        (
            "Top 1: the right noun gets more weight than any other word. Preferred: more than the other noun "
            "(chance: 50%). Genders differ: the same, only where il/elle depends on the noun.",
            f"The model translates {exact_match_rate:.1%} of these sentences exactly.",
            f"Each head is the best on {SELECTION_SENTENCES} other sentences. 2.3 is head 3 of layer 2.",
            *_note_guided_head(model_folder),
        ),
    )


def _alignment_section(model_folder: ModelFolder, report: Reporter) -> Section:
    def compute_cross_attention(pair: GrammarPair) -> Activations:
        activations = compute_activations(model_folder, pair.source, pair.target).keep_cross_attention()
        return regroup_words(model_folder, activations, split_words(pair.source), split_words(pair.target))

    training_sources = {pair.source for pair in generate_pairs(DEMO_PAIRS)}
    new_pairs = [pair for pair in generate_pairs(3 * TEST_SENTENCES, TEST_SEED) if pair.source not in training_sources]
    test_pairs = new_pairs[SELECTION_SENTENCES : SELECTION_SENTENCES + TEST_SENTENCES]
    aligner, _ = find_best_aligner(list(map(compute_cross_attention, new_pairs[:SELECTION_SENTENCES])))
    tracked_pairs = report.track(test_pairs, "aligning", len(test_pairs), "sentences")
    passes = [compute_cross_attention(pair) for pair in tracked_pairs]
    gold = [pair.alignment for pair in test_pairs]

    def measure_error(candidate: Aligner) -> float:
        return alignment_error_rate([candidate.extract_links(activations) for activations in passes], gold, gold)

    gold_aligner = min(list_aligners(passes[0]), key=measure_error)
    cells = tuple((f"{measure_error(candidate):.1%}", candidate.label) for candidate in (aligner, gold_aligner))
    rows, columns = ("selected without gold", "best on this gold"), ("alignment error rate", "aligner")
    return Section(
        "Word alignment",
        f"each target word links to the source word with its largest share; {len(passes):,} sentences",
        (Table("", rows, columns, cells),),
    )


def _note_guided_head(model_folder: ModelFolder) -> list[str]:
    if model_folder.config.guided_head is None:
        return []
    layer, head = model_folder.config.guided_head
    return [f"Encoder layer {layer} head {head} was trained with guided attention."]
