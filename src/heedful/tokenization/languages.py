"""Language codes (en, eng, en_us, de_DE.UTF-8), names, pairs of languages, and language detection.

The names are our own table: those of langcodes need 19 MB of data.

Everything works offline. Detection cannot tell regions and scripts apart (pt-BR, zh-Hans).
"""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

from langcodes import Language, standardize_tag, tag_distance, tag_is_valid
from langcodes.tag_parser import LanguageTagError

from heedful.errors import HeedfulError, check_extras
from heedful.tokenization.normalization import has_letters

LanguagePair = tuple[str, str]
"""Codes of source and target language."""


_CACHE_SIZE = 10_000
_LOCALE_SCRIPTS = {"latin": "Latn", "cyrillic": "Cyrl", "devanagari": "Deva", "hebrew": "Hebr"}


@lru_cache(_CACHE_SIZE)
def normalize_language(code: str) -> str:
    """The standard form (BCP 47) of a code or locale; an invalid code is only lowercased.

    >>> [normalize_language(code) for code in ("ENG", "en_us", "zh-hans-cn", "de_DE.UTF-8", "sr@latin", "iw", "cmn")]
    ['en', 'en-US', 'zh-Hans-CN', 'de-DE', 'sr-Latn', 'he', 'zh']
    """
    locale, _, modifier = re.sub(r"\.[^@]*", "", code.strip().lower()).partition("@")
    language, *others = re.split("[-_]", locale)
    language = "zh-Hant" if language == "zt" else language  # of LibreTranslate
    variant = modifier if modifier == "valencia" else ""  # others, such as euro, say nothing about the language
    subtags = [language, _LOCALE_SCRIPTS.get(modifier, ""), *others, variant]
    try:
        return standardize_tag("-".join(filter(None, subtags)), macro=True)
    except LanguageTagError:
        return code.strip().lower()


def base_language(code: str) -> str:
    """The language without region and script.

    >>> base_language("pt_BR")
    'pt'
    """
    return normalize_language(code).partition("-")[0]


@lru_cache(_CACHE_SIZE)
def languages_match(language: str, code: str) -> bool:
    """Whether two codes mean the same language, or one is a variant of the other.

    >>> languages_match("en", "en-GB"), languages_match("pt-BR", "pt"), languages_match("pt-BR", "pt-PT")
    (True, True, False)
    >>> languages_match("zh-TW", "zh-Hant"), languages_match("zh-TW", "zh-Hans"), languages_match("no", "nb")
    (True, False, True)
    """
    left, right = _add_script(normalize_language(language)), _add_script(normalize_language(code))
    is_variant = f"{left}-".startswith(f"{right}-") or f"{right}-".startswith(f"{left}-")
    return is_variant or _distance(left, right) <= 1


def find_matching_languages(language: str, codes: Sequence[str]) -> list[int]:
    """Indices of the matching codes: exact matches first, then variants, nearest first."""
    expected = normalize_language(language)
    ranks = [
        (normalize_language(code) != expected, _distance(expected, normalize_language(code)), index)
        for index, code in enumerate(codes)
        if languages_match(language, code)
    ]
    return [index for *_, index in sorted(ranks)]


def resolve_language(code: str, codes: Sequence[str]) -> str | None:
    """The nearest of the codes that means the language, or the language in general.

    >>> resolve_language("en-US", ["en", "de"]), resolve_language("zh-TW", ["zh", "zh-Hant"])
    ('en', 'zh-Hant')
    >>> resolve_language("pt", ["pt-BR"])  # too specific
    """
    is_general = "-" not in normalize_language(code)
    matches = (codes[index] for index in find_matching_languages(code, codes))
    return next((match for match in matches if not is_general or "-" not in normalize_language(match)), None)


def _add_script(tag: str) -> str:
    """The tag of a region with its usual script: zh-Hant-TW for zh-TW."""
    return Language.get(tag).maximize().to_tag() if tag_is_valid(tag) and Language.get(tag).territory else tag


