"""Cloud cover and masks of every Sentinel-2 image of a dataset: in parallel, once, resumable."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, as_completed, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from multiprocessing import connection
from pathlib import Path

import rasterio
from tqdm import tqdm

from undercast import masks
from undercast.datasets.index import Index, Problem, open_index, stores, writable_store
from undercast.datasets.journal import Masks, read_masks, writing
from undercast.datasets.reading import GDAL_OPTIONS, read_raw, reflectance
from undercast.errors import ConfigError, DataError
from undercast.types import BoolArray

METHODS = ("s2cloudless", "rules")  # in the order in which datasets prefer them

Result = tuple[str, BoolArray | None, str | None]  # path, mask, error


@dataclass(frozen=True)
class Prepared:
    """What `prepare` did."""

    index: Index
    method: str
    computed: int
    reused: int
    problems: tuple[Problem, ...]


def prepare(
    root: str | Path, *, layout: str = "auto", method: str = "s2cloudless", workers: int = 1
) -> Prepared:
    """Index a dataset, and compute the masks that are not there yet.

    With more than one worker, call it from a script guarded by `if __name__ == "__main__"`.
    """
    if method not in METHODS:
        raise ConfigError(f"got mask method {method!r}, expected one of {' '.join(METHODS)}")
    if workers < 1:
        raise ConfigError(f"got {workers} workers, expected at least 1")
    if method == "s2cloudless":
        masks.S2Cloudless().load()  # a missing extra fails before anything is written
    index = open_index(root, layout)
    folder = writable_store(index.root)
    with writing(folder, method) as writer:
        known = read_masks(stores(index.root), method, index.stamps)
        paths = [image.path for patch in index.patches for image in patch.optical]
        todo = [path for path in paths if known is None or path not in known.records]
        results = _results(partial(_mask_of, index.root, method), todo, workers)
        for path, mask, error in tqdm(
            results, desc="cloud masks", total=len(todo), unit="image", delay=1
        ):
            writer.add(path, index.stamps[path], mask, error)
    found = read_masks(stores(index.root), method, index.stamps)
    problems = () if found is None else broken(found)
    return Prepared(index, method, len(todo), len(paths) - len(todo), problems)


def prepared_masks(index: Index, method: str = "auto") -> Masks | None:
    """The masks that `prepare` has stored; `auto` prefers those of s2cloudless."""
    for name in METHODS if method == "auto" else (method,):
        if (found := read_masks(stores(index.root), name, index.stamps)) is not None:
            return found
    return None


def broken(found: Masks) -> tuple[Problem, ...]:
    """The files that turned out to be unreadable when their pixels were needed."""
    return tuple(
        Problem("broken", path, record.error)
        for path, record in found.records.items()
        if record.error is not None
    )


def _mask_of(root: Path, method: str, path: str) -> Result:
    try:
        with rasterio.Env(**GDAL_OPTIONS):
            s2 = reflectance(read_raw(root / path))
    except DataError as error:
        return path, None, str(error)
    return path, masks.cloud_mask(s2[None], method)[0], None


def _results(work: Callable[[str], Result], paths: list[str], workers: int) -> Iterator[Result]:
    if workers == 1 or len(paths) < 2:
        yield from map(work, paths)
        return
    # Processes are spawned: LightGBM's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker)
        stack.callback(pool.shutdown, cancel_futures=True)
        pending: set[Future[Result]] = set()
        try:
            for path in paths:
                pending.add(pool.submit(work, path))
                if len(pending) >= 4 * workers:  # as many as keep the workers busy, not all
                    done, pending = wait(pending, return_when=FIRST_COMPLETED)
                    yield from (future.result() for future in done)
            yield from (future.result() for future in as_completed(pending))
        except BrokenProcessPool as error:
            raise DataError(
                "a worker process died, perhaps of too little memory: what is finished is kept, "
                "run undercast data prepare again with fewer --workers"
            ) from error


def _start_worker() -> None:
    """End with the parent, even one that was killed: a worker would wait for ever."""
    parent = multiprocessing.parent_process()

    def end_with_parent() -> None:
        if parent is not None:
            connection.wait([parent.sentinel])
            os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
