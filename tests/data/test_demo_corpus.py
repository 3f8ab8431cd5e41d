"""The demo grammar: hand-checked French, validation pairs that never occur in training, and alignments."""

import random
import re
from collections import defaultdict
from functools import cache

import pytest

from heedful.data.demo_corpus.grammar import (
    GrammarPair,
    ReasonClause,
    action_sentence,
    contrast_sentence,
    event_sentence,
    generate_pairs,
    greeting_sentence,
    is_validation_noun_pair,
    possession_sentence,
    profession_sentence,
    purpose_sentence,
    reason_sentence,
    sample_pair,
    split_words,
    there_are_sentence,
    trait_sentence,
)
from heedful.data.demo_corpus.lexicon import (
    ADJECTIVES,
    ADJECTIVES_BY_CLASS,
    NOUNS,
    NOUNS_BY_CLASS,
    PRONOUNS,
    RULES,
    VERBS,
    NounPhrase,
)
from heedful.errors import HeedfulError


@cache
def training_pairs() -> list[GrammarPair]:
    return generate_pairs(20_000)


@cache
def validation_pairs() -> list[GrammarPair]:
    return generate_pairs(3_000, validation=True)


def noun_phrase(phrase: str) -> NounPhrase:
    determiner, *adjective, noun = phrase.split()
    quality = ADJECTIVES[adjective[0]] if adjective else None
    return NounPhrase(NOUNS[noun], "a" if determiner == "an" else determiner, quality)


def it_sentence(
    subject: str, verb: str, tense: str, other: str, *, role: str, of: str, conjunction: str = "because"
) -> GrammarPair:
    """`verb` is "not cross" or "cross"; `of` is "too tired" or "tired"."""
    degree, adjective = of.split() if " " in of else ("", of)
    because = ReasonClause(ADJECTIVES[adjective], role, degree, conjunction)
    negative = verb.startswith("not ")
    return reason_sentence(
        noun_phrase(subject), VERBS[verb.removeprefix("not ")], tense, negative, noun_phrase(other), because
    )


