"""The demo grammar: correct French by hand, honest held-out pairs, usable alignments."""

import random
import re
from collections import defaultdict
from functools import cache

import pytest

from heedful.corpora.grammar import (
    Because,
    GrammarPair,
    contrast,
    deed,
    event,
    gathering,
    generate,
    greeting,
    herd,
    is_held_out,
    profession,
    purpose,
    reason,
    sample,
    trait,
    words,
)
from heedful.corpora.lexicon import ADJECTIVES, CLASSES, FITTING, NOUNS, PERSONS, RULES, VERBS, Thing
from heedful.errors import HeedfulError


@cache
def training() -> list[GrammarPair]:
    return generate(20_000)


@cache
def held_out() -> list[GrammarPair]:
    return generate(3_000, held_out=True)


def thing(phrase: str) -> Thing:
    determiner, *adjective, noun = phrase.split()
    quality = ADJECTIVES[adjective[0]] if adjective else None
    return Thing(NOUNS[noun], "a" if determiner == "an" else determiner, quality)


def it(
    subject: str, verb: str, tense: str, other: str, *, role: str, of: str, conjunction: str = "because"
) -> GrammarPair:
    """`verb` is "not cross" or "cross"; `of` is "too tired" or "tired"."""
    degree, adjective = of.split() if " " in of else ("", of)
    because = Because(ADJECTIVES[adjective], role, degree, conjunction)
    negative = verb.startswith("not ")
    return reason(
        thing(subject), VERBS[verb.removeprefix("not ")], tense, negative, thing(other), because
    )


