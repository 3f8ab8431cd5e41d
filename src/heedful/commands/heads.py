"""``heedful inspect --heads`` and ``--grammar``: what each head does, measured on many sentences."""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from heedful.bundle import Bundle
from heedful.commands.alignments import EXAMINED, chosen_aligner, read_words, seen_in_words
from heedful.corpora.formats import check_inputs
from heedful.corpora.grammar import DEMO_PAIRS, GrammarPair, generate, words
from heedful.engines.base import Engine
from heedful.errors import HeedfulError
from heedful.evaluation import exact_match
from heedful.inspection.alignment import Aligner, aligners, alignment_error_rate, best_aligner
from heedful.inspection.antecedents import Place, Rate, antecedent_rates
from heedful.inspection.heads import HeadProfile, head_profiles
from heedful.inspection.tables import Explanation, Section, Table
from heedful.inspection.trace import Trace, in_words, trace
from heedful.loading import load
from heedful.progress import Reporter

CHOOSING, UNSEEN = 300, 1000
"""Sentences of the grammar on which a place is chosen, and others on which it is examined."""
CHOOSING_SEED, UNSEEN_SEED = 101, 102


def heads_command(
    model: Path, pairs: Sequence[Path], *, to: str = "", device: str, report: Reporter
) -> Explanation:
    """What every head mostly does, on the first pairs of some files."""
    check_inputs(pairs)
    bundle = load(model, device=device, engine="pytorch").bundle.writing(to)
    some = [words for words in islice(read_words(pairs, bundle), EXAMINED) if words.source]
    if not some:
        raise HeedfulError("no usable pair", hint="a pair a line, source TAB target, or two parallel files")
    tracked = report.track(some, "reading", len(some), "pairs")
    profiles = head_profiles(words.traced(bundle) for words in tracked)
    aligner, reason = chosen_aligner(bundle, [seen_in_words(bundle, words) for words in some])
    notes = [f"The aligner is {aligner.name} ({reason})."]
    return Explanation(
        f"What the heads of {model} do, on {len(some)} sentences",
        (
            Section(
                "Habits of each head",
                HABITS,
                (profile_table(profiles),),
                (*notes, *_taught(bundle)),
            ),
        ),
    )


HABITS = (
    "entropy in bits; shares of weight on the word before, itself, the word after, and the end; "
    "aligns: how much it links single words of both languages"
)


def profile_table(profiles: Sequence[HeadProfile]) -> Table:
    """A row for every head."""
    return Table(
        "",
        tuple(f"{each.kind} {each.layer + 1}.{each.head + 1}" for each in profiles),
        ("entropy", "distance", "before", "itself", "after", "end", "aligns", "habit"),
        tuple(
            (
                each.entropy,
                *("" if value is None else value for value in _places(each)),
                each.end,
                "" if each.aligns is None else each.aligns,
                each.habit,
            )
            for each in profiles
        ),
        digits=2,
    )


def _places(profile: HeadProfile) -> tuple[float | None, ...]:
    return profile.distance, profile.previous, profile.itself, profile.next


def grammar_command(model: Path, *, device: str, report: Reporter) -> Explanation:
    """Which head knows what "it" means, and how well words are aligned, on unseen grammar sentences."""
    engine = load(model, device=device, engine="pytorch")
    bundle = engine.bundle
    report.say(f"choosing on {CHOOSING} sentences, examining on {UNSEEN:,} others with unseen noun pairs")
    unseen = generate(UNSEEN, UNSEEN_SEED, held_out=True)
    chosen = antecedent_rates(bundle, _tracked(generate(CHOOSING, CHOOSING_SEED, held_out=True), report))
    rates = antecedent_rates(bundle, _tracked(unseen, report))
    places = _best_of_each(chosen)
    right = _translated_right(engine, unseen)
    sections = (
        _antecedent_section(places, rates, right, bundle),
        _alignment_section(bundle, report),
    )
    return Explanation(f"What the heads of {model} know, on unseen sentences", sections)


def _tracked(pairs: Sequence[GrammarPair], report: Reporter) -> Iterator[GrammarPair]:
    return report.track(pairs, "looking for antecedents", len(pairs), "sentences")


def _best_of_each(chosen: dict[Place, Rate]) -> list[Place]:
    """The best place of each row and method, by what the choosing sentences say."""
    best: dict[tuple[str, str], Place] = {}
    for place in chosen:  # best first
        best.setdefault((place.method, place.row), place)
    return list(best.values())


def _translated_right(engine: Engine, pairs: Sequence[GrammarPair]) -> float:
    found = engine.translate([pair.source for pair in pairs])
    return exact_match([each.text for each in found], [pair.target for pair in pairs])


def _antecedent_section(
    places: Sequence[Place], rates: dict[Place, Rate], right: float, bundle: Bundle
) -> Section:
    table = Table(
        "",
        tuple(place.short_name for place in places),
        ("is first", "beats the other", "genders differ"),
        tuple(
            (
                f"{rates[place].first:.1%}",
                f"{rates[place].preferred:.1%}",
                f"{rates[place].preferred_if_telling:.1%}",
            )
            for place in places
        ),
    )
    return Section(
        'What does "it" mean?',
        f"how often each place points to the right noun, on {UNSEEN:,} sentences",
        (table,),
        (
            "Is first: the right noun gets more than any other word. Beats the other: more than the other "
            "noun (chance: 50%). Genders differ: the same, only where il/elle depends on the noun.",
            f"The model translates {right:.1%} of these sentences exactly.",
            f"Each head is the best of its row on {CHOOSING} other sentences. 2.3 is head 3 of layer 2.",
            *_taught(bundle),
        ),
    )


def _alignment_section(bundle: Bundle, report: Reporter) -> Section:
    known = {pair.source for pair in generate(DEMO_PAIRS)}
    fresh = [pair for pair in generate(3 * UNSEEN, UNSEEN_SEED) if pair.source not in known]
    chosen, unseen = fresh[:CHOOSING], fresh[CHOOSING : CHOOSING + UNSEEN]
    aligner, _ = best_aligner([_seen(bundle, pair) for pair in chosen])
    traces = [_seen(bundle, pair) for pair in report.track(unseen, "aligning", len(unseen), "sentences")]
    gold = [pair.alignment for pair in unseen]

    def error(each: Aligner) -> float:
        return alignment_error_rate([each.links(seen) for seen in traces], gold, gold)

    by_gold = min(aligners(traces[0]), key=error)
    table = Table(
        "",
        ("found without gold", "best by this gold"),
        ("alignment error rate", "aligner"),
        ((f"{error(aligner):.1%}", aligner.short_name), (f"{error(by_gold):.1%}", by_gold.short_name)),
    )
    return Section(
        "Which word comes from which?",
        f"a target word is linked to the source word it has the largest share of; {len(traces):,} sentences",
        (table,),
    )


def _seen(bundle: Bundle, pair: GrammarPair) -> Trace:
    seen = trace(bundle, pair.source, pair.target)
    return in_words(bundle, seen.only_cross(), words(pair.source), words(pair.target))


def _taught(bundle: Bundle) -> list[str]:
    """A taught head is named wherever heads are judged."""
    if bundle.config.taught_head is None:
        return []
    layer, head = bundle.config.taught_head
    return [f"Encoder layer {layer} head {head} is a taught head: an extra loss has shown it where to look."]
