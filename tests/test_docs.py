"""The documentation matches the code: settings, public names, commands, links."""

import re
import shlex
from pathlib import Path

import pytest

import heedful
from heedful.config import Config
from heedful.server.config import ServerConfig
from heedful.training.config import PRESETS, RunConfig
from tests.conftest import run_heedful

ROOT = Path(__file__).parent.parent
MARK = "<!-- generated -->\n\n"
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def settings_table() -> str:
    """Every setting of a run with its default and description, from the config classes."""
    lines = []
    for section, field in RunConfig.model_fields.items():
        config_class = field.annotation
        if isinstance(config_class, type) and issubclass(config_class, Config):
            lines += [f"## {section}", "", f"{field.description}", "", *_table_rows(section, config_class), ""]
    return "\n".join(lines)


def server_table() -> str:
    """Every setting of the server."""
    return "\n".join([*_table_rows("server", ServerConfig), ""])


def _table_rows(section: str, config_class: type[Config]) -> list[str]:
    rows = ["| setting | default | meaning |", "|---|---|---|"]
    for name, field in config_class.model_fields.items():
        description = (field.description or "").replace("\n", " ")
        rows.append(f"| `{section}.{name}` | `{field.default}` | {description} |")
    return rows


GENERATED = {"settings.md": settings_table, "server.md": server_table}


@pytest.mark.parametrize("document", GENERATED)
def test_settings_table_matches_config_classes(document: str) -> None:
    """To update the tables: python -m tests.test_docs"""
    assert GENERATED[document]() == _split_document(document)[1]


@pytest.mark.parametrize("document", GENERATED)
def test_settings_table_has_no_empty_description(document: str) -> None:
    assert not re.search(r"\| +\|", GENERATED[document]())


def _split_document(document: str) -> tuple[str, str]:
    """The hand-written and the generated part."""
    text = (ROOT / "docs" / document).read_text(encoding="utf-8")
    handwritten, _, generated = text.partition(MARK)
    return handwritten, generated


def test_public_names_are_importable() -> None:
    assert heedful.__all__ == [
        "HeedfulError",
        "StoppedError",
        "__version__",
        "load",
        "resume",
        "show",
        "trace",
        "train",
    ]
    for name in heedful.__all__:
        assert getattr(heedful, name)


def test_links_point_to_existing_files() -> None:
    for document in DOCUMENTS:
        for link in re.findall(r"\]\(([^)#]+)\)", document.read_text(encoding="utf-8")):
            assert "://" in link or (document.parent / link).exists(), f"{document.name}: {link}"


def test_paper_map_names_existing_code() -> None:
    rows = re.findall(r"^\|[^|]*\|[^|]*\|([^|]*)\|([^|]*)\|$", (ROOT / "docs/paper.md").read_text(), re.MULTILINE)
    assert len(rows) > 20
    for files, names in rows[2:]:
        text = "".join((ROOT / "src/heedful" / file).read_text() for file in re.findall(r"`([\w/]+\.py)`", files))
        for name in re.findall(r"`([\w.]+)`", names):
            assert re.search(rf"\b{name.split('.')[-1]}\b", text), name


def test_architecture_names_existing_code() -> None:
    """Every file in backquotes exists; a name after a file in a table row or step is in one of its files."""
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    files = set(re.findall(r"`([\w/.-]+\.(?:py|js|md))`", text))
    assert len(files) > 50
    for file in files:
        assert "NAME" in file or _find_file(file), file
    for path, names in re.findall(r"\[\"(\w[\w/]*\.py): ([\w.(), ]+)\"", text):
        code = _read_code(path)
        for name in re.findall(r"\w+", names):
            assert re.search(rf"\b{name}\b", code), f"{name} in {path}"
    for line in text.splitlines():
        code = "".join(map(_read_code, re.findall(r"`([\w/.-]+\.(?:py|js))`", line)))
        for name in re.findall(r"`([A-Za-z_]\w{3,})(?:\(\))?`", line) if code else ():
            assert re.search(rf"\b{name}\b", code), f"{name} in {line}"


def _find_file(file: str) -> Path | None:
    """A file named from the package, or from the root of the repository."""
    return next((root / file for root in (ROOT / "src/heedful", ROOT) if (root / file).is_file()), None)


def _read_code(file: str) -> str:
    path = _find_file(file)
    return path.read_text(encoding="utf-8") if path else ""


def test_python_examples_import_existing_names() -> None:
    for document in DOCUMENTS:
        for block in re.findall(r"```python\n(.*?)```", document.read_text(encoding="utf-8"), re.DOTALL):
            imports = [line for line in block.splitlines() if re.match(r"from heedful[.\w]* import ", line)]
            exec("\n".join(imports), {})
            for name in re.findall(r"\bheedful\.([a-z_]\w*)\(", block):
                assert name in heedful.__all__, f"{document.name}: heedful.{name}"


def test_documented_commands_name_existing_options() -> None:
    """Every `heedful ...` line of the documents names a verb and options that exist."""
    commands = [
        shlex.split(line.removeprefix("$ ").split("  #")[0].rstrip("\\"))
        for document in DOCUMENTS
        for block in re.findall(r"```(?:sh|console)\n(.*?)```", document.read_text(encoding="utf-8"), re.DOTALL)
        for line in block.splitlines()
        if line.startswith(("heedful ", "$ heedful "))
    ]
    assert len(commands) > 10
    help_texts: dict[tuple[str, ...], str] = {}
    for command in commands:
        verb = tuple(command[1:3]) if command[1] == "corpus" else (command[1],)
        if verb not in help_texts:
            result = run_heedful(*verb, "--help")
            assert result.status == 0, verb
            help_texts[verb] = result.out
        for option in command:
            if option.startswith("-") and option != "-":
                assert re.search(rf"(^|[\s,]){option}\b", help_texts[verb]), f"{option} in {' '.join(command)}"


def test_presets_are_documented() -> None:
    text = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    for name in ("auto", *PRESETS):
        assert f"`{name}`" in text


def test_documented_settings_exist() -> None:
    sections = {
        name: field.annotation
        for name, field in RunConfig.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, Config)
    } | {"server": ServerConfig}
    for document in DOCUMENTS:
        if document.name == "log.md":  # dated entries keep the names of their time
            continue
        text = document.read_text(encoding="utf-8")
        for section, name in re.findall(r"(?<![\w.])([a-z_]+)\.([a-z_0-9]+)(?=[`=])", text):
            if section in sections and name not in ("json", "py", "md", "safetensors"):
                assert name in sections[section].model_fields, f"{document.name}: {section}.{name}"


if __name__ == "__main__":
    for document, table in GENERATED.items():
        path = ROOT / "docs" / document
        path.write_text(f"{_split_document(document)[0]}{MARK}{table()}", encoding="utf-8")
