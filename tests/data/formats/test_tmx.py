"""TMX: languages, variants, inline tags, encodings, memory use, and malformed files."""

import gzip
import subprocess
import sys
from pathlib import Path

import pytest

from heedful.data.reader import detect_languages
from heedful.errors import HeedfulError
from tests.data.format_files import errors, pairs, records, write

DOCTYPE = '<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n'


def unit(**texts: str) -> str:
    variants = (f'<tuv xml:lang="{code.replace("_", "-")}"><seg>{text}</seg></tuv>' for code, text in texts.items())
    return f"<tu>{''.join(variants)}</tu>\n"


def tmx(*units: str, srclang: str = "en", declaration: str = '<?xml version="1.0"?>\n') -> str:
    header = f'<header srclang="{srclang}" datatype="plaintext"/>'
    return f'{declaration}{DOCTYPE}<tmx version="1.4">{header}<body>\n{"".join(units)}</body></tmx>\n'


def test_read_tmx_two_languages_are_inferred(tmp_path: Path) -> None:
    path = write(tmp_path / "m.tmx", tmx(unit(de="Ja &amp; nein", en="Yes &amp; no"), unit(en="你好", de="👩‍👩‍👧")))
    assert pairs(path) == [("Yes & no", "Ja & nein"), ("你好", "👩‍👩‍👧")]
    assert detect_languages([path]) == ("en", "de")
    assert [record.line for record in records(path)] == [4, 5]
    assert pairs(path, ("de", "en")) == [("Ja & nein", "Yes & no"), ("👩‍👩‍👧", "你好")]


def test_read_tmx_without_header_language_first_is_source(tmp_path: Path) -> None:
    path = write(tmp_path / "m.tmx", tmx(unit(de="a", en="b"), srclang="*all*"))
    assert detect_languages([path]) == ("de", "en")
    assert pairs(path) == [("a", "b")]


def test_read_tmx_many_languages_need_a_choice(tmp_path: Path) -> None:
    path = write(tmp_path / "m.tmx", tmx(unit(en="a", de="b"), unit(en="c", fr="d"), unit(fr="e", de="f")))
    for use in (lambda: detect_languages([path]), lambda: pairs(path)):
        with pytest.raises(HeedfulError, match="3 languages: en, de, fr") as caught:
            use()
        assert "--languages en-de" in caught.value.hint
    assert pairs(path, ("fr", "de")) == [("e", "f")]
    assert errors(path, ("fr", "de")) == [(4, "no text in fr"), (5, "no text in de")]
    with pytest.raises(HeedfulError, match="none of the 3 units has both en and it") as caught:
        pairs(path, ("en", "it"))
    assert caught.value.hint == "its languages are en, de, fr"


def test_read_tmx_file_name_decides_languages(tmp_path: Path) -> None:
    path = write(tmp_path / "news.fr-de.tmx", tmx(unit(en="a", de="b", fr="c")))
    assert detect_languages([path]) == ("fr", "de")
    reversed_path = write(tmp_path / "news.de-en.tmx", tmx(unit(en="a", de="b")))
    assert detect_languages([reversed_path]) == ("de", "en")
    mismatched_path = write(tmp_path / "my.pt-br.tmx", tmx(unit(en="a", de="b")))
    assert detect_languages([mismatched_path]) == ("en", "de")


def test_read_tmx_late_third_language_raises(tmp_path: Path) -> None:
    path = write(tmp_path / "m.tmx", tmx(*[unit(en="a", de="b")] * 1500, unit(en="c", fr="d"), unit(it="e")))
    assert detect_languages([path]) == ("en", "de")
    with pytest.raises(HeedfulError, match="4 languages: en, de, fr, it"):
        pairs(path)
    assert len(pairs(path, ("en", "de"))) == 1500


def test_read_tmx_language_variants_match(tmp_path: Path) -> None:
    path = write(
        tmp_path / "m.tmx",
        tmx(unit(en_us="color", en_GB="colour", DE="Farbe"), unit(EN="a", de_at="b"), unit(en_US="c", de="d")),
    )
    unit_records = records(path, ("en", "de"))
    assert [(record.source, record.target) for record in unit_records] == [("color", "Farbe"), ("a", "b"), ("c", "d")]
    assert [record.note for record in unit_records] == ["of en-us and en-GB, en-us was used", "", ""]
    assert pairs(path, ("en-GB", "de"))[0] == ("colour", "Farbe")
    assert errors(path, ("en-GB", "de")) == [(6, "no text in en-GB")]
    assert detect_languages([path]) == ("en", "de")
    assert pairs(path, ("en-US", "en-GB")) == [("color", "colour")]


