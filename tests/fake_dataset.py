"""Small folders with the names and encoding of the real datasets, made by hand for tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import rasterio
from affine import Affine

from undercast.datasets.layouts import SEASONS

SIZE = 32
TS_ROIS = ("1868/36", "1970/21", "1868/17", "1868/73", "1868/100")  # train train val test test
CR_ROIS = ("1158/1", "1868/100", "1158/17", "1158/106", "2017/63")  # train train val test test


def write_tif(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    count, height, width = array.shape
    with rasterio.open(
        path, "w", driver="GTiff", height=height, width=width, count=count, dtype=array.dtype,
        crs="EPSG:32631", transform=Affine(10, 0, 500000, 0, -10, 4000000),
    ) as file:  # fmt: skip
        file.write(array)


def optical(seed: int, cloudy: float = 0.0, size: int = SIZE) -> np.ndarray:
    """Vegetation, with a bright cloud over the upper part; the values name the seed."""
    rng = np.random.default_rng(seed)
    spectrum = np.array([1200, 900, 800, 600, 1000, 2200, 2800, 3000, 3100, 900, 15, 1700, 900])
    image = spectrum[:, None, None] + rng.integers(-50, 50, (13, size, size))
    rows = round(cloudy * size)
    image[:, :rows] += 5000
    return image.clip(1).astype(np.uint16)


def radar(seed: int, size: int = SIZE) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal([[[-11.0]], [[-17.0]]], 1.5, (2, size, size)).astype(np.float32)


def ts_path(root: Path, roi: str, kind: str, number: int, date: str, patch: int) -> Path:
    seed, name = roi.split("/")
    file = f"{kind}_ROIs{seed}_{name}_ImgNo_{number}_{date}_patch_{patch}.tif"
    return root / f"ROIs{seed}" / name / kind.upper() / str(number) / file


def write_ts(
    root: Path, rois: tuple[str, ...] = TS_ROIS, patches: int = 2, dates: int = 6, size: int = SIZE
) -> Path:
    """Series every third date of which is clear, the others a quarter or three quarters cloudy."""
    start = np.datetime64("2018-01-04")
    for roi in rois:
        for patch in range(100, 100 + patches):
            for number in range(dates):
                seed = abs(hash_free(f"{roi}/{patch}/{number}"))
                cover = 0.0 if (number + patch) % 3 == 0 else 0.25 + 0.5 * (number % 2)
                date, s1_date = (str(start + 12 * number + shift) for shift in (0, 2))
                s2 = optical(seed, cover, size)
                write_tif(ts_path(root, roi, "s2", number, date, patch), s2)
                write_tif(ts_path(root, roi, "s1", number, s1_date, patch), radar(seed, size))
    return root


def cr_path(root: Path, roi: str, kind: str, patch: int) -> Path:
    seed, name = roi.split("/")
    stem = f"ROIs{seed}_{SEASONS[seed]}_{kind}"
    return root / stem / f"{kind}_{name}" / f"{stem}_{name}_p{patch}.tif"


def write_cr(
    root: Path, rois: tuple[str, ...] = CR_ROIS, patches: int = 2, size: int = SIZE
) -> Path:
    for roi in rois:
        for patch in range(30, 30 + patches):
            seed = abs(hash_free(f"{roi}/{patch}"))
            write_tif(cr_path(root, roi, "s2", patch), optical(seed, 0.0, size))
            write_tif(cr_path(root, roi, "s2_cloudy", patch), optical(seed + 1, 0.4, size))
            write_tif(cr_path(root, roi, "s1", patch), radar(seed, size))
    return root


def hash_free(text: str) -> int:
    """A small number from a text that is the same in every process."""
    return sum(ord(letter) * 31**i for i, letter in enumerate(text)) % 100003
