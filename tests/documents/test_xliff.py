"""XLIFF 1 and 2: only the targets change; also with files of the Translate Toolkit."""

import re
from pathlib import Path

import pytest
from lxml import etree
from translate.storage.xliff import xlifffile

from heedful.errors import HeedfulError
from tests.conftest import run_heedful
from tests.documents.external_tools import run_tool
from tests.documents.uppercase_translator import translate_file

ENTRIES = """
msgid ""
msgstr "Content-Type: text/plain; charset=UTF-8\\n"

#: a.c:1
msgid "The animal is tired.\\n  %d <b>animals</b> & %s\\n"
msgstr ""

msgctxt "menu"
msgid "_Open"
msgstr ""

msgid "%d dog"
msgid_plural "%d dogs"
msgstr[0] ""
msgstr[1] ""

msgid "process"
msgstr "fait"
"""

VERSION_1 = """<?xml version='1.0' encoding="utf-8" standalone='yes' ?>
<!-- by hand -->
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2" xmlns:my="urn:my">
<file source-language="en" datatype='plaintext' original="a"><header><my:tool name = "x"/></header><body>
  <trans-unit id="1" my:own="&lt;kept&gt;">
    <source xml:lang="en">The <g id="1">black</g> cat<x id="2"/> sleeps &amp; eats &#169; %s.</source>
    <note>a note</note>
    <alt-trans><source>old</source><target>vieux</target></alt-trans>
  </trans-unit>
  <group translate="no"><trans-unit id="2"><source>ACME</source></trans-unit></group>
  <trans-unit id="3" translate="no"><source>ACME</source></trans-unit>
  <trans-unit id="4" approved="yes"><source>dog</source><target state="final">chien</target></trans-unit>
  <trans-unit id="5"><source>cat</source><target state="needs-translation" my:a="b">cat</target></trans-unit>
  <trans-unit id="6"><source>cow</source><target state="needs-review-translation">vacche</target></trans-unit>
  <trans-unit id="7"><source>A <bpt id="1">[b]</bpt>big<ept id="1">[/b]</ept> <mrk mtype="protected">Acme cat</mrk></source></trans-unit>
  <trans-unit id="8"><source>One. Two.</source><seg-source><mrk mtype="seg" mid="0">One.</mrk> <mrk mtype="seg" mid="1">Two.</mrk></seg-source></trans-unit>
  <trans-unit id="9" xml:space="preserve"><source>  one
    two  </source></trans-unit>
  <trans-unit id="10"><source>one
    two <ph id="1">{x}</ph></source></trans-unit>
  <trans-unit id="11"><source><x id="1"/></source></trans-unit>
  <trans-unit id="12"><source><![CDATA[a <b>dog</b>]]></source></trans-unit>
</body></file></xliff>
"""  # noqa: E501

VERSION_2 = """<?xml version="1.0"?>
<x:xliff xmlns:x="urn:oasis:names:tc:xliff:document:2.0" version="2.0" srcLang="en" xmlns:my="urn:my">
 <x:file id="f1"><x:notes><x:note>keep</x:note></x:notes>
  <x:unit id="1"><my:thing a='b'/>
    <x:segment id="s1">
      <x:source xml:space="preserve">The <x:pc id="1">cat</x:pc> sleeps<x:ph id="2"/> now.</x:source>
    </x:segment>
    <x:ignorable><x:source> </x:source></x:ignorable>
    <x:segment><x:source>A <x:sc id="4"/>big<x:ec startRef="4"/> <x:mrk id="m" translate="no">dog</x:mrk></x:source><x:target/></x:segment>
  </x:unit>
  <x:unit id="2" translate="no"><x:segment><x:source>ACME</x:source></x:segment></x:unit>
  <x:unit id="3"><x:segment state="final"><x:source>dog</x:source><x:target>chien</x:target></x:segment></x:unit>
  <x:unit id="4"><x:segment subState="heedful:mt" state="translated"><x:source>cow</x:source><x:target>LA</x:target></x:segment></x:unit>
 </x:file>
</x:xliff>
"""  # noqa: E501


def canonical_without_targets(path: Path) -> bytes:
    """The document without targets, their state and their language."""
    root = etree.parse(path).getroot()
    for target in list(root.iter("{*}target")):
        parent, before = target.getparent(), target.getprevious()
        before.tail = target.tail
        parent.remove(target)
    for element in root.iter():
        if isinstance(element.tag, str):
            for name in ("target-language", "trgLang", "state", "subState"):
                element.attrib.pop(name, None)
    return etree.tostring(root, method="c14n")


def targets(path: Path) -> dict[str, str]:
    """The target of each unit."""
    contents = {}
    for unit in etree.parse(path).iter("{*}trans-unit", "{*}segment"):
        target = unit.find("{*}target")
        if target is not None:
            text = etree.tostring(target, with_tail=False).decode()
            name = unit.get("id") or unit.getparent().get("id")
            contents[name] = re.sub(r'^<[\w:]*target[^>]*>|</[\w:]*target>$| xmlns:?\w*="[^"]*"', "", text)
    return contents


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "a.xlf"
    path.write_text(text, encoding="utf-8")
    return path


