"""Many pairs cleaned in pieces, side by side: the result is that of cleaning them one by one.

data/gathering/job.json    what is to be cleaned, and how
data/gathering/00000/ ...  a finished piece: its pairs, their hashes and places, and counts; what is
                           finished is not cleaned again after a kill

Duplicates are found when all pieces are there: of those alike the first in the order of the files stays.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heedful.corpora.duplicates import first_ones
from heedful.corpora.filters import CleaningConfig, CleaningReport, judged, pair_hash
from heedful.corpora.pieces import Piece, identity, pieces_of
from heedful.corpora.reading import Record
from heedful.files import checksum, read_json, sync_folder, write_json
from heedful.progress import Reporter
from heedful.training.corpus import Corpus, lines_of, write_corpus
from heedful.training.crew import Crew
from heedful.training.inputs import Inputs
from heedful.training.preparation_config import PreparationConfig

GATHERING = "gathering"
JOB = "job.json"
REPORT = "report.json"
DUPLICATE = "duplicate"
TOLD_EVERY = 5_000
_AGAIN = "delete the model folder and train anew"

Place = tuple[int, int]
"""Piece and record."""


@dataclass
class PieceReport:
    """What cleaning a piece has found; duplicates are not known yet."""

    counts: CleaningReport = field(default_factory=CleaningReport)
    firsts: dict[str, int] = field(default_factory=dict)
    """The record that was the first to be dropped for a reason."""
    origins: list[tuple[int, str]] = field(default_factory=list)
    """From which kept pair on they are from which file: an archive holds several."""

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"counts": vars(self.counts), "firsts": self.firsts, "origins": self.origins}

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> "PieceReport":
        """What ``to_json`` described."""
        origins = [(number, origin) for number, origin in state["origins"]]
        return cls(CleaningReport(**state["counts"]), state["firsts"], origins)


def is_large(inputs: Inputs, config: PreparationConfig) -> bool:
    """Whether the files are worth being cleaned in pieces; what can be read only once is not."""
    paths = [path for part in inputs.corpus for path in part.paths]
    if config.stream or not all(path.is_file() for path in paths):
        return False
    return sum(path.stat().st_size for path in paths) > config.piece_bytes


def gathered(
    inputs: Inputs, folder: Path, cleaning: CleaningConfig, config: PreparationConfig, report: Reporter
) -> tuple[Corpus, list[CleaningReport]]:
    """The pairs of all parts that are fit to learn from, and what fell out of each part."""
    gathering = folder / GATHERING
    pieces = [
        (number, piece)
        for number, part in enumerate(inputs.corpus)
        for piece in pieces_of(part.paths, config.piece_bytes, plain=inputs.plain)
    ]
    _begin(gathering, inputs, pieces, cleaning)
    orders = [
        {"task": "clean", "number": number}
        for number in range(len(pieces))
        if not _is_finished(gathering, number, pieces[number][1])
    ]
    with report.task("reading", unit=f"{inputs.unit}s") as task:
        Crew(folder, config.processes).run(orders, task)
    found = [PieceReport.from_json(_report(gathering, number)) for number in range(len(pieces))]
    kept = _kept(gathering, found, deduplicate=cleaning.deduplicate)
    owners = [part for part, _ in pieces]
    counts = _merged(gathering, found, kept, owners, inputs)
    lines = _kept_lines(gathering, owners, kept)
    total = sum(count.kept for count in counts)
    corpus = write_corpus(lines, folder, inputs.corpus, total, config.shard_pairs)
    return corpus, counts


def forget_pieces(folder: Path) -> None:
    """Remove what is no longer needed when all is gathered."""
    shutil.rmtree(folder / GATHERING, ignore_errors=True)


def _begin(
    folder: Path, inputs: Inputs, pieces: Sequence[tuple[int, Piece]], cleaning: CleaningConfig
) -> None:
    """Write down what there is to do; if it was something else before, that is forgotten."""
    job = {
        "inputs": inputs.to_json(),
        "cleaning": cleaning.model_dump(),
        "pieces": [{"part": part, **piece.to_json()} for part, piece in pieces],
    }
    if (folder / JOB).is_file() and read_json(folder / JOB, _AGAIN) != json.loads(
        json.dumps(job)
    ):  # no tuples
        shutil.rmtree(folder)
    folder.mkdir(exist_ok=True)
    for left in folder.glob("*.partial"):  # by a worker that was ended
        shutil.rmtree(left)
    write_json(folder / JOB, job)


def clean_piece(folder: Path, number: int, advance: Callable[[int], None]) -> None:
    """Clean one piece of the job in a folder: by a worker."""
    gathering = folder / GATHERING
    job = read_json(gathering / JOB, _AGAIN)
    piece = Piece.from_json(job["pieces"][number])
    inputs, part = Inputs.from_json(job["inputs"]), job["pieces"][number]["part"]
    before = identity(piece.paths)
    aside = Path(tempfile.mkdtemp(prefix=f"{number:05}.", suffix=".partial", dir=gathering))
    records = inputs.records(inputs.corpus[part], piece)
    cleaning, tags = CleaningConfig.checked(job["cleaning"]), inputs.corpus[part].tags
    found = _write_piece(records, aside, cleaning, tags, trees=inputs.trees, advance=advance)
    sums = {name: checksum(aside / name) for name in ("pairs.tsv", "hashes", "places")}
    write_json(aside / REPORT, found.to_json() | {"identity": before, "blake2b": sums})
    sync_folder(aside)
    final = gathering / f"{number:05}"
    shutil.rmtree(final, ignore_errors=True)  # by a worker that was ended before it could say so
    aside.rename(final)


def _write_piece(
    records: Iterator[Record],
    folder: Path,
    cleaning: CleaningConfig,
    tags: Sequence[str],
    *,
    trees: bool,
    advance: Callable[[int], None],
) -> PieceReport:
    found = PieceReport()
    counts, hashes, places = found.counts, list[int](), list[Place]()
    with (
        (folder / "pairs.tsv").open("wb", buffering=1 << 18) as text,
        (folder / "hashes").open("wb") as hash_file,
        (folder / "places").open("wb") as place_file,
    ):

        def flush() -> None:
            hash_file.write(np.array(hashes, dtype="<u8").tobytes())
            place_file.write(np.array(places, dtype="<i8").tobytes())
            hashes.clear()
            places.clear()

        for number, record in enumerate(records):
            counts.took(record)
            pair, reason = judged(record, cleaning, trees=trees, tags=tags)
            if reason:
                found.firsts.setdefault(reason, number)
                counts.drop(reason, record)
            else:
                if not found.origins or found.origins[-1][1] != record.origin:
                    found.origins.append((counts.kept, record.origin))
                counts.kept += 1
                hashes.append(pair_hash(pair) or 1)
                places.append((number, record.line))
                text.write(("\t".join(filter(None, pair)) + "\n").encode())
            if counts.read % TOLD_EVERY == 0:
                flush()
                advance(TOLD_EVERY)
        flush()
        advance(counts.read % TOLD_EVERY)
        for file in (text, hash_file, place_file):
            file.flush()
            os.fsync(file.fileno())
    return found


def _report(folder: Path, number: int) -> dict[str, Any]:
    return read_json(folder / f"{number:05}" / REPORT, _AGAIN)


def _is_finished(folder: Path, number: int, piece: Piece) -> bool:
    """Whether a piece is there, of files that are still the same, and undamaged."""
    own = folder / f"{number:05}"
    if not own.is_dir():
        return False
    state = _report(folder, number)
    whole = all(checksum(own / name) == value for name, value in state["blake2b"].items())
    if whole and state["identity"] == identity(piece.paths):
        return True
    shutil.rmtree(own)
    return False


def _kept(folder: Path, found: Sequence[PieceReport], *, deduplicate: bool) -> list[NDArray[np.bool_]]:
    """Which pairs of each piece are no duplicates."""
    if not deduplicate:
        return [np.ones(each.counts.kept, dtype=np.bool_) for each in found]
    return first_ones([_array(folder / f"{number:05}" / "hashes", "<u8") for number in range(len(found))])


def _array(path: Path, kind: str) -> NDArray[Any]:
    if not path.stat().st_size:  # the system refuses to map nothing
        return np.empty(0, kind)
    return np.memmap(path, dtype=kind, mode="r").view(np.ndarray)


def _merged(
    folder: Path,
    found: Sequence[PieceReport],
    kept: Sequence[NDArray[np.bool_]],
    owners: Sequence[int],
    inputs: Inputs,
) -> list[CleaningReport]:
    """One report for each part, as if its records had been cleaned one by one."""
    counts = [CleaningReport(unit=inputs.unit) for _ in inputs.corpus]
    firsts: list[dict[str, Place]] = [{} for _ in inputs.corpus]
    for number, (owner, each, mask) in enumerate(zip(owners, found, kept, strict=True)):
        own = each.counts
        again = np.flatnonzero(~mask)
        if len(again):
            places = _array(folder / f"{number:05}" / "places", "<i8").reshape(-1, 2)
            own.dropped[DUPLICATE] = len(again)
            own.kept -= len(again)
            each.firsts[DUPLICATE] = int(places[again[0], 0])
            own.examples[DUPLICATE] = [
                f"{_origin(each, index)}:{places[index, 1]}" for index in again[:3].tolist()
            ]
        counts[owner].add(own)
        for reason, record in each.firsts.items():
            firsts[owner].setdefault(reason, (number, record))
    for count, order in zip(counts, firsts, strict=True):
        count.dropped = {reason: count.dropped[reason] for reason in sorted(order, key=order.__getitem__)}
    return counts


def _origin(report: PieceReport, index: int) -> str:
    return [origin for start, origin in report.origins if start <= index][-1]


def _kept_lines(
    folder: Path, owners: Sequence[int], kept: Sequence[NDArray[np.bool_]]
) -> Iterator[tuple[int, Sequence[bytes]]]:
    """The lines of all pieces, without those of duplicates."""
    for number, (owner, mask) in enumerate(zip(owners, kept, strict=True)):
        start = 0
        for _, some in lines_of(folder / f"{number:05}" / "pairs.tsv", [len(mask)]):
            chosen = mask[start : start + len(some)]
            start += len(some)
            if not chosen.all():
                some = [line for line, stays in zip(some, chosen.tolist(), strict=True) if stays]
            yield owner, some
