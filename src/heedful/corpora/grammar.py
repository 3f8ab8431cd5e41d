"""The demo corpus: a synchronous English-French grammar around "it", with gold alignments and antecedents.

A sentence is a row of parts; a part is one phrase in both languages, each word marked with tags
("didn't:n cross:v", "ne:n a:n pas:n traversé:v"), and words that share a tag are aligned.
Same English, same French: "you" is "vous", one person; "I", "you", "they" are masculine. The functions from
`reason` to `greeting` build a sentence from explicit choices; those named `_draw_` make the choices.
"""

import itertools
import random
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from heedful.corpora import lexicon
from heedful.corpora.lexicon import CLASSES, FITTING, RULES, Adjective, Noun, Person, Rule, Thing, Verb
from heedful.errors import HeedfulError

Part = tuple[str, str]  # a phrase in English and in French, its words with tags
Word = tuple[str, str]  # a word and its tags, one letter each

_WORD = re.compile(r"(?:[cdjlmnst]|qu|puisqu|lorsqu|jusqu)['’](?=\w)|\w+(?:['’-]\w+)*|[^\w\s]", re.IGNORECASE)
_BEFORE_VOWEL = {"le": "l'", "la": "l'", "ne": "n'", "que": "qu'", "je": "j'", "de": "d'", "se": "s'"}
_BEFORE_VOWEL |= {"puisque": "puisqu'", "ce": "cet", "ma": "mon", "sa": "son"}
_CONTRACTED = {("de", "le"): "du", ("à", "le"): "au"}
_HELD_OUT_ONE_IN = 16
DEMO_PAIRS = 20_000
"""What the demo learns from: `generate(DEMO_PAIRS)`."""
_STOP, _ASK, _CALL = (".:.", ".:."), ("?:?", "?:?"), ("!:!", "!:!")
_WHETHER = ("", "est-ce:q que:q")


@dataclass(frozen=True, slots=True)
class GrammarPair:
    """A sentence, its translation and what a linguist would note in the margin; indices count `words`."""

    source: str
    target: str
    alignment: tuple[tuple[int, int], ...]
    """(source word, target word), sorted."""
    nouns: tuple[str, ...]
    """The English nouns, singular, in order; in an "it" sentence exactly the subject and the object."""
    antecedent: tuple[int, int] | None = None
    """(the source word "it", the source noun that it stands for)."""
    adjective: int | None = None
    """The source word that decides the antecedent."""
    pronoun: int | None = None
    """The target word "il" or "elle" that stands for "it"."""


_BE = (("am", "suis"), ("are", "êtes"), ("is", "est"))


def words(sentence: str) -> list[str]:
    """Words and punctuation marks; French splits after an elision, English keeps its contractions.

    >>> words("L'animal n'a pas traversé, parce qu'il dort.")
    ["L'", 'animal', "n'", 'a', 'pas', 'traversé', ',', 'parce', "qu'", 'il', 'dort', '.']
    >>> words("It didn't sleep.")
    ['It', "didn't", 'sleep', '.']
    """
    return _WORD.findall(sentence)


def is_held_out(first: str, second: str) -> bool:
    """Whether two nouns, in any order, never meet in a training sentence; animal and street never do."""
    pair = sorted((first, second))
    return pair == ["animal", "street"] or zlib.crc32("+".join(pair).encode()) % _HELD_OUT_ONE_IN == 0


def generate(count: int, seed: int = 0, held_out: bool = False) -> list[GrammarPair]:
    """Distinct pairs, half of them with "it"; with `held_out` only "it" sentences of the held-out noun pairs.

    >>> generate(5, seed=3) == generate(5, seed=3)
    True
    """
    draw = random.Random(seed)
    pairs: dict[str, GrammarPair] = {}
    for _ in range(20 * count + 1000):  # near its capacity a grammar mostly repeats itself
        if len(pairs) >= count:
            return list(pairs.values())
        pair = sample(draw, held_out)
        pairs.setdefault(pair.source, pair)
    raise HeedfulError(f"the grammar gave {len(pairs)} distinct pairs, not {count}", hint="ask for fewer")


