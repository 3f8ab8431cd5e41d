"""The words of the demo corpus and their forms: nouns with gender and class, adjectives, verbs, rules.

A `Rule` defines which class of nouns does what to which, and which adjectives explain it. For a pair of
classes an adjective belongs to the subject or the object, never to both: it decides what "it" refers to.
Forms have alignment tags, "didn't:n cross:v": see grammar.py.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Noun:
    """A countable noun in both languages."""

    english: str
    french: str
    gender: str  # "m" or "f": the gender of the French noun
    can_be_owned: bool  # whether possessives sound natural: my dog, but not my wolf

    def plural(self, number: str) -> tuple[str, str]:
        """ "two:1 dogs:2"; the French plural of -eau takes -x, that of -s nothing."""
        english = PLURALS.get(self.english, self.english + "s")
        ending = "x" if self.french.endswith("eau") else "" if self.french.endswith("s") else "s"
        # cheval, chevaux
        french = self.french[:-1] + "ux" if self.french.endswith("al") else self.french + ending
        return f"{number}:1 {english}:2", f"{NUMBERS[number]}:1 {french}:2"


@dataclass(frozen=True, slots=True)
class Adjective:
    """An adjective and its possible degrees."""

    english: str
    masculine: str
    feminine: str
    degrees: str  # "": too, very, so; "~": very, so ("too delicious" explains nothing); "!": none ("too closed")

    def french(self, gender: str) -> str:
        return self.feminine if gender == "f" else self.masculine

    def phrase(self, degree: str, gender: str, tags: str = "da") -> tuple[str, str]:
        """ "too:d tired:a", "trop:d fatigué:a"."""
        english, french = f"{self.english}:{tags[1]}", f"{self.french(gender)}:{tags[1]}"
        if not degree:
            return english, french
        return f"{degree}:{tags[0]} {english}", f"{DEGREES[degree]}:{tags[0]} {french}"


@dataclass(frozen=True, slots=True)
class NounPhrase:
    """A noun with a determiner and an optional adjective: "my red car"."""

    noun: Noun
    determiner: str = "the"
    adjective: Adjective | None = None
    number: int = 2  # the third person

    @property
    def gender(self) -> str:
        return self.noun.gender

    def phrase(self, tags: str = "123", negated: bool = False) -> tuple[str, str]:
        """Both languages, with one tag each for determiner, noun and adjective; "pas un" becomes "pas de"."""
        article, name, quality = tuple(tags)
        french_article = DETERMINERS[self.determiner][self.gender == "f"]
        if negated and self.determiner == "a":
            french_article = "de"
        english, french = [f"{self.noun.english}:{name}"], [f"{self.noun.french}:{name}"]
        if self.adjective:
            english.insert(0, f"{self.adjective.english}:{quality}")
            # Colors follow the French noun, sizes precede it.
            index = 0 if self.adjective.english in {"big", "small"} else 1
            french.insert(index, f"{self.adjective.french(self.gender)}:{quality}")
        return (f"{self.determiner}:{article} {' '.join(english)}", f"{french_article}:{article} {' '.join(french)}")


@dataclass(frozen=True, slots=True)
class Pronoun:
    """A personal pronoun as subject; `number` is its index in conjugations."""

    english: str
    french: str
    number: int
    gender: str = "m"

    def phrase(self) -> tuple[str, str]:
        return f"{self.english}:2", f"{self.french}:2"


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb for third-person subjects, with its prepositions."""

    english: tuple[str, str, str]  # base, past and third person: eat, ate, eats
    particles: str  # the English words that follow, with tags: " out:p of:p"
    french: tuple[str, str, str, str]  # infinitive, past, present and future: manger, mangé, mange, mangera
    preposition: str  # the French word that follows, with its tag: " de:p"
    auxiliary: str  # for the passé composé: "avoir", "être", "se" (reflexive), or "" if the past is an imparfait

    def base(self) -> str:
        """ "come:v out:p of:p"."""
        return f"{self.english[0]}:v{self.particles}"

    def infinitive(self) -> str:
        """ "sortir:v de:p", "se:v cacher:v dans:p"."""
        return f"{'se:v ' * (self.auxiliary == 'se')}{self.french[0]}:v{self.preposition}"

    def affirmative(self, tense: str, gender: str) -> tuple[str, str]:
        """Both languages, past, present or future: "crossed:v", "a:v traversé:v"."""
        base, past, third = self.english
        english = {"past": f"{past}:v", "present": f"{third}:v", "future": f"will:v {base}:v"}[tense]
        return english + self.particles, self.conjugate_french(tense, gender, "v")

    def negative(self, tense: str, gender: str) -> tuple[str, str]:
        """Both languages, also "could" and "can": "didn't:n cross:v", "ne:n a:n pas:n traversé:v"."""
        english = f"{_NEGATED_AUXILIARIES[tense]} {self.base()}"
        if tense in _NEGATED_MODALS:
            return english, f"ne:n {_NEGATED_MODALS[tense]} {self.infinitive()}"
        return english, f"ne:n {self.conjugate_french(tense, gender, 'n', ' pas:n')}"

    def conjugate_french(self, tense: str, gender: str, auxiliary_tag: str, negation: str = "") -> str:
        """The auxiliary is aligned with the English word of this tag; with être the participle agrees."""
        _, past, present, future = self.french
        if tense != "past":
            words = f"{present if tense == 'present' else future}:v{negation}"
        elif not self.auxiliary:
            words = f"{past}:v{auxiliary_tag}{negation}"
        elif self.auxiliary == "avoir":
            words = f"a:{auxiliary_tag}{negation} {past}:v"
        else:
            words = f"est:{auxiliary_tag}{negation} {past}{'e' if gender == 'f' else ''}:v"
        return f"{'se:v ' * (self.auxiliary == 'se')}{words}{self.preposition}"