def test_read_tmx_duplicate_language_uses_first(tmp_path: Path) -> None:
    twice = '<tu><tuv xml:lang="en"><seg>a</seg></tuv>' + '<tuv xml:lang="de"><seg>b</seg></tuv>' * 2 + "</tu>"
    [record] = records(write(tmp_path / "m.tmx", tmx(twice)))
    assert (record.target, record.note) == ("b", "of de and de, the first was used")


def test_read_tmx_1_1_uses_lang_attribute(tmp_path: Path) -> None:
    body = '<tu><tuv lang="EN-US"><seg>a</seg></tuv><tuv lang="FR-FR"><seg>b</seg></tuv></tu>'
    path = write(
        tmp_path / "m.tmx",
        f'<?xml version="1.0"?><!DOCTYPE tmx SYSTEM "tmx11.dtd"><tmx version="1.1">'
        f'<header srclang="EN-US"/><body>{body}</body></tmx>',
    )
    assert detect_languages([path]) == ("en-US", "fr-FR")
    assert pairs(path) == [("a", "b")]


TAGGED = (
    'Press <bpt i="1">&lt;b&gt;</bpt><hi type="x">the</hi> key<ept i="1">&lt;/b&gt;</ept> <ph x="2">&lt;img '
    'alt="<sub>a dog</sub>"&gt;</ph><it pos="begin">&lt;i&gt;</it>now<ut>{}</ut><!-- no -->.'
)


def test_read_tmx_inline_tags_strip_or_keep(tmp_path: Path) -> None:
    path = write(tmp_path / "m.tmx", tmx(unit(en=TAGGED, de="x")))
    assert pairs(path) == [("Press the key now.", "x")]
    [(text, _)] = pairs(path, inline_tags="keep")
    assert text.startswith('Press <bpt i="1"><b></bpt><hi type="x">the</hi> key<ept i="1"></b></ept> <ph x="2">')
    assert '<sub>a dog</sub>"></ph><it pos="begin"><i></it>now<ut>{}</ut>.' in text


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "iso-8859-1", "utf-8"])
@pytest.mark.parametrize("malformed", ["error", "skip"])
def test_read_tmx_uses_declared_encoding(tmp_path: Path, encoding: str, malformed: str) -> None:
    declared = {"utf-8-sig": "utf-8", "utf-16-le": "utf-16"}.get(encoding, encoding)
    text = tmx(unit(en="café", de="Käse"), declaration=f'<?xml version="1.0" encoding="{declared}"?>\n')
    path = write(tmp_path / "memory.xml", text.encode(encoding))
    assert pairs(path, malformed=malformed) == [("café", "Käse")]


def test_read_tmx_compressed_with_namespace_is_detected(tmp_path: Path) -> None:
    text = tmx(unit(en="a", de="b")).replace("<tmx ", '<tmx xmlns="http://www.lisa.org/tmx14" ')
    assert pairs(write(tmp_path / "memory", gzip.compress(text.encode()))) == [("a", "b")]


@pytest.mark.parametrize(
    ("bad", "problem", "error"),
    [
        ("x &foo; y", "line 6: entity &foo; is not defined", "not well-formed"),
        ("a < b", "line 6: .*invalid element name", "not well-formed"),
        ("a</b>b", "line 6: .*mismatch", "not well-formed"),
        ("a <b>b", "line 6: .*mismatch", "not well-formed"),
        ("a\x01b", "line 6: .*invalid Char", "not well-formed"),
        ("a</seg></tuv>", "line ", "not well-formed"),
    ],
)
def test_read_tmx_malformed_unit_raises_or_skips(tmp_path: Path, bad: str, problem: str, error: str) -> None:
    good = [unit(en=word, de=word) for word in "abcd"]
    path = write(tmp_path / "m.tmx", tmx(*good[:2], unit(en=bad, de="x"), *good[2:]))
    with pytest.raises(HeedfulError, match=problem) as caught:
        pairs(path)
    assert "reading.malformed=skip" in caught.value.hint
    assert pairs(path, malformed="skip") == [(word, word) for word in "abcd"]
    assert errors(path, malformed="skip") == [(6, error)]


def test_read_tmx_unclosed_unit_keeps_others(tmp_path: Path) -> None:
    path = write(tmp_path / "m.tmx", tmx(unit(en="a", de="b")[:-7], unit(en="c", de="d")))
    assert pairs(path, malformed="skip") == [("c", "d")]
    assert errors(path, malformed="skip") == [(4, "not well-formed")]