def sample(draw: random.Random, held_out: bool = False) -> GrammarPair:
    """One pair of the training or of the held-out noun pairs; what is drawn twice comes twice."""
    if held_out:
        return _draw_reason(draw, *draw.choice(_HELD_OUT))
    while True:
        if draw.random() < 0.5:
            rule = draw.choice(RULES)
            pair = _draw_reason(
                draw, rule, *(draw.choice(CLASSES[kind]) for kind in (rule.subject, rule.object))
            )
        else:
            pair = draw.choices(list(_FRAMES), list(_FRAMES.values()))[0](draw)
        if not any(itertools.starmap(is_held_out, itertools.combinations(pair.nouns, 2))):
            return pair


@dataclass(frozen=True, slots=True)
class Because:
    """The second half of an "it" sentence: "because it was too tired"."""

    adjective: Adjective
    role: str
    """Whom "it" means: "subject" or "object"."""
    degree: str = "too"
    conjunction: str = "because"


def reason(
    subject: Thing, verb: Verb, tense: str, negative: bool, other: Thing, because: Because
) -> GrammarPair:
    """The animal didn't cross the street because it was too tired."""
    gender = (subject if because.role == "subject" else other).gender
    why = {"because": ("because:b", "parce:b que:b"), "since": ("since:b", "puisque:b")}[because.conjunction]
    it = ("it:i", "elle:i" if gender == "f" else "il:i")
    was = ("was:w", "était:w") if tense in {"past", "could"} else ("is:w", "est:w")
    quality = because.adjective.part(because.degree, gender)
    parts = [*_clause(subject, verb, tense, negative, other), why, it, was, quality, _STOP]
    return _pair(parts, [subject.noun, other.noun], antecedent_tag="2" if because.role == "subject" else "5")


def event(subject: Thing, verb: Verb, tense: str, form: str, other: Thing) -> GrammarPair:
    """The animal didn't cross the street. `form` is "plain", "negative" or "question"."""
    nouns = [subject.noun, other.noun]
    if form == "question":
        helper = {"past": "did:q", "present": "does:q", "future": "will:qv"}[tense]
        action = (verb.base(), verb.asked(tense, subject.gender, "q"))
        return _pair([(helper, ""), _WHETHER, subject.part(), action, other.part("456"), _ASK], nouns)
    return _pair([*_clause(subject, verb, tense, form == "negative", other), _STOP], nouns)


def purpose(subject: Thing, adjective: Adjective, verb: Verb, other: Thing) -> GrammarPair:
    """The animal was too tired to cross the street."""
    action = (f"to:t {verb.base()}", f"pour:t {verb.infinitive()}")
    quality = adjective.part("too", subject.gender)
    parts = [subject.part(), ("was:w", "était:w"), quality, action, other.part("456"), _STOP]
    return _pair(parts, [subject.noun, other.noun])


def trait(
    subject: Thing | Person, form: str, adjective: Adjective, degree: str, past: bool = False
) -> GrammarPair:
    """The street was very wide. I am not tired. Is the street wide?"""
    return _copula(subject, form, past, adjective.part(degree, subject.gender))


def contrast(one: Thing, first: Adjective, conjunction: str, two: Thing, second: Adjective) -> GrammarPair:
    """The street is wide but the bridge is narrow."""
    joint = {"and": ("and:c", "et:c"), "but": ("but:c", "mais:c")}[conjunction]
    parts = [one.part(), ("is:w", "est:w"), first.part("", one.gender), joint]
    parts += [two.part("456"), ("is:x", "est:x"), second.part("", two.gender, "yz"), _STOP]
    return _pair(parts, [one.noun, two.noun])


def profession(subject: Thing | Person, form: str, work: str) -> GrammarPair:
    """I am a student; French has no article here: Je suis étudiant."""
    title = lexicon.PROFESSIONS[work][subject.gender == "f"]
    return _copula(subject, form, False, (f"a {work}:s", f"{title}:s"))