@dataclass(frozen=True, slots=True)
class Rule:
    """Which class does what to which, with the reasons for and against."""

    verb: Verb
    subject_class: str
    object_class: str
    reasons: dict[tuple[bool, str], tuple[Adjective, ...]]
    """(negative, "subject" or "object") -> the adjectives that explain it."""


# "+" marks nouns that can be owned; the letter after the dot is the French gender.
_NOUNS = {
    "animal": """animal animal.m, dog+ chien.m, cat+ chat.m, horse+ cheval.m, donkey+ âne.m, cow+ vache.f,
        goat+ chèvre.f, lamb+ agneau.m, pig+ cochon.m, hen+ poule.f, goose+ oie.f, rabbit+ lapin.m, mouse souris.f,
        turtle+ tortue.f, frog grenouille.f, fox renard.m, wolf loup.m, bear ours.m, elephant éléphant.m,
        giraffe girafe.f, squirrel écureuil.m, spider araignée.f, ant fourmi.f, hedgehog hérisson.m""",
    "vehicle": """car+ voiture.f, truck+ camion.m, bus bus.m, tractor+ tracteur.m, van+ camionnette.f,
        motorcycle+ moto.f, taxi taxi.m, ambulance ambulance.f, bicycle+ vélo.m, limousine+ limousine.f""",
    "road": """street rue.f, road route.f, bridge pont.m, path chemin.m, avenue avenue.f, boulevard boulevard.m,
        alley ruelle.f, highway autoroute.f, footbridge passerelle.f, trail sentier.m""",
    "water": "river rivière.f, lake lac.m, stream ruisseau.m, pond étang.m, lagoon lagune.f",
    "height": "hill colline.f, mountain montagne.f, cliff falaise.f, rock rocher.m, volcano volcan.m, roof+ toit.m",
    "building": """house+ maison.f, barn+ grange.f, garage+ garage.m, castle+ château.m, school école.f,
        church église.f, museum musée.m, hotel hôtel.m, station gare.f, shop+ magasin.m, cabin+ cabane.f,
        stable écurie.f""",
    "container": """suitcase+ valise.f, box+ boîte.f, bag+ sac.m, drawer+ tiroir.m, basket+ panier.m, chest+ coffre.m,
        crate+ caisse.f, wardrobe+ armoire.f""",
    "thing": """trophy+ trophée.m, book+ livre.m, lamp+ lampe.f, clock+ horloge.f, violin+ violon.m, guitar+ guitare.f,
        vase+ vase.m, statue+ statue.f, doll+ poupée.f, computer+ ordinateur.m""",
    "fruit": """apple+ pomme.f, pear+ poire.f, orange+ orange.f, banana+ banane.f, tomato+ tomate.f, lemon+ citron.m,
        melon+ melon.m, apricot+ abricot.m""",
    "dish": """soup+ soupe.f, sausage+ saucisse.f, pizza+ pizza.f, omelette+ omelette.f, sandwich+ sandwich.m,
        stew+ ragoût.m, hamburger+ hamburger.m""",
    "tool": "knife+ couteau.m, razor+ rasoir.m, dagger+ poignard.m, blade+ lame.f, axe+ hache.f, sword+ épée.f",
    "material": "rope+ corde.f, branch branche.f, plank+ planche.f, wire fil.m, cable+ câble.m, stick+ bâton.m",
    "person": """man homme.m, woman femme.f, boy garçon.m, girl fille.f, brother+ frère.m, sister+ sœur.f,
        uncle+ oncle.m, aunt+ tante.f""",
}