@lru_cache(_CACHE_SIZE)
def _distance(left: str, right: str) -> int:
    """The distance of CLDR between two tags: 0 if they mean the same, 1 for no and nb."""
    return tag_distance(left, right) if tag_is_valid(left) and tag_is_valid(right) else 1000


def parse_language_pair(text: str) -> tuple[str, str]:
    """Source and target of a command-line option.

    >>> parse_language_pair("en-de"), parse_language_pair("pt-BR:en")
    (('en', 'de'), ('pt-BR', 'en'))
    """
    codes = text.split(":" if ":" in text else "-")
    if len(codes) != 2 or not all(codes):
        raise HeedfulError(f"cannot read languages {text!r}", hint="write source-target, such as en-de or pt-BR:en")
    return codes[0], codes[1]


def format_language_pair(source: str, target: str) -> str:
    """The inverse of ``parse_language_pair``.

    >>> format_language_pair("en", "de"), format_language_pair("pt-BR", "en")
    ('en-de', 'pt-BR:en')
    """
    return f"{source}{':' if '-' in source + target else '-'}{target}"


def infer_language_pair(codes: Iterable[str], first: str = "") -> LanguagePair | None:
    """The languages of a file that has exactly two; ``first``, if among them, is the source.

    >>> infer_language_pair(["de", "EN-us"], first="en-US")
    ('en-US', 'de')
    >>> infer_language_pair(["en-GB", "de", "en-US"])
    ('en', 'de')
    """
    languages = list(dict.fromkeys(map(normalize_language, codes)))
    if len(languages) != 2:
        languages = list(dict.fromkeys(map(base_language, languages)))
    if len(languages) != 2:
        return None
    if first and languages_match(first, languages[1]) and not languages_match(first, languages[0]):
        languages.reverse()
    return languages[0], languages[1]


def is_reverse_direction(expected: LanguagePair | None, source: str, target: str, name: str) -> bool:
    """Whether a file has the expected languages in reverse; raises if its languages are others.

    An empty code (not declared by the file) matches any language.
    """
    if expected is None or _pair_matches(expected, source, target):
        return False
    if _pair_matches(expected, target, source):
        return True
    raise HeedfulError(
        f"{name} is {source or 'any language'} to {target or 'any'}, not {expected[0]} to {expected[1]}",
        hint="omit the file, or name its languages: --languages "
        + format_language_pair(source or "source", target or "target"),
    )


def _pair_matches(expected: LanguagePair, source: str, target: str) -> bool:
    return (not source or languages_match(expected[0], source)) and (not target or languages_match(expected[1], target))


_LANGUAGE_PATTERN = r"[a-z]{2,3}(?:_[A-Za-z]{2,4})?"
_NON_LANGUAGE_SUFFIXES = {"src", "tgt", "trg", "txt", "ref", "hyp"}


def languages_from_names(names: list[str]) -> LanguagePair | None:
    """Languages in the name of a file of pairs, or in the names of two parallel files.

    >>> languages_from_names(["train.en", "train.de"]), languages_from_names(["news.en-de.tsv"])
    (('en', 'de'), ('en', 'de'))
    """
    if len(names) == 1:
        # Three-letter codes only after a dot, else my-own.tsv would be Burmese.
        match = re.search(rf"(?:^([a-z]{{2}})-([a-z]{{2}})|\.({_LANGUAGE_PATTERN})-({_LANGUAGE_PATTERN}))\.", names[0])
        codes = [code for code in match.groups() if code] if match else []
    else:
        pattern = rf"(?:(.*)\.)?({_LANGUAGE_PATTERN})"
        matches = [re.fullmatch(pattern, name.removesuffix(".txt")) for name in names]
        same_stem = len({str(match and match[1]) for match in matches}) == 1
        codes = [match[2] for match in matches if match] if same_stem else []
    if len(set(codes)) != 2 or _NON_LANGUAGE_SUFFIXES & set(codes):
        return None
    return codes[0], codes[1]


