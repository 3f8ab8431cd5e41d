"""TMX: units without the target language get a variant that the Translate Toolkit can read."""

import re
from pathlib import Path

import pytest
from lxml import etree
from translate.storage.tmx import tmxfile

from heedful.documents import xml_document
from tests.conftest import run_heedful
from tests.documents.external_tools import run_tool
from tests.documents.uppercase_translator import translate_file

MEMORY = """<?xml version="1.0"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header srclang="en" creationtool="x" creationtoolversion="1" segtype="sentence" o-tmf="a"
 adminlang="en" datatype="plaintext"><prop type="x">y</prop></header>
<body>
  <tu tuid="1">
    <tuv xml:lang="en-US" changedate="20200101T000000Z">
      <seg>The <bpt i="1">&lt;b&gt;</bpt>animal<ept i="1">&lt;/b&gt;</ept> is tired<ph x="2">&lt;br/&gt;</ph>.</seg>
    </tuv>
  </tu>
  <tu><note>n</note><tuv xml:lang="en"><seg>dog</seg></tuv><tuv xml:lang="FR-fr"><seg>chien</seg></tuv></tu>
  <tu><tuv xml:lang="de"><seg>Hund</seg></tuv></tu>
  <tu><tuv xml:lang="fr"><seg/></tuv><tuv xml:lang="en"><seg>cat <hi>one</hi> &amp; %1$s</seg></tuv></tu>
  <tu><tuv xml:lang="en"><seg><bpt i="1">[</bpt>a<bpt i="2">(</bpt>b<ept i="1">]</ept>c<ept i="2">)</ept></seg></tuv></tu>
</body></tmx>
"""  # noqa: E501


def variants(path: Path, language: str) -> list[str]:
    texts = []
    for variant in etree.parse(path).iter("tuv"):
        if variant.get("{http://www.w3.org/XML/1998/namespace}lang") == language:
            text = etree.tostring(variant.find("seg"), with_tail=False, encoding="unicode")
            texts.append(text.removeprefix("<seg>").removesuffix("</seg>"))
    return texts


def test_translate_tmx_adds_variants(tmp_path: Path) -> None:
    source = tmp_path / "m.tmx"
    source.write_text(MEMORY)
    target = translate_file(source)
    assert variants(target, "fr") == [
        'THE <bpt i="1">&lt;b&gt;</bpt>ANIMAL<ept i="1">&lt;/b&gt;</ept> IS TIRED.<ph x="2">&lt;br/&gt;</ph>',
        "CAT <hi>ONE</hi> &amp; %1$s",
        '<bpt i="1">[</bpt>ABC<bpt i="2">(</bpt><ept i="1">]</ept><ept i="2">)</ept>',
    ]
    text = target.read_text()
    assert re.search(
        r'    </tuv>\n    <tuv xml:lang="fr" creationtool="heedful" creationtoolversion="[\d.]+" '
        r'creationid="heedful">'
        r'\n      <prop type="x-machine-translated">yes</prop>\n      <seg>THE',
        text,
    )
    old = MEMORY.replace('<tuv xml:lang="fr"><seg/></tuv>', "")
    assert re.sub(r'\s*<tuv xml:lang="fr".*?</tuv>', "", text, flags=re.DOTALL) == old


def test_translate_tmx_uses_language_code_of_file(tmp_path: Path) -> None:
    source = tmp_path / "m.tmx"
    source.write_text(MEMORY.replace('<tuv xml:lang="fr"><seg/></tuv>', ""))
    assert len(variants(translate_file(source), "FR-fr")) == 4  # one existing translation and three new ones


def test_translate_tmx_retranslate_modes(tmp_path: Path) -> None:
    source = tmp_path / "m.tmx"
    source.write_text(MEMORY)
    translated_file = translate_file(source)
    assert translate_file(translated_file, retranslate="drafts").read_bytes() == translated_file.read_bytes()
    retranslated_text = translate_file(source, retranslate="all").read_text()
    assert "chien" not in retranslated_text
    assert "<seg>DOG</seg>" in retranslated_text


def test_translate_tmx_keeps_utf16(tmp_path: Path) -> None:
    source = tmp_path / "m.tmx"
    text = MEMORY.replace('"1.0"', '"1.0" encoding="UTF-16"').replace(">dog<", ">犬 é<").replace("FR-fr", "it")
    source.write_bytes(text.encode("utf-16"))
    target = translate_file(source)
    assert target.read_bytes()[:2] == source.read_bytes()[:2]
    assert "犬 É" in variants(target, "fr")


def test_cli_translate_tmx_of_po2tmx(tmp_path: Path, quick_model: Path) -> None:
    po = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\n'
    po += "".join(f'msgid "{word} %s {{x}} sleeps"\nmsgstr "{word} schläft %s {{x}}"\n\n' for word in "ABC")
    (tmp_path / "a.po").write_text(po, encoding="utf-8")
    source, target = tmp_path / "a.tmx", tmp_path / "b.tmx"
    run_tool("po2tmx", "--progress=none", "-l", "de", "-i", tmp_path / "a.po", "-o", source)
    process = run_heedful("translate", quick_model, "-i", source, "-o", target)
    assert "TMX: 3 units translated, 0 unchanged, 0 skipped" in process.err
    with target.open("rb") as file:
        tmx = tmxfile(file, "en", "fr")
    texts = [str(unit.gettarget("fr")) for unit in tmx.units]
    assert len(texts) == 3
    assert all(text.count("%s") == text.count("{x}") == 1 for text in texts)
    assert all("schläft" in str(unit.gettarget("de")) for unit in tmx.units)


def test_translate_tmx_batch_size_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "m.tmx"
    units = "".join(f'<tu><tuv xml:lang="en"><seg>unit {n} of {n % 7}</seg></tuv></tu>\n' for n in range(3000))
    source.write_text(f'<tmx version="1.4"><header srclang="en"/><body>{units}</body></tmx>')
    expected = translate_file(source).read_bytes()
    monkeypatch.setattr(xml_document, "BATCH_UNITS", 7)
    assert translate_file(source).read_bytes() == expected
    assert expected.count(b"<seg>UNIT") == 3000
