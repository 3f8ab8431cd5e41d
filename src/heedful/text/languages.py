"""The language of a text, and the names of languages; nothing here asks the network.

The rule to remember: codes may have a region or a script (pt-BR, zh-Hans), which detection cannot tell apart.
"""

import math
from collections.abc import Collection
from functools import cache
from typing import Any, NamedTuple

from heedful.errors import HeedfulError
from heedful.text.spans import has_letters
from heedful.text.three_letters import two_letters

_READ = 5_000  # characters are enough to know a language
_SHOWN = 5
_FAINT = 1.0


class Detection(NamedTuple):
    """A language that a text may be in, and how likely that is, from 0 to 100."""

    language: str
    confidence: float


def detect(text: str, among: Collection[str] | None = None) -> list[Detection]:
    """Languages that a text may be in, the likeliest first; of those given, if any are. Never empty.

    >>> [found] = detect("Der Hund schläft heute nicht.", among=["en", "de"])[:1]
    >>> found.language, found.confidence > 80
    ('de', True)
    """
    chances = dict(_identifier().rank(text[:_READ]))
    codes = list(dict.fromkeys(among or chances))
    likely = {code: chances.get(_base(code), 0.0) / _sharing(code, codes) for code in codes}
    total = math.fsum(likely.values())
    if not has_letters(text) or total <= 0:
        return [Detection("en" if "en" in codes else codes[0], 0.0)]
    found = [Detection(code, round(100 * chance / total, 1)) for code, chance in likely.items()]
    found.sort(key=lambda each: -each.confidence)
    return found[:1] + [each for each in found[1:_SHOWN] if each.confidence >= _FAINT]


def _sharing(code: str, codes: Collection[str]) -> int:
    """How many of the codes are of one language, and so have to share its chance."""
    return sum(_base(other) == _base(code) for other in codes)


def _base(code: str) -> str:
    base = code.replace("_", "-").split("-")[0].lower()
    return _DETECTED_AS.get(base, two_letters(base))


@cache
def _identifier() -> Any:
    """The model of py3langid, read once; it is never changed, so threads may share it."""
    try:
        from py3langid.langid import (  # type: ignore[import-untyped,import-not-found,unused-ignore]
            MODEL_FILE,
            LanguageIdentifier,
        )
    except ImportError:
        raise HeedfulError(
            "detecting languages needs py3langid, which is not installed",
            hint="pip install 'heedful[serve]'",
        ) from None
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def language_pair(text: str) -> tuple[str, str]:
    """Source and target as the command line has them.

    >>> language_pair("en-de"), language_pair("pt-BR:en")
    (('en', 'de'), ('pt-BR', 'en'))
    """
    codes = text.split(":" if ":" in text else "-")
    if len(codes) != 2 or not all(codes):
        raise HeedfulError(
            f"cannot read languages {text!r}", hint="write source-target, such as en-de, or pt-BR:en"
        )
    return codes[0], codes[1]


def language_name(code: str) -> str:
    """The English name of a language; a code that is not known is its own name.

    >>> language_name("eng"), language_name("pt-BR"), language_name("zh-Hans"), language_name("xx")
    ('English', 'Portuguese (Brazil)', 'Chinese (Simplified)', 'xx')
    """
    base, *details = code.replace("_", "-").split("-")
    name = _names().get(two_letters(base.lower()))
    if name is None:
        return code
    shown = [_details().get(detail.lower(), detail) for detail in details if detail]
    return f"{name} ({', '.join(shown)})" if shown else name


@cache
def _names() -> dict[str, str]:
    return _table(_LANGUAGES)


@cache
def _details() -> dict[str, str]:
    return _table(_REGIONS_AND_SCRIPTS)


def _table(lines: str) -> dict[str, str]:
    """Entries such as "en English" between commas."""
    entries = (entry.strip().partition(" ") for entry in lines.replace("\n", " ").split(","))
    return {code: name.strip() for code, _, name in entries}


_DETECTED_AS = {"zt": "zh", "cmn": "zh", "nb": "no", "iw": "he", "in": "id", "ji": "yi", "fil": "tl"}
"""Other codes for what the detector knows."""