def test_read_tmx_ignores_units_in_comments(tmp_path: Path) -> None:
    path = write(tmp_path / "m.tmx", tmx(f"<!-- {unit(en='a', de='b')} -->", unit(en="c", de="d")))
    assert pairs(path) == pairs(path, malformed="skip") == [("c", "d")]


def test_read_tmx_invalid_bytes_raise_or_skip(tmp_path: Path) -> None:
    text = tmx(unit(en="a", de="b"), unit(en="BAD", de="x"), unit(en="c", de="d")).encode()
    path = write(tmp_path / "m.tmx", text.replace(b"BAD", b"a\xff\xfeb"))
    with pytest.raises(HeedfulError, match=r"line 5: .*ncod"):
        pairs(path)
    assert pairs(path, malformed="skip") == [("a", "b"), ("c", "d")]
    assert errors(path, malformed="skip") == [(5, "invalid in the file's encoding")]


def test_read_tmx_truncated_file_raises_or_skips(tmp_path: Path) -> None:
    content = tmx(*[unit(en=f"a{number}", de=f"b{number}") for number in range(3000)])
    path = write(tmp_path / "m.tmx", content[: content.index("a2000") + 2])
    with pytest.raises(HeedfulError, match=r"m.tmx, line 2,00\d: "):
        pairs(path)
    assert len(pairs(path, malformed="skip")) == 2000
    assert errors(path, malformed="skip") == [(2004, "the file ends inside this unit")]


def test_read_tmx_missing_language_raises_or_skips(tmp_path: Path) -> None:
    path = write(tmp_path / "m.tmx", tmx("<tu><tuv><seg>a</seg></tuv></tu>", unit(en="c", de="d")))
    with pytest.raises(HeedfulError, match="line 4: a <tuv> has no language"):
        pairs(path)
    assert pairs(path, malformed="skip") == [("c", "d")]


def test_read_tmx_without_second_language_raises(tmp_path: Path) -> None:
    assert pairs(write(tmp_path / "a.tmx", tmx())) == []
    with pytest.raises(HeedfulError, match="only one language: en"):
        pairs(write(tmp_path / "b.tmx", tmx(unit(en="a"))))
    with pytest.raises(HeedfulError, match=r"c\.tmx"):
        pairs(write(tmp_path / "c.tmx", ""))


LAUGHS = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
BOMBS = {
    "billion laughs": f'<!DOCTYPE tmx [<!ENTITY l0 "ha">{LAUGHS}]>',
    "external": '<!DOCTYPE tmx [<!ENTITY l9 SYSTEM "file:///etc/passwd">]>',
    "parameter": '<!DOCTYPE tmx [<!ENTITY % p SYSTEM "http://127.0.0.1:9/x.dtd"> %p;]>',
    "late": f"<!-- {'x' * 70_000} -->" + '<!DOCTYPE tmx [<!ENTITY l9 "ha">]>',
}


@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize("malformed", ["error", "skip"])
def test_read_tmx_entities_raise(tmp_path: Path, bomb: str, malformed: str) -> None:
    path = write(tmp_path / "m.tmx", tmx(unit(en="&l9;", de="b")).replace(DOCTYPE, BOMBS[bomb]))
    if bomb == "late" and malformed == "skip":
        assert pairs(path, ("en", "de"), malformed=malformed) == []
        return
    with pytest.raises(HeedfulError, match="defines XML entities"):
        pairs(path, malformed=malformed)


def test_read_tmx_does_not_fetch_doctype(tmp_path: Path) -> None:
    write(tmp_path / "tmx14.dtd", '<!ENTITY secret "leaked">')
    path = write(tmp_path / "m.tmx", tmx(unit(en="&secret;", de="b")))
    with pytest.raises(HeedfulError, match="entity &secret; is not defined"):
        pairs(path)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc to measure peak memory")
def test_read_tmx_uses_constant_memory(tmp_path: Path) -> None:
    """Thirty times as many units have the same peak memory."""
    code = (
        "import re, sys; from pathlib import Path; from heedful.data.reader import read_pairs\n"
        "print(sum(not record.error for record in read_pairs([Path(sys.argv[1])])))\n"
        "print(re.search(r'VmHWM:\\s*(\\d+)', Path('/proc/self/status').read_text())[1])"
    )
    peaks = []
    for count in (1000, 30_000):
        units = [unit(en=f"a sentence of some length, number {number}" * 5, de="b") for number in range(count)]
        path = write(tmp_path / f"{count}.tmx", tmx(*units))
        process = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
        pair_count, peak = map(int, process.stdout.split())
        assert pair_count == count
        peaks.append(peak)
    assert peaks[1] < 1.1 * peaks[0]