def deed(subject: Thing | Person, verb: str, past: bool, form: str, other: Thing) -> GrammarPair:
    """My sister bought a red car."""
    number, has = subject.number, lexicon.PRESENT_ACTIONS["have"][1]
    if past:
        inflected, participle = lexicon.PAST_ACTIONS[verb]
        helper, auxiliary, main = "did", has[number], f"{participle}:v"
    else:
        third, forms = lexicon.PRESENT_ACTIONS[verb]
        helper, inflected = ("does", third) if number == 2 else ("do", verb)
        auxiliary, main = forms[number], ""
    nouns = [*_nouns(subject), other.noun]
    if form == "plain":
        action = (f"{inflected}:v", f"{auxiliary}:v {main}")
        return _pair([subject.part(), action, other.part("456"), _STOP], nouns)
    if form == "negative":
        action = (f"{helper}n't:n {verb}:v", f"ne:n {auxiliary}:{'n' if past else 'v'} pas:n {main}")
        return _pair([subject.part(), action, other.part("456", negated=True), _STOP], nouns)
    action = (f"{verb}:v", f"{auxiliary}:{'q' if past else 'v'} {main}")
    return _pair([(f"{helper}:q", ""), _WHETHER, subject.part(), action, other.part("456"), _ASK], nouns)


def gathering(number: str, animal: Noun, place: Thing) -> GrammarPair:
    """There are three cows in the barn."""
    there_are, within = ("there:y are:y", "il:y y:y a:y"), ("in:p", "dans:p")
    parts = [there_are, animal.counted(number), within, place.part("456"), _STOP]
    return _pair(parts, [animal, place.noun])


def herd(owner: Person, number: str, animal: Noun) -> GrammarPair:
    """I have two cats."""
    french = lexicon.PRESENT_ACTIONS["have"][1][owner.number]
    have = ("has:v" if owner.number == 2 else "have:v", f"{french}:v")
    return _pair([owner.part(), have, animal.counted(number), _STOP], [animal])


def greeting(phrase: str, addressee: str = "") -> GrammarPair:
    """Good morning, sir! Or, without addressee: Good morning!"""
    called = [(",:,", ",:,"), lexicon.ADDRESSEES[addressee]] if addressee else []
    return _pair([lexicon.GREETINGS[phrase], *called, _CALL], [])


def _nouns(subject: Thing | Person) -> list[Noun]:
    return [subject.noun] if isinstance(subject, Thing) else []


def _clause(subject: Thing, verb: Verb, tense: str, negative: bool, other: Thing) -> list[Part]:
    action = verb.negative(tense, subject.gender) if negative else verb.affirmative(tense, subject.gender)
    return [subject.part(), action, other.part("456", negative and not verb.preposition)]


def _copula(subject: Thing | Person, form: str, past: bool, predicate: Part) -> GrammarPair:
    """Is, isn't, is it; the past of the third person only."""
    english, french = ("was", "était") if past else _BE[subject.number]
    if form == "question":
        parts = [(f"{english}:q", ""), _WHETHER, subject.part(), ("", f"{french}:q"), predicate, _ASK]
    elif form == "negative":
        negated = "am:w not:n" if english == "am" else f"{english}n't:wn"
        parts = [subject.part(), (negated, f"ne:n {french}:w pas:n"), predicate, _STOP]
    else:
        parts = [subject.part(), (f"{english}:w", f"{french}:w"), predicate, _STOP]
    return _pair(parts, _nouns(subject))


def _pair(parts: Sequence[Part], nouns: Sequence[Noun], antecedent_tag: str = "") -> GrammarPair:
    source, target = (_parse(" ".join(side)) for side in zip(*parts, strict=True))
    source = _before_vowels(source, {"a": "an"}, "aeiou")
    target = _contract(_before_vowels(target, _BEFORE_VOWEL, "aeiouhâàéèêîôœ"))
    places = [(i, tag) for i, (_, tags) in enumerate(source) for tag in tags]
    alignment = {(i, j) for i, tag in places for j, (_, tags) in enumerate(target) if tag in tags}
    pair = GrammarPair(
        _write(source, closing=".,?!"),
        _write(target, closing=".,"),  # French sets ? and ! apart
        tuple(sorted(alignment)),
        tuple(noun.english for noun in nouns),
    )
    if not antecedent_tag:
        return pair
    antecedent = (_find(source, "i"), _find(source, antecedent_tag))
    return replace(pair, antecedent=antecedent, adjective=_find(source, "a"), pronoun=_find(target, "i"))


