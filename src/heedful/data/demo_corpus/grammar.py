"""The demo corpus: a synchronous English-French grammar around "it", with gold alignments and antecedents.

A sentence is a sequence of phrases in both languages whose words have tags ("didn't:n cross:v",
"ne:n a:n pas:n traversé:v"); words that share a tag are aligned. Equal English gives equal French: "you" is
"vous", singular; "I", "you", "they" are masculine. The functions `*_sentence` build a sentence from explicit
choices; `_draw_*` make random choices.
"""

import itertools
import random
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from heedful.data.demo_corpus import lexicon
from heedful.data.demo_corpus.lexicon import (
    ADJECTIVES_BY_CLASS,
    NOUNS_BY_CLASS,
    RULES,
    Adjective,
    Noun,
    NounPhrase,
    Pronoun,
    Rule,
    Verb,
)
from heedful.errors import HeedfulError

Phrase = tuple[str, str]  # a phrase in English and in French, its words with tags

TaggedWord = tuple[str, str]  # a word and its tags, one letter each

_WORD = re.compile(r"(?:[cdjlmnst]|qu|puisqu|lorsqu|jusqu)['’](?=\w)|\w+(?:['’-]\w+)*|[^\w\s]", re.IGNORECASE)

_BEFORE_VOWEL = {"le": "l'", "la": "l'", "ne": "n'", "que": "qu'", "je": "j'", "de": "d'", "se": "s'"}

_BEFORE_VOWEL |= {"puisque": "puisqu'", "ce": "cet", "ma": "mon", "sa": "son"}

_CONTRACTED = {("de", "le"): "du", ("à", "le"): "au"}

_VALIDATION_ONE_IN = 16
DEMO_PAIRS = 20_000  # size of the demo's training corpus, `generate_pairs(DEMO_PAIRS)`
_PERIOD, _QUESTION_MARK, _EXCLAMATION_MARK = (".:.", ".:."), ("?:?", "?:?"), ("!:!", "!:!")
_EST_CE_QUE = ("", "est-ce:q que:q")


@dataclass(frozen=True, slots=True)
class GrammarPair:
    """A sentence, its translation and linguistic annotations; indices count `split_words`."""

    source: str
    target: str
    alignment: tuple[tuple[int, int], ...]  # (source word, target word), sorted
    nouns: tuple[str, ...]
    """The English nouns, singular, in order; in an "it" sentence exactly the subject and the object."""
    antecedent: tuple[int, int] | None = None  # (index of "it", index of the source noun it refers to)
    adjective: int | None = None  # index of the source word that decides the antecedent
    pronoun: int | None = None  # index of the target word "il" or "elle" that translates "it"


_BE = (("am", "suis"), ("are", "êtes"), ("is", "est"))


def split_words(sentence: str) -> list[str]:
    """Words and punctuation marks; French is split after an elision, English contractions are not split.

    >>> split_words("L'animal n'a pas traversé, parce qu'il dort.")
    ["L'", 'animal', "n'", 'a', 'pas', 'traversé', ',', 'parce', "qu'", 'il', 'dort', '.']
    >>> split_words("It didn't sleep.")
    ['It', "didn't", 'sleep', '.']
    """
    return _WORD.findall(sentence)


def is_validation_noun_pair(first: str, second: str) -> bool:
    """Whether two nouns, in any order, never occur together in training; animal and street never do."""
    pair = sorted((first, second))
    return pair == ["animal", "street"] or zlib.crc32("+".join(pair).encode()) % _VALIDATION_ONE_IN == 0


def generate_pairs(count: int, seed: int = 0, validation: bool = False) -> list[GrammarPair]:
    """Distinct pairs, half of them with "it"; ``validation``: only "it" sentences of validation noun pairs.

    >>> generate_pairs(5, seed=3) == generate_pairs(5, seed=3)
    True
    """
    rng = random.Random(seed)
    pairs: dict[str, GrammarPair] = {}
    for _ in range(20 * count + 1000):  # near its capacity the grammar mostly repeats sentences
        if len(pairs) >= count:
            return list(pairs.values())
        pair = sample_pair(rng, validation)
        pairs.setdefault(pair.source, pair)
    raise HeedfulError(
        f"the grammar generated only {len(pairs)} distinct pairs, not {count}", hint="request fewer pairs"
    )


