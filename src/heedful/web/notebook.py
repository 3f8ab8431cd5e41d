"""The page in a notebook: ``show`` displays a trace through ``_repr_html_``."""

from html import escape
from pathlib import Path

from heedful.files import write_text
from heedful.interpret.trace import SavedTrace, Trace, load_trace
from heedful.web.standalone import PageView, build_url_fragment, pack_trace, render_standalone_page

NOTEBOOK_BUDGET = 2_000_000
"""Maximum characters of tensors and cells: a notebook file stores every cell's output."""

IFRAME_BASE_URL = "about:srcdoc"
"""Base URL of a page in an iframe's srcdoc; without it, links would open in the notebook."""


class NotebookPage:
    """A page with one trace."""

    def __init__(self, trace: Trace | SavedTrace, page_view: PageView, height: int) -> None:
        self._trace = trace
        self._url = build_url_fragment(page_view, trace.manifest)
        self._height = height

    def save(self, path: str | Path) -> None:
        """Write the page to a self-contained HTML file."""
        write_text(Path(path), render_standalone_page(pack_trace(self._trace, self._url), self._url))

    def _repr_html_(self) -> str:
        packed_trace = pack_trace(self._trace, self._url, budget=NOTEBOOK_BUDGET)
        page = escape(render_standalone_page(packed_trace, self._url, base=IFRAME_BASE_URL))
        style = f"width: 100%; height: {self._height}px; border: 1px solid #8886; border-radius: 8px"
        return f'<iframe title="Heedful" srcdoc="{page}" style="{style}"></iframe>'


def show(
    trace: Trace | SavedTrace | str | Path,
    *,
    view: str | None = None,
    kind: str | None = None,
    layer: int | None = None,
    head: int | None = None,
    word: str | None = None,
    subwords: bool = False,
    height: int = 820,
) -> NotebookPage:
    """The page of a trace (or of a trace file) in a notebook cell; layers and heads count from 1."""
    loaded_trace = load_trace(trace) if isinstance(trace, (str, Path)) else trace
    page_view = PageView(view=view, kind=kind, layer=layer, head=head, word=word, subwords=subwords)
    return NotebookPage(loaded_trace, page_view, height)
