"""Tiles on many processes: a local cluster, or a Dask scheduler that is already running.

The scene and the model travel once to each worker, as a plugin that the scheduler also gives to
workers that start later, for example after a crash. Only a few batches are under way at a time, so
that results never pile up.
"""

from __future__ import annotations

import os
import tempfile
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from undercast.blend import Part
from undercast.errors import ConfigError, DataError, MissingDependencyError, UndercastError
from undercast.products.cog import CACHE
from undercast.tilework import Tiles, describe

try:
    from distributed import Client, LocalCluster, WorkerPlugin, get_worker
    from distributed.scheduler import KilledWorker
except ImportError as missing:
    raise MissingDependencyError("--workers and --scheduler", "dask") from missing

RETRIES = 2
WAIT_SECONDS = 30  # for a scheduler to answer

Work = Callable[[Tiles], list[Part]]


class _Bring(WorkerPlugin):  # type: ignore[misc]
    """Holds the work on a worker and shares torch's threads among its tasks."""

    idempotent = True

    def __init__(self, name: str, work: Work, threads: int) -> None:
        self.name, self.work, self.threads = name, work, threads

    def setup(self, worker: Any) -> None:
        import torch

        os.environ.setdefault("GDAL_CACHEMAX", str(CACHE >> 20))  # megabytes, as text
        torch.set_num_threads(max(1, self.threads // worker.state.nthreads))


def run_on_cluster(
    work: Work,
    batches: Sequence[Tiles],
    *,
    workers: int = 0,
    scheduler: str | None = None,
    threads: int | None = None,
    streams: Callable[[int], int] = lambda threads: 1,
) -> Iterator[list[Part]]:
    """The parts of each batch, in order; `threads` is torch's number in each process.

    streams: how many batches a process of a local cluster works on at a time, by its threads.

    A batch that fails is tried twice more and then fails the run; so does one whose workers die
    again and again.
    """
    per_process = threads or max(1, (os.cpu_count() or 1) // max(workers, 1))
    with _client(workers, scheduler, streams(per_process)) as client:
        name = f"undercast-{uuid.uuid4().hex[:8]}"
        client.register_plugin(_Bring(name, work, per_process))
        try:
            yield from _in_order(client, name, batches)
        finally:
            client.unregister_worker_plugin(name)


def _in_order(client: Any, name: str, batches: Sequence[Tiles]) -> Iterator[list[Part]]:
    under_way: deque[tuple[Tiles, Any]] = deque()
    coming = iter(batches)

    def submit() -> None:
        for batch in coming:
            key = f"{name}-row{batch[0].row}-col{batch[0].col}"
            future = client.submit(_work_on, name, batch, key=key, retries=RETRIES, pure=False)
            under_way.append((batch, future))
            return

    for _ in range(2 * max(1, sum(client.nthreads().values())) + 1):
        submit()
    try:
        while under_way:
            batch, future = under_way.popleft()
            parts = _result(batch, future)
            future.release()
            submit()
            yield parts
    finally:
        client.cancel([future for _, future in under_way])


def _work_on(name: str, tiles: Tiles) -> list[Part]:
    """Runs on a worker."""
    found: list[Part] = get_worker().plugins[name].work(tiles)
    return found


def _result(batch: Tiles, future: Any) -> list[Part]:
    try:
        parts: list[Part] = future.result()
    except UndercastError:
        raise
    except KilledWorker as error:
        raise UndercastError(
            f"{describe(batch)} failed: its workers died {RETRIES + 1} times or more, perhaps for "
            "want of memory; use fewer workers or a smaller batch"
        ) from error
    except Exception as error:
        raise UndercastError(
            f"{describe(batch)} failed on the cluster: {type(error).__name__}: {error}"
        ) from error
    return parts


@contextmanager
def _client(workers: int, scheduler: str | None, streams: int) -> Iterator[Any]:
    if scheduler is not None:
        with _existing(scheduler) as client:
            yield client
        return
    if workers < 1:
        raise ConfigError(f"got {workers} workers, expected at least 1 for a local cluster")
    with (
        tempfile.TemporaryDirectory(prefix="undercast-") as scratch,
        LocalCluster(
            n_workers=workers,
            threads_per_worker=streams,
            processes=True,
            memory_limit=0,  # a limit would kill workers; one tile's memory is what it is
            dashboard_address=None,
            local_directory=scratch,
            silence_logs="CRITICAL",
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


@contextmanager
def _existing(address: str) -> Iterator[Any]:
    try:
        client = Client(address, timeout=WAIT_SECONDS)
    except (OSError, TimeoutError, ValueError) as error:
        raise DataError(
            f"got no answer from the scheduler {address} ({type(error).__name__}), expected a Dask "
            "scheduler such as tcp://host:8786"
        ) from error
    with client:
        if not client.nthreads():
            raise DataError(f"got no workers at the scheduler {address}, expected at least one")
        yield client