BY_HAND = [
    (
        it_sentence("the animal", "not cross", "past", "the street", role="subject", of="too tired"),
        "The animal didn't cross the street because it was too tired.",
        "L'animal n'a pas traversé la rue parce qu'il était trop fatigué.",
    ),
    (
        it_sentence("the animal", "not cross", "past", "the street", role="object", of="too wide"),
        "The animal didn't cross the street because it was too wide.",
        "L'animal n'a pas traversé la rue parce qu'elle était trop large.",
    ),
    (
        it_sentence("a cow", "cross", "past", "the bridge", role="subject", of="very brave"),
        "A cow crossed the bridge because it was very brave.",
        "Une vache a traversé le pont parce qu'elle était très courageuse.",
    ),
    (
        it_sentence("my goose", "not cross", "could", "that pond", role="object", of="so deep"),
        "My goose couldn't cross that pond because it was so deep.",
        "Mon oie n'a pas pu traverser cet étang parce qu'il était si profond.",
    ),
    (
        it_sentence("this hedgehog", "avoid", "present", "the highway", role="object", of="busy", conjunction="since"),
        "This hedgehog avoids the highway since it is busy.",
        "Ce hérisson évite l'autoroute puisqu'elle est fréquentée.",
    ),
    (
        it_sentence("our hen", "not enter", "past", "the museum", role="subject", of="too shy"),
        "Our hen didn't enter the museum because it was too shy.",
        "Notre poule n'est pas entrée dans le musée parce qu'elle était trop timide.",
    ),
    (
        it_sentence("the turtle", "not come", "past", "the bag", role="subject", of="too lazy"),
        "The turtle didn't come out of the bag because it was too lazy.",
        "La tortue n'est pas sortie du sac parce qu'elle était trop paresseuse.",
    ),
    (
        it_sentence("the bear", "come", "past", "the hotel", role="object", of="crowded"),
        "The bear came out of the hotel because it was crowded.",
        "L'ours est sorti de l'hôtel parce qu'il était bondé.",
    ),
    (
        it_sentence("the mouse", "not return", "future", "the castle", role="object", of="too damp"),
        "The mouse won't return to the castle because it is too damp.",
        "La souris ne retournera pas au château parce qu'il est trop humide.",
    ),
    (
        it_sentence("the spider", "not hide", "past", "his wardrobe", role="object", of="too full"),
        "The spider didn't hide in his wardrobe because it was too full.",
        "L'araignée ne s'est pas cachée dans son armoire parce qu'elle était trop pleine.",
    ),
    (
        it_sentence("the squirrel", "not hide", "can", "her drawer", role="subject", of="too big"),
        "The squirrel can't hide in her drawer because it is too big.",
        "L'écureuil ne peut pas se cacher dans son tiroir parce qu'il est trop grand.",
    ),
    (
        it_sentence("the donkey", "not eat", "present", "the orange", role="object", of="too bitter"),
        "The donkey doesn't eat the orange because it is too bitter.",
        "L'âne ne mange pas l'orange parce qu'elle est trop amère.",
    ),
    (
        it_sentence("the trophy", "not fit", "past", "the suitcase", role="object", of="too small"),
        "The trophy didn't fit in the suitcase because it was too small.",
        "Le trophée ne tenait pas dans la valise parce qu'elle était trop petite.",
    ),
    (
        it_sentence("her axe", "not cut", "future", "the cable", role="object", of="too thick"),
        "Her axe won't cut the cable because it is too thick.",
        "Sa hache ne coupera pas le câble parce qu'il est trop épais.",
    ),
    (
        event_sentence(noun_phrase("an elephant"), VERBS["leave"], "present", "plain", noun_phrase("this school")),
        "An elephant leaves this school.",
        "Un éléphant quitte cette école.",
    ),
    (
        event_sentence(noun_phrase("the dog"), VERBS["eat"], "past", "negative", noun_phrase("an apricot")),
        "The dog didn't eat an apricot.",
        "Le chien n'a pas mangé d'abricot.",
    ),
    (
        event_sentence(noun_phrase("the frog"), VERBS["return"], "past", "question", noun_phrase("the garage")),
        "Did the frog return to the garage?",
        "Est-ce que la grenouille est retournée au garage ?",
    ),
    (
        event_sentence(noun_phrase("an ant"), VERBS["climb"], "future", "question", noun_phrase("the roof")),
        "Will an ant climb the roof?",
        "Est-ce qu'une fourmi escaladera le toit ?",
    ),
    (
        purpose_sentence(noun_phrase("your lamb"), ADJECTIVES["weak"], VERBS["carry"], noun_phrase("the computer")),
        "Your lamb was too weak to carry the computer.",
        "Votre agneau était trop faible pour porter l'ordinateur.",
    ),
    (
        trait_sentence(noun_phrase("the cliff"), "negative", ADJECTIVES["high"], "very", past=True),
        "The cliff wasn't very high.",
        "La falaise n'était pas très haute.",
    ),
    (
        trait_sentence(PRONOUNS["she"], "question", ADJECTIVES["impatient"], ""),
        "Is she impatient?",
        "Est-ce qu'elle est impatiente ?",
    ),
    (trait_sentence(PRONOUNS["I"], "plain", ADJECTIVES["tired"], "so"), "I am so tired.", "Je suis si fatigué."),
    (
        contrast_sentence(
            noun_phrase("the road"), ADJECTIVES["open"], "but", noun_phrase("that path"), ADJECTIVES["narrow"]
        ),
        "The road is open but that path is narrow.",
        "La route est ouverte mais ce chemin est étroit.",
    ),
    (profession_sentence(PRONOUNS["I"], "plain", "student"), "I am a student.", "Je suis étudiant."),
    (profession_sentence(PRONOUNS["I"], "negative", "doctor"), "I am not a doctor.", "Je ne suis pas médecin."),
    (
        profession_sentence(noun_phrase("my sister"), "negative", "baker"),
        "My sister isn't a baker.",
        "Ma sœur n'est pas boulangère.",
    ),
    (
        profession_sentence(PRONOUNS["you"], "question", "teacher"),
        "Are you a teacher?",
        "Est-ce que vous êtes professeur ?",
    ),
    (
        action_sentence(noun_phrase("my aunt"), "buy", True, "plain", noun_phrase("a white car")),
        "My aunt bought a white car.",
        "Ma tante a acheté une voiture blanche.",
    ),
    (
        action_sentence(PRONOUNS["I"], "have", False, "negative", noun_phrase("a big clock")),
        "I don't have a big clock.",
        "Je n'ai pas de grande horloge.",
    ),
    (
        action_sentence(PRONOUNS["we"], "see", True, "negative", noun_phrase("her sword")),
        "We didn't see her sword.",
        "Nous n'avons pas vu son épée.",
    ),
    (
        action_sentence(noun_phrase("this man"), "like", False, "question", noun_phrase("the hamburger")),
        "Does this man like the hamburger?",
        "Est-ce que cet homme aime le hamburger ?",
    ),
    (
        there_are_sentence("three", NOUNS["horse"], noun_phrase("the stable")),
        "There are three horses in the stable.",
        "Il y a trois chevaux dans l'écurie.",
    ),
    (possession_sentence(PRONOUNS["I"], "two", NOUNS["goose"]), "I have two geese.", "J'ai deux oies."),
    (greeting_sentence("good evening", "my sister"), "Good evening, my sister!", "Bonsoir, ma sœur !"),
    (greeting_sentence("thank you very much"), "Thank you very much!", "Merci beaucoup !"),
]


