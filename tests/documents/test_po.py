"""PO files: created and checked with the gettext tools."""

import difflib
import re
from pathlib import Path

import polib
import pytest

from heedful.documents.po import plural_forms_for
from heedful.errors import HeedfulError
from tests.conftest import run_heedful
from tests.documents.external_tools import run_tool
from tests.documents.uppercase_translator import translate_file

C_SOURCE = r"""
/* TRANSLATORS: output of an animal */
puts(_("The animal is tired."));
printf(_("%d files of %-5.2lu in %s are lost (100%% sure).\n"), 1, 2, "x");
printf(ngettext("One file", "%d files", n), n);
printf(ngettext("%d animal is tired", "%d animals are tired", n), n);
puts(_("_File")); puts(_("Save _As...")); puts(_("&Quit")); puts(_("the file_name is R&D"));
puts(_("Usage: prog [OPTION] FILE\n  -a, --all    show all <b>animals</b> of %s\n\n\tThe end.\n"));
puts(pgettext("menu", "Open <a href=\"%s\">the street</a> now"));
puts(pgettext("verb", "Open")); puts(pgettext("adjective", "Open"));
puts(_("\"C:\\dir\" is quoted, and this is a message that is so long that it has to be wrapped somewhere"));
puts(_("%s"));
"""
PYTHON_SOURCE = """
_("Hello, {name}! You have {0:>5} messages in {{braces}}.").format(name=1)
_("%(count)d of %(total)s animals") % {}
ngettext("one dog", "{count} dogs", 2)
"""

KNOWN_TO_MSGINIT = """
ja vi ko en de nl sv da nb fo es pt it bg el fi et he eo hu tr pt_BR fr lv ga ro lt ru uk be sr hr cs sk pl sl
"""


@pytest.fixture
def template(tmp_path: Path) -> Path:
    """The template of xgettext for two programs."""
    (tmp_path / "a.c").write_text(C_SOURCE)
    (tmp_path / "b.py").write_text(PYTHON_SOURCE)
    names = ["-k_", "-kngettext:1,2", "-kpgettext:1c,2", "-cTRANSLATORS", "-o", tmp_path / "all.pot"]
    run_tool("xgettext", *names, tmp_path / "a.c", tmp_path / "b.py")
    return tmp_path / "all.pot"


def translations(path: Path) -> dict[str, str]:
    return {entry.msgid: entry.msgstr for entry in polib.pofile(str(path)) if not entry.obsolete}


def test_cli_translate_po_template_passes_msgfmt(template: Path, quick_model: Path) -> None:
    target = template.with_name("fr.po")
    process = run_heedful("translate", quick_model, "-i", template, "-o", target, "--mark", "comment")
    assert process.status == 0, process.err
    entries = len(polib.pofile(str(template)))
    assert f"PO: {entries} units translated, 0 unchanged, 0 skipped" in process.err
    output = run_tool("msgfmt", "--check", "--check-accelerators=_", "--statistics", "-o", "/dev/null", target)
    assert f"{entries} translated messages." in output
    assert all(label in output for label in ("warning", "initial default value"))  # about names in the header


def test_translate_po_marks_new_translations_fuzzy(template: Path) -> None:
    target = translate_file(template)
    output = run_tool("msgfmt", "--check", "--statistics", "-o", "/dev/null", target)
    entries = polib.pofile(str(target))
    assert f"0 translated messages, {len(entries)} fuzzy translations." in output
    assert all(entry.fuzzy and entry.tcomment == "machine-translated by heedful" for entry in entries)


def test_translate_po_keeps_format_strings_and_tags(template: Path) -> None:
    messages = translations(translate_file(template))
    assert messages["The animal is tired."] == "THE ANIMAL IS TIRED."
    line = "%d files of %-5.2lu in %s are lost (100%% sure).\n"
    assert messages[line] == "%d FILES OF %-5.2lu IN %s ARE LOST (100%% SURE).\n"
    assert messages["_File"] == "_FILE"
    assert messages["Save _As..."] == "S_AVE AS..." or messages["Save _As..."] == "SAVE _AS..."
    assert messages["&Quit"] == "&QUIT"
    assert messages["the file_name is R&D"] == "THE file_name IS R&D"
    usage = next(text for text in messages.values() if "--all" in text)
    assert usage == ("USAGE: PROG [OPTION] FILE\n  -a, --all    SHOW ALL <b>ANIMALS</b> OF %s\n\n\tTHE END.\n")
    assert messages['Open <a href="%s">the street</a> now'] == 'OPEN <a href="%s">THE STREET</a> NOW'
    assert messages["%s"] == "%s"
    braces = "Hello, {name}! You have {0:>5} messages in {{braces}}."
    assert messages[braces] == "HELLO, {name}! YOU HAVE {0:>5} MESSAGES IN {{braces}}."


