"""`heedful translate --ray` whose workers hold their shards back, translated but not finished, until released.

A test that kills this command, or one of its workers, does not race it; or all workers die at the same shard.
As the main module, the class below is sent to the workers by value.
"""

import os
import time
from pathlib import Path

from heedful.cli.main import main
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


if __name__ == "__main__":
    ray_bulk.ShardWorker = HeldWorker  # type: ignore[misc]
    main()