def sample_pair(rng: random.Random, validation: bool = False) -> GrammarPair:
    """One random pair of the training or of the validation noun pairs; draws can repeat."""
    if validation:
        return _draw_reason(rng, *rng.choice(_VALIDATION_EVENTS))
    while True:
        if rng.random() < 0.5:
            rule = rng.choice(RULES)
            classes = rule.subject_class, rule.object_class
            pair = _draw_reason(rng, rule, *(rng.choice(NOUNS_BY_CLASS[noun_class]) for noun_class in classes))
        else:
            pair = rng.choices(list(_TEMPLATES), list(_TEMPLATES.values()))[0](rng)
        if not any(itertools.starmap(is_validation_noun_pair, itertools.combinations(pair.nouns, 2))):
            return pair


@dataclass(frozen=True, slots=True)
class ReasonClause:
    """The second half of an "it" sentence: "because it was too tired"."""

    adjective: Adjective
    role: str  # what "it" refers to: "subject" or "object"
    degree: str = "too"
    conjunction: str = "because"


def reason_sentence(
    subject: NounPhrase, verb: Verb, tense: str, negative: bool, other: NounPhrase, reason_clause: ReasonClause
) -> GrammarPair:
    """The animal didn't cross the street because it was too tired."""
    gender = (subject if reason_clause.role == "subject" else other).gender
    conjunction = ("because:b", "parce:b que:b") if reason_clause.conjunction == "because" else ("since:b", "puisque:b")
    it = ("it:i", "elle:i" if gender == "f" else "il:i")
    was = ("was:w", "était:w") if tense in {"past", "could"} else ("is:w", "est:w")
    quality = reason_clause.adjective.phrase(reason_clause.degree, gender)
    phrases = [*_clause(subject, verb, tense, negative, other), conjunction, it, was, quality, _PERIOD]
    return _build_pair(phrases, [subject.noun, other.noun], "2" if reason_clause.role == "subject" else "5")


def event_sentence(subject: NounPhrase, verb: Verb, tense: str, form: str, other: NounPhrase) -> GrammarPair:
    """The animal didn't cross the street. `form` is "plain", "negative" or "question"."""
    nouns = [subject.noun, other.noun]
    if form == "question":
        auxiliary = {"past": "did:q", "present": "does:q", "future": "will:qv"}[tense]
        action = (verb.base(), verb.conjugate_french(tense, subject.gender, "q"))
        return _build_pair(
            [(auxiliary, ""), _EST_CE_QUE, subject.phrase(), action, other.phrase("456"), _QUESTION_MARK], nouns
        )
    return _build_pair([*_clause(subject, verb, tense, form == "negative", other), _PERIOD], nouns)


def purpose_sentence(subject: NounPhrase, adjective: Adjective, verb: Verb, other: NounPhrase) -> GrammarPair:
    """The animal was too tired to cross the street."""
    action = (f"to:t {verb.base()}", f"pour:t {verb.infinitive()}")
    quality = adjective.phrase("too", subject.gender)
    phrases = [subject.phrase(), ("was:w", "était:w"), quality, action, other.phrase("456"), _PERIOD]
    return _build_pair(phrases, [subject.noun, other.noun])


def trait_sentence(
    subject: NounPhrase | Pronoun, form: str, adjective: Adjective, degree: str, past: bool = False
) -> GrammarPair:
    """The street was very wide. I am not tired. Is the street wide?"""
    return _copula(subject, form, past, adjective.phrase(degree, subject.gender))


def contrast_sentence(
    one: NounPhrase, first: Adjective, conjunction: str, two: NounPhrase, second: Adjective
) -> GrammarPair:
    """The street is wide but the bridge is narrow."""
    connector = {"and": ("and:c", "et:c"), "but": ("but:c", "mais:c")}[conjunction]
    phrases = [one.phrase(), ("is:w", "est:w"), first.phrase("", one.gender), connector]
    phrases += [two.phrase("456"), ("is:x", "est:x"), second.phrase("", two.gender, "yz"), _PERIOD]
    return _build_pair(phrases, [one.noun, two.noun])


def profession_sentence(subject: NounPhrase | Pronoun, form: str, work: str) -> GrammarPair:
    """I am a student; French has no article here: Je suis étudiant."""
    title = lexicon.PROFESSIONS[work][subject.gender == "f"]
    return _copula(subject, form, False, (f"a {work}:s", f"{title}:s"))


