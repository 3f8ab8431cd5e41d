"""Cleaning: which pairs are fit to learn from, and a report of those that are not.

Cleaned sentences hold no tab and no line break, so they can be stored one a line. Zero-width
joiners, combining marks and direction marks are part of the text and stay.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, Self

from pydantic import Field

from heedful.config import Config
from heedful.corpora.formats import read_tsv
from heedful.corpora.hashes import SeenHashes, sentence_hash
from heedful.corpora.reading import Record
from heedful.errors import HeedfulError
from heedful.progress import counted
from heedful.text.tags import NONCHARACTERS, tagged
from heedful.text.trees import heads_fault, with_heads

# A byte-order mark inside a file: files were joined end to end. Noncharacters make tags, and are no text.
_REMOVED = re.compile(f"[\0\ufeff{NONCHARACTERS}]")
_SPACES = re.compile(" {2,}")
_LINE_BREAKS = re.compile("[\t\n\x0b\x0c\r\x1c-\x1e\x85\u2028\u2029]+")
_SHORTEST_JUDGED = 20
"""Characters of the longer side from which a length ratio says anything: "Ja." for "Of course."."""
_EXAMPLES = 3


class Pair(NamedTuple):
    """A sentence and its translation."""

    source: str
    target: str
    heads: str = ""
    """Of the words of the source, if a model is to read trees."""

    @property
    def read(self) -> str:
        """The source as a model reads it: with its heads, if there are any."""
        return with_heads(self.source, self.heads)


class CleaningConfig(Config):
    """What is dropped and what is changed before training."""

    max_characters: int = Field(default=1000, ge=0)
    """Longest sentence kept, in characters of either side; 0 keeps any."""
    max_ratio: float = Field(default=6.0, ge=0)
    """Longer side over shorter side in characters, judged from 20 characters on; 0 keeps any."""
    deduplicate: bool = True
    """Keep only the first of pairs that are exactly alike."""
    normalize: Literal["none", "nfc"] = "nfc"
    """Unicode form: nfc spells an accented letter one way only; none leaves text as it is."""


@dataclass
class CleaningReport:
    """How many pairs were read, kept, and dropped for which reason, with the first places."""

    read: int = 0
    kept: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)
    unit: str = "pair"
    """What they are: lines, of plain text."""
    notes: dict[str, int] = field(default_factory=dict)
    """What a reader had to choose, and how often."""

    def took(self, record: Record) -> None:
        """Count a record that is looked at."""
        self.read += 1
        if record.note:
            self.notes[record.note] = self.notes.get(record.note, 0) + 1
            self._remember(record.note, record)

    def drop(self, reason: str, record: Record) -> None:
        """Count a record that is not kept."""
        self.dropped[reason] = self.dropped.get(reason, 0) + 1
        self._remember(reason, record)

    def _remember(self, reason: str, record: Record) -> None:
        places = self.examples.setdefault(reason, [])
        if len(places) < _EXAMPLES:
            places.append(f"{record.origin}:{record.line}")

    def add(self, later: Self) -> None:
        """Count what another report has found behind this one."""
        self.read += later.read
        self.kept += later.kept
        for own, others in ((self.dropped, later.dropped), (self.notes, later.notes)):
            for reason, count in others.items():
                own[reason] = own.get(reason, 0) + count
        for reason, places in later.examples.items():
            own_places = self.examples.setdefault(reason, [])
            own_places += places[: _EXAMPLES - len(own_places)]

    def lines(self) -> list[str]:
        """The report for a person, the commonest reason first."""
        counts = sorted(self.dropped.items(), key=lambda item: -item[1])
        return [f"read {counted(self.read, self.unit)}, kept {self.kept:,}"] + [
            f"{word} {count:,}: {reason} (first: {', '.join(self.examples[reason])})"
            for word, entries in (("dropped", counts), ("noted", self.notes.items()))
            for reason, count in entries
        ]


def clean(
    records: Iterable[Record],
    config: CleaningConfig,
    report: CleaningReport,
    *,
    trees: bool = False,
    tags: Sequence[str] = (),
    seen: SeenHashes | None = None,
) -> Iterator[Pair]:
    """The pairs worth keeping, their sources tagged; ``report`` fills up as they are taken.

    Heads are read only for ``trees``. ``seen`` are the pairs of other parts: with the same tags before them,
    they do not come again.
    """
    seen = SeenHashes() if seen is None else seen
    for record in records:
        report.took(record)
        pair, reason = judged(record, config, trees=trees, tags=tags)
        if not reason and config.deduplicate and not seen.add(pair_hash(pair)):
            reason = "duplicate"
        if reason:
            report.drop(reason, record)
        else:
            report.kept += 1
            yield pair


def judged(
    record: Record, config: CleaningConfig, *, trees: bool = False, tags: Sequence[str] = ()
) -> tuple[Pair, str]:
    """The pair as it would be kept, and why it cannot be, if it cannot; whether it is a duplicate aside."""
    if record.source is None or record.target is None:
        return Pair("", ""), record.fault or "unreadable"
    pair = Pair(
        clean_sentence(record.source, config.normalize),
        clean_sentence(record.target, config.normalize),
        " ".join(record.heads.split()) if trees else "",
    )
    reason = objection(pair, config) or (heads_fault(pair.source, pair.heads) if trees else "")
    return pair._replace(source=tagged(pair.source, *tags)), reason


def pair_hash(pair: Pair) -> int:
    """What pairs that are exactly alike have in common."""
    return sentence_hash("\0".join(pair))


def cleaned_pairs(path: Path) -> Iterator[Pair]:
    """The pairs of a TSV file that was written from cleaned ones."""
    for record in read_tsv(path):
        if record.source is None or record.target is None:
            raise HeedfulError(f"{path}:{record.line} is damaged: {record.fault}", hint="train anew")
        yield Pair(record.source, record.target, record.heads)


def clean_sentence(text: str, normalize: Literal["none", "nfc"] = "nfc") -> str:
    r"""One line of text, without space around it or twice in a row.

    >>> clean_sentence(" cafe\u0301\r\nau\tlait ")
    'café au lait'
    """
    text = _LINE_BREAKS.sub(" ", _REMOVED.sub("", text))
    if normalize == "nfc":
        text = unicodedata.normalize("NFC", text)
    return _SPACES.sub(" ", text).strip()


def spaced_words(text: str, normalize: Literal["none", "nfc"] = "nfc") -> list[str]:
    r"""What stands between spaces in a cleaned sentence; a no-break space is no space.

    >>> spaced_words(" Est-ce vrai\u00a0?  oui ")
    ['Est-ce', 'vrai\xa0?', 'oui']
    """
    return [word for word in clean_sentence(text, normalize).split(" ") if word]


def objection(pair: Pair, config: CleaningConfig) -> str:
    """Why the pair is unfit; empty if it is not."""
    shorter, longer = sorted((len(pair.source), len(pair.target)))
    if not shorter:
        return "empty side"
    if config.max_characters and longer > config.max_characters:
        return "too long"
    if config.max_ratio and longer >= _SHORTEST_JUDGED and longer > config.max_ratio * shorter:
        return "length ratio"
    return ""