@pytest.mark.parametrize(("pair", "english", "french"), BY_HAND, ids=[row[1] for row in BY_HAND])
def test_sentences_match_hand_written_ones(pair: GrammarPair, english: str, french: str) -> None:
    assert (pair.source, pair.target) == (english, french)


def test_reason_sentence_annotations_match_by_hand() -> None:
    tired, wide = BY_HAND[0][0], BY_HAND[1][0]
    assert tired.nouns == wide.nouns == ("animal", "street")
    assert (tired.antecedent, wide.antecedent) == ((7, 1), (7, 5))
    assert tired.adjective == wide.adjective == tired.pronoun == wide.pronoun == 10
    # The animal didn't cross the street because it was too tired .
    # L' animal n' a pas traversé la rue parce qu' il était trop fatigué .
    by_word = [[0], [1], [2, 3, 4], [5], [6], [7], [8, 9], [10], [11], [12], [13], [14]]
    assert tired.alignment == tuple((i, j) for i, targets in enumerate(by_word) for j in targets)


def test_contraction_is_aligned_with_both_words() -> None:
    out_of_the_bag = BY_HAND[6][0]
    du = split_words(out_of_the_bag.target).index("du")
    words = [split_words(out_of_the_bag.source)[i] for i, j in out_of_the_bag.alignment if j == du]
    assert words == ["out", "of", "the"]


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("I didn't, did I?", "I|didn't|,|did|I|?"),
        ("Est-ce qu'il l'a vu ?", "Est-ce|qu'|il|l'|a|vu|?"),
        ("Puisqu’elle n’a pas d’âne !", "Puisqu’|elle|n’|a|pas|d’|âne|!"),
        ("", ""),
    ],
)
def test_split_words_by_hand(sentence: str, expected: str) -> None:
    assert "|".join(split_words(sentence)) == expected


def test_generate_pairs_same_seed_gives_same_pairs() -> None:
    assert generate_pairs(300, seed=7) == generate_pairs(300, seed=7)
    assert generate_pairs(300, seed=7) != generate_pairs(300, seed=8)
    assert generate_pairs(200, seed=7) == generate_pairs(300, seed=7)[:200]
    assert generate_pairs(0) == []


@pytest.mark.long
def test_generate_pairs_sources_are_distinct() -> None:
    assert len({pair.source for pair in training_pairs()}) == 20_000
    draw = random.Random(5)
    target: dict[str, str] = {}
    for _ in range(20_000):  # not `generate_pairs`, which drops repeated sources
        pair = sample_pair(draw)
        assert target.setdefault(pair.source, pair.target) == pair.target


@pytest.mark.long
def test_generate_pairs_forty_thousand_are_distinct() -> None:
    assert len({pair.source for pair in generate_pairs(40_000, seed=1)}) == 40_000
    assert len(validation_pairs()) == 3_000


def test_generate_pairs_too_many_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "heedful.data.demo_corpus.grammar.sample_pair", lambda draw, validation: greeting_sentence("hello")
    )
    assert generate_pairs(1) == [greeting_sentence("hello")]
    with pytest.raises(HeedfulError, match="generated only 1 distinct pairs, not 2"):
        generate_pairs(2)


def test_generate_pairs_half_contain_it() -> None:
    share = sum(pair.antecedent is not None for pair in training_pairs()) / len(training_pairs())
    assert 0.45 < share < 0.55
    assert all((pair.antecedent is not None) == ("it" in split_words(pair.source)) for pair in training_pairs())


def test_generate_pairs_vocabulary_is_small() -> None:
    for side in ("source", "target"):
        vocabulary = {word.lower() for pair in training_pairs() for word in split_words(getattr(pair, side))}
        assert 300 <= len(vocabulary) <= 400


def test_validation_noun_pairs_never_occur_in_training() -> None:
    noun_pairs = {frozenset(pair.nouns) for pair in validation_pairs()}
    assert frozenset(("animal", "street")) in noun_pairs
    names = {form: noun for noun in NOUNS for form in (noun, f"{noun}s")} | {"geese": "goose"}
    for pair in training_pairs():
        present = {names[word] for word in split_words(pair.source.lower()) if word in names}
        assert not any(two <= present for two in noun_pairs)  # from the words of the sentence, not from `nouns`


def test_is_validation_noun_pair_is_symmetric_and_rare() -> None:
    couples = {
        (a.english, b.english)
        for rule in RULES
        for a in NOUNS_BY_CLASS[rule.subject_class]
        for b in NOUNS_BY_CLASS[rule.object_class]
    }
    validation_couples = [couple for couple in couples if is_validation_noun_pair(*couple)]
    assert all(is_validation_noun_pair(second, first) for first, second in validation_couples)
    assert 0.05 < len(validation_couples) / len(couples) < 0.08
    assert all(pair.antecedent and is_validation_noun_pair(*pair.nouns) for pair in validation_pairs())