def action_sentence(subject: NounPhrase | Pronoun, verb: str, past: bool, form: str, other: NounPhrase) -> GrammarPair:
    """My sister bought a red car."""
    number, french_have = subject.number, lexicon.PRESENT_ACTIONS["have"][1]
    if past:
        inflected, participle = lexicon.PAST_ACTIONS[verb]
        english_auxiliary, auxiliary, main = "did", french_have[number], f"{participle}:v"
    else:
        third, forms = lexicon.PRESENT_ACTIONS[verb]
        english_auxiliary, inflected = ("does", third) if number == 2 else ("do", verb)
        auxiliary, main = forms[number], ""
    nouns = [*_nouns(subject), other.noun]
    if form == "plain":
        action = (f"{inflected}:v", f"{auxiliary}:v {main}")
        return _build_pair([subject.phrase(), action, other.phrase("456"), _PERIOD], nouns)
    if form == "negative":
        action = (f"{english_auxiliary}n't:n {verb}:v", f"ne:n {auxiliary}:{'n' if past else 'v'} pas:n {main}")
        return _build_pair([subject.phrase(), action, other.phrase("456", negated=True), _PERIOD], nouns)
    action = (f"{verb}:v", f"{auxiliary}:{'q' if past else 'v'} {main}")
    return _build_pair(
        [(f"{english_auxiliary}:q", ""), _EST_CE_QUE, subject.phrase(), action, other.phrase("456"), _QUESTION_MARK],
        nouns,
    )


def there_are_sentence(number: str, animal: Noun, location: NounPhrase) -> GrammarPair:
    """There are three cows in the barn."""
    there_are, within = ("there:y are:y", "il:y y:y a:y"), ("in:p", "dans:p")
    phrases = [there_are, animal.plural(number), within, location.phrase("456"), _PERIOD]
    return _build_pair(phrases, [animal, location.noun])


def possession_sentence(owner: Pronoun, number: str, animal: Noun) -> GrammarPair:
    """I have two cats."""
    french = lexicon.PRESENT_ACTIONS["have"][1][owner.number]
    have = ("has:v" if owner.number == 2 else "have:v", f"{french}:v")
    return _build_pair([owner.phrase(), have, animal.plural(number), _PERIOD], [animal])


def greeting_sentence(phrase: str, addressee: str = "") -> GrammarPair:
    """Good morning, sir! Or, without addressee: Good morning!"""
    address = [(",:,", ",:,"), lexicon.ADDRESSEES[addressee]] if addressee else []
    return _build_pair([lexicon.GREETINGS[phrase], *address, _EXCLAMATION_MARK], [])


def _nouns(subject: NounPhrase | Pronoun) -> list[Noun]:
    return [subject.noun] if isinstance(subject, NounPhrase) else []


def _clause(subject: NounPhrase, verb: Verb, tense: str, negative: bool, other: NounPhrase) -> list[Phrase]:
    action = verb.negative(tense, subject.gender) if negative else verb.affirmative(tense, subject.gender)
    return [subject.phrase(), action, other.phrase("456", negative and not verb.preposition)]


def _copula(subject: NounPhrase | Pronoun, form: str, past: bool, predicate: Phrase) -> GrammarPair:
    """Sentences with "be" in all three forms; past only in the third person."""
    english, french = ("was", "était") if past else _BE[subject.number]
    if form == "question":
        phrases = [(f"{english}:q", ""), _EST_CE_QUE, subject.phrase(), ("", f"{french}:q"), predicate, _QUESTION_MARK]
    elif form == "negative":
        negated = "am:w not:n" if english == "am" else f"{english}n't:wn"
        phrases = [subject.phrase(), (negated, f"ne:n {french}:w pas:n"), predicate, _PERIOD]
    else:
        phrases = [subject.phrase(), (f"{english}:w", f"{french}:w"), predicate, _PERIOD]
    return _build_pair(phrases, _nouns(subject))


def _build_pair(phrases: Sequence[Phrase], nouns: Sequence[Noun], antecedent_tag: str = "") -> GrammarPair:
    source, target = (
        [(text, tags) for text, _, tags in (word.partition(":") for word in " ".join(side).split())]
        for side in zip(*phrases, strict=True)
    )
    source = _elide_before_vowels(source, {"a": "an"}, "aeiou")
    target = _contract_words(_elide_before_vowels(target, _BEFORE_VOWEL, "aeiouhâàéèêîôœ"))
    source_tags = [(i, tag) for i, (_, tags) in enumerate(source) for tag in tags]
    alignment = {(i, j) for i, tag in source_tags for j, (_, tags) in enumerate(target) if tag in tags}
    pair = GrammarPair(
        _join_words(source, closing=".,?!"),
        _join_words(target, closing=".,"),  # French has a space before ? and !
        tuple(sorted(alignment)),
        tuple(noun.english for noun in nouns),
    )
    if not antecedent_tag:
        return pair
    antecedent = (_find_tag(source, "i"), _find_tag(source, antecedent_tag))
    return replace(pair, antecedent=antecedent, adjective=_find_tag(source, "a"), pronoun=_find_tag(target, "i"))