# A single French form ends in -e for both genders (large) or takes it in the feminine (grand, grande).
_ADJECTIVES = """tired fatigué, weak faible, lazy paresseux/paresseuse, nervous nerveux/nerveuse, frightened effrayé,
    sick malade, brave courageux/courageuse, curious curieux/curieuse, impatient impatient, hungry! affamé, shy timide,
    big grand, greedy gourmand, clumsy maladroit, strong~ fort, slow lent, heavy lourd, light léger/légère,
    small petit, wide large, narrow étroit, slippery glissant, busy fréquenté, flooded! inondé, closed! fermé,
    open! ouvert, deserted! désert, deep profond, frozen! gelé, solid solide, fragile fragile, high haut, steep raide,
    low~ bas/basse, dark sombre, crowded! bondé, damp humide, spacious~ spacieux/spacieuse, bitter amer/amère,
    hard dur, rotten! pourri, ripe~ mûr, sweet~ sucré, salty salé, spicy épicé, greasy gras/grasse,
    delicious! délicieux/délicieuse, fresh~ frais/fraîche, full plein, empty! vide, blunt émoussé, sharp~ tranchant,
    thick épais/épaisse, thin~ mince, red! rouge, green! vert, black! noir, white! blanc/blanche"""

# Base past third particles | infinitive past present future preposition | auxiliary.
_VERBS = """cross crossed crosses | traverser traversé traverse traversera | avoir
    avoid avoided avoids | éviter évité évite évitera | avoir
    block blocked blocks | bloquer bloqué bloque bloquera | avoir
    damage damaged damages | abîmer abîmé abîme abîmera | avoir
    climb climbed climbs | escalader escaladé escalade escaladera | avoir
    enter entered enters | entrer entré entre entrera dans | être
    leave left leaves | quitter quitté quitte quittera | avoir
    return returned returns to | retourner retourné retourne retournera à | être
    come came comes out of | sortir sorti sort sortira de | être
    hide hid hides in | cacher caché cache cachera dans | se
    eat ate eats | manger mangé mange mangera | avoir
    taste tasted tastes | goûter goûté goûte goûtera | avoir
    carry carried carries | porter porté porte portera | avoir
    fit fit fits in | tenir tenait tient tiendra dans |
    cut cut cuts | couper coupé coupe coupera | avoir"""

