"""The import order: modules import only from below, so that the tree shows the architecture."""

import ast
import subprocess
import sys
from pathlib import Path

import heedful

PACKAGE = Path(heedful.__file__).parent
LAYERS = [
    {"__main__"},
    {"cli"},
    {"cli_exports", "cli_import", "cli_monolingual", "cli_training", "cli_translate"},
    {"cli_family"},
    {"cli_corpus"},
    {"demo", "commands"},
    {"comparing"},
    {"server"},
    {"page"},
    {"api"},
    {"choosing", "loading"},
    {"presets", "inspection", "interop", "documents"},
    {"training", "engines"},
    {"bundle"},
    {"corpora", "decoding", "evaluation"},
    {"model", "text"},
    {"config"},
    {"files"},
    {"errors", "places", "process", "progress"},
]
"""From top to bottom; names in one set ignore each other."""


def imported_parts(path: Path) -> set[str]:
    """First names below ``heedful`` that a file imports, wherever in the file it does so."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("heedful."):
            found.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {name.name.split(".")[1] for name in node.names if name.name.startswith("heedful.")}
    return found


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_imports_point_down() -> None:
    level = {name: number for number, names in enumerate(LAYERS) for name in names}
    wrong = [
        f"{path.relative_to(PACKAGE)} imports heedful.{target}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if (part := part_of(path)) != "__init__"
        for target in sorted(imported_parts(path))
        if target != part and level[target] <= level[part]
    ]
    assert not wrong


def test_every_part_has_a_place() -> None:
    known = set().union(*LAYERS)
    parts = {part_of(path) for path in PACKAGE.rglob("*.py")} - {"__init__"}
    assert parts == known


def test_files_and_functions_stay_short() -> None:
    """A file of 450 lines or a function of 70 has grown two subjects."""
    long = []
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if text.count("\n") > 450:
            long.append(path.name)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno > 70:
                long.append(f"{path.name}:{node.name}")
    assert not long


def test_no_pickle_and_no_eval() -> None:
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert not names & {"eval", "exec", "pickle"}, path
        loads = path.read_text(encoding="utf-8").count("torch.load(")
        if path.name == "marian_files.py":  # old weights, when asked for, and nothing but numbers
            assert loads == path.read_text(encoding="utf-8").count("weights_only=True") == 1
        else:
            assert not loads, path


def test_the_package_and_translating_import_no_pytorch() -> None:
    code = (
        "import heedful, sys; first = {'torch', 'numpy', 'pydantic', 'typer'} & set(sys.modules);"
        "import heedful.loading, heedful.commands.translate;"
        "print([*first], [name for name in ('torch', 'sacrebleu', 'rich', 'fastapi') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] []"


def test_command_line_imports_nothing_heavy() -> None:
    """`heedful --help` answers at once because torch, pydantic and tokenizers wait for a verb."""
    code = (
        "import heedful.cli, sys;"
        "print([name for name in ('torch', 'pydantic', 'tokenizers', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