def test_translate_xliff_1_adds_targets(tmp_path: Path) -> None:
    source = write(tmp_path, VERSION_1)
    target = translate_file(source)
    assert canonical_without_targets(source) == canonical_without_targets(target)
    assert targets(target) == {
        "1": 'THE <g id="1">BLACK</g> CAT<x id="2"/> SLEEPS &amp; EATS &#169; %s.',
        "4": "chien",
        "5": "CAT",
        "6": "vacche",
        "7": 'A <bpt id="1">[b]</bpt>BIG<ept id="1">[/b]</ept> <mrk mtype="protected">Acme cat</mrk>',
        "8": '<mrk mtype="seg" mid="0">ONE.</mrk> <mrk mtype="seg" mid="1">TWO.</mrk>',
        "9": "  ONE\n    TWO  ",
        "10": 'ONE TWO <ph id="1">{x}</ph>',
        "11": '<x id="1"/>',
        "12": "A &lt;b&gt;DOG&lt;/b&gt;",
    }
    text = target.read_text(encoding="utf-8")
    mark = 'state="needs-review-translation" state-qualifier="mt-suggestion"'
    assert f'</source>\n    <target xml:lang="fr" {mark}>THE' in text
    assert f'<target my:a="b" {mark}>CAT</target>' in text
    assert text.startswith(VERSION_1[:150])
    assert '<file source-language="en" datatype=\'plaintext\' original="a" target-language="fr">' in text


def test_translate_xliff_1_copies_all_other_bytes(tmp_path: Path) -> None:
    source = write(tmp_path, VERSION_1)
    text = translate_file(source).read_text(encoding="utf-8")
    text = re.sub(r"\s*<target [^>]*mt-suggestion[^>]*>.*?</target>", "", text, flags=re.DOTALL)
    before = re.sub(r'<target state="needs-tr[^>]*>cat</target>', "", VERSION_1)
    assert text == before.replace('original="a"', 'original="a" target-language="fr"')


def test_translate_xliff_1_retranslate_modes(tmp_path: Path) -> None:
    source = write(tmp_path, VERSION_1)
    drafts = translate_file(source, retranslate="drafts", mark="comment")
    assert (targets(drafts)["4"], targets(drafts)["6"]) == ("chien", "COW")
    assert '<target state="translated" state-qualifier="mt-suggestion">COW<' in drafts.read_text()
    everything = translate_file(source, retranslate="all").read_text()
    assert 'id="4" approved="no"' in everything
    assert ">DOG</target>" in everything


def test_translate_xliff_2_adds_targets(tmp_path: Path) -> None:
    source = write(tmp_path, VERSION_2)
    target = translate_file(source)
    assert canonical_without_targets(source) == canonical_without_targets(target)
    assert targets(target) == {
        "s1": 'THE <x:pc id="1">CAT</x:pc> SLEEPS<x:ph id="2"/> NOW.',
        "1": 'A <x:sc id="4"/>BIG<x:ec startRef="4"/> <x:mrk id="m" translate="no">dog</x:mrk>',
        "3": "chien",
        "4": "LA",
    }
    text = target.read_text()
    assert 'xmlns:my="urn:my" trgLang="fr">' in text
    assert '<x:segment id="s1" state="initial" subState="heedful:mt">' in text
    assert '\n      <x:target xml:space="preserve">THE' in text
    assert 'state="translated" subState="heedful:mt"' in translate_file(source, mark="comment").read_text()
    assert targets(translate_file(source, retranslate="drafts"))["4"] == "COW"


def test_cli_translate_xliff_of_po2xliff(tmp_path: Path, quick_model: Path) -> None:
    (tmp_path / "a.po").write_text(ENTRIES)
    source, target = tmp_path / "a.xlf", tmp_path / "b.xlf"
    run_tool("po2xliff", "--progress=none", "-i", tmp_path / "a.po", "-o", source)
    process = run_heedful("translate", quick_model, "-i", source, "-o", target)
    assert process.status == 0, process.err
    assert "XLIFF 1: 4 units translated, 1 unchanged, 1 skipped" in process.err
    after = xlifffile.parsefile(str(target))
    before = xlifffile.parsefile(str(source))
    assert [unit.source for unit in after.units] == [unit.source for unit in before.units]
    assert all(str(unit.target).count("%d") == str(unit.source).count("%d") for unit in after.units)
    first = next(unit for unit in after.units if "animal" in str(unit.source))
    assert str(first.target).count("\n") == 2
    assert "<b>" in str(first.target)
    assert "%s\n" in str(first.target)
    run_tool("xliff2po", "--progress=none", "-i", target, "-o", tmp_path / "back.po")
    run_tool("msgfmt", "--check-format", "-o", "/dev/null", tmp_path / "back.po")


def test_translate_xliff_other_language_raises(tmp_path: Path) -> None:
    source = write(tmp_path, VERSION_2.replace('srcLang="en"', 'srcLang="en" trgLang="de-CH"'))
    with pytest.raises(HeedfulError, match="into de-CH, but the model translates into fr") as caught:
        translate_file(source)
    assert "--languages en:de-CH" in caught.value.hint
    assert translate_file(source, languages="en:de").exists()
    with pytest.raises(HeedfulError, match="from en, but the model translates from it"):
        translate_file(source, languages="it:de")
