"""`heedful translate --ray` whose workers hold their shards back, translated but not finished, until released.

A test that kills this command, or one of its workers, does not race it; or all workers die at the same shard.
With HEEDFUL_HOLD_JOIN, the command waits for a signal once it has joined its shards, before the output appears.
As the main module, the class below is sent to the workers by value.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from heedful.cli.main import main
from heedful.files import atomic_write
from heedful.inference import ray_bulk
from heedful.inference.bulk_shards import Shard, ShardRecord, ShardWorker


class HeldWorker(ShardWorker):
    """Waits before it finishes a shard if enough shards are finished; dies at a shard."""

    def _write_shard(self, shard: Shard, temporary_path: Path) -> ShardRecord:
        if str(shard.number) == os.environ.get("HEEDFUL_DIE_AT"):
            os._exit(9)
        record = super()._write_shard(shard, temporary_path)
        hold_after = int(os.environ["HEEDFUL_HOLD_AFTER"])
        released = temporary_path.with_name("released")
        while len(list(self.task.folder.glob("0*.json"))) >= hold_after and not released.exists():
            time.sleep(0.01)
        return record


@contextmanager
def hold_write(path: Path) -> Iterator[BinaryIO]:
    """As atomic_write, but the file never appears under its name."""
    with atomic_write(path) as file:
        yield file
        file.flush()
        while True:
            time.sleep(0.01)


if __name__ == "__main__":
    ray_bulk.ShardWorker = HeldWorker  # type: ignore[misc]
    if "HEEDFUL_HOLD_JOIN" in os.environ:
        ray_bulk.atomic_write = hold_write
    main()