def _elide_before_vowels(tagged_words: list[TaggedWord], forms: dict[str, str], vowels: str) -> list[TaggedWord]:
    """A apple -> an apple, le animal -> l'animal; not le hérisson."""
    following = [text for text, _ in tagged_words[1:]] + ["."]
    return [
        (forms.get(text, text) if after[0] in vowels and after not in lexicon.ASPIRATED_H_WORDS else text, tags)
        for (text, tags), after in zip(tagged_words, following, strict=True)
    ]


def _contract_words(french: list[TaggedWord]) -> list[TaggedWord]:
    """De le -> du, with the tags of both; after elision, so that "de l'hôtel" stays."""
    contracted: list[TaggedWord] = []
    for text, tags in french:
        if contracted and (contracted[-1][0], text) in _CONTRACTED:
            before, before_tags = contracted.pop()
            contracted.append((_CONTRACTED[before, text], before_tags + tags))
        else:
            contracted.append((text, tags))
    return contracted


def _join_words(tagged_words: list[TaggedWord], closing: str) -> str:
    """The sentence; no space after an elision or before a closing mark."""
    text = ""
    for word, _ in tagged_words:
        text += word if not text or text[-1] == "'" or word in closing else f" {word}"
    return text[0].upper() + text[1:]


def _find_tag(tagged_words: list[TaggedWord], tag: str) -> int:
    return next(index for index, (_, tags) in enumerate(tagged_words) if tag in tags)


def _draw_reason(rng: random.Random, rule: Rule, subject: Noun, other: Noun) -> GrammarPair:
    negative, role = rng.choice([key for key, adjectives in rule.reasons.items() if adjectives])
    adjective = rng.choice(rule.reasons[negative, role])
    # "Too" explains only what did not happen: it crossed because it was very brave, not too brave.
    degrees = [degree for degree in _degree_choices(adjective) if negative or degree != "too"]
    reason_clause = ReasonClause(adjective, role, rng.choice(degrees), rng.choice(["because", "because", "since"]))
    one, two = (_draw_noun_phrase(rng, noun, indefinite=not negative) for noun in (subject, other))
    return reason_sentence(one, rule.verb, _draw_tense(rng, rule.verb, negative), negative, two, reason_clause)


def _draw_event(rng: random.Random) -> GrammarPair:
    rule, form = rng.choice(RULES), rng.choice(_FORMS)
    negative = form == "negative"
    one = _draw_noun_phrase(rng, rule.subject_class, indefinite=not negative)
    # Negated "a" is "de", but not after a preposition: avoid it there.
    two = _draw_noun_phrase(rng, rule.object_class, indefinite=not (negative and rule.verb.preposition))
    return event_sentence(one, rule.verb, _draw_tense(rng, rule.verb, negative), form, two)


def _draw_purpose(rng: random.Random) -> GrammarPair:
    rule = rng.choice([rule for rule in RULES if rule.reasons[True, "subject"]])
    one, two = (_draw_noun_phrase(rng, noun_class) for noun_class in (rule.subject_class, rule.object_class))
    return purpose_sentence(one, rng.choice(rule.reasons[True, "subject"]), rule.verb, two)


def _draw_trait(rng: random.Random) -> GrammarPair:
    noun_class = rng.choice(list(ADJECTIVES_BY_CLASS))
    is_person = noun_class == "person"
    subject = _draw_person(rng, 3) if is_person else _draw_noun_phrase(rng, noun_class, indefinite=False)
    adjective = rng.choice(ADJECTIVES_BY_CLASS[noun_class])
    past = subject.number == 2 and rng.random() < 0.5
    return trait_sentence(subject, _draw_form(rng, subject), adjective, rng.choice(_degree_choices(adjective)), past)


def _draw_contrast(rng: random.Random) -> GrammarPair:
    noun_class = rng.choice([noun_class for noun_class in ADJECTIVES_BY_CLASS if noun_class != "person"])
    one, two = (_draw_noun_phrase(rng, noun, indefinite=False) for noun in rng.sample(NOUNS_BY_CLASS[noun_class], 2))
    first, second = rng.sample(ADJECTIVES_BY_CLASS[noun_class], 2)
    return contrast_sentence(one, first, rng.choice(["and", "but"]), two, second)