def language_name(code: str) -> str:
    """The English name of a language; an unknown code is its own name.

    >>> language_name("eng"), language_name("pt-BR"), language_name("zh-Hans"), language_name("xx")
    ('English', 'Portuguese (Brazil)', 'Chinese (Simplified)', 'xx')
    """
    base, *details = normalize_language(code).split("-")
    name = LANGUAGE_NAMES.get(base)
    if name is None:
        return code
    detail_names = [_REGION_NAMES.get(detail.lower(), detail) for detail in details]
    return f"{name} ({', '.join(detail_names)})" if detail_names else name


_MAX_CHARACTERS = 5_000  # enough to detect a language
_MAX_RESULTS = 5
_MIN_CONFIDENCE = 1.0


class Detection(NamedTuple):
    """A possible language of a text, with a confidence from 0 to 100."""

    language: str
    confidence: float


def detect_languages(text: str, candidates: Collection[str] | None = None) -> list[Detection]:
    """Possible languages of a text (among ``candidates``, if given), most probable first; never empty.

    >>> [detection] = detect_languages("Der Hund schläft heute nicht.", candidates=["en", "de"])[:1]
    >>> detection.language, detection.confidence > 80
    ('de', True)
    """
    detected = dict(_load_identifier().rank(text[:_MAX_CHARACTERS]))
    probabilities = {_detector_code(code): probability for code, probability in detected.items()}
    detector_codes = {code: _detector_code(code) for code in candidates or detected}
    variants = Counter(detector_codes.values())  # variants of a language share its probability
    scores = {code: probabilities.get(known, 0.0) / variants[known] for code, known in detector_codes.items()}
    total = math.fsum(scores.values())
    if not has_letters(text) or total <= 0:
        return [Detection("en" if "en" in scores else next(iter(scores)), 0.0)]
    detections = [Detection(code, round(100 * score / total, 1)) for code, score in scores.items()]
    detections.sort(key=lambda detection: -detection.confidence)
    return detections[:1] + [
        detection for detection in detections[1:_MAX_RESULTS] if detection.confidence >= _MIN_CONFIDENCE
    ]


def _detector_code(code: str) -> str:
    base = base_language(code)
    return "no" if base == "nb" else base


@cache
def _load_identifier() -> Any:
    """The model of py3langid, loaded once; it is read-only, so threads can share it."""
    check_extras("language detection", "serve")
    from py3langid.langid import (  # type: ignore[import-untyped,import-not-found,unused-ignore]
        MODEL_FILE,
        LanguageIdentifier,
    )

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def _parse_names(entries: str) -> dict[str, str]:
    """Names by code, from comma-separated entries such as "en English"."""
    codes_and_names = (" ".join(entry.split()).partition(" ") for entry in entries.split(","))
    return {code: name for code, _, name in codes_and_names}


