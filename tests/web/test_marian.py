"""The page of a model imported from MarianMT: its formulas, unknown characters and tags."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from heedful.convert.marian.importer import import_marian
from tests.convert.marian_models import new_marian
from tests.server.server_process import serve_process
from tests.web.views import VIEW_SELECTORS, open_view

TEXT = "The dog 猫 was so tired."
pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses"),
]  # an imported model


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of a model with a language tag, unscaled embeddings and an output bias."""
    folder: Path = tmp_path_factory.mktemp("marian")
    new_marian(folder / "marian", tags=["fra"], scale_embedding=False, updates=60, init_std=0.1)
    import_marian(folder / "marian", ("en", "fra")).save(folder / "model")
    with serve_process(folder / "model", "--device", "cpu", "--engine", "pytorch") as process:
        yield process.address
        assert "ERROR" not in process.output, process.output


def test_every_view_opens(page: Page, address: str) -> None:
    for view in VIEW_SELECTORS.keys() - {"training"}:  # an imported model has no training metrics
        open_view(page, address, view, TEXT)


def test_length_penalty_of_model_is_shown(page: Page, address: str) -> None:
    page.goto(f"{address}/#/decode?text={quote(TEXT)}&beam=3")
    expect(page.locator(".hypotheses th").last).to_have_text("total / n^α = score")


def test_path_starts_without_scale(page: Page, address: str) -> None:
    page.goto(f"{address}/#/path?text={quote(TEXT)}")
    expect(page.locator("#view-path .strip-label").first).to_have_text("embedding")
