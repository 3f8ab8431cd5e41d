"""``heedful serve``: models behind HTTP, until SIGTERM or Ctrl-C; then what was accepted is finished."""

import importlib.util
import logging
import os
import socket
import sys
import threading
import webbrowser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heedful.bundle import Bundle
from heedful.commands.options import engine_name, only_section
from heedful.config import merged, parsed_overrides
from heedful.engines.segmented import SegmentedEngine
from heedful.errors import HeedfulError
from heedful.loading import load, load_plain
from heedful.progress import Reporter
from heedful.server.config import ServerConfig

PACKAGES = ("fastapi", "python_multipart", "py3langid", "uvicorn")
"""What the extra ``serve`` installs."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The command line of ``heedful serve``."""

    models: tuple[str, ...]
    api_key_file: Path | None = None
    engine: str = "auto"
    device: str = "auto"
    told: Mapping[str, Any] | None = None
    """Host and port."""
    settings: tuple[str, ...] = ()
    open_page: bool = False
    """Show the page in a browser, if there is a desktop."""


def serve_command(options: ServeOptions, report: Reporter) -> None:
    """Load the models and serve them."""
    config = _config(options)
    if package := missing_package():
        raise HeedfulError(f"serving needs the package {package}", hint="pip install 'heedful[serve]'")
    from heedful.server.models import load_directions
    from heedful.server.running import run

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    with _bound(config) as listening:  # first: a wrong port is known at once, not after the models
        directions = load_directions(options.models, config, lambda folder: _loaded(folder, options, config))
        run(directions, config, listening, report, show_page if options.open_page else None)


def _loaded(folder: Path, options: ServeOptions, config: ServerConfig) -> SegmentedEngine | Bundle:
    """A model with its weights: the page sees inside it even if its folder is trained anew meanwhile."""
    name = engine_name(options.engine)
    plain = load_plain(folder, options.device)
    if plain is not None:
        if name not in ("auto", "exact", "pytorch"):
            raise HeedfulError(
                f"the engine {name} only translates, and {folder} does not", hint="--engine pytorch"
            )
        return plain
    engine = load(folder, device=options.device, engine=name, workers=config.workers)
    engine.bundle = engine.bundle.read()
    return engine


def show_page(address: str) -> None:
    """Open the page in a browser; without a desktop nothing happens, since the address was printed."""
    desktop = sys.platform in ("darwin", "win32") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
    if desktop:  # else a browser for terminals could take this one
        # In a thread: some browsers keep their caller until they are closed.
        threading.Thread(target=webbrowser.open, args=[address], daemon=True).start()


def missing_package() -> str:
    """The first package of the extra ``serve`` that is not installed, or nothing."""
    return next((package for package in PACKAGES if importlib.util.find_spec(package) is None), "")


def _config(options: ServeOptions) -> ServerConfig:
    told = merged(only_section(parsed_overrides(options.settings), "server"), options.told or {})
    config = ServerConfig.checked(told)
    if options.api_key_file is None:
        return config
    return config.model_copy(update={"api_keys": (*config.api_keys, *_read_keys(options.api_key_file))})


def _read_keys(path: Path) -> Sequence[str]:
    """The keys of a file, one a line."""
    try:
        lines = path.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise HeedfulError(f"cannot read the keys in {path}: {error}") from None
    if not lines:
        raise HeedfulError(f"{path} has no key", hint="write one a line, or leave --api-key-file out")
    return lines


def _bound(config: ServerConfig) -> socket.socket:
    """A socket at the address; it does not listen yet."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind, protocol)
    except OSError as error:
        raise HeedfulError(f"cannot listen on {config.host}: {error.strerror}") from None
    if os.name == "posix":
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind(address)
    except OSError as error:
        found.close()
        raise HeedfulError(
            f"cannot listen on {config.host}, port {config.port}: {error.strerror}",
            hint="is a server running there already? --port takes another, --port 0 any free one",
        ) from None
    return found
