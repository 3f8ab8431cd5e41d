"""Limits and addresses of a server; every one is on by default, none is unlimited by accident."""

import re

from pydantic import Field, field_validator

from heedful.config import Config


class ServerConfig(Config):
    """How a server listens, gathers requests into batches, and what it refuses."""

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 opens the server to the network."""
    port: int = Field(5000, ge=0, le=65535)
    """Port to listen on; 0 takes any free one."""
    workers: int = Field(0, ge=0, le=256)
    """Batches that one model translates at the same time; 0 for one for each core."""
    batch_tokens: int = Field(1024, ge=1)
    """Source tokens of a batch, counted with the padding to its longest sentence."""
    window_ms: float = Field(4.0, ge=0, le=1000)
    """Milliseconds that an idle model waits for more requests to share a batch."""
    queue_tokens: int = Field(32_768, ge=1)
    """Source tokens that may wait for one model; what does not fit is refused with 503."""
    deadline_seconds: float = Field(60.0, gt=0)
    """Longest time of a request; after it, what has not begun is dropped."""
    cache_entries: int = Field(10_000, ge=0)
    """Translated sentences remembered for each model; 0 remembers none."""
    cache_bytes: int = Field(64_000_000, ge=0)
    """Memory that they take, as estimated; the longest unused make room."""
    max_requests: int = Field(1024, ge=1)
    """Requests worked on or waiting at the same time; more are refused with 503."""
    max_connections: int = Field(2048, ge=1)
    """Open connections; for one more, the one that has been silent for longest is closed."""
    head_seconds: float = Field(10.0, gt=0)
    """Longest time until the head of a request is there; then the connection is closed."""
    body_seconds: float = Field(30.0, gt=0)
    """Longest time until the body of a request is there; then it is refused with 408."""
    read_seconds: float = Field(30.0, gt=0)
    """Longest time that a client may leave an answer unread; then the connection is closed."""
    max_body_bytes: int = Field(2_000_000, ge=1)
    """Largest body of a request; a larger one is refused with 413."""
    max_characters: int = Field(50_000, ge=1)
    """Characters of all texts of a request together."""
    max_items: int = Field(500, ge=1)
    """Texts in a request."""
    max_alternatives: int = Field(8, ge=0, le=99)
    """Further translations that a request may ask for."""
    max_beam: int = Field(16, ge=1, le=100)
    """Widest beam that a request may ask for."""
    requests_a_minute: int = Field(0, ge=0)
    """Requests a minute from one address, as the socket knows it; more are refused with 429; 0 for any."""
    api_keys: tuple[str, ...] = ()
    """Keys of which a request must show one; none opens the server to all who reach it."""
    cors_origins: tuple[str, ...] = ()
    """Web sites whose scripts may call the server, or *; none by default."""
    file_bytes: int = Field(2_000_000, ge=1)
    """Largest file to translate."""
    file_characters: int = Field(1_000_000, ge=1)
    """Characters of a file."""
    file_seconds: float = Field(900.0, gt=0)
    """Longest time of the translation of a file, and how long the result can be fetched."""
    files_kept: int = Field(32, ge=1)
    """Translated files that can be fetched; the oldest makes room for a new one."""
    public_url: str = ""
    """Where clients find the server, for links to files; as the request's Host says if empty."""
    drain_seconds: float = Field(30.0, ge=0)
    """Longest time, after SIGTERM, to finish the requests that were accepted."""

    @field_validator("api_keys")
    @classmethod
    def _no_empty_key(cls, keys: tuple[str, ...]) -> tuple[str, ...]:
        if not all(key.strip() for key in keys):  # who shows no key would show this one
            raise ValueError("an API key is empty\nleave it out; no keys at all open the server to everyone")
        return keys

    @field_validator("public_url")
    @classmethod
    def _is_a_url(cls, url: str) -> str:
        if url and not re.fullmatch(r"https?://[\w.:\[\]-]+(/[\w./~-]*)?", url, re.ASCII):
            raise ValueError(f"public_url is {url!r}\nwrite https://translate.example, or a path below it")
        return url.rstrip("/")
