"""``heedful inspect MODEL "sentence" -o page.html`` (or record.safetensors): one pass in one file."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heedful.bundle import Bundle
from heedful.files import check_writable, write_text
from heedful.inspection.asked import Asked
from heedful.inspection.record import record
from heedful.inspection.record_file import save_record
from heedful.page.packing import packed
from heedful.page.place import Place, address
from heedful.page.standalone import standalone
from heedful.progress import Reporter
from heedful.training.devices import chosen_device


@dataclass(frozen=True, slots=True)
class TakenOptions:
    """What is looked at, and where it goes."""

    model: Path
    sentence: str
    output: Path
    target: str | None
    device: str
    place: Mapping[str, Any]
    """Of the page: see ``Place``."""
    to: str = ""
    """The language to translate into, of a model that writes several."""


def taken_command(options: TakenOptions, report: Reporter) -> Iterator[str]:
    """Write the file; yields lines to print."""
    check_writable(options.output)
    bundle = Bundle.load(options.model, chosen_device(options.device)).writing(options.to)
    found = record(bundle, Asked(source=options.sentence, target=options.target))
    name = options.model.resolve().name
    url = address(Place(**options.place), found.manifest)
    yield f"{options.sentence} -> {found.manifest['translation']['text']}"
    yield from found.manifest["notes"]
    if options.output.suffix.lower() == ".safetensors":
        save_record(found, options.output, name=name)
        yield f"{options.output}: {len(found.tensors.entries)} tensors, and the manifest in its metadata"
        return
    report.say("writing the page")
    page = packed(found, url, name=name)
    write_text(options.output, standalone(page, url))
    yield from page.manifest["notes"][len(found.manifest["notes"]) :]
    yield f"{options.output}: open it in a browser; it needs no server and no network"
