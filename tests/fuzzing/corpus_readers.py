"""Readers of recipes, pairs, glossaries, vectors and documents."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import polib

from heedful.commands.documents import DocumentOptions, translate_document
from heedful.commands.options import reading_settings
from heedful.config import merged, parsed_overrides, read_toml
from heedful.corpora.filters import CleaningConfig, CleaningReport, Pair, clean, cleaned_pairs
from heedful.corpora.formats import check_inputs, languages_of, read_pairs, read_texts, write_tsv
from heedful.corpora.locale_folders import Wanted, catalogues
from heedful.corpora.reading import Reading, ReadingConfig, Record
from heedful.corpora.terms import read_glossary
from heedful.corpora.writing import WRITERS, fitting
from heedful.decoding.config import SearchConfig
from heedful.documents.recognition import recognised
from heedful.errors import HeedfulError
from heedful.progress import Reporter
from heedful.text.glossary import with_inline_terms
from heedful.text.trees import encoded_sources
from heedful.text.word_vectors import WordVectors, read_word_vectors, write_word_vectors
from heedful.training.config import RunConfig
from heedful.training.taught import check_links
from tests.fuzzing import examples
from tests.fuzzing.fragments import CATALOGUE, MARKUP, RECIPE, TABLE, VECTORS
from tests.fuzzing.mutations import archive, binary, damaged, lines
from tests.fuzzing.outcomes import Reader
from tests.server.engines import FakeEngine

QUIET = Reporter(quiet=True)
READINGS = (
    ReadingConfig(),
    ReadingConfig(malformed="skip"),
    ReadingConfig(malformed="skip", inline_tags="keep", fuzzy=True),
    ReadingConfig(encoding="cp1252", fuzzy=True),
)


def _read_recipe(folder: Path) -> None:
    RunConfig.checked(read_toml(folder / "recipe.toml"))


def _read_overrides(folder: Path) -> None:
    words = (folder / "overrides").read_bytes().decode("utf-8", "surrogateescape").split("\n")
    told = parsed_overrides([word for word in words if word])
    reading_settings(words[:3])
    RunConfig.checked(merged({"model": {"width": 64}}, told))


def read_corpus(*names: str, trees: bool = False) -> Callable[[Path], None]:
    """The whole way that pairs take before they are learned from, in all manners of reading."""

    def read(folder: Path) -> None:
        paths, problems = [folder / name for name in names], []
        for number, config in enumerate(READINGS):
            languages = (None, ("en", "fr"))[number % 2]
            try:
                check_inputs(paths)
                told = languages_of(paths, config)
                _learnable(read_pairs(paths, Reading(languages or told, config)), folder, trees)
            except HeedfulError as error:
                problems.append(error)
        if len(problems) == len(READINGS):
            raise problems[0]

    return read


def _learnable(records: "object", folder: Path, trees: bool = False) -> None:
    """Clean pairs, write them, and read the same ones again."""
    found: list[Pair] = []
    report = CleaningReport()
    for pair in clean(records, CleaningConfig(), report, trees=trees):  # type: ignore[arg-type]
        found.append(pair)
    report.lines()
    write_tsv(found, folder / "cleaned.tsv")
    assert list(cleaned_pairs(folder / "cleaned.tsv")) == found
    if trees:
        encoded_sources(examples.tokenizer().source, [pair.read for pair in found])


def _read_texts(folder: Path) -> None:
    _learnable(read_texts([folder / "text.txt"]), folder)


def _read_catalogues(folder: Path) -> None:
    for found in catalogues(Wanted("en", "fr"), [folder / "locale"]):
        records = [Record("mo", 1, source, target) for source, target in found.pairs]
        _learnable(records, folder)


def _read_glossary(name: str) -> Callable[[Path], None]:
    def read(folder: Path) -> None:
        glossary = read_glossary(folder / name)
        text = "The dog and the Big Cat cost 50 %."
        with_inline_terms(text, glossary.terms(text)).encode()

    return read


def _read_vectors(folder: Path) -> None:
    vectors = read_word_vectors(folder / "vectors")
    assert vectors.matrix.shape == (len(vectors), vectors.dimension)
    assert np.isfinite(vectors.matrix).all()
    read_word_vectors(folder / "vectors", only={"dog"}, limit=1)


def _read_links(folder: Path) -> None:
    check_links({"taught": {"links": str(folder / "links.tsv")}})


def _fill(name: str) -> Callable[[Path], None]:
    """Fill a document; what is written is one again, with nothing left to do but what was skipped."""

    def read(folder: Path) -> None:
        source, target = folder / name, folder / f"filled-{name}"
        for options in (DocumentOptions(), DocumentOptions("all", "comment", "en-fr")):
            make = recognised(source)
            if make is None:
                raise HeedfulError("no document")
            translate_document(make(source), FakeEngine(), SearchConfig(), target, options, QUIET)
            again = recognised(target)
            assert again is not None
            translate_document(again(target), FakeEngine(), SearchConfig(), folder / "twice", options, QUIET)

    return read


# ---- valid files


def _written(form: str) -> bytes:
    file = io.BytesIO()
    pairs = [(fitting(source, form), fitting(target, form)) for source, target in examples.PAIRS]
    WRITERS[form](pairs, file, ("en", "fr"))
    return file.getvalue()


def _file(name: str, content: bytes, **others: bytes) -> Callable[[Path], None]:
    def prepare(folder: Path) -> None:
        for each, data in {name: content, **others}.items():
            (folder / each).parent.mkdir(parents=True, exist_ok=True)
            (folder / each).write_bytes(data)

    return prepare


def _tsv() -> bytes:
    return "".join(f"{source}\t{target}\n" for source, target in examples.PAIRS).encode()


def _side(number: int) -> bytes:
    return "".join(f"{pair[number]}\n" for pair in examples.PAIRS).encode()


def _mo() -> bytes:
    catalogue = polib.POFile()
    catalogue.metadata = {
        "Content-Type": "text/plain; charset=UTF-8",
        "Language": "fr",
        "Plural-Forms": "nplurals=2; plural=(n > 1);",
    }
    for source, target in examples.PAIRS:
        catalogue.append(polib.POEntry(msgid=source, msgstr=target))
    plural = {0: "un chien", 1: "%d chiens"}
    catalogue.append(polib.POEntry(msgid="a dog", msgid_plural="%d dogs", msgstr_plural=plural))
    found: bytes = catalogue.to_binary()
    return found


PO = (
    b'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n"Language: fr\\n"\n'
    b'"Plural-Forms: nplurals=2; plural=(n > 1);\\n"\n\n'
    b'# a comment\n#: main.c:5\n#, c-format\nmsgid "%d dog"\nmsgid_plural "%d dogs"\n'
    b'msgstr[0] ""\nmsgstr[1] ""\n\n'
    b'#, fuzzy\n#| msgid "Old"\nmsgctxt "menu"\nmsgid "_Open <b>file</b>"\nmsgstr "Ouvrir"\n\n'
    b'msgid ""\n"Long\\n"\n"text\\n"\nmsgstr ""\n\n#~ msgid "gone"\n#~ msgstr "parti"\n'
)
TMX = (
    b'<?xml version="1.0" encoding="UTF-8"?>\n<tmx version="1.4"><header srclang="en" datatype="plaintext"/>'
    b'<body><tu tuid="1"><tuv xml:lang="en"><seg>A <bpt i="1">&lt;b></bpt>dog<ept i="1"/>.</seg></tuv></tu>'
    b'<tu><note>n</note><tuv xml:lang="en"><seg>Cat</seg></tuv><tuv xml:lang="fr"><seg>Chat</seg></tuv></tu>'
    b"</body></tmx>\n"
)
XLIFF_1 = (
    b'<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2"><file source-language="en" '
    b'target-language="fr" original="a" datatype="plaintext"><body><trans-unit id="1"><source>A <g id="1">dog'
    b'</g><x id="2"/></source></trans-unit><trans-unit id="2"><source>Cat. Dog.</source><seg-source>'
    b'<mrk mtype="seg" mid="0">Cat.</mrk> <mrk mtype="seg" mid="1">Dog.</mrk></seg-source>'
    b'<target state="new"><mrk mtype="seg" mid="0">Chat.</mrk> <mrk mtype="seg" mid="1"/></target>'
    b"</trans-unit></body></file></xliff>"
)
XLIFF_2 = (
    b'<xliff version="2.0" xmlns="urn:oasis:names:tc:xliff:document:2.0" srcLang="en" trgLang="fr">'
    b'<file id="f"><unit id="u"><originalData><data id="d">x</data></originalData>'
    b'<segment><source>A <pc id="1">dog</pc><ph id="2" dataRef="d"/><cp hex="0001"/></source></segment>'
    b'<ignorable><source> </source></ignorable><segment state="translated"><source>Cat</source>'
    b"<target>Chat</target></segment></unit></file></xliff>"
)
HEADS = b"The dog sleeps\tLe chien dort\t2 3 0\nShe sleeps\tElle dort\t2 0\n"
LINKS = b"The dog sleeps\t1-0 2-1\nShe sleeps\t0-1\n"
GLOSSARY = b"# terms\nsource\ttarget\tnote\ndog\tchien\tn\nBig Cat\tlion\n50 %\tmoiti\xc3\xa9\n"


def _vectors(form: str) -> bytes:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vectors"
        numbers = np.arange(12, dtype=np.float32).reshape(4, 3) / 7
        write_word_vectors(path, WordVectors(("dog", "cat", "é", "the"), numbers, "v"), form)  # type: ignore[arg-type]
        return path.read_bytes()


def _archive() -> bytes:
    import zipfile

    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as packed:
        for name, data in _MEMBERS:
            packed.writestr(name, data)
    return file.getvalue()


_MEMBERS = [
    ("README", b"who made it"),
    ("X.en-fr.en", _side(0)),
    ("X.en-fr.fr", _side(1)),
    ("more.jsonl", b'{"en": "a", "fr": "b"}\n'),
    ("some.tmx", TMX),
]


def _of_lines(fragments: Sequence[bytes]) -> "Callable[[Sequence[bytes]], object]":
    return lambda seeds: lines(seeds, fragments)


def _corpus(name: str, file: str, content: bytes, fragments: Sequence[bytes], *more: bytes) -> Reader:
    inputs = _of_lines(fragments)
    return Reader(name, file, _file(file, content), read_corpus(file), inputs, more)  # type: ignore[arg-type]


def _simple(name: str, file: str, content: bytes, read: Callable[[Path], None], *more: bytes) -> Reader:
    return Reader(name, file, _file(file, content), read, _of_lines(TABLE), more)  # type: ignore[arg-type]


def _document(name: str, file: str, content: bytes, fragments: Sequence[bytes]) -> Reader:
    return Reader(name, file, _file(file, content), _fill(file), lambda seeds: damaged(seeds, fragments))


def _written_file(form: str) -> bytes:
    return _tsv() if form == "tsv" else _written(form)


CORPORA = [
    Reader(
        "recipe (TOML)",
        "recipe.toml",
        _file("recipe.toml", examples.RECIPE),
        _read_recipe,
        lambda seeds: damaged(seeds, RECIPE),
    ),
    Reader(
        "--set overrides",
        "overrides",
        _file("overrides", examples.OVERRIDES),
        _read_overrides,
        lambda seeds: damaged(seeds, [b"=", b".", b"model.", b"={}", b"=null", *RECIPE]),
    ),
    _corpus("pairs: TSV", "pairs.tsv", _tsv(), TABLE),
    _corpus("pairs: JSONL", "pairs.jsonl", _written("jsonl"), TABLE),
    _corpus("pairs: CSV", "pairs.csv", _written("csv"), TABLE, b'id;source;target\n1;a;b\n2;"c\n;";d\n'),
    _corpus("pairs: by content", "pairs", _tsv(), [*TABLE, *MARKUP, *CATALOGUE], _written("jsonl"), PO, TMX),
    _corpus("pairs: TMX", "pairs.tmx", _written("tmx"), MARKUP, TMX),
    _corpus("pairs: XLIFF 1", "pairs.xlf", _written("xliff"), MARKUP, XLIFF_1),
    _corpus("pairs: XLIFF 2", "pairs.xlf", _written("xliff2"), MARKUP, XLIFF_2),
    _corpus("pairs: PO", "pairs.po", _written("po"), CATALOGUE, PO),
    Reader("pairs: MO", "pairs.mo", _file("pairs.mo", _mo()), read_corpus("pairs.mo"), binary),
    Reader(
        "pairs: two files",
        "b.fr",
        _file("a.en", _side(0), **{"b.fr": _side(1)}),
        read_corpus("a.en", "b.fr"),
        lambda seeds: lines(seeds, TABLE),
    ),
    Reader(
        "pairs: zip",
        "pairs.zip",
        _file("pairs.zip", _archive()),
        read_corpus("pairs.zip"),
        lambda seeds: archive(_MEMBERS),
    ),
    Reader(
        "pairs: tree heads",
        "pairs.tsv",
        _file("pairs.tsv", HEADS),
        read_corpus("pairs.tsv", trees=True),
        lambda seeds: lines(seeds, [*TABLE, b"0", b"1 1", b" 999999"]),
    ),
    Reader(
        "program catalogues (MO)",
        "locale/fr/LC_MESSAGES/a.mo",
        _file("locale/fr/LC_MESSAGES/a.mo", _mo()),
        _read_catalogues,
        binary,
    ),
    _simple("plain text", "text.txt", _side(0), _read_texts),
    _simple("glossary: TSV", "glossary.tsv", GLOSSARY, _read_glossary("glossary.tsv")),
    _simple("glossary: CSV", "terms.csv", GLOSSARY.replace(b"\t", b","), _read_glossary("terms.csv")),
    _simple("links of a taught head", "links.tsv", LINKS, _read_links),
    Reader(
        "word vectors: text",
        "vectors",
        lambda folder: _file("vectors", _vectors("glove"))(folder),
        _read_vectors,
        lambda seeds: lines([*seeds, _vectors("word2vec")], VECTORS),
    ),
    Reader(
        "word vectors: binary",
        "vectors",
        lambda folder: _file("vectors", _vectors("binary"))(folder),
        _read_vectors,
        binary,
    ),
    _document("document: PO", "a.po", PO, CATALOGUE),
    _document("document: TMX", "a.tmx", TMX, MARKUP),
    _document("document: XLIFF 1", "a.xlf", XLIFF_1, MARKUP),
    _document("document: XLIFF 2", "b.xlf", XLIFF_2, MARKUP),
]