def test_generate_pairs_cover_all_nouns_and_adjective_forms() -> None:
    sentences = [pair for pair in training_pairs() if pair.antecedent]
    nouns = {noun for pair in training_pairs() for noun in pair.nouns}
    assert nouns == set(NOUNS)
    french = {word for pair in training_pairs() for word in split_words(pair.target)}
    adjective_set = {adjective for adjectives in ADJECTIVES_BY_CLASS.values() for adjective in adjectives}
    assert {form for adjective in adjective_set for form in (adjective.masculine, adjective.feminine)} <= french
    noun_roles = {
        (pair.nouns, pair.nouns.index(split_words(pair.source)[pair.antecedent[1]]))
        for pair in sentences
        if pair.antecedent
    }
    both = {couple for couple, role in noun_roles if (couple, 1 - role) in noun_roles}
    genders = {NOUNS[first].gender + NOUNS[second].gender for first, second in both}
    assert genders == {"mm", "mf", "fm", "ff"}


WRONG_FRENCH = [
    r"\b(le|la|ne|que|je|de|se|puisque|ce|ma|sa) (?!h[ée]risson|hache|hamburger|haut)[aeiouhâéèêîôœ]",
    r"\b(de|à) les?\b",
    r"\b(l|d|n)'(hérisson|hache|hamburger)",
    r"\bcet (?![aeiouhâéèêîôœ])|\bcet (hérisson|hamburger)",
    r"'[^aeiouhâéèêîôœ]",
    r"\bpas une? (?!\w+ (est|était))",
    r" [.,]|[^ ][?!]| {2}|' ",
]


@pytest.mark.parametrize("pattern", WRONG_FRENCH)
def test_french_elision_contraction_and_spacing_are_correct(pattern: str) -> None:
    incorrect = [pair.target for pair in training_pairs() if re.search(pattern, pair.target.lower())]
    assert incorrect == []


@pytest.mark.parametrize("pattern", [r"\ba [aeiou]", r"\ban [^aeiou]", r" [.,?!]| {2}"])
def test_english_articles_and_spacing_are_correct(pattern: str) -> None:
    assert [pair.source for pair in training_pairs() if re.search(pattern, pair.source.lower())] == []


UNALIGNED_WORDS = {"a", "an"}  # "a student" is "étudiant"


def test_alignments_cover_every_word() -> None:
    for pair in [*training_pairs(), *validation_pairs()]:
        source, target = split_words(pair.source), split_words(pair.target)
        left, right = {i for i, _ in pair.alignment}, {j for _, j in pair.alignment}
        assert pair.alignment == tuple(sorted(set(pair.alignment)))
        assert left <= set(range(len(source)))
        assert right == set(range(len(target)))
        assert {source[i] for i in range(len(source)) if i not in left} <= UNALIGNED_WORDS


def test_alignments_match_the_lexicon() -> None:
    french = {noun.english: noun.french for noun in NOUNS.values()}
    for pair in training_pairs()[:5_000]:
        source, target = split_words(pair.source), split_words(pair.target)
        for i, j in pair.alignment:
            if source[i] in french:
                assert target[j] == french[source[i]]


def test_pronoun_and_adjective_agree_with_antecedent() -> None:
    for pair in [*training_pairs(), *validation_pairs()]:
        if pair.antecedent is None:
            continue
        source, target = split_words(pair.source), split_words(pair.target)
        pronoun_index, noun_index = pair.antecedent
        assert pair.adjective is not None
        assert source[pronoun_index] == "it"
        assert source[noun_index] in pair.nouns
        gender = NOUNS[source[noun_index]].gender
        assert target[pair.pronoun or 0] == {"m": "il", "f": "elle"}[gender]
        assert (pronoun_index, pair.pronoun) in pair.alignment
        (form,) = (target[j] for i, j in pair.alignment if i == pair.adjective)
        assert form == ADJECTIVES[source[pair.adjective]].french(gender)


def test_adjectives_disambiguate_it() -> None:
    roles: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    for rule in RULES:
        for (_, role), adjectives in rule.reasons.items():
            for adjective in adjectives:
                roles[rule.subject_class, rule.object_class, adjective.english].add(role)
    assert all(len(choice) == 1 for choice in roles.values())


def test_adjectives_match_their_noun_class() -> None:
    alive = {"tired", "hungry", "lazy", "shy", "brave", "curious", "sick", "nervous", "frightened", "greedy"}
    for noun_class, adjectives in ADJECTIVES_BY_CLASS.items():
        if noun_class not in {"animal", "person"}:
            assert alive.isdisjoint(adjective.english for adjective in adjectives)
