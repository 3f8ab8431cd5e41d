"""How a student compares with its teacher: BLEU on real pairs, and speed, measured in the same run."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter

from heedful.comparing import bleu_and_speed
from heedful.corpora.filters import Pair
from heedful.decoding.config import SearchConfig
from heedful.engines.ensemble import EnsembleEngine
from heedful.engines.segmented import SegmentedEngine
from heedful.errors import HeedfulError
from heedful.files import write_json, write_text
from heedful.progress import Reporter

MOST = 1000
"""Held-out pairs that are translated to compare."""
TIMED, ROUNDS = 200, 3
"""Pairs that are translated again to measure speed, and how often; the quickest time counts."""
HEADING = "## Distilled"


@dataclass(frozen=True, slots=True)
class Row:
    """One model, translating in one way."""

    name: str
    beam: int
    bleu: float
    sentences_per_second: float
    parameters: int
    engine: str
    pairs: int


_ROWS = TypeAdapter(list[Row])


def kept_rows(work: Path) -> list[Row] | None:
    """What was measured before, if it was."""
    path = work / "report.json"
    if not path.is_file():
        return None
    try:
        return _ROWS.validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise HeedfulError(f"{path} is damaged: {error}", hint="remove it to measure again") from None


def examined(
    folder: Path,
    teacher: SegmentedEngine,
    search: SearchConfig,
    pairs: Sequence[Pair],
    load_student: Callable[[], SegmentedEngine],
    report: Reporter,
) -> list[Row]:
    """Translate the held-out pairs with both, and write the result into the student's folder and card."""
    report.say("comparing teacher and student")
    student, greedy = load_student(), search.model_copy(update={"beam": 1})
    ways = [("teacher", teacher, search), ("student", student, search)]
    if search.beam > 1:
        ways.append(("student", student, greedy))
    rows = [_row(name, engine, pairs[:MOST], way) for name, engine, way in ways]
    for _ in range(ROUNDS):  # in turns: a machine that is busy for a while is so for all
        again = [bleu_and_speed(engine, pairs[:TIMED], way)[1] for _, engine, way in ways]
        rows = [
            replace(row, sentences_per_second=max(row.sentences_per_second, speed))
            for row, speed in zip(rows, again, strict=True)
        ]
    card = folder / "README.md"
    text = card.read_text(encoding="utf-8").split(f"\n{HEADING}\n")[0]
    write_text(card, f"{text}\n{HEADING}\n\n{_explained(rows)}\n")
    write_json(folder / "distillation" / "report.json", [asdict(row) for row in rows])
    return rows


def _row(name: str, engine: SegmentedEngine, pairs: Sequence[Pair], search: SearchConfig) -> Row:
    bleu, speed = bleu_and_speed(engine, pairs, search)
    models = engine.models if isinstance(engine, EnsembleEngine) else (engine.bundle.model,)
    size = sum(model.parameter_count() for model in models)
    return Row(name, search.beam, bleu, speed, size, engine.name, len(pairs))


def described(rows: Sequence[Row]) -> Iterator[str]:
    """A line for each, and how much quicker the student is."""
    yield f"on {rows[0].pairs:,} held-out real pairs:"
    for row in rows:
        speed = f"{row.sentences_per_second:8.1f} sentences/s"
        size = f"{row.parameters:,} parameters"
        yield f"{row.name}  beam {row.beam}  BLEU {row.bleu:5.2f}  {speed}  {size}  {row.engine}"
    for row in rows[1:]:
        ratio = row.sentences_per_second / rows[0].sentences_per_second
        yield f"with a beam of {row.beam} the student is {ratio:.1f} times as quick as its teacher"


def _explained(rows: Sequence[Row]) -> str:
    table = "\n".join(f"- {line}" for line in described(rows))
    return (
        "It learned from translations of a teacher, by `heedful distill`; scores, above and here, are on "
        f"real pairs. Speeds are of one run on one machine.\n\n{table}"
    )