def _parse(marked: str) -> list[Word]:
    """ "too:d tired:a" as pairs of text and tags."""
    return [(text, tags) for text, _, tags in (word.partition(":") for word in marked.split())]


def _before_vowels(marked: list[Word], forms: dict[str, str], vowels: str) -> list[Word]:
    """A apple -> an apple, le animal -> l'animal; le hérisson stays."""
    following = [text for text, _ in marked[1:]] + ["."]
    return [
        (forms.get(text, text) if after[0] in vowels and after not in lexicon.ASPIRATED else text, tags)
        for (text, tags), after in zip(marked, following, strict=True)
    ]


def _contract(french: list[Word]) -> list[Word]:
    """De le -> du, with the tags of both; elision goes first, so that "de l'hôtel" is left alone."""
    contracted: list[Word] = []
    for text, tags in french:
        if contracted and (contracted[-1][0], text) in _CONTRACTED:
            before, before_tags = contracted.pop()
            contracted.append((_CONTRACTED[before, text], before_tags + tags))
        else:
            contracted.append((text, tags))
    return contracted


def _write(marked: list[Word], closing: str) -> str:
    """The sentence; no space after an elision or before a closing mark."""
    text = ""
    for word, _ in marked:
        text += word if not text or text[-1] == "'" or word in closing else f" {word}"
    return text[0].upper() + text[1:]


def _find(marked: list[Word], tag: str) -> int:
    return next(index for index, (_, tags) in enumerate(marked) if tag in tags)


def _draw_reason(draw: random.Random, rule: Rule, subject: Noun, other: Noun) -> GrammarPair:
    negative, role = draw.choice([key for key, adjectives in rule.reasons.items() if adjectives])
    adjective = draw.choice(rule.reasons[negative, role])
    # "Too" explains what did not happen: it crossed because it was very brave, not too brave.
    degrees = [degree for degree in _degrees(adjective) if negative or degree != "too"]
    because = Because(adjective, role, draw.choice(degrees), draw.choice(["because", "because", "since"]))
    one, two = (_thing(draw, noun, indefinite=not negative) for noun in (subject, other))
    return reason(one, rule.verb, _tense(draw, rule.verb, negative), negative, two, because)


def _draw_event(draw: random.Random) -> GrammarPair:
    rule, form = draw.choice(RULES), draw.choice(_FORMS)
    negative = form == "negative"
    one = _thing(draw, draw.choice(CLASSES[rule.subject]), indefinite=not negative)
    # "A" under negation is "de", but not after a preposition: better not to say it there at all.
    two = _thing(draw, draw.choice(CLASSES[rule.object]), indefinite=not (negative and rule.verb.preposition))
    return event(one, rule.verb, _tense(draw, rule.verb, negative), form, two)


def _draw_purpose(draw: random.Random) -> GrammarPair:
    rule = draw.choice([rule for rule in RULES if rule.reasons[True, "subject"]])
    one, two = (_thing(draw, draw.choice(CLASSES[kind])) for kind in (rule.subject, rule.object))
    return purpose(one, draw.choice(rule.reasons[True, "subject"]), rule.verb, two)


def _draw_trait(draw: random.Random) -> GrammarPair:
    kind = draw.choice(list(FITTING))
    subject = (
        _someone(draw, 3) if kind == "person" else _thing(draw, draw.choice(CLASSES[kind]), indefinite=False)
    )
    adjective = draw.choice(FITTING[kind])
    past = subject.number == 2 and draw.random() < 0.5
    return trait(subject, _form(draw, subject), adjective, draw.choice(_degrees(adjective)), past)


