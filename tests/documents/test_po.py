"""PO files: made by gettext's programs, filled, and checked by gettext's programs."""

import difflib
import re
from pathlib import Path

import polib
import pytest

from heedful.documents.plurals import plurals_of
from heedful.errors import HeedfulError
from tests.conftest import run_heedful
from tests.documents.tools import filled, tool

C_SOURCE = r"""
/* TRANSLATORS: said of an animal */
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
    """What xgettext finds in two programs."""
    (tmp_path / "a.c").write_text(C_SOURCE)
    (tmp_path / "b.py").write_text(PYTHON_SOURCE)
    names = ["-k_", "-kngettext:1,2", "-kpgettext:1c,2", "-cTRANSLATORS", "-o", tmp_path / "all.pot"]
    tool("xgettext", *names, tmp_path / "a.c", tmp_path / "b.py")
    return tmp_path / "all.pot"


def translations(path: Path) -> dict[str, str]:
    return {entry.msgid: entry.msgstr for entry in polib.pofile(str(path)) if not entry.obsolete}


def test_template_filled_by_a_real_model_passes_msgfmt(template: Path, quick_model: Path) -> None:
    target = template.with_name("fr.po")
    done = run_heedful("translate", quick_model, "-i", template, "-o", target, "--mark", "comment")
    assert done.status == 0, done.err
    entries = len(polib.pofile(str(template)))
    assert f"PO: {entries} units translated, 0 kept as they were, 0 skipped" in done.err
    said = tool("msgfmt", "--check", "--check-accelerators=_", "--statistics", "-o", "/dev/null", target)
    assert f"{entries} translated messages." in said
    assert all(label in said for label in ("warning", "initial default value"))  # only of the names in it


def test_by_default_nothing_is_used_before_a_person_has_seen_it(template: Path) -> None:
    target = filled(template)
    said = tool("msgfmt", "--check", "--statistics", "-o", "/dev/null", target)
    entries = polib.pofile(str(target))
    assert f"0 translated messages, {len(entries)} fuzzy translations." in said
    assert all(entry.fuzzy and entry.tcomment == "machine-translated by heedful" for entry in entries)


def test_texts_come_out_as_programs_need_them(template: Path) -> None:
    found = translations(filled(template))
    assert found["The animal is tired."] == "THE ANIMAL IS TIRED."
    line = "%d files of %-5.2lu in %s are lost (100%% sure).\n"
    assert found[line] == "%d FILES OF %-5.2lu IN %s ARE LOST (100%% SURE).\n"
    assert found["_File"] == "_FILE"
    assert found["Save _As..."] == "S_AVE AS..." or found["Save _As..."] == "SAVE _AS..."
    assert found["&Quit"] == "&QUIT"
    assert found["the file_name is R&D"] == "THE file_name IS R&D"
    usage = next(text for text in found.values() if "--all" in text)
    assert usage == (
        "USAGE: PROG [OPTION] FILE\n  -a, --all    SHOW ALL <b>ANIMALS</b> OF %s\n\n\tTHE END.\n"
    )
    assert found['Open <a href="%s">the street</a> now'] == 'OPEN <a href="%s">THE STREET</a> NOW'
    assert found["%s"] == "%s"
    braces = "Hello, {name}! You have {0:>5} messages in {{braces}}."
    assert found[braces] == "HELLO, {name}! YOU HAVE {0:>5} MESSAGES IN {{braces}}."


def test_only_expected_lines_change(template: Path) -> None:
    tool("msginit", "--no-translator", "-l", "fr", "-i", template, "-o", template.with_name("fr.po"))
    source = template.with_name("fr.po")
    target = filled(source)
    changes = list(difflib.ndiff(source.read_text().splitlines(), target.read_text().splitlines()))
    removed = {line[2:] for line in changes if line.startswith("- ")}
    expected = {'msgstr ""', 'msgstr[0] ""', 'msgstr[1] ""'}
    assert all(line in expected or line.startswith("#, ") for line in removed), removed
    added = [line[2:] for line in changes if line.startswith("+ ")]
    assert all(re.match(r'(# machine-|#, fuzzy|msgstr|")', line) for line in added), added
    before, after = polib.pofile(str(source)), polib.pofile(str(target))
    assert [(e.msgid, e.msgctxt, e.occurrences, e.comment) for e in before] == [
        (e.msgid, e.msgctxt, e.occurrences, e.comment) for e in after
    ]


@pytest.fixture
def merged(template: Path) -> Path:
    """A file at work: translated, fuzzy with the old message, obsolete and new entries, by msgmerge."""
    old = template.with_name("old.po")
    old.write_text(
        'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n"Language: fr\\n"\n'
        '"Plural-Forms: nplurals=2; plural=(n > 1);\\n"\n\n'
        '# mine\nmsgid "The animal is tired."\nmsgstr "L\'animal est fatigué."\n\n'
        'msgid "the file_name is R&S"\nmsgstr "le file_name est R&S"\n\n'
        'msgid "Gone away for ever"\nmsgstr "Parti"\n'
    )
    tool("msgmerge", "--previous", "-o", template.with_name("new.po"), old, template)
    assert "#| msgid" in template.with_name("new.po").read_text()
    return template.with_name("new.po")


def test_what_a_person_wrote_stays(merged: Path) -> None:
    target = filled(merged)
    assert translations(target)["The animal is tired."] == "L'animal est fatigué."
    fuzzy = next(entry for entry in polib.pofile(str(target)) if entry.msgid == "the file_name is R&D")
    assert (fuzzy.msgstr, fuzzy.previous_msgid) == ("le file_name est R&S", "the file_name is R&S")
    assert target.read_text().endswith('#~ msgid "Gone away for ever"\n#~ msgstr "Parti"\n')


def test_again(merged: Path) -> None:
    drafts = polib.pofile(str(filled(merged, again="drafts", mark="comment")))
    fuzzy = next(entry for entry in drafts if entry.msgid == "the file_name is R&D")
    assert (fuzzy.msgstr, fuzzy.previous_msgid, fuzzy.flags) == ("THE file_name IS R&D", None, [])
    assert translations(filled(merged, again="drafts"))["The animal is tired."] == "L'animal est fatigué."
    assert translations(filled(merged, again="all"))["The animal is tired."] == "THE ANIMAL IS TIRED."
    once = filled(merged, again="drafts", mark="comment")
    assert filled(once, again="drafts", mark="comment").read_bytes() == once.read_bytes()  # labelled once


@pytest.mark.parametrize("language", ["ru", "pl", "sl", "ja", "de", "fr", "ar"])
def test_plurals_of_many_forms(template: Path, language: str) -> None:
    target = filled(template, mark="comment", languages=f"en:{language}")
    tool("msgfmt", "--check", "-o", "/dev/null", target)
    plurals = plurals_of(language)
    assert plurals is not None
    forms = {entry.msgid: entry.msgstr_plural for entry in polib.pofile(str(target)) if entry.msgid_plural}
    assert all(len(each) == plurals.count for each in forms.values())
    expected = {"ru": "%d FILES", "pl": "ONE FILE", "sl": "%d FILES", "ja": "%d FILES", "de": "ONE FILE"}
    assert forms["One file"][0] == expected.get(language, "%d FILES")
    single = next(form for form in range(plurals.count) if plurals.is_singular(form))
    if plurals.count > 1:
        assert forms["%d animal is tired"][single] == "%d ANIMAL IS TIRED"


def test_plural_formulas_are_those_of_gettext(template: Path) -> None:
    told = template.with_name("told.po")
    for language in re.findall(r"\w+", KNOWN_TO_MSGINIT):
        tool("msginit", "--no-translator", "-l", language, "-i", template, "-o", told)
        ours = plurals_of(language)
        assert ours is not None
        assert ours.text == polib.pofile(str(told)).metadata["Plural-Forms"], language


PLAIN = (
    'msgid ""\nmsgstr "Content-Type: text/plain; charset={}\\n"\n\n#commented "out"\nmsgid "dog"\nmsgstr ""\n'
)


def test_line_ends_marks_and_encodings_stay(tmp_path: Path) -> None:
    source = tmp_path / "a.po"
    source.write_bytes(b"\xef\xbb\xbf" + PLAIN.format("UTF-8").replace("\n", "\r\n").encode())
    found = filled(source, mark="comment").read_bytes()
    assert found.startswith(b"\xef\xbb\xbfmsgid")
    assert found.count(b"\n") == found.count(b"\r\n")
    assert b'#commented "out"\r\n# machine-translated by heedful\r\nmsgid "dog"\r\nmsgstr "DOG"\r\n' in found
    source.write_bytes(PLAIN.format("ISO-8859-1").replace("dog", "é").encode("latin-1"))
    assert 'msgid "é"\nmsgstr "É"\n'.encode("latin-1") in filled(source).read_bytes()
    source.write_bytes(PLAIN.format("ISO-8859-1").replace("dog", "ÿ").encode("latin-1"))
    unicode = filled(source).read_text(encoding="utf-8")  # Ÿ is not in Latin-1
    assert 'msgstr "Ÿ"' in unicode
    assert "charset=UTF-8" in unicode


def test_a_file_without_a_header_gets_one_that_programs_need(tmp_path: Path) -> None:
    source = tmp_path / "a.po"
    source.write_text('msgid "été"\nmsgid_plural "étés"\nmsgstr[0] ""\nmsgstr[1] ""')
    target = filled(source, mark="comment")
    tool("msgfmt", "-o", "/dev/null", target)
    assert polib.pofile(str(target)).metadata["Language"] == "fr"


def test_half_a_plural_is_completed(tmp_path: Path) -> None:
    source = tmp_path / "a.po"
    source.write_text(
        PLAIN.format("UTF-8").replace("#", "# ")
        + '\nmsgid "cat"\nmsgid_plural "cats"\nmsgstr[0] "chat"\nmsgstr[1] ""\n'
    )
    [entry] = [each for each in polib.pofile(str(filled(source))) if each.msgid_plural]
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
def test_malformed_files_are_told_by_line(tmp_path: Path, text: str, problem: str) -> None:
    source = tmp_path / "a.po"
    source.write_text(text)
    with pytest.raises(HeedfulError, match=problem):
        filled(source)
    assert [path.name for path in tmp_path.iterdir()] == ["a.po"]
