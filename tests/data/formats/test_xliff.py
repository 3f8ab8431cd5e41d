"""XLIFF 1.2 and 2.0: units, segments, states, inline tags, languages, and malformed files."""

from pathlib import Path

import pytest

from heedful.data.reader import detect_languages
from heedful.errors import HeedfulError
from tests.data.format_files import errors, pairs, records, write


def version_1(body: str, languages: str = 'source-language="en-US" target-language="de"') -> str:
    return (
        '<?xml version="1.0"?>\n<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">\n'
        f'<file original="a.txt" datatype="plaintext" {languages}><header/><body>\n{body}'
        "</body></file></xliff>"
    )


def version_2(body: str) -> str:
    return (
        '<?xml version="1.0"?>\n<xliff version="2.0" xmlns="urn:oasis:names:tc:xliff:document:2.0" '
        f'srcLang="en" trgLang="fr">\n<file id="f">{body}</file></xliff>'
    )


def unit(source: str, target: str | None, attributes: str = "", state: str = "") -> str:
    target_element = "" if target is None else f"<target{state}>{target}</target>"
    return f'<trans-unit id="1"{attributes}><source>{source}</source>{target_element}</trans-unit>\n'


def test_read_xliff_1_gives_only_translated_units(tmp_path: Path) -> None:
    alternative = unit("x", "y").replace("</trans-unit>", "<alt-trans><target>no</target></alt-trans></trans-unit>")
    translatable = unit("j", "k", ' translate="yes"')
    body = "".join(
        [
            unit("a &lt; b", "c"),
            unit("d", None),
            unit("e", " "),
            unit("f", "g", ' translate="no"'),
            f'<group translate="no">{unit("h", "i")}{translatable}</group>',
            unit("l", "m", state=' state="needs-review-translation"'),
            unit("n", "o", state=' state="final"'),
            alternative,
        ]
    )
    path = write(tmp_path / "x.xlf", version_1(body))
    assert pairs(path) == [("a < b", "c"), ("j", "k"), ("n", "o"), ("x", "y")]
    assert [error for _, error in errors(path)] == [
        "not translated",
        "not translated",
        "not translatable",
        "not translatable",
        "state needs-review-translation",
    ]
    assert ("l", "m") in pairs(path, include_fuzzy=True)
    assert detect_languages([path]) == ("en-US", "de")
    assert records(path)[0].line == 4


def test_read_xliff_1_segmented_units_give_segment_pairs(tmp_path: Path) -> None:
    marks = '<mrk mtype="seg" mid="1">{0}1.</mrk> <mrk mtype="seg" mid="2">{0}2.</mrk>'
    body = (
        f'<trans-unit id="1"><source>a1. a2.</source><seg-source>{marks.format("a")}</seg-source>'
        f"<target>{marks.format('b')}</target></trans-unit>"
        f'<trans-unit id="2"><source>c1. c2.</source><seg-source>{marks.format("c")}</seg-source>'
        "<target>d</target></trans-unit>"
    )
    assert pairs(write(tmp_path / "x.sdlxliff", version_1(body))) == [("a1.", "b1."), ("a2.", "b2."), ("c1. c2.", "d")]


def test_read_xliff_2_gives_only_translated_segments(tmp_path: Path) -> None:
    body = (
        '<unit id="1"><notes><note>n</note></notes><segment><source>a</source><target>b</target></segment>'
        "<ignorable><source> </source></ignorable><segment><source>c</source></segment>"
        '<segment state="initial"><source>d</source><target>e</target></segment></unit>'
        '<group id="g" translate="no"><unit id="2"><segment><source>f</source><target>g</target></segment>'
        "</unit></group>"
        '<unit id="3"><segment><source>x<cp hex="0007"/>y</source><target>z</target></segment></unit>'
    )
    path = write(tmp_path / "anything", version_2(body))
    assert pairs(path) == [("a", "b"), ("x\x07y", "z")]
    assert [error for _, error in errors(path)] == ["not translated", "state initial", "not translatable"]
    assert detect_languages([path]) == ("en", "fr")


