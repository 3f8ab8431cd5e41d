"""Readers of recipes, pairs, glossaries, vectors and documents."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import polib

from heedful.config import merge_settings, parse_overrides, read_toml
from heedful.data.cleaning import CleaningReport, clean_pairs, read_cleaned_pairs
from heedful.data.config import CleaningConfig, ReadingConfig, parse_reading_settings
from heedful.data.formats.base import PairRecord, ReadOptions
from heedful.data.formats.gettext import CatalogSelection, read_package_catalogs
from heedful.data.formats.writers import WRITERS, remove_unsupported_characters
from heedful.data.glossary import insert_inline_terms, read_glossary
from heedful.data.reader import check_inputs, detect_languages, read_pairs, read_plain_text, write_tsv
from heedful.data.word_vectors import WordVectors, read_word_vectors
from heedful.documents.translate import DocumentOptions, fill_document, open_document
from heedful.errors import HeedfulError
from heedful.generation.config import GenerationConfig
from heedful.inference.bulk import LineOptions
from heedful.progress import Reporter
from heedful.tokenization.dependency_trees import encode_sources
from heedful.training.config import RunConfig
from heedful.training.guided_attention import check_alignments
from tests.data.word_vector_files import write_word_vectors
from tests.documents.uppercase_translator import UppercaseTranslator
from tests.fuzzing import valid_files
from tests.fuzzing.fragments import CATALOG, MARKUP, RECIPE, TABLE, VECTORS
from tests.fuzzing.mutations import binary_files, corrupt_files, text_files, zip_files
from tests.fuzzing.outcomes import Reader

QUIET = Reporter(quiet=True)
READINGS = (
    ReadingConfig(),
    ReadingConfig(malformed="skip"),
    ReadingConfig(malformed="skip", inline_tags="keep", include_fuzzy=True),
    ReadingConfig(encoding="cp1252", include_fuzzy=True),
)


def _read_recipe(folder: Path) -> None:
    RunConfig.from_settings(read_toml(folder / "recipe.toml"))


def _read_overrides(folder: Path) -> None:
    overrides_text = (folder / "overrides").read_bytes().decode("utf-8", "surrogateescape").split("\n")
    settings = parse_overrides([line for line in overrides_text if line])
    parse_reading_settings(overrides_text[:3])
    RunConfig.from_settings(merge_settings({"model": {"d_model": 64}}, settings))


def read_corpus(*names: str, trees: bool = False) -> Callable[[Path], None]:
    """Read, clean and store pairs, as training does, with every reading config."""

    def read(folder: Path) -> None:
        paths, problems = [folder / name for name in names], []
        for number, config in enumerate(READINGS):
            languages = (None, ("en", "fr"))[number % 2]
            try:
                check_inputs(paths)
                languages = languages or detect_languages(paths, config)
                _clean_and_store(read_pairs(paths, ReadOptions(languages, config)), folder, trees)
            except HeedfulError as error:
                problems.append(error)
        if len(problems) == len(READINGS):
            raise problems[0]

    return read


def _clean_and_store(records: "object", folder: Path, trees: bool = False) -> None:
    """Clean pairs, write them, and read the same ones again."""
    report = CleaningReport()
    pairs = list(clean_pairs(records, CleaningConfig(), report, trees=trees))  # type: ignore[arg-type]
    report.summary_lines()
    write_tsv(pairs, folder / "cleaned.tsv")
    assert list(read_cleaned_pairs(folder / "cleaned.tsv")) == pairs
    if trees:
        encode_sources(valid_files.tokenizer().source, [pair.source_with_heads for pair in pairs])


def _read_texts(folder: Path) -> None:
    _clean_and_store(read_plain_text([folder / "text.txt"]), folder)


def _read_catalogs(folder: Path) -> None:
    for catalog in read_package_catalogs(CatalogSelection("en", "fr"), [folder / "locale"]):
        records = [PairRecord("mo", 1, source, target) for source, target in catalog.pairs]
        _clean_and_store(records, folder)


def _read_glossary(name: str) -> Callable[[Path], None]:
    def read(folder: Path) -> None:
        glossary = read_glossary(folder / name)
        text = "The dog and the Big Cat cost 50 %."
        insert_inline_terms(text, glossary.find_terms(text)).encode()

    return read


def _read_vectors(folder: Path) -> None:
    vectors = read_word_vectors(folder / "vectors")
    assert vectors.matrix.shape == (len(vectors), vectors.dimension)
    assert np.isfinite(vectors.matrix).all()
    read_word_vectors(folder / "vectors", only={"dog"})


def _read_links(folder: Path) -> None:
    check_alignments({"guided_attention": {"alignments": str(folder / "links.tsv")}})


def _translate_document(name: str) -> Callable[[Path], None]:
    """Translate a document, and translate the result again."""

    def read(folder: Path) -> None:
        source, target = folder / name, folder / f"filled-{name}"
        everything = DocumentOptions(retranslate="all", mark="comment", languages="en-fr")
        for options in (DocumentOptions(), everything):
            for original, filled in ((source, target), (target, folder / "twice")):
                line_options = LineOptions(GenerationConfig())
                fill_document(open_document(original), UppercaseTranslator(), line_options, filled, options, QUIET)

    return read


# ---- valid files


def _format_pairs(form: str) -> bytes:
    file = io.BytesIO()
    pairs = [
        (remove_unsupported_characters(source, form), remove_unsupported_characters(target, form))
        for source, target in valid_files.PAIRS
    ]
    WRITERS[form](pairs, file, ("en", "fr"))
    return file.getvalue()


def _file_writer(name: str, content: bytes, **others: bytes) -> Callable[[Path], None]:
    def prepare(folder: Path) -> None:
        for file_name, data in {name: content, **others}.items():
            (folder / file_name).parent.mkdir(parents=True, exist_ok=True)
            (folder / file_name).write_bytes(data)

    return prepare


def _tsv() -> bytes:
    return "".join(f"{source}\t{target}\n" for source, target in valid_files.PAIRS).encode()


def _side(number: int) -> bytes:
    return "".join(f"{pair[number]}\n" for pair in valid_files.PAIRS).encode()


def _mo() -> bytes:
    catalog = polib.POFile()
    catalog.metadata = {
        "Content-Type": "text/plain; charset=UTF-8",
        "Language": "fr",
        "Plural-Forms": "nplurals=2; plural=(n > 1);",
    }
    for source, target in valid_files.PAIRS:
        catalog.append(polib.POEntry(msgid=source, msgstr=target))
    plural = {0: "un chien", 1: "%d chiens"}
    catalog.append(polib.POEntry(msgid="a dog", msgid_plural="%d dogs", msgstr_plural=plural))
    data: bytes = catalog.to_binary()
    return data


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
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in _MEMBERS:
            archive.writestr(name, data)
    return file.getvalue()


_MEMBERS = [
    ("README", b"about the corpus"),
    ("X.en-fr.en", _side(0)),
    ("X.en-fr.fr", _side(1)),
    ("more.jsonl", b'{"en": "a", "fr": "b"}\n'),
    ("some.tmx", TMX),
]


def _line_inputs(fragments: Sequence[bytes]) -> "Callable[[Sequence[bytes]], object]":
    return lambda seeds: text_files(seeds, fragments)


def _corpus(name: str, file: str, content: bytes, fragments: Sequence[bytes], *more: bytes) -> Reader:
    inputs = _line_inputs(fragments)
    return Reader(name, file, _file_writer(file, content), read_corpus(file), inputs, more)  # type: ignore[arg-type]


def _simple(name: str, file: str, content: bytes, read: Callable[[Path], None], *more: bytes) -> Reader:
    return Reader(name, file, _file_writer(file, content), read, _line_inputs(TABLE), more)  # type: ignore[arg-type]


def _document(name: str, file: str, content: bytes, fragments: Sequence[bytes]) -> Reader:
    return Reader(
        name,
        file,
        _file_writer(file, content),
        _translate_document(file),
        lambda seeds: corrupt_files(seeds, fragments),
    )


def _format_file(form: str) -> bytes:
    return _tsv() if form == "tsv" else _format_pairs(form)


CORPORA = [
    Reader(
        "recipe (TOML)",
        "recipe.toml",
        _file_writer("recipe.toml", valid_files.RECIPE),
        _read_recipe,
        lambda seeds: corrupt_files(seeds, RECIPE),
    ),
    Reader(
        "--set overrides",
        "overrides",
        _file_writer("overrides", valid_files.OVERRIDES),
        _read_overrides,
        lambda seeds: corrupt_files(seeds, [b"=", b".", b"model.", b"={}", b"=null", *RECIPE]),
    ),
    _corpus("pairs: TSV", "pairs.tsv", _tsv(), TABLE),
    _corpus("pairs: JSONL", "pairs.jsonl", _format_pairs("jsonl"), TABLE),
    _corpus("pairs: CSV", "pairs.csv", _format_pairs("csv"), TABLE, b'id;source;target\n1;a;b\n2;"c\n;";d\n'),
    _corpus("pairs: by content", "pairs", _tsv(), [*TABLE, *MARKUP, *CATALOG], _format_pairs("jsonl"), PO, TMX),
    _corpus("pairs: TMX", "pairs.tmx", _format_pairs("tmx"), MARKUP, TMX),
    _corpus("pairs: XLIFF 1", "pairs.xlf", _format_pairs("xliff"), MARKUP, XLIFF_1),
    _corpus("pairs: XLIFF 2", "pairs.xlf", _format_pairs("xliff2"), MARKUP, XLIFF_2),
    _corpus("pairs: PO", "pairs.po", _format_pairs("po"), CATALOG, PO),
    Reader("pairs: MO", "pairs.mo", _file_writer("pairs.mo", _mo()), read_corpus("pairs.mo"), binary_files),
    Reader(
        "pairs: two files",
        "b.fr",
        _file_writer("a.en", _side(0), **{"b.fr": _side(1)}),
        read_corpus("a.en", "b.fr"),
        lambda seeds: text_files(seeds, TABLE),
    ),
    Reader(
        "pairs: zip",
        "pairs.zip",
        _file_writer("pairs.zip", _archive()),
        read_corpus("pairs.zip"),
        lambda seeds: zip_files(_MEMBERS),
    ),
    Reader(
        "pairs: tree heads",
        "pairs.tsv",
        _file_writer("pairs.tsv", HEADS),
        read_corpus("pairs.tsv", trees=True),
        lambda seeds: text_files(seeds, [*TABLE, b"0", b"1 1", b" 999999"]),
    ),
    Reader(
        "program catalogs (MO)",
        "locale/fr/LC_MESSAGES/a.mo",
        _file_writer("locale/fr/LC_MESSAGES/a.mo", _mo()),
        _read_catalogs,
        binary_files,
    ),
    _simple("plain text", "text.txt", _side(0), _read_texts),
    _simple("glossary: TSV", "glossary.tsv", GLOSSARY, _read_glossary("glossary.tsv")),
    _simple("glossary: CSV", "terms.csv", GLOSSARY.replace(b"\t", b","), _read_glossary("terms.csv")),
    _simple("alignments of a guided head", "links.tsv", LINKS, _read_links),
    Reader(
        "word vectors: text",
        "vectors",
        lambda folder: _file_writer("vectors", _vectors("glove"))(folder),
        _read_vectors,
        lambda seeds: text_files([*seeds, _vectors("word2vec")], VECTORS),
    ),
    Reader(
        "word vectors: binary",
        "vectors",
        lambda folder: _file_writer("vectors", _vectors("binary"))(folder),
        _read_vectors,
        binary_files,
    ),
    _document("document: PO", "a.po", PO, CATALOG),
    _document("document: TMX", "a.tmx", TMX, MARKUP),
    _document("document: XLIFF 1", "a.xlf", XLIFF_1, MARKUP),
    _document("document: XLIFF 2", "b.xlf", XLIFF_2, MARKUP),
]