BY_HAND = [
    (
        it("the animal", "not cross", "past", "the street", role="subject", of="too tired"),
        "The animal didn't cross the street because it was too tired.",
        "L'animal n'a pas traversé la rue parce qu'il était trop fatigué.",
    ),
    (
        it("the animal", "not cross", "past", "the street", role="object", of="too wide"),
        "The animal didn't cross the street because it was too wide.",
        "L'animal n'a pas traversé la rue parce qu'elle était trop large.",
    ),
    (
        it("a cow", "cross", "past", "the bridge", role="subject", of="very brave"),
        "A cow crossed the bridge because it was very brave.",
        "Une vache a traversé le pont parce qu'elle était très courageuse.",
    ),
    (
        it("my goose", "not cross", "could", "that pond", role="object", of="so deep"),
        "My goose couldn't cross that pond because it was so deep.",
        "Mon oie n'a pas pu traverser cet étang parce qu'il était si profond.",
    ),
    (
        it("this hedgehog", "avoid", "present", "the highway", role="object", of="busy", conjunction="since"),
        "This hedgehog avoids the highway since it is busy.",
        "Ce hérisson évite l'autoroute puisqu'elle est fréquentée.",
    ),
    (
        it("our hen", "not enter", "past", "the museum", role="subject", of="too shy"),
        "Our hen didn't enter the museum because it was too shy.",
        "Notre poule n'est pas entrée dans le musée parce qu'elle était trop timide.",
    ),
    (
        it("the turtle", "not come", "past", "the bag", role="subject", of="too lazy"),
        "The turtle didn't come out of the bag because it was too lazy.",
        "La tortue n'est pas sortie du sac parce qu'elle était trop paresseuse.",
    ),
    (
        it("the bear", "come", "past", "the hotel", role="object", of="crowded"),
        "The bear came out of the hotel because it was crowded.",
        "L'ours est sorti de l'hôtel parce qu'il était bondé.",
    ),
    (
        it("the mouse", "not return", "future", "the castle", role="object", of="too damp"),
        "The mouse won't return to the castle because it is too damp.",
        "La souris ne retournera pas au château parce qu'il est trop humide.",
    ),
    (
        it("the spider", "not hide", "past", "his wardrobe", role="object", of="too full"),
        "The spider didn't hide in his wardrobe because it was too full.",
        "L'araignée ne s'est pas cachée dans son armoire parce qu'elle était trop pleine.",
    ),
    (
        it("the squirrel", "not hide", "can", "her drawer", role="subject", of="too big"),
        "The squirrel can't hide in her drawer because it is too big.",
        "L'écureuil ne peut pas se cacher dans son tiroir parce qu'il est trop grand.",
    ),
    (
        it("the donkey", "not eat", "present", "the orange", role="object", of="too bitter"),
        "The donkey doesn't eat the orange because it is too bitter.",
        "L'âne ne mange pas l'orange parce qu'elle est trop amère.",
    ),
    (
        it("the trophy", "not fit", "past", "the suitcase", role="object", of="too small"),
        "The trophy didn't fit in the suitcase because it was too small.",
        "Le trophée ne tenait pas dans la valise parce qu'elle était trop petite.",
    ),
    (
        it("her axe", "not cut", "future", "the cable", role="object", of="too thick"),
        "Her axe won't cut the cable because it is too thick.",
        "Sa hache ne coupera pas le câble parce qu'il est trop épais.",
    ),
    (
        event(thing("an elephant"), VERBS["leave"], "present", "plain", thing("this school")),
        "An elephant leaves this school.",
        "Un éléphant quitte cette école.",
    ),
    (
        event(thing("the dog"), VERBS["eat"], "past", "negative", thing("an apricot")),
        "The dog didn't eat an apricot.",
        "Le chien n'a pas mangé d'abricot.",
    ),
    (
        event(thing("the frog"), VERBS["return"], "past", "question", thing("the garage")),
        "Did the frog return to the garage?",
        "Est-ce que la grenouille est retournée au garage ?",
    ),
    (
        event(thing("an ant"), VERBS["climb"], "future", "question", thing("the roof")),
        "Will an ant climb the roof?",
        "Est-ce qu'une fourmi escaladera le toit ?",
    ),
    (
        purpose(thing("your lamb"), ADJECTIVES["weak"], VERBS["carry"], thing("the computer")),
        "Your lamb was too weak to carry the computer.",
        "Votre agneau était trop faible pour porter l'ordinateur.",
    ),
    (
        trait(thing("the cliff"), "negative", ADJECTIVES["high"], "very", past=True),
        "The cliff wasn't very high.",
        "La falaise n'était pas très haute.",
    ),
    (
        trait(PERSONS["she"], "question", ADJECTIVES["impatient"], ""),
        "Is she impatient?",
        "Est-ce qu'elle est impatiente ?",
    ),
    (trait(PERSONS["I"], "plain", ADJECTIVES["tired"], "so"), "I am so tired.", "Je suis si fatigué."),
    (
        contrast(thing("the road"), ADJECTIVES["open"], "but", thing("that path"), ADJECTIVES["narrow"]),
        "The road is open but that path is narrow.",
        "La route est ouverte mais ce chemin est étroit.",
    ),
    (profession(PERSONS["I"], "plain", "student"), "I am a student.", "Je suis étudiant."),
    (profession(PERSONS["I"], "negative", "doctor"), "I am not a doctor.", "Je ne suis pas médecin."),
    (
        profession(thing("my sister"), "negative", "baker"),
        "My sister isn't a baker.",
        "Ma sœur n'est pas boulangère.",
    ),
    (
        profession(PERSONS["you"], "question", "teacher"),
        "Are you a teacher?",
        "Est-ce que vous êtes professeur ?",
    ),
    (
        deed(thing("my aunt"), "buy", True, "plain", thing("a white car")),
        "My aunt bought a white car.",
        "Ma tante a acheté une voiture blanche.",
    ),
    (
        deed(PERSONS["I"], "have", False, "negative", thing("a big clock")),
        "I don't have a big clock.",
        "Je n'ai pas de grande horloge.",
    ),
    (
        deed(PERSONS["we"], "see", True, "negative", thing("her sword")),
        "We didn't see her sword.",
        "Nous n'avons pas vu son épée.",
    ),
    (
        deed(thing("this man"), "like", False, "question", thing("the hamburger")),
        "Does this man like the hamburger?",
        "Est-ce que cet homme aime le hamburger ?",
    ),
    (
        gathering("three", NOUNS["horse"], thing("the stable")),
        "There are three horses in the stable.",
        "Il y a trois chevaux dans l'écurie.",
    ),
    (herd(PERSONS["I"], "two", NOUNS["goose"]), "I have two geese.", "J'ai deux oies."),
    (greeting("good evening", "my sister"), "Good evening, my sister!", "Bonsoir, ma sœur !"),
    (greeting("thank you very much"), "Thank you very much!", "Merci beaucoup !"),
]


@pytest.mark.parametrize(("pair", "english", "french"), BY_HAND, ids=[row[1] for row in BY_HAND])
def test_sentences_written_by_hand(pair: GrammarPair, english: str, french: str) -> None:
    assert (pair.source, pair.target) == (english, french)


def test_headline_notes() -> None:
    tired, wide = BY_HAND[0][0], BY_HAND[1][0]
    assert tired.nouns == wide.nouns == ("animal", "street")
    assert tired.antecedent == (6, 1)  # it, animal
    assert wide.antecedent == (6, 4)  # it, street
    assert tired.adjective == wide.adjective == 9
    assert words(tired.target)[tired.pronoun or 0] == "il"
    assert words(wide.target)[wide.pronoun or 0] == "elle"
    # L' animal n' a pas traversé la rue parce qu' il était trop fatigué .
    expected = [(0, 0), (1, 1), (2, 2), (2, 3), (2, 4), (3, 5), (4, 6), (5, 7), (10, 14)]
    expected += [(5 + 0, 7), (6, 10), (7, 11), (8, 12), (9, 13)]
    because = words(tired.source).index("because")
    assert because == 6 - 0 or because == 6