# ISO 639-1; then those without two letters, or with old ones, that translation tools use.
_LANGUAGES = """
aa Afar, ab Abkhazian, ae Avestan, af Afrikaans, ak Akan, am Amharic, an Aragonese, ar Arabic, as Assamese,
av Avaric, ay Aymara, az Azerbaijani, ba Bashkir, be Belarusian, bg Bulgarian, bh Bihari, bi Bislama, bm
Bambara, bn Bengali, bo Tibetan, br Breton, bs Bosnian, ca Catalan, ce Chechen, ch Chamorro, co Corsican, cr
Cree, cs Czech, cu Church Slavic, cv Chuvash, cy Welsh, da Danish, de German, dv Divehi, dz Dzongkha, ee Ewe,
el Greek, en English, eo Esperanto, es Spanish, et Estonian, eu Basque, fa Persian, ff Fulah, fi Finnish, fj
Fijian, fo Faroese, fr French, fy Western Frisian, ga Irish, gd Scottish Gaelic, gl Galician, gn Guarani, gu
Gujarati, gv Manx, ha Hausa, he Hebrew, hi Hindi, ho Hiri Motu, hr Croatian, ht Haitian Creole, hu Hungarian,
hy Armenian, hz Herero, ia Interlingua, id Indonesian, ie Interlingue, ig Igbo, ii Sichuan Yi, ik Inupiaq, io
Ido, is Icelandic, it Italian, iu Inuktitut, ja Japanese, jv Javanese, ka Georgian, kg Kongo, ki Kikuyu, kj
Kuanyama, kk Kazakh, kl Greenlandic, km Khmer, kn Kannada, ko Korean, kr Kanuri, ks Kashmiri, ku Kurdish, kv
Komi, kw Cornish, ky Kyrgyz, la Latin, lb Luxembourgish, lg Ganda, li Limburgish, ln Lingala, lo Lao, lt
Lithuanian, lu Luba-Katanga, lv Latvian, mg Malagasy, mh Marshallese, mi Māori, mk Macedonian, ml Malayalam,
mn Mongolian, mr Marathi, ms Malay, mt Maltese, my Burmese, na Nauru, nb Norwegian Bokmål, nd North Ndebele,
ne Nepali, ng Ndonga, nl Dutch, nn Norwegian Nynorsk, no Norwegian, nr South Ndebele, nv Navajo, ny Chichewa,
oc Occitan, oj Ojibwa, om Oromo, or Odia, os Ossetian, pa Punjabi, pi Pali, pl Polish, ps Pashto, pt
Portuguese, qu Quechua, rm Romansh, rn Rundi, ro Romanian, ru Russian, rw Kinyarwanda, sa Sanskrit, sc
Sardinian, sd Sindhi, se Northern Sami, sg Sango, sh Serbo-Croatian, si Sinhala, sk Slovak, sl Slovenian, sm
Samoan, sn Shona, so Somali, sq Albanian, sr Serbian, ss Swati, st Southern Sotho, su Sundanese, sv Swedish,
sw Swahili, ta Tamil, te Telugu, tg Tajik, th Thai, ti Tigrinya, tk Turkmen, tl Tagalog, tn Tswana, to
Tongan, tr Turkish, ts Tsonga, tt Tatar, tw Twi, ty Tahitian, ug Uyghur, uk Ukrainian, ur Urdu, uz Uzbek, ve
Venda, vi Vietnamese, vo Volapük, wa Walloon, wo Wolof, xh Xhosa, yi Yiddish, yo Yoruba, za Zhuang, zh
Chinese, zu Zulu,
ast Asturian, ceb Cebuano, ckb Central Kurdish, cmn Mandarin Chinese, fil Filipino, fur Friulian, gsw Swiss
German, haw Hawaiian, hmn Hmong, hsb Upper Sorbian, dsb Lower Sorbian, kab Kabyle, lmo Lombard, mai Maithili,
nds Low German, pap Papiamento, scn Sicilian, tlh Klingon, vec Venetian, war Waray, yue Cantonese, iw Hebrew,
in Indonesian, ji Yiddish, mo Moldavian, zt Chinese (Traditional)
"""

_REGIONS_AND_SCRIPTS = """
ae United Arab Emirates, ar Argentina, at Austria, au Australia, ba Bosnia and Herzegovina, bd Bangladesh, be
Belgium, bo Bolivia, br Brazil, ca Canada, ch Switzerland, cl Chile, cn China, co Colombia, cr Costa Rica, cu
Cuba, cy Cyprus, de Germany, dk Denmark, do Dominican Republic, dz Algeria, ec Ecuador, eg Egypt, es Spain,
fi Finland, fr France, gb United Kingdom, gr Greece, gt Guatemala, hk Hong Kong, hn Honduras, ie Ireland, il
Israel, in India, iq Iraq, ir Iran, it Italy, jo Jordan, jp Japan, ke Kenya, kr South Korea, lb Lebanon, li
Liechtenstein, lu Luxembourg, ma Morocco, md Moldova, me Montenegro, mo Macao, mx Mexico, my Malaysia, ng
Nigeria, ni Nicaragua, nl Netherlands, no Norway, nz New Zealand, pa Panama, pe Peru, ph Philippines, pk
Pakistan, pl Poland, pr Puerto Rico, pt Portugal, py Paraguay, ro Romania, rs Serbia, ru Russia, sa Saudi
Arabia, se Sweden, sg Singapore, sv El Salvador, sy Syria, tn Tunisia, tr Turkey, tw Taiwan, ua Ukraine, uk
United Kingdom, us United States, uy Uruguay, ve Venezuela, vn Vietnam, za South Africa, 419 Latin America,
arab Arabic script, cyrl Cyrillic, deva Devanagari, hans Simplified, hant Traditional, latn Latin
"""
