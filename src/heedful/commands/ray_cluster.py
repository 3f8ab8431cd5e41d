"""Ray, which runs workers on the cores of this machine or on the hosts of a cluster.

One that is started here listens on the loopback address alone, reports to nobody, and ends with the work.
"""

import logging
import os
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4

from heedful.errors import HeedfulError, StoppedError

LOCAL = "local"
OBJECT_STORE = 100 << 20
"""Bytes for what is sent between processes: here only the numbers of shards."""
_SURROUNDINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_DATA_LOG_LEVEL": "CRITICAL",
    "RAY_NUM_REDIS_GET_RETRIES": "1",  # a cluster that does not answer in a minute is an error
}
_LOCAL_SURROUNDINGS = {
    # Ray's own way to stay on 127.0.0.1: asked for that address by name, it takes the outer one instead.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # Seconds that its processes wait for one that is gone; on one machine it will not come back.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "5",
}


def require() -> None:
    """An error with the command to install it, if Ray Data is missing."""
    if missing := [name for name in ("ray", "pyarrow", "pandas") if find_spec(name) is None]:
        raise HeedfulError(
            f"--ray needs {' and '.join(missing)}, not installed", hint="pip install 'heedful[ray]'"
        )


@contextmanager
def started(address: str, cores: int) -> Iterator[int]:
    """Ray, here (``local``) or where it runs already; gives the cores there are. ``cores``: 0 for all."""
    _surround(address == LOCAL)
    import ray

    told: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
    place = None
    if address == LOCAL:
        place = tempfile.mkdtemp(prefix="heedful-ray-")
        told |= {"num_cpus": cores or None, "include_dashboard": False, "_temp_dir": place}
        told |= {"object_store_memory": OBJECT_STORE}
    try:
        cores = _connect(ray, address, told)
        _stop_quietly()
        with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):  # it talks about lost workers
            yield cores
    finally:
        ray.shutdown()
        if place:
            shutil.rmtree(place, ignore_errors=True)


def _surround(local: bool) -> None:
    """What Ray reads when it is imported, and the processes it starts; a user's own settings win."""
    # A secret of this run alone: else Ray would keep one in the home folder.
    secret = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": uuid4().hex}
    for name, value in (_SURROUNDINGS | (_LOCAL_SURROUNDINGS | secret if local else {})).items():
        os.environ.setdefault(name, value)


def _connect(ray: Any, address: str, told: Mapping[str, Any]) -> int:
    """Connect, and count the cores there are."""
    try:
        if ":" in address:
            _check_listening(address)
        with _no_errors():
            ray.init(address=address, **told)
        return int(ray.cluster_resources().get("CPU", 1))
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        secret = "Authentication" in f"{error} {error.__cause__}"
        reason = "it asks for a token" if secret else str(error).strip().splitlines()[0]
        raise HeedfulError(
            f"Ray cannot be started or reached ({address}): {reason}",
            hint="set RAY_AUTH_MODE=token, and have the cluster's token where Ray looks for it"
            if secret
            else "`ray start --head` starts a cluster; `--ray local` needs none",
        ) from None


def _check_listening(address: str) -> None:
    """An error at once where nobody listens: Ray itself would go on trying for a minute."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        raise ValueError("an address is HOST:PORT, auto or local")
    socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def _stop_quietly() -> None:
    """SIGTERM ends the work in order; Ray would write a trace of its own first."""

    def stop(number: int, _: object) -> None:
        raise StoppedError(number, hint="the same command goes on")

    if threading.current_thread() is threading.main_thread():  # no other gets signals
        signal.signal(signal.SIGTERM, stop)


@contextmanager
def _no_errors() -> Iterator[None]:
    """Standard error closed for a moment: Ray's core says on it what its logs were told not to."""
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def mapped(
    worker: Callable[[Any], Any],
    task: object,
    shards: Sequence[int],
    workers: int,
    gpus: int,
) -> Iterator[dict[str, Any]]:
    """What workers make of the shards, as each is done; a lost worker is replaced, its shard begun anew."""
    import ray
    import ray.data
    from ray.exceptions import RayError

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.execution_options.preserve_order = False
    rows = ray.data.from_items([{"shard": each} for each in shards], override_num_blocks=len(shards))
    pool = ray.data.ActorPoolStrategy(size=workers, max_tasks_in_flight_per_actor=1)
    found = rows.map(worker, fn_constructor_args=(task,), compute=pool, num_cpus=1, num_gpus=gpus)
    try:
        yield from found.iter_rows()
    except RayError as error:
        raise _told(error) from None


def _told(error: Exception) -> Exception:
    """What Ray has run into, for a user; a mistake of ours comes with all that is known of it."""
    from ray.exceptions import ActorDiedError, RayTaskError

    if isinstance(error, RayTaskError) and not isinstance(error, ActorDiedError):
        return RuntimeError(str(error))
    reason = str(error).strip().splitlines()[0]
    return HeedfulError(
        f"Ray gave up: {reason}", hint="the same command goes on; a worker that is killed may lack memory"
    )
