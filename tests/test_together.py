"""Parts of Heedful used together: memories of many languages, models of several, glossaries, documents."""

from pathlib import Path

import pytest

from heedful.commands.evaluate import evaluate_command
from heedful.errors import HeedfulError
from heedful.progress import Reporter
from tests.several import saved

QUIET = Reporter(quiet=True)
MEMORY = """<?xml version="1.0" encoding="UTF-8"?>
<tmx version="1.4"><header creationtool="test" creationtoolversion="1" segtype="sentence" o-tmf="test"
  adminlang="en" srclang="en" datatype="plaintext"/><body><tu>
<tuv xml:lang="en"><seg>The dog is tired.</seg></tuv>
<tuv xml:lang="de"><seg>LE CHIEN EST FATIGUÉ.</seg></tuv>
<tuv xml:lang="fr"><seg>Le chien est fatigué.</seg></tuv>
</tu></body></tmx>
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of several languages and a memory of three."""
    base = tmp_path_factory.mktemp("together")
    saved(base / "model")
    (base / "memory.tmx").write_text(MEMORY, encoding="utf-8")
    return base


# ---- a memory of three languages and a model of several


def evaluated(base: Path, to: str = "", read: str = "", languages: tuple[str, str] | None = None) -> str:
    """The direction and, word for word, what was taken for the reference."""
    each = base / "each.tsv"
    lines = evaluate_command(
        [base / "model"],
        [base / "memory.tmx"],
        None,
        each,
        {"beam": 1} | ({"language": to} if to else {}),
        [],
        read=read,
        languages=languages,
        engine="pytorch",
        device="cpu",
        report=QUIET,
    )
    source, reference, *_ = each.read_text(encoding="utf-8").splitlines()[1].split("\t")
    return f"{lines[0]}: {source} = {reference}"


def test_evaluate_takes_the_languages_of_the_model_out_of_a_memory(base: Path) -> None:
    english, german, french = "The dog is tired.", "LE CHIEN EST FATIGUÉ.", "Le chien est fatigué."
    assert evaluated(base, read="en", to="de") == f"en to de: {english} = {german}"
    assert evaluated(base, languages=("en", "de")) == f"en to de: {english} = {german}"
    assert evaluated(base, languages=("en", "fr")) == f"en to fr: {english} = {french}"
    assert evaluated(base, languages=("fr", "de")).endswith(f"(zero-shot): {french} = {german}")


def test_evaluate_asks_which_source_of_several(base: Path) -> None:
    with pytest.raises(HeedfulError, match="holds 3 languages"):
        evaluated(base, to="de")
