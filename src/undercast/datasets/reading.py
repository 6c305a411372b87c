"""Pixels of dataset files: only the window that is asked for is decoded."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import rasterio
from rasterio.errors import RasterioError
from rasterio.windows import Window

from undercast import bands
from undercast.errors import DataError
from undercast.types import BoolArray, FloatArray, Tile

# Folders hold hundreds of files: GDAL must not list them or look for side-car files at each open.
GDAL_OPTIONS: dict[str, Any] = {
    "GDAL_DISABLE_READDIR_ON_OPEN": "EMPTY_DIR",
    "GDAL_PAM_ENABLED": "NO",
}


class Header(NamedTuple):
    """What opening a file says; `error` is set for a file that cannot be read to its end."""

    height: int
    width: int
    bands: int
    error: str | None = None


def read_header(path: Path) -> Header:
    """Size and band count of a GeoTIFF, whose last row is read to find truncated files."""
    try:
        with rasterio.Env(**GDAL_OPTIONS), rasterio.open(path) as file:
            last_row = Window(0, file.height - 1, file.width, 1)
            file.read(window=last_row)
            return Header(file.height, file.width, file.count)
    except RasterioError as error:
        return Header(0, 0, 0, _one_line(error))


def read_raw(path: Path, tile: Tile | None = None) -> np.ndarray[Any, Any]:
    """The bands of a file as stored, (bands, H, W), whole or under a tile."""
    window = None if tile is None else Window(tile.col, tile.row, tile.width, tile.height)
    try:
        with rasterio.open(path) as file:
            return np.asarray(file.read(window=window))
    except RasterioError as error:
        raise DataError(
            f"cannot read {path}: {_one_line(error)}; copy the file again, "
            "`undercast data audit` lists all that are broken"
        ) from error


def reflectance(raw: np.ndarray[Any, Any]) -> FloatArray:
    """Digital numbers (13, H, W) as reflectance; a pixel that is 0 in all bands is no data, NaN."""
    out = raw.astype(np.float32, order="C")
    out /= np.float32(bands.DN_PER_REFLECTANCE)
    if (blank := ~raw.any(axis=0)).any():
        out[:, blank] = np.nan
    return out


def backscatter(raw: np.ndarray[Any, Any]) -> FloatArray:
    """Stored dB (2, H, W); where both bands are exactly 0 or any is not finite there is no data."""
    out = raw.astype(np.float32)
    missing = ~np.isfinite(out).all(axis=0) | ~out.any(axis=0)
    if missing.any():
        out[:, missing] = np.nan
    return out


def nodata(s2: FloatArray) -> BoolArray:
    """(H, W) True where no band of an image (13, H, W) has a value."""
    missing = np.isnan(s2[0])  # a pixel without data has none in any band: look at the rest if so
    return np.asarray(np.isnan(s2).all(axis=0)) if missing.any() else missing


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