def _draw_contrast(draw: random.Random) -> GrammarPair:
    kind = draw.choice([kind for kind in FITTING if kind != "person"])
    one, two = (_thing(draw, noun, indefinite=False) for noun in draw.sample(CLASSES[kind], 2))
    first, second = draw.sample(FITTING[kind], 2)
    return contrast(one, first, draw.choice(["and", "but"]), two, second)


def _draw_profession(draw: random.Random) -> GrammarPair:
    subject, work = _someone(draw, 3), draw.choice(list(lexicon.PROFESSIONS))
    return profession(subject, _form(draw, subject), work)


def _draw_deed(draw: random.Random) -> GrammarPair:
    kind = draw.choice(["vehicle", "thing", "container", "fruit", "dish", "tool"])
    subject, past = _someone(draw, 5), draw.random() < 0.5
    verb = draw.choice(list(lexicon.PAST_ACTIONS if past else lexicon.PRESENT_ACTIONS))
    other = _thing(draw, draw.choice(CLASSES[kind]), indefinite=verb != "like")
    if kind in {"vehicle", "thing", "container"} and draw.random() < 0.5:
        other = replace(other, adjective=lexicon.ADJECTIVES[draw.choice(_ATTRIBUTES)])
    return deed(subject, verb, past, _form(draw, subject), other)


def _draw_numbers(draw: random.Random) -> GrammarPair:
    animal = draw.choice([noun for noun in CLASSES["animal"] if noun.owned])
    number = draw.choice(list(lexicon.NUMBERS))
    if draw.random() < 0.5:
        return herd(draw.choice(list(lexicon.PERSONS.values())), number, animal)
    return gathering(number, animal, _thing(draw, draw.choice(CLASSES["building"]), indefinite=False))


def _draw_greeting(draw: random.Random) -> GrammarPair:
    return greeting(draw.choice(list(lexicon.GREETINGS)), draw.choice(["", *lexicon.ADDRESSEES]))


def _thing(draw: random.Random, noun: Noun, indefinite: bool = True) -> Thing:
    determiners = ["the"] * 4 + ["this", "that"] + ["a"] * indefinite
    return Thing(noun, draw.choice([*determiners, *_OWNERS] if noun.owned else determiners))


def _someone(draw: random.Random, numbers: int) -> Thing | Person:
    """A pronoun among the first `numbers` of a conjugation, or a person: "the woman", "my sister"."""
    noun = draw.choice(CLASSES["person"])
    determiner = draw.choice(_OWNERS if noun.owned else ("the", "this", "that"))
    pronouns = [person for person in lexicon.PERSONS.values() if person.number < numbers]
    return Thing(noun, determiner) if draw.random() < 0.5 else draw.choice(pronouns)


def _form(draw: random.Random, subject: Thing | Person) -> str:
    return draw.choice(_FORMS[:2] if subject == lexicon.PERSONS["I"] else _FORMS)  # nobody asks "Am I tired?"


def _tense(draw: random.Random, verb: Verb, negative: bool) -> str:
    # "Could cross because it was brave" is odd, and so is "n'a pas pu tenir".
    abilities = ["could", "can"] if negative and verb.auxiliary else []
    return draw.choice(["past", "past", "present", "future", *abilities])


def _degrees(adjective: Adjective) -> list[str]:
    return ["", "very", "so", "too"][: {"": 4, "~": 3, "!": 1}[adjective.degrees]]


_ATTRIBUTES = ("red", "green", "black", "white", "big", "small")
_OWNERS = ("my", "your", "our", "his", "her")
_FORMS = ("plain", "negative", "question")
_FRAMES = {
    _draw_event: 9.0,
    _draw_purpose: 3.0,
    _draw_trait: 6.0,
    _draw_contrast: 3.0,
    _draw_profession: 1.0,
    _draw_deed: 6.0,
    _draw_numbers: 1.5,
    _draw_greeting: 0.2,
}
_HELD_OUT = [
    (rule, subject, other)
    for rule in RULES
    for subject in CLASSES[rule.subject]
    for other in CLASSES[rule.object]
    if is_held_out(subject.english, other.english)
]
