"""``heedful serve``: serve models over HTTP until SIGTERM or Ctrl-C; accepted requests are finished first."""

import logging
import os
import socket
import sys
import threading
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heedful.cli.options import DeviceOption, EngineOption, QuietOption, SettingsOption
from heedful.errors import HeedfulError, check_extras, has_extra

if TYPE_CHECKING:
    from heedful.inference.translator import Translator
    from heedful.model_folder import ModelFolder
    from heedful.server.config import ServerConfig


def serve(
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL...", help="Model folders; FOLDER=en-fr names the languages of a model."),
    ],
    host: Annotated[str | None, typer.Option(help="Address; default: 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; default: 5000; 0: any free port.")] = None,
    key_file: Annotated[
        Path | None, typer.Option("--api-key-file", help="API keys, one per line; clients must send one.")
    ] = None,
    engine: EngineOption = "auto",
    settings: SettingsOption = [],  # noqa: B006
    device: DeviceOption = "auto",
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    quiet: QuietOption = False,
) -> None:
    """Serve models over HTTP: the web page and the LibreTranslate, DeepL and native APIs.

    \b
    heedful serve my-model --open
    heedful serve en-de-model de-en-model
    heedful serve my-model=en-fr --port 8080 --set server.max_queue_tokens=100000
    """
    from heedful.config import drop_unset, extract_section, merge_settings, parse_overrides
    from heedful.progress import Reporter
    from heedful.server.config import ServerConfig

    section = extract_section(parse_overrides(settings), "server")
    config = ServerConfig.from_settings(merge_settings(section, drop_unset(host=host, port=port)))
    if key_file is not None:
        try:
            keys = key_file.read_text(encoding="utf-8").split()
        except (OSError, UnicodeDecodeError) as error:
            raise HeedfulError(f"cannot read the API keys in {key_file}: {error}") from None
        if not keys:
            raise HeedfulError(f"{key_file} has no API key", hint="write one key per line, or omit --api-key-file")
        config = config.model_copy(update={"api_keys": (*config.api_keys, *keys)})
    check_extras("serving", "serve")
    from heedful.server.app import run_server
    from heedful.server.model_registry import load_registry

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    with _bind_socket(config) as listening_socket:  # before the models load: report a busy port at once
        registry = load_registry(models, config, lambda folder: _load_model(folder, engine, device, config.workers))
        run_server(registry, config, listening_socket, Reporter(quiet=quiet), open_in_browser if open_page else None)


def _load_model(folder: Path, engine: str, device: str, workers: int) -> "Translator | ModelFolder":
    """A model; with PyTorch its weights are in memory, so that the page can inspect it even if the folder changes."""
    from heedful.inference.loading import load, load_language_model, parse_engine_name

    engine_name = parse_engine_name(engine)
    language_model = load_language_model(folder, device)
    if language_model is not None:
        if engine_name not in ("auto", "exact", "pytorch"):
            raise HeedfulError(
                f"{folder} is a language model, and the engine {engine} only translates", hint="use --engine pytorch"
            )
        return language_model
    translator = load(folder, device=device, engine=engine_name, workers=workers)
    if has_extra("train"):
        translator.model_folder = translator.model_folder.load_weights()
    return translator


def open_in_browser(address: str) -> None:
    """Open the page in a browser; does nothing without a desktop (the address is printed)."""
    desktop = sys.platform in ("darwin", "win32") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
    if desktop:  # a text browser could take over the terminal
        # In a thread: some browsers block their caller until they are closed.
        threading.Thread(target=webbrowser.open, args=[address], daemon=True).start()


def _bind_socket(config: "ServerConfig") -> socket.socket:
    """A socket bound to the address, not yet listening."""
    try:
        family, socket_type, protocol, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound_socket = socket.socket(family, socket_type, protocol)
    except OSError as error:
        raise HeedfulError(f"cannot listen on {config.host}: {error.strerror}") from None
    if os.name == "posix":
        bound_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound_socket.bind(address)
    except OSError as error:
        bound_socket.close()
        raise HeedfulError(
            f"cannot listen on {config.host}, port {config.port}: {error.strerror}",
            hint="is another server running there? choose another --port, or --port 0 for any free port",
        ) from None
    return bound_socket
