"""A scene of three dates as files, a small network for it, and what is read of a product."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import rasterio
import torch
from rasterio.transform import from_origin

from undercast.checkpoint import save_model
from undercast.models import create
from undercast.pipeline import open_scene
from undercast.types import Stack, Tile

DATES = ("2018-06-01", "2018-06-11", "2018-06-21")
HEIGHT, WIDTH = 600, 40  # four rows of tiles, each one narrow tile
EMPTY_ROWS = 20


def write_tif(path: Path, values: np.ndarray, **extra: Any) -> Path:
    count, height, width = values.shape
    with rasterio.open(
        path, "w", driver="GTiff", count=count, height=height, width=width, dtype=values.dtype,
        crs="EPSG:32631", transform=from_origin(500000, 4600000, 10, 10), **extra,
    ) as file:  # fmt: skip
        file.write(values)
    return path


def three_dates(folder: Path) -> dict[str, Any]:
    """Three dates with a cloud each, masks, and no data at the top, as GeoTIFFs."""
    rng = np.random.default_rng(0)
    coarse = torch.from_numpy(rng.uniform(0.02, 0.3, (1, 13, 40, 5)))
    ground = torch.nn.functional.interpolate(coarse, (HEIGHT, WIDTH), mode="bicubic")[0].numpy()
    files, masks, numbers, clouds = [], [], [], []
    for i, date in enumerate(DATES):
        cloud = np.zeros((HEIGHT, WIDTH), bool)
        cloud[100 + 150 * i : 260 + 150 * i] = True  # rows 250..260 are never without cloud
        cloud[250:260] = True
        dn = np.clip(np.rint(10000 * (ground + rng.normal(0, 0.004, ground.shape))), 1, 10000)
        dn[:, cloud] = 7500
        dn[:, :EMPTY_ROWS] = 0
        files.append(write_tif(folder / f"s2_{date}.tif", dn.astype(np.uint16), nodata=0))
        masks.append(write_tif(folder / f"mask_{date}.tif", cloud[None].astype(np.uint8)))
        numbers.append(dn)
        clouds.append(cloud)
    return {
        "files": files, "masks": masks, "dn": np.array(numbers), "cloud": np.array(clouds),
        "folder": folder,
    }  # fmt: skip


def small_weights(path: Path) -> Path:
    """An untrained network without radar."""
    torch.manual_seed(0)
    save_model(create("uncrtaints", d_m=16, heads=4, n_d=1, sar=False), path)
    return path


def stored(folder: Path, name: str) -> np.ndarray:
    with rasterio.open(folder / f"{name}.tif") as file:
        return np.asarray(file.read())


class Counting:
    """Counts the tiles that are read, and fails at one of them if told to."""

    def __init__(self, fail_at: int | None = None) -> None:
        self.tiles: list[Tile] = []
        self.fail_at = fail_at

    def __call__(self, inputs: Any, **options: Any) -> Any:
        opened, counting = open_scene(inputs, **options), self

        class Wrapped:
            grid, dates, s1_dates, info = opened.grid, opened.dates, opened.s1_dates, opened.info
            has_masks = opened.has_masks

            def read(self, tile: Tile) -> Stack:
                counting.tiles.append(tile)
                if len(counting.tiles) - 1 == counting.fail_at:
                    raise ValueError("lightning")
                return opened.read(tile)

        return Wrapped()
