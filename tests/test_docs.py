"""The documents agree with the code: settings, public names, and the commands of the README."""

import re
import shlex
from pathlib import Path

import pytest

import heedful
from heedful.config import Config
from heedful.presets import PRESETS
from heedful.server.config import ServerConfig
from heedful.training.config import RunConfig
from tests.conftest import run_heedful

ROOT = Path(__file__).parent.parent
MARK = "<!-- generated -->\n\n"
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def settings_table() -> str:
    """Every setting with its default and meaning, from the config classes themselves."""
    lines = []
    for section, field in RunConfig.model_fields.items():
        kind = field.annotation
        if not (isinstance(kind, type) and issubclass(kind, Config)):
            continue
        lines += [f"## {section}", "", f"{field.description}", "", *_rows(section, kind), ""]
    return "\n".join(lines)


def server_table() -> str:
    """Every setting of the server."""
    return "\n".join([*_rows("server", ServerConfig), ""])


def _rows(section: str, kind: type[Config]) -> list[str]:
    rows = ["| setting | default | meaning |", "|---|---|---|"]
    for name, each in kind.model_fields.items():
        meaning = (each.description or "").replace("\n", " ")
        rows.append(f"| `{section}.{name}` | `{each.default}` | {meaning} |")
    return rows


GENERATED = {"settings.md": settings_table, "server.md": server_table}


@pytest.mark.parametrize("page", GENERATED)
def test_every_setting_is_documented(page: str) -> None:
    """To renew the pages: python -m tests.test_docs"""
    assert GENERATED[page]() == _halves(page)[1]


@pytest.mark.parametrize("page", GENERATED)
def test_every_setting_has_a_meaning(page: str) -> None:
    assert not re.search(r"\| +\|", GENERATED[page]())


def _halves(page: str) -> tuple[str, str]:
    """What is written by hand, and what is generated."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    head, _, generated = text.partition(MARK)
    return head, generated


def test_public_names() -> None:
    assert heedful.__all__ == ["HeedfulError", "StoppedError", "load", "record", "resume", "show", "train"]
    for name in heedful.__all__:
        assert getattr(heedful, name)


def test_links_lead_somewhere() -> None:
    for document in DOCUMENTS:
        for link in re.findall(r"\]\(([^)#]+)\)", document.read_text(encoding="utf-8")):
            assert "://" in link or (document.parent / link).exists(), f"{document.name}: {link}"


def test_paper_map_names_real_code() -> None:
    rows = re.findall(
        r"^\|[^|]*\|[^|]*\|([^|]*)\|([^|]*)\|$", (ROOT / "docs/paper.md").read_text(), re.MULTILINE
    )
    assert len(rows) > 20
    for files, names in rows[2:]:
        text = "".join(
            (ROOT / "src/heedful" / file).read_text() for file in re.findall(r"`([\w/]+\.py)`", files)
        )
        for name in re.findall(r"`([\w.]+)`", names):
            assert re.search(rf"\b{name.split('.')[-1]}\b", text), name


def test_documented_commands_are_understood() -> None:
    """Every `heedful ...` line of the documents names a verb and options that exist."""
    commands = [
        shlex.split(line.split("  #")[0])
        for document in DOCUMENTS
        for block in re.findall(r"```sh\n(.*?)```", document.read_text(encoding="utf-8"), re.DOTALL)
        for line in block.splitlines()
        if line.startswith("heedful ")
    ]
    assert len(commands) > 10
    helps: dict[tuple[str, ...], str] = {}
    for words in commands:
        verb = tuple(words[1:3]) if words[1] == "corpus" else (words[1],)
        if verb not in helps:
            done = run_heedful(*verb, "--help")
            assert done.status == 0, verb
            helps[verb] = done.out
        for option in words:
            if option.startswith("-") and option != "-":
                assert re.search(rf"(^|[\s,]){option}\b", helps[verb]), f"{option} in {' '.join(words)}"


def test_presets_are_documented() -> None:
    text = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    for name in ("auto", *PRESETS):
        assert f"`{name}`" in text


if __name__ == "__main__":
    for page, table in GENERATED.items():
        (ROOT / "docs" / page).write_text(f"{_halves(page)[0]}{MARK}{table()}", encoding="utf-8")