def _draw_profession(rng: random.Random) -> GrammarPair:
    subject, work = _draw_person(rng, 3), rng.choice(list(lexicon.PROFESSIONS))
    return profession_sentence(subject, _draw_form(rng, subject), work)


def _draw_action(rng: random.Random) -> GrammarPair:
    noun_class = rng.choice(["vehicle", "thing", "container", "fruit", "dish", "tool"])
    subject, past = _draw_person(rng, 5), rng.random() < 0.5
    verb = rng.choice(list(lexicon.PAST_ACTIONS if past else lexicon.PRESENT_ACTIONS))
    other = _draw_noun_phrase(rng, noun_class, indefinite=verb != "like")
    if noun_class in {"vehicle", "thing", "container"} and rng.random() < 0.5:
        other = replace(other, adjective=lexicon.ADJECTIVES[rng.choice(_ATTRIBUTES)])
    return action_sentence(subject, verb, past, _draw_form(rng, subject), other)


def _draw_numbers(rng: random.Random) -> GrammarPair:
    animal = rng.choice([noun for noun in NOUNS_BY_CLASS["animal"] if noun.can_be_owned])
    number = rng.choice(list(lexicon.NUMBERS))
    if rng.random() < 0.5:
        return possession_sentence(rng.choice(list(lexicon.PRONOUNS.values())), number, animal)
    return there_are_sentence(number, animal, _draw_noun_phrase(rng, "building", indefinite=False))


def _draw_greeting(rng: random.Random) -> GrammarPair:
    return greeting_sentence(rng.choice(list(lexicon.GREETINGS)), rng.choice(["", *lexicon.ADDRESSEES]))


def _draw_noun_phrase(rng: random.Random, noun: Noun | str, indefinite: bool = True) -> NounPhrase:
    """A noun phrase with this noun, or with one of a class."""
    noun = rng.choice(NOUNS_BY_CLASS[noun]) if isinstance(noun, str) else noun
    determiners = ["the"] * 4 + ["this", "that"] + ["a"] * indefinite
    return NounPhrase(noun, rng.choice([*determiners, *_POSSESSIVES] if noun.can_be_owned else determiners))


def _draw_person(rng: random.Random, numbers: int) -> NounPhrase | Pronoun:
    """A pronoun among the first `numbers` of a conjugation, or a person: "the woman", "my sister"."""
    noun = rng.choice(NOUNS_BY_CLASS["person"])
    determiner = rng.choice(_POSSESSIVES if noun.can_be_owned else ("the", "this", "that"))
    pronouns = [person for person in lexicon.PRONOUNS.values() if person.number < numbers]
    return NounPhrase(noun, determiner) if rng.random() < 0.5 else rng.choice(pronouns)


def _draw_form(rng: random.Random, subject: NounPhrase | Pronoun) -> str:
    return rng.choice(_FORMS[:2] if subject == lexicon.PRONOUNS["I"] else _FORMS)  # no "Am I tired?"


def _draw_tense(rng: random.Random, verb: Verb, negative: bool) -> str:
    # "Could cross because it was brave" is odd, and so is "n'a pas pu tenir".
    abilities = ["could", "can"] if negative and verb.auxiliary else []
    return rng.choice(["past", "past", "present", "future", *abilities])


def _degree_choices(adjective: Adjective) -> list[str]:
    return ["", "very", "so", "too"][: {"": 4, "~": 3, "!": 1}[adjective.degrees]]


_ATTRIBUTES = ("red", "green", "black", "white", "big", "small")
_POSSESSIVES = ("my", "your", "our", "his", "her")
_FORMS = ("plain", "negative", "question")

_TEMPLATES = {
    _draw_event: 9.0,
    _draw_purpose: 3.0,
    _draw_trait: 6.0,
    _draw_contrast: 3.0,
    _draw_profession: 1.0,
    _draw_action: 6.0,
    _draw_numbers: 1.5,
    _draw_greeting: 0.2,
}

_VALIDATION_EVENTS = [
    (rule, subject, other)
    for rule in RULES
    for subject in NOUNS_BY_CLASS[rule.subject_class]
    for other in NOUNS_BY_CLASS[rule.object_class]
    if is_validation_noun_pair(subject.english, other.english)
]
