"""Whole scenes in `undercast benchmark`: what costs time besides the network, and more workers."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from undercast import bands, engines
from undercast.benchmark import Plan, Results, interleaved, median, paper_model, random_batch
from undercast.models.system import Batch, Model, Output, System
from undercast.pipeline import predict_scene
from undercast.threads import start_pool
from undercast.tiles import SIZE, TilePlan

LIMIT_MS = 50  # of wall time per tile beyond the network
FORWARDS = 12  # of the network alone, in each repetition
WORKERS = (1, 2)


@dataclass(frozen=True)
class FreeConfig:
    """Nothing to set."""


class Free(System):
    """A system that costs nothing: the first date, and one variance everywhere.

    A scene predicted with it takes as long as reading, masks, blending and writing do.
    """

    title = "the first date"
    uses_s1 = False
    learns = False
    Config = FreeConfig

    @property
    def gives_variance(self) -> bool:
        return True

    def forward(self, batch: Batch) -> Output:
        """The first date as it is."""
        mean = batch.s2[:, 0].nan_to_num(0.0)
        return Output(mean, torch.full_like(mean, 1e-3))


def measure_scene(plan: Plan) -> Results:
    """Wall time of a scene beside that of its network alone, in seconds per tile.

    Alone, the network runs on a tile that is in memory, as many side by side as for a scene.
    `overhead_ms` is the difference, `rest` the scene with a network that costs nothing (`rest_cpu`:
    in seconds of one core): what there is to hide behind the network.
    """
    side = plan.scene
    model, tiles = engines.attach(paper_model(plan.config)), len(TilePlan(side, side))
    batch, forwards = random_batch(1, plan.dates[0], min(side, SIZE)), min(tiles, FORWARDS)
    free, threads = Model("free", Free(FreeConfig())).eval(), torch.get_num_threads()
    streams = engines.streams(model, threads)

    def forward(_: int) -> None:
        with torch.inference_mode():
            model(batch)

    def alone() -> None:
        with start_pool(streams, threads // streams) as pool:
            list(pool.map(forward, range(forwards)))

    with _scene(side, plan.dates[0]) as predict:
        forward(0)  # builds the engine
        calls = {"scene": lambda: predict(model), "network": alone, "rest": lambda: predict(free)}
        times = interleaved(calls, max(2, plan.repeat // 2))
        begin = time.process_time()
        predict(free)
        cpu = (time.process_time() - begin) / tiles
    counts = {"scene": tiles, "network": forwards, "rest": tiles}
    each = {name: [t / counts[name] for t in values] for name, values in times.items()}
    pairs = zip(each["scene"], each["network"], strict=True)
    overhead = median([scene - network for scene, network in pairs])
    return {
        "size": side,
        "tiles": tiles,
        **{name: round(median(values), 4) for name, values in each.items()},
        "rest_cpu": round(cpu, 4),
        "overhead_ms": round(1000 * overhead, 1),
        "limit_ms": LIMIT_MS,
        "holds": overhead <= LIMIT_MS / 1000,
    }


def time_workers(plan: Plan) -> dict[str, float]:
    """Seconds of a scene in this process ("0") and on local Dask clusters, one thread each.

    The start of the cluster is part of it. Empty where Dask is not installed.
    """
    if find_spec("distributed") is None:
        return {}
    model = engines.attach(paper_model(plan.config))
    with _scene(plan.scene, plan.dates[0]) as predict:
        calls = {str(n): _with_workers(predict, model, n) for n in (0, *WORKERS)}
        times = interleaved(calls, max(1, plan.repeat // 3))
    return {name: round(median(values), 2) for name, values in times.items()}


def _with_workers(predict: Callable[..., None], model: Model, workers: int) -> Callable[[], None]:
    return lambda: predict(model, workers=workers, threads=1)


@contextmanager
def _scene(side: int, dates: int) -> Iterator[Callable[..., None]]:
    """Files of a scene; gives what predicts it with a model, into a folder that is replaced."""
    with tempfile.TemporaryDirectory(prefix="undercast-") as name:
        files = write_scene(Path(name), side, side, dates)
        s1 = write_scene(Path(name), side, side, dates, radar=True)

        def predict(model: Model, **options: Any) -> None:
            predict_scene(
                files, Path(name) / "out", model, s1=s1, clouds="rules", overwrite=True,
                progress=False, **options,
            )  # fmt: skip

        yield predict


def write_scene(
    folder: Path, height: int, width: int, dates: int = 3, *, radar: bool = False
) -> list[Path]:
    """Smooth dates with round clouds, or their radar images, as GeoTIFFs, ten days apart.

    Written strip by strip, so that memory stays small.
    """
    import rasterio
    from rasterio.transform import from_origin

    name, count, dtype = ("s1", bands.N_S1, "float32") if radar else ("s2", bands.N_S2, "uint16")
    files = []
    for i in range(dates):
        path = folder / f"{name}_{np.datetime64('2018-06-01') + 10 * i}.tif"
        with rasterio.open(
            path, "w", driver="GTiff", count=count, height=height, width=width, dtype=dtype,
            nodata=None if radar else 0, crs="EPSG:32631",
            transform=from_origin(500000, 4600000, 10, 10), tiled=True, blockxsize=256,
            blockysize=256, compress="deflate", zlevel=1,
        ) as file:  # fmt: skip
            for row in range(0, height, SIZE):
                rows = slice(row, min(row + SIZE, height))
                window = ((rows.start, rows.stop), (0, width))
                file.write((_decibels if radar else _numbers)(rows, width, i), window=window)
        files.append(path)
    return files


def _numbers(rows: slice, width: int, date: int) -> NDArray[np.uint16]:
    y, x = np.mgrid[rows, 0:width].astype(np.float32)
    waves = [np.sin(x / (17 + 3 * b)) * np.cos(y / (23 + 2 * b)) for b in range(bands.N_S2)]
    levels = np.linspace(0.08, 0.25, bands.N_S2, dtype=np.float32)[:, None, None]
    cloud = np.sin(x / 150 + 2 * date) * np.sin(y / 130 + date) > 0.55
    noise = np.random.default_rng([rows.start, date]).normal(0, 0.003, (bands.N_S2, *x.shape))
    ground = 0.06 * np.stack(waves) + levels + noise
    numbers = np.rint(bands.DN_PER_REFLECTANCE * np.where(cloud, 0.75, ground))
    return numbers.clip(1, 65535).astype(np.uint16)


def _decibels(rows: slice, width: int, date: int) -> NDArray[np.float32]:
    y, x = np.mgrid[rows, 0:width].astype(np.float32)
    speckle = np.random.default_rng([rows.start, date, 1]).normal(0, 1, (bands.N_S1, *x.shape))
    waves = 2 * np.sin(x / 40) * np.cos(y / 50)
    level = np.array([-10.0, -17.0])[:, None, None]  # VV, VH
    return np.asarray(level + waves + speckle, dtype=np.float32)
