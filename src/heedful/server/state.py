"""What all parts of a running server share: its models, its limits, its phase, its counts."""

import asyncio
import hashlib
import hmac
import logging
from typing import Literal

from starlette.requests import Request

from heedful.server.config import ServerConfig
from heedful.server.files import FileStore
from heedful.server.inspecting import Inspector
from heedful.server.models import Directions
from heedful.server.parameters import Parameters
from heedful.server.refusal import RefusedError
from heedful.server.statistics import RequestStatistics
from heedful.text.languages import detect

LOG = logging.getLogger("heedful.server")
KEYS_NOT_IN_BODY = {"/api/translate", "/api/alternatives", "/api/trace", "/api/generate", "/api/fill"}


class Server:
    """A server between its first and its last request."""

    def __init__(self, directions: Directions, config: ServerConfig) -> None:
        self.directions, self.config = directions, config
        self.statistics = RequestStatistics()
        self.files = FileStore(config.files_kept, config.file_seconds)
        self.inspector = Inspector()
        self.in_flight = 0
        """Requests that were let in and are not answered yet."""
        self.phase: Literal["starting", "ready", "draining"] = "starting"
        self._keys = [_digest(key) for key in config.api_keys]

    async def start(self) -> None:
        """Use everything once, so that the first client does not wait for memory and caches."""
        await asyncio.to_thread(detect, "warming up", self.directions.languages)
        for direction, *_ in self.directions.by_model:
            try:
                await direction.batcher.translate(["."])
            except RefusedError as refused:
                LOG.error("%s cannot translate: %s", direction.folder, refused.message)
        if self.phase == "starting":
            self.phase = "ready"

    async def stop(self) -> None:
        """Finish what was accepted."""
        self.phase = "draining"
        self.inspector.close()
        await asyncio.gather(*(direction.batcher.drain() for direction, *_ in self.directions.by_model))

    def check_key(self, request: Request, parameters: Parameters | None = None) -> None:
        """Refuse a request that shows none of the keys, if there are any."""
        if not self._keys:
            return
        shown = _digest(_shown_key(request, parameters) or "")
        equal = [hmac.compare_digest(shown, key) for key in self._keys]  # always all: time tells nothing
        if not any(equal):
            raise RefusedError(403, "Invalid or missing API key")

    def check_key_before_body(self, request: Request) -> None:
        """Refuse a POST with a wrong key before its body is read; who shows none may have it in the body."""
        in_body = request.scope["path"] not in KEYS_NOT_IN_BODY and _shown_key(request, None) is None
        if request.method == "POST" and not in_body:
            self.check_key(request)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "replace")).digest()


def _shown_key(request: Request, parameters: Parameters | None) -> str | None:
    """The key in the header (Bearer, or DeepL's) or among the parameters; None if there is none."""
    kind, _, key = request.headers.get("authorization", "").partition(" ")
    if kind.lower() in ("bearer", "deepl-auth-key"):
        return key.strip()
    values = parameters.values if parameters else request.query_params
    found = values.get("api_key") or values.get("auth_key")
    return found if isinstance(found, str) else None


def deadline_of(request: Request) -> float:
    """The time of the event loop by which a request must be answered."""
    return float(request.scope["state"]["deadline"])