def test_translate_po_changes_only_msgstr_and_flags(template: Path) -> None:
    run_tool("msginit", "--no-translator", "-l", "fr", "-i", template, "-o", template.with_name("fr.po"))
    source = template.with_name("fr.po")
    target = translate_file(source)
    changes = list(difflib.ndiff(source.read_text().splitlines(), target.read_text().splitlines()))
    removed_lines = {line[2:] for line in changes if line.startswith("- ")}
    expected = {'msgstr ""', 'msgstr[0] ""', 'msgstr[1] ""'}
    assert all(line in expected or line.startswith("#, ") for line in removed_lines), removed_lines
    added_lines = [line[2:] for line in changes if line.startswith("+ ")]
    assert all(re.match(r'(# machine-|#, fuzzy|msgstr|")', line) for line in added_lines), added_lines
    before, after = polib.pofile(str(source)), polib.pofile(str(target))
    assert [(e.msgid, e.msgctxt, e.occurrences, e.comment) for e in before] == [
        (e.msgid, e.msgctxt, e.occurrences, e.comment) for e in after
    ]


@pytest.fixture
def merged_catalog(template: Path) -> Path:
    """A merged file with translated, fuzzy, obsolete and new entries."""
    old = template.with_name("old.po")
    old.write_text(
        'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n"Language: fr\\n"\n'
        '"Plural-Forms: nplurals=2; plural=(n > 1);\\n"\n\n'
        '# mine\nmsgid "The animal is tired."\nmsgstr "L\'animal est fatigué."\n\n'
        'msgid "the file_name is R&S"\nmsgstr "le file_name est R&S"\n\n'
        'msgid "Gone away for ever"\nmsgstr "Parti"\n'
    )
    run_tool("msgmerge", "--previous", "-o", template.with_name("new.po"), old, template)
    assert "#| msgid" in template.with_name("new.po").read_text()
    return template.with_name("new.po")


def test_translate_po_keeps_existing_translations(merged_catalog: Path) -> None:
    target = translate_file(merged_catalog)
    assert translations(target)["The animal is tired."] == "L'animal est fatigué."
    fuzzy = next(entry for entry in polib.pofile(str(target)) if entry.msgid == "the file_name is R&D")
    assert (fuzzy.msgstr, fuzzy.previous_msgid) == ("le file_name est R&S", "the file_name is R&S")
    assert target.read_text().endswith('#~ msgid "Gone away for ever"\n#~ msgstr "Parti"\n')


def test_translate_po_retranslate_modes(merged_catalog: Path) -> None:
    drafts = polib.pofile(str(translate_file(merged_catalog, retranslate="drafts", mark="comment")))
    fuzzy = next(entry for entry in drafts if entry.msgid == "the file_name is R&D")
    assert (fuzzy.msgstr, fuzzy.previous_msgid, fuzzy.flags) == ("THE file_name IS R&D", None, [])
    assert (
        translations(translate_file(merged_catalog, retranslate="drafts"))["The animal is tired."]
        == "L'animal est fatigué."
    )
    assert (
        translations(translate_file(merged_catalog, retranslate="all"))["The animal is tired."]
        == "THE ANIMAL IS TIRED."
    )
    labeled = translate_file(merged_catalog, retranslate="drafts", mark="comment")
    assert (
        translate_file(labeled, retranslate="drafts", mark="comment").read_bytes() == labeled.read_bytes()
    )  # labeled only once


