"""What all parts of a running server share: models, limits, keys, metrics, translated files."""

import asyncio
import hashlib
import hmac
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from starlette.requests import Request

from heedful.server.api_errors import APIError
from heedful.server.config import ServerConfig
from heedful.server.metrics import ServerMetrics
from heedful.server.model_registry import ModelRegistry
from heedful.server.parameters import Parameters, read_parameters
from heedful.server.trace_worker import TraceWorker
from heedful.tokenization.languages import detect_languages

LOG = logging.getLogger("heedful.server")

NATIVE_PREFIX = "/api/"
"""Routes below it take the API key from the header or the query string only, not from the body."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A translated file."""

    content: bytes
    media_type: str
    download_name: str
    expires_at: float


class FileStore:
    """Translated files that wait to be downloaded: few, for some time, under names nobody can guess."""

    def __init__(self, max_files: int, lifetime_seconds: float) -> None:
        self.max_files, self.lifetime_seconds = max_files, lifetime_seconds
        self._files: OrderedDict[str, StoredFile] = OrderedDict()

    def put(self, content: bytes, media_type: str, download_name: str, suffix: str) -> str:
        """Store a file and return its name."""
        name = secrets.token_urlsafe(24) + suffix
        self._files[name] = StoredFile(content, media_type, download_name, time.monotonic() + self.lifetime_seconds)
        self._evict_old_files()
        return name

    def get(self, name: str) -> StoredFile | None:
        """Return a file, if it is still stored."""
        self._evict_old_files()
        return self._files.get(name)

    def _evict_old_files(self) -> None:
        now = time.monotonic()
        while self._files and (len(self._files) > self.max_files or next(iter(self._files.values())).expires_at < now):
            self._files.popitem(last=False)


class ServerState:
    """The state of a server."""

    def __init__(self, registry: ModelRegistry, config: ServerConfig) -> None:
        self.registry, self.config = registry, config
        batchers = {direction.name: direction.batcher for direction, *_ in registry.directions_by_model}
        self.metrics = ServerMetrics(  # a model's label is its first direction
            {name: batcher.metrics for name, batcher in batchers.items()},
            lambda: self.phase == "ready",
            lambda: self.in_flight,
        )
        self.files = FileStore(config.max_stored_files, config.file_timeout_seconds)
        self.trace_worker = TraceWorker()
        self.in_flight = 0
        """Requests that were admitted and not answered yet."""
        self.phase: Literal["starting", "ready", "draining"] = "starting"
        self._keys = [_digest(key) for key in config.api_keys]

    async def start(self) -> None:
        """Warm up every model, so that the first request is not slow."""
        await asyncio.to_thread(detect_languages, "warming up", self.registry.languages)
        for direction, *_ in self.registry.directions_by_model:
            try:
                await direction.batcher.translate(direction.split_segments("."))
            except APIError as error:
                LOG.error("%s: warm-up failed: %s", direction.folder, error.message)
        if self.phase == "starting":
            self.phase = "ready"

    async def stop(self) -> None:
        """Finish accepted requests."""
        self.phase = "draining"
        self.trace_worker.close()
        await asyncio.gather(*(direction.batcher.drain() for direction, *_ in self.registry.directions_by_model))

    async def require_key(self, request: Request) -> None:
        """Reject a request without a valid API key in its header or query string; a dependency of routers."""
        self.check_key(request, request.query_params)

    async def read_parameters(self, request: Request) -> Parameters:
        """Read the parameters of a request, which may contain its API key."""
        parameters = await read_parameters(request, self.config)
        self.check_key(request, parameters.values)
        return parameters

    def check_key(self, request: Request, values: Mapping[str, Any]) -> None:
        """Reject a request without a valid API key in its header or these values, if the server has keys."""
        if not self._keys:
            return
        digest = _digest(_extract_key(request, values) or "")
        matches = [hmac.compare_digest(digest, key) for key in self._keys]  # compare with all: constant time
        if not any(matches):
            raise APIError(403, "Invalid or missing API key")

    def check_key_before_body(self, request: Request) -> None:
        """Reject a POST with a wrong key before its body is read; without a key, the body may have it."""
        is_native = request.scope["path"].startswith(NATIVE_PREFIX)
        in_body = not is_native and _extract_key(request, request.query_params) is None
        if request.method == "POST" and not in_body:
            self.check_key(request, request.query_params)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "replace")).digest()


def _extract_key(request: Request, values: Mapping[str, Any]) -> str | None:
    """Return the key from the header (Bearer, or DeepL's) or the values, if there is one."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() in ("bearer", "deepl-auth-key"):
        return key.strip()
    value = values.get("api_key") or values.get("auth_key")
    return value if isinstance(value, str) else None


def get_deadline(request: Request) -> float:
    """Return the deadline of a request, in the event loop's time."""
    return float(request.scope["state"]["deadline"])