# Verb, subject, object: why not, of the subject | of the object | why, of the subject | of the object.
_RULES = """
    cross animal road: tired weak lazy nervous frightened sick | wide slippery busy flooded
        | brave curious impatient hungry | deserted narrow;
    cross animal water: tired weak lazy frightened sick | wide deep | brave curious impatient hungry | frozen narrow;
    cross vehicle road: heavy slow | narrow slippery busy flooded closed | light | deserted open wide;
    avoid animal road: - | - | nervous shy frightened | wide slippery busy flooded;
    avoid animal water: - | - | nervous shy frightened | wide deep;
    avoid vehicle road: - | - | heavy slow | narrow slippery busy flooded closed;
    block vehicle road: small | wide | slow | narrow;
    damage animal thing: weak shy lazy | solid | clumsy nervous curious | fragile;
    climb animal height: tired weak lazy sick frightened | high steep slippery | brave curious impatient | low;
    enter animal building: nervous frightened shy | dark crowded closed damp | curious hungry tired brave
        | open spacious;
    leave animal building: tired weak lazy sick frightened | closed crowded | hungry impatient curious
        | dark damp crowded;
    return animal building: tired weak lazy sick | dark damp closed | hungry tired frightened | open spacious;
    come animal building: tired lazy shy sick frightened | closed crowded | hungry impatient curious
        | dark damp crowded;
    come animal container: tired weak lazy shy frightened | deep closed | hungry impatient curious | narrow damp;
    hide animal container: big clumsy | small narrow full closed | frightened shy nervous | empty deep spacious;
    carry animal container: tired weak lazy | heavy full | strong | light empty;
    carry animal thing: tired weak lazy | heavy fragile | strong | light;
    eat animal fruit: sick frightened shy nervous | bitter hard rotten | hungry greedy curious | ripe sweet;
    eat animal dish: sick frightened shy nervous | salty spicy greasy | hungry greedy curious | delicious fresh;
    taste animal fruit: sick frightened shy nervous | bitter hard rotten | hungry greedy curious | ripe sweet;
    taste animal dish: sick frightened shy nervous | salty spicy greasy | hungry greedy curious | delicious fresh;
    fit thing container: big | small narrow full | - | -;
    cut tool material: blunt light | thick hard | sharp | thin fragile;
    damage tool material: blunt light | thick hard solid | sharp heavy | thin fragile"""


def _parse_noun(entry: str) -> Noun:
    english, french = entry.split()
    return Noun(english.rstrip("+"), french[:-2], french[-1], can_be_owned=english.endswith("+"))


def _parse_adjective(entry: str) -> Adjective:
    english, french = entry.split()
    masculine, _, feminine = french.partition("/")
    if not feminine:
        feminine = masculine if masculine.endswith("e") else masculine + "e"
    name = english.rstrip("~!")
    return Adjective(name, masculine, feminine, degrees=english.removeprefix(name))


def _parse_verb(line: str) -> Verb:
    english, french, auxiliary = (column.split() for column in line.split("|"))
    base, past, third, *particles = english
    infinitive, participle, present, future, *preposition = french
    # "enter" has no particle: there "dans" belongs to the verb.
    tagged_preposition = "".join(f" {word}:{'p' if particles else 'v'}" for word in preposition)
    tagged_particles, forms = "".join(f" {word}:p" for word in particles), (infinitive, participle, present, future)
    return Verb((base, past, third), tagged_particles, forms, tagged_preposition, "".join(auxiliary))


def _parse_rule(entry: str) -> Rule:
    head, reasons = entry.split(":")
    verb, subject, target = head.split()
    keys = [(True, "subject"), (True, "object"), (False, "subject"), (False, "object")]
    adjectives = (tuple(ADJECTIVES[name] for name in names.split() if name != "-") for names in reasons.split("|"))
    return Rule(VERBS[verb], subject, target, dict(zip(keys, adjectives, strict=True)))


def _collect_adjectives() -> dict[str, tuple[Adjective, ...]]:
    """The adjectives of each class, collected from the rules."""
    adjectives_by_class: dict[str, dict[Adjective, None]] = {}  # a dict as an ordered set
    for rule in RULES:
        for (_, role), adjectives in rule.reasons.items():
            noun_class = rule.subject_class if role == "subject" else rule.object_class
            adjectives_by_class.setdefault(noun_class, {}).update(dict.fromkeys(adjectives))
    people = "tired weak lazy nervous frightened sick brave curious impatient shy greedy clumsy strong"
    adjectives_by_class["person"] = dict.fromkeys(ADJECTIVES[name] for name in people.split())
    return {noun_class: tuple(adjectives) for noun_class, adjectives in adjectives_by_class.items()}