# ISO 639-1, then other codes that translation tools use.
LANGUAGE_NAMES = _parse_names("""
aa Afar, ab Abkhazian, ae Avestan, af Afrikaans, ak Akan, am Amharic, an Aragonese, ar Arabic, as Assamese, av Avaric,
ay Aymara, az Azerbaijani, ba Bashkir, be Belarusian, bg Bulgarian, bi Bislama, bm Bambara, bn Bengali, bo
Tibetan, br Breton, bs Bosnian, ca Catalan, ce Chechen, ch Chamorro, co Corsican, cr Cree, cs Czech, cu Church Slavic,
cv Chuvash, cy Welsh, da Danish, de German, dv Divehi, dz Dzongkha, ee Ewe, el Greek, en English, eo Esperanto, es
Spanish, et Estonian, eu Basque, fa Persian, ff Fulah, fi Finnish, fj Fijian, fo Faroese, fr French, fy Western
Frisian, ga Irish, gd Scottish Gaelic, gl Galician, gn Guarani, gu Gujarati, gv Manx, ha Hausa, he Hebrew, hi Hindi,
ho Hiri Motu, hr Croatian, ht Haitian Creole, hu Hungarian, hy Armenian, hz Herero, ia Interlingua, id Indonesian, ie
Interlingue, ig Igbo, ii Sichuan Yi, ik Inupiaq, io Ido, is Icelandic, it Italian, iu Inuktitut, ja Japanese, jv
Javanese, ka Georgian, kg Kongo, ki Kikuyu, kj Kuanyama, kk Kazakh, kl Greenlandic, km Khmer, kn Kannada, ko Korean,
kr Kanuri, ks Kashmiri, ku Kurdish, kv Komi, kw Cornish, ky Kyrgyz, la Latin, lb Luxembourgish, lg Ganda, li
Limburgish, ln Lingala, lo Lao, lt Lithuanian, lu Luba-Katanga, lv Latvian, mg Malagasy, mh Marshallese, mi Māori, mk
Macedonian, ml Malayalam, mn Mongolian, mr Marathi, ms Malay, mt Maltese, my Burmese, na Nauru, nb Norwegian Bokmål,
nd North Ndebele, ne Nepali, ng Ndonga, nl Dutch, nn Norwegian Nynorsk, no Norwegian, nr South Ndebele, nv Navajo, ny
Chichewa, oc Occitan, oj Ojibwa, om Oromo, or Odia, os Ossetian, pa Punjabi, pi Pali, pl Polish, ps Pashto, pt
Portuguese, qu Quechua, rm Romansh, rn Rundi, ro Romanian, ru Russian, rw Kinyarwanda, sa Sanskrit, sc Sardinian, sd
Sindhi, se Northern Sami, sg Sango, si Sinhala, sk Slovak, sl Slovenian, sm Samoan, sn Shona, so
Somali, sq Albanian, sr Serbian, ss Swati, st Southern Sotho, su Sundanese, sv Swedish, sw Swahili, ta Tamil, te
Telugu, tg Tajik, th Thai, ti Tigrinya, tk Turkmen, tn Tswana, to Tongan, tr Turkish, ts Tsonga, tt Tatar,
ty Tahitian, ug Uyghur, uk Ukrainian, ur Urdu, uz Uzbek, ve Venda, vi Vietnamese, vo Volapük, wa Walloon, wo
Wolof, xh Xhosa, yi Yiddish, yo Yoruba, za Zhuang, zh Chinese, zu Zulu,
ast Asturian, bho Bhojpuri, ceb Cebuano, ckb Central Kurdish, fil Filipino, fur Friulian, gsw Swiss German,
haw Hawaiian, hmn Hmong, hsb Upper Sorbian, dsb Lower Sorbian, kab Kabyle, lmo Lombard, mai Maithili, nds Low German,
pap Papiamento, scn Sicilian, tlh Klingon, vec Venetian, war Waray, yue Cantonese
""")

_REGION_NAMES = _parse_names("""
ae United Arab Emirates, ar Argentina, at Austria, au Australia, ba Bosnia and Herzegovina, bd Bangladesh, be Belgium,
bo Bolivia, br Brazil, ca Canada, ch Switzerland, cl Chile, cn China, co Colombia, cr Costa Rica, cu Cuba, cy Cyprus,
de Germany, dk Denmark, do Dominican Republic, dz Algeria, ec Ecuador, eg Egypt, es Spain, fi Finland, fr France, gb
United Kingdom, gr Greece, gt Guatemala, hk Hong Kong, hn Honduras, ie Ireland, il Israel, in India, iq Iraq, ir Iran,
it Italy, jo Jordan, jp Japan, ke Kenya, kr South Korea, lb Lebanon, li Liechtenstein, lu Luxembourg, ma Morocco, md
Moldova, me Montenegro, mo Macao, mx Mexico, my Malaysia, ng Nigeria, ni Nicaragua, nl Netherlands, no Norway, nz New
Zealand, pa Panama, pe Peru, ph Philippines, pk Pakistan, pl Poland, pr Puerto Rico, pt Portugal, py Paraguay, ro
Romania, rs Serbia, ru Russia, sa Saudi Arabia, se Sweden, sg Singapore, sv El Salvador, sy Syria, tn Tunisia, tr
Turkey, tw Taiwan, ua Ukraine, uk United Kingdom, us United States, uy Uruguay, ve Venezuela, vn Vietnam, za South
Africa, 419 Latin America, arab Arabic script, cyrl Cyrillic, deva Devanagari, hans Simplified, hant Traditional, latn
Latin
""")
