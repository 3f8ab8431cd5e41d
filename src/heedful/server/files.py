"""Translated files that wait to be fetched: few, in memory, for a while, under names nobody can guess."""

import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A translated file."""

    content: bytes
    media_type: str
    download_name: str
    expires: float


class FileStore:
    """At most ``most`` files, each for ``seconds``."""

    def __init__(self, most: int, seconds: float) -> None:
        self.most, self.seconds = most, seconds
        self._files: OrderedDict[str, StoredFile] = OrderedDict()

    def put(self, content: bytes, media_type: str, download_name: str, suffix: str) -> str:
        """Keep a file; its name."""
        name = secrets.token_urlsafe(24) + suffix
        self._files[name] = StoredFile(content, media_type, download_name, time.monotonic() + self.seconds)
        self._forget()
        return name

    def get(self, name: str) -> StoredFile | None:
        """The file of a name, if it is still there."""
        self._forget()
        return self._files.get(name)

    def _forget(self) -> None:
        now = time.monotonic()
        while self._files and (
            len(self._files) > self.most or next(iter(self._files.values())).expires < now
        ):
            self._files.popitem(last=False)