def _parse_two_genders(text: str) -> dict[str, tuple[str, str]]:
    entries = (entry.split() for entry in text.split(","))
    return {english: (masculine, feminine) for english, masculine, feminine in entries}


NOUNS_BY_CLASS = {noun_class: tuple(map(_parse_noun, text.split(","))) for noun_class, text in _NOUNS.items()}

NOUNS = {noun.english: noun for nouns in NOUNS_BY_CLASS.values() for noun in nouns}

ADJECTIVES = {adjective.english: adjective for adjective in map(_parse_adjective, _ADJECTIVES.split(","))}

VERBS = {verb.english[0]: verb for verb in map(_parse_verb, _VERBS.splitlines())}

RULES = tuple(map(_parse_rule, _RULES.split(";")))

ADJECTIVES_BY_CLASS = _collect_adjectives()

DETERMINERS = _parse_two_genders(
    "the le la, a un une, this ce cette, that ce cette, my mon ma, your votre votre, our notre notre,"
    "his son sa, her son sa"
)

DEGREES = {"": "", "very": "très", "so": "si", "too": "trop"}

NUMBERS = {"two": "deux", "three": "trois", "four": "quatre", "five": "cinq", "six": "six"}

PLURALS = {"goose": "geese", "mouse": "mice", "wolf": "wolves", "fox": "foxes"}

PROFESSIONS = _parse_two_genders(
    "student étudiant étudiante, teacher professeur professeure, farmer fermier fermière,"
    "doctor médecin médecin, baker boulanger boulangère, singer chanteur chanteuse"
)

# The h of these forbids elision: le hérisson, la hache.
ASPIRATED_H_WORDS = frozenset({"hérisson", "hache", "hamburger", "haut", "haute"})

_NEGATED_AUXILIARIES = {"past": "didn't:n", "present": "doesn't:n", "future": "won't:nv"}

_NEGATED_AUXILIARIES |= {"could": "couldn't:n", "can": "can't:n"}

_NEGATED_MODALS = {"could": "a:n pas:n pu:n", "can": "peut:n pas:n"}

# What people do, in the past: the English past and the French participle.
PAST_ACTIONS = {"see": ("saw", "vu"), "buy": ("bought", "acheté"), "find": ("found", "trouvé")}

# In the present: the English third person and the French forms of je, vous, il, nous, ils.
PRESENT_ACTIONS = {
    "see": ("sees", ("vois", "voyez", "voit", "voyons", "voient")),
    "like": ("likes", ("aime", "aimez", "aime", "aimons", "aiment")),
    "have": ("has", ("ai", "avez", "a", "avons", "ont")),
}

GREETINGS = {
    "hello": ("hello:1", "bonjour:1"),
    "good morning": ("good:1 morning:1", "bonjour:1"),
    "good evening": ("good:1 evening:1", "bonsoir:1"),
    "good night": ("good:1 night:2", "bonne:1 nuit:2"),
    "goodbye": ("goodbye:1", "au:1 revoir:1"),
    "thank you": ("thank:1 you:1", "merci:1"),
    "thank you very much": ("thank:1 you:1 very:2 much:2", "merci:1 beaucoup:2"),
    "see you tomorrow": ("see:1 you:1 tomorrow:2", "à:1 demain:2"),
    "welcome": ("welcome:1", "bienvenue:1"),
}

ADDRESSEES = {
    "sir": ("sir:8", "monsieur:8"),
    "madam": ("madam:8", "madame:8"),
    "my friend": ("my:7 friend:8", "mon:7 ami:8"),
    "my brother": ("my:7 brother:8", "mon:7 frère:8"),
    "my sister": ("my:7 sister:8", "ma:7 sœur:8"),
}

_PRONOUNS = [Pronoun("I", "je", 0), Pronoun("you", "vous", 1), Pronoun("he", "il", 2), Pronoun("she", "elle", 2, "f")]

PRONOUNS = {person.english: person for person in (*_PRONOUNS, Pronoun("we", "nous", 3), Pronoun("they", "ils", 4))}