@pytest.mark.parametrize("language", ["ru", "pl", "sl", "ja", "de", "fr", "ar"])
def test_translate_po_plural_forms_by_language(template: Path, language: str) -> None:
    target = translate_file(template, mark="comment", languages=f"en:{language}")
    run_tool("msgfmt", "--check", "-o", "/dev/null", target)
    plurals = plural_forms_for(language)
    assert plurals is not None
    forms = {entry.msgid: entry.msgstr_plural for entry in polib.pofile(str(target)) if entry.msgid_plural}
    assert all(len(texts) == plurals.count for texts in forms.values())
    expected = {"ru": "%d FILES", "pl": "ONE FILE", "sl": "%d FILES", "ja": "%d FILES", "de": "ONE FILE"}
    assert forms["One file"][0] == expected.get(language, "%d FILES")
    single = next(form for form in range(plurals.count) if plurals.is_singular(form))
    if plurals.count > 1:
        assert forms["%d animal is tired"][single] == "%d ANIMAL IS TIRED"


def test_plural_forms_for_matches_msginit(template: Path) -> None:
    msginit_output = template.with_name("msginit.po")
    for language in re.findall(r"\w+", KNOWN_TO_MSGINIT):
        run_tool("msginit", "--no-translator", "-l", language, "-i", template, "-o", msginit_output)
        ours = plural_forms_for(language)
        assert ours is not None
        assert ours.text == polib.pofile(str(msginit_output)).metadata["Plural-Forms"], language


PLAIN = 'msgid ""\nmsgstr "Content-Type: text/plain; charset={}\\n"\n\n#commented "out"\nmsgid "dog"\nmsgstr ""\n'


def test_translate_po_keeps_line_endings_and_encoding(tmp_path: Path) -> None:
    source = tmp_path / "a.po"
    source.write_bytes(b"\xef\xbb\xbf" + PLAIN.format("UTF-8").replace("\n", "\r\n").encode())
    output = translate_file(source, mark="comment").read_bytes()
    assert output.startswith(b"\xef\xbb\xbfmsgid")
    assert output.count(b"\n") == output.count(b"\r\n")
    assert b'#commented "out"\r\n# machine-translated by heedful\r\nmsgid "dog"\r\nmsgstr "DOG"\r\n' in output
    source.write_bytes(PLAIN.format("ISO-8859-1").replace("dog", "é").encode("latin-1"))
    assert 'msgid "é"\nmsgstr "É"\n'.encode("latin-1") in translate_file(source).read_bytes()
    source.write_bytes(PLAIN.format("ISO-8859-1").replace("dog", "ÿ").encode("latin-1"))
    unicode = translate_file(source).read_text(encoding="utf-8")  # Ÿ is not in Latin-1
    assert 'msgstr "Ÿ"' in unicode
    assert "charset=UTF-8" in unicode


def test_translate_po_without_header_adds_one(tmp_path: Path) -> None:
    source = tmp_path / "a.po"
    source.write_text('msgid "été"\nmsgid_plural "étés"\nmsgstr[0] ""\nmsgstr[1] ""')
    target = translate_file(source, mark="comment")
    run_tool("msgfmt", "-o", "/dev/null", target)
    assert polib.pofile(str(target)).metadata["Language"] == "fr"


def test_translate_po_incomplete_plural_is_completed(tmp_path: Path) -> None:
    source = tmp_path / "a.po"
    source.write_text(
        PLAIN.format("UTF-8").replace("#", "# ")
        + '\nmsgid "cat"\nmsgid_plural "cats"\nmsgstr[0] "chat"\nmsgstr[1] ""\n'
    )
    [entry] = [entry for entry in polib.pofile(str(translate_file(source))) if entry.msgid_plural]
    assert entry.msgstr_plural == {0: "chat", 1: "CATS"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('msgid "a"\nmsgstr ""\n\nmsgid "b\nmsgstr ""\n', "line 4"),
        ('msgid "a"\nmsgstr ""\n\nmsgid "b"\n', "line 4: begins an entry without msgstr"),
        ('msgid "a"\nmsgstr ""\nmsgstr ""\n', "line 3: msgstr is not expected"),
        ('msgid "a"\nmsgstr ""\nnonsense\n', "line 3: cannot be read: nonsense"),
        (
            'msgid ""\nmsgstr "Plural-Forms: nplurals=2; plural=__import__;\\n"\n'
            'msgid "a"\nmsgid_plural "b"\nmsgstr[0] ""\n',
            "Plural-Forms",
        ),
    ],
)
def test_translate_po_malformed_file_raises_with_line(tmp_path: Path, text: str, problem: str) -> None:
    source = tmp_path / "a.po"
    source.write_text(text)
    with pytest.raises(HeedfulError, match=problem):
        translate_file(source)
    assert [path.name for path in tmp_path.iterdir()] == ["a.po"]