def test_read_xliff_inline_tags_strip_or_keep(tmp_path: Path) -> None:
    tagged_text = (
        'a <g id="1">bold</g><x id="2"/> <bpt id="3">&lt;i&gt;</bpt>in<ept id="3">&lt;/i&gt;</ept> '
        '<ph id="4">%s<sub>no</sub></ph><mrk mtype="term">term</mrk><bx id="5"/><ex id="5"/>'
        '<it id="6" pos="open">q</it>'
    )
    path = write(tmp_path / "x.xlf", version_1(unit(tagged_text, "b")))
    assert pairs(path) == [("a bold in term", "b")]
    [(text, _)] = pairs(path, inline_tags="keep")
    assert text.startswith('a <g id="1">bold</g><x id="2"/> <bpt id="3"><i></bpt>in')
    second = version_2(
        '<unit id="1"><segment><source>a <pc id="1">b</pc><ph id="2"/><sc id="3"/>c<ec/>'
        '<mrk id="m">d</mrk></source><target>e</target></segment></unit>'
    )
    assert pairs(write(tmp_path / "y.xlf", second)) == [("a bcd", "e")]


def test_read_xliff_languages_decide_direction(tmp_path: Path) -> None:
    path = write(tmp_path / "x.xlf", version_1(unit("a", "b")))
    assert pairs(path, ("en", "de")) == [("a", "b")]
    assert pairs(path, ("de", "en")) == [("b", "a")]
    with pytest.raises(HeedfulError, match="is en-US to de, not en to fr"):
        pairs(path, ("en", "fr"))
    mixed_file = version_1(unit("a", "b")).replace(
        "</xliff>", f'<file source-language="en" target-language="fr"><body>{unit("c", "d")}</body></file></xliff>'
    )
    with pytest.raises(HeedfulError, match="is en to fr, not en-US to de"):
        pairs(write(tmp_path / "y.xlf", mixed_file))
    path_without_target = write(tmp_path / "z.xlf", version_1(unit("a", "b"), 'source-language="en"'))
    assert detect_languages([path_without_target]) is None
    assert pairs(path_without_target) == [("a", "b")]


@pytest.mark.parametrize("malformed", ["error", "skip"])
def test_read_xliff_malformed_unit_raises_or_skips(tmp_path: Path, malformed: str) -> None:
    path = write(tmp_path / "x.xlf", version_1(unit("a", "b") + unit("c <g>", "d") + unit("e", "f")))
    if malformed == "error":
        with pytest.raises(HeedfulError, match=r"x\.xlf, line 5: "):
            pairs(path)
        return
    assert pairs(path, ("de", "en"), malformed="skip") == [("b", "a"), ("f", "e")]
    assert errors(path, malformed="skip") == [(5, "not well-formed")]
    assert detect_languages([path]) == ("en-US", "de")


def test_read_xliff_entities_raise(tmp_path: Path) -> None:
    bomb = version_1(unit("&x;", "b")).replace("<xliff", '<!DOCTYPE xliff [<!ENTITY x SYSTEM "/etc/passwd">]><xliff')
    with pytest.raises(HeedfulError, match="line 2: the file defines XML entities"):
        pairs(write(tmp_path / "x.xlf", bomb))
    with pytest.raises(HeedfulError, match="line 4: Entity 'x' not defined"):
        pairs(write(tmp_path / "y.xlf", version_1(unit("&x;", "b"))))


def test_read_pairs_other_xml_raises_with_root_name(tmp_path: Path) -> None:
    path = write(tmp_path / "page.xml", '<?xml version="1.0"?><html><body/></html>\n')
    with pytest.raises(HeedfulError, match=r"neither TMX nor XLIFF \(<html>\)"):
        pairs(path)
