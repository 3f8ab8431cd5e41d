"""The page in a notebook: a record, and an object that draws itself wherever _repr_html_ is understood."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from heedful.bundle import Bundle
from heedful.engines.segmented import SegmentedEngine
from heedful.files import write_text
from heedful.inspection.asked import Asked
from heedful.inspection.record import Record
from heedful.inspection.record import record as recorded
from heedful.inspection.record_file import RecordFile, load_record
from heedful.page.packing import packed
from heedful.page.place import Place, address
from heedful.page.standalone import standalone

BUDGET = 2_000_000
"""Characters of tensors and cells: a notebook keeps every cell's output in its file."""
NO_ADDRESS = "about:srcdoc"
"""Where a page in an iframe's srcdoc lives; without it links would lead to the notebook itself."""


class Shown:
    """A page with one record in it."""

    def __init__(self, record: Record | RecordFile, place: Place, height: int) -> None:
        self._record = record
        self._url = address(place, record.manifest)
        self._height = height

    def save(self, path: str | Path) -> None:
        """Write the page to a file that needs nothing else."""
        write_text(Path(path), standalone(packed(self._record, self._url), self._url))

    def _repr_html_(self) -> str:
        small = packed(self._record, self._url, budget=BUDGET)
        page = escape(standalone(small, self._url, base=NO_ADDRESS))
        style = f"width: 100%; height: {self._height}px; border: 1px solid #8886; border-radius: 8px"
        return f'<iframe title="Heedful" srcdoc="{page}" style="{style}"></iframe>'


def record(
    model: SegmentedEngine | Bundle | str | Path,
    sentence: str,
    *,
    target: str | None = None,
    prefix: str = "",
    beam: int | None = None,
    off: Sequence[str] = (),
    language: str = "",
) -> Record:
    """Translate one sentence and keep everything; ``model`` is what ``load`` returns, or a folder.

    ``target`` is a translation to read instead; ``off`` names heads to switch off (cross.1.2, from 0);
    ``language`` is the one to translate into, of a model that writes several.
    """
    asked = Asked.checked(
        {"source": sentence, "target": target, "prefix": prefix, "beam": beam, "off": tuple(off)}
    )
    bundle = Bundle.load(model) if isinstance(model, (str, Path)) else getattr(model, "bundle", model)
    assert isinstance(bundle, Bundle)
    return recorded(bundle.writing(language), asked)


def show(
    record: Record | RecordFile | str | Path,
    *,
    view: str | None = None,
    kind: str | None = None,
    layer: int | None = None,
    head: int | None = None,
    word: str | None = None,
    pieces: bool = False,
    height: int = 820,
) -> Shown:
    """The page of a record (or of a file of one) in a notebook cell; layers and heads count from 1."""
    found = load_record(record) if isinstance(record, (str, Path)) else record
    place = Place(view=view, kind=kind, layer=layer, head=head, word=word, pieces=pieces)
    return Shown(found, place, height)
