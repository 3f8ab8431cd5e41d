"""Settings of section [server]: addresses and limits; every limit is on by default."""

import re

from pydantic import Field, field_validator

from heedful.config import Config


class ServerConfig(Config):
    """Where a server listens, how it batches requests, and what it rejects."""

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 opens the server to the network."""
    port: int = Field(5000, ge=0, le=65535)
    """Port to listen on; 0 picks a free one."""
    workers: int = Field(0, ge=0, le=256)
    """Batches that one model translates in parallel; 0 for one per core."""
    max_batch_tokens: int = Field(1024, ge=1)
    """Source tokens of a batch, including padding to its longest segment."""
    batch_window_ms: float = Field(4.0, ge=0, le=1000)
    """Milliseconds that an idle model waits for requests that can share a batch."""
    max_queue_tokens: int = Field(32_768, ge=1)
    """Source tokens that may be queued for one model; more are rejected with 503."""
    request_timeout_seconds: float = Field(60.0, gt=0)
    """Maximum duration of a request; then queued work is dropped."""
    cache_entries: int = Field(10_000, ge=0)
    """Translated segments cached per model; 0 disables the cache."""
    cache_bytes: int = Field(64_000_000, ge=0)
    """Estimated memory of the cache; the least recently used entries are evicted."""
    max_requests: int = Field(1024, ge=1)
    """Requests in progress; more are rejected with 503."""
    max_connections: int = Field(2048, ge=1)
    """Open connections; for one more, the one that has been idle for longest is closed."""
    header_timeout_seconds: float = Field(10.0, gt=0)
    """Maximum time until the header of a request is complete; then the connection is closed."""
    body_timeout_seconds: float = Field(30.0, gt=0)
    """Maximum time until the body of a request is complete; then it is rejected with 408."""
    write_timeout_seconds: float = Field(30.0, gt=0)
    """Maximum time that a client may leave a response unread; then the connection is closed."""
    max_body_bytes: int = Field(2_000_000, ge=1)
    """Maximum size of a request body; a larger one is rejected with 413."""
    max_characters: int = Field(50_000, ge=1)
    """Total characters of the texts of a request."""
    max_texts: int = Field(500, ge=1)
    """Texts per request."""
    max_alternatives: int = Field(8, ge=0, le=99)
    """Alternative translations that a request may ask for."""
    max_beam_size: int = Field(16, ge=1, le=100)
    """Maximum beam size of a request."""
    requests_per_minute: int = Field(0, ge=0)
    """Requests per minute from one address; more are rejected with 429; 0 disables the limit."""
    api_keys: tuple[str, ...] = ()
    """A request must contain one of these keys; without keys the server is open to everyone."""
    cors_origins: tuple[str, ...] = ()
    """Web sites whose scripts may call the server, or *."""
    max_file_bytes: int = Field(2_000_000, ge=1)
    """Maximum size of a file to translate."""
    max_file_characters: int = Field(1_000_000, ge=1)
    """Maximum characters of a file."""
    file_timeout_seconds: float = Field(900.0, gt=0)
    """Maximum duration of translating a file, and how long the result is stored."""
    max_stored_files: int = Field(32, ge=1)
    """Translated files that are stored; the oldest is evicted."""
    public_url: str = ""
    """Public address of the server, for links to files; empty for the request's Host header."""
    shutdown_timeout_seconds: float = Field(30.0, ge=0)
    """Maximum time, after SIGTERM, to finish accepted requests."""

    @field_validator("api_keys")
    @classmethod
    def _check_api_keys(cls, keys: tuple[str, ...]) -> tuple[str, ...]:
        if not all(key.strip() for key in keys):  # a missing key would match it
            raise ValueError("an API key is empty\nremove it; without any key the server is open to everyone")
        return keys

    @field_validator("public_url")
    @classmethod
    def _check_public_url(cls, url: str) -> str:
        if url and not re.fullmatch(r"https?://[\w.:\[\]-]+(/[\w./~-]*)?", url, re.ASCII):
            raise ValueError(f"public_url {url!r} is not a valid URL\nuse https://translate.example/path")
        return url.rstrip("/")
