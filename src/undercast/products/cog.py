"""Cloud-Optimized GeoTIFFs out of rows that come one strip after the other.

Finished rows are appended to a plain file (rows × bands × columns), so that a run killed at any
moment leaves whole rows behind; GDAL turns that file into a COG at the end.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import numpy as np
from numpy.typing import NDArray

from undercast.errors import DataError
from undercast.types import Grid

Array = NDArray[Any]
CACHE = 128 << 20  # bytes of GDAL's blocks; its own default is a twentieth of the memory
LEVEL = 1  # of DEFLATE: on reflectances twice as fast as GDAL's default, and no larger
_CHUNK_ROWS = 256
_GDAL_TYPES = {"uint16": "UInt16", "int16": "Int16", "float32": "Float32"}


@dataclass(frozen=True)
class Band:
    """One band of a raster: its name, what its values mean and how to read them."""

    name: str
    unit: str = ""
    scale: float = 1.0
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Raster:
    """A raster file of the product: value = stored number × scale."""

    name: str
    dtype: str
    nodata: float
    bands: tuple[Band, ...]
    resampling: str = "AVERAGE"  # of the overviews
    tags: Mapping[str, str] = field(default_factory=dict)

    def row_bytes(self, width: int) -> int:
        """Bytes of one row of pixels."""
        return len(self.bands) * width * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class RowFile:
    """The rows of a raster that are finished, in a plain file: (rows, bands, width)."""

    path: Path
    raster: Raster
    grid: Grid

    def append(self, rows: Array) -> None:
        """Rows (bands, n, width) in the stored type."""
        with self.path.open("ab") as file:
            np.ascontiguousarray(rows.transpose(1, 0, 2)).tofile(file)

    def keep(self, rows: int) -> None:
        """Forget what was written after that many rows."""
        size = rows * self.raster.row_bytes(self.grid.width)
        if not self.path.exists() or self.path.stat().st_size < size:
            raise DataError(f"got {self.path} with less than {rows} rows, expected that many")
        os.truncate(self.path, size)

    def chunks(self, *, outer: bool = False) -> Iterator[tuple[int, Array]]:
        """(first row, (bands, n, width)) from top to bottom; `outer`: the first and the last."""
        starts = range(0, self.grid.height, _CHUNK_ROWS)
        shape = (len(self.raster.bands), self.grid.width)
        for row in sorted({starts[0], starts[-1]}) if outer else starts:
            count = min(_CHUNK_ROWS, self.grid.height - row) * shape[0] * shape[1]
            offset = row * self.raster.row_bytes(self.grid.width)
            values = np.fromfile(self.path, self.raster.dtype, count, offset=offset)
            yield row, values.reshape(-1, *shape).transpose(1, 0, 2)


def write_cog(rows: RowFile, path: Path) -> list[dict[str, float]]:
    """Write the rows as a COG with overviews, look at its ends; the statistics that it carries."""
    import rasterio
    from rasterio._err import CPLE_BaseError
    from rasterio.errors import RasterioError
    from rasterio.shutil import copy

    statistics = band_statistics(rows)
    vrt = rows.path.with_suffix(".vrt")
    vrt.write_text(_vrt(rows, statistics))
    path.unlink(missing_ok=True)
    try:
        with rasterio.Env(
            GDAL_CACHEMAX=CACHE,
            GDAL_PAM_ENABLED=False,
            COG_TMP_COMPRESSION="NONE",  # of overviews on their way; its own costs more than they
        ):
            copy(
                str(vrt), str(path), driver="COG", compress="DEFLATE", level=LEVEL,
                predictor="YES", blocksize=512, resampling=rows.raster.resampling,
                bigtiff="IF_SAFER", num_threads="ALL_CPUS",
            )  # fmt: skip
            _compare(rows, path)
    except (RasterioError, CPLE_BaseError) as error:
        raise DataError(f"cannot write {path.name}: {error}; is the disk full?") from error
    return statistics


def band_statistics(rows: RowFile) -> list[dict[str, float]]:
    """Minimum, maximum, mean, stddev and valid_percent of each band's stored numbers.

    Empty where a band has no valid number.
    """
    found = [_Statistics() for _ in rows.raster.bands]
    for _, chunk in rows.chunks():
        for band, values in zip(found, chunk, strict=True):
            bad = ~np.isfinite(values) if chunk.dtype.kind == "f" else values == rows.raster.nodata
            band.feed(values[~bad] if bad.any() else values.reshape(-1), values.size)
    return [band.result() for band in found]


class _Statistics:
    """Running moments, merged chunk by chunk."""

    def __init__(self) -> None:
        self.count = self.pixels = 0
        self.mean = self.squares = 0.0
        self.low, self.high = np.inf, -np.inf

    def feed(self, valid: Array, pixels: int) -> None:
        self.pixels += pixels
        if not valid.size:
            return
        mean, total = float(valid.mean(dtype=np.float64)), self.count + valid.size
        step, away = mean - self.mean, np.subtract(valid, mean, dtype=np.float64)
        around = float(np.einsum("i,i", away, away))  # without the threads of a BLAS
        self.squares += around + step**2 * self.count * valid.size / total
        self.mean += step * valid.size / total
        self.count = total
        self.low, self.high = min(self.low, float(valid.min())), max(self.high, float(valid.max()))

    def result(self) -> dict[str, float]:
        if not self.count:
            return {}
        return {
            "minimum": self.low,
            "maximum": self.high,
            "mean": self.mean,
            "stddev": float(np.sqrt(self.squares / self.count)),
            "valid_percent": 100 * self.count / self.pixels,
        }


def _compare(rows: RowFile, path: Path) -> None:
    """The first and last rows are what was written: a driver's fault must not pass unseen.

    GDAL itself raises an error where the disk is full, and blocks are written from top to bottom.
    """
    import rasterio
    from rasterio.windows import Window

    with rasterio.open(path) as file:
        for row, chunk in rows.chunks(outer=True):
            window = Window(0, row, rows.grid.width, chunk.shape[1])
            if not np.array_equal(
                file.read(window=window), chunk, equal_nan=rows.raster.dtype == "float32"
            ):
                raise DataError(
                    f"got other pixels in {path.name} than were written, after row {row}: "
                    "is the disk full?"
                )


def _vrt(rows: RowFile, statistics: list[dict[str, float]]) -> str:
    grid, raster = rows.grid, rows.raster
    a, b, c, d, e, f = grid.transform
    parts = [
        f'<VRTDataset rasterXSize="{grid.width}" rasterYSize="{grid.height}">',
        f"<SRS>{escape(grid.crs)}</SRS>",
        f"<GeoTransform>{c!r},{a!r},{b!r},{f!r},{d!r},{e!r}</GeoTransform>",
        _metadata(raster.tags),
        *(_vrt_band(rows, i, statistics[i]) for i in range(len(raster.bands))),
        "</VRTDataset>",
    ]
    return "\n".join(parts)


def _vrt_band(rows: RowFile, i: int, statistics: Mapping[str, float]) -> str:
    raster, band = rows.raster, rows.raster.bands[i]
    size = np.dtype(raster.dtype).itemsize
    tags = {f"STATISTICS_{key.upper()}": f"{value:.10g}" for key, value in statistics.items()}
    return (
        f'<VRTRasterBand dataType="{_GDAL_TYPES[raster.dtype]}" band="{i + 1}" '
        'subClass="VRTRawRasterBand">'
        f"{_metadata({**band.tags, **tags})}<Description>{escape(band.name)}</Description>"
        f"<UnitType>{escape(band.unit)}</UnitType><NoDataValue>{raster.nodata}</NoDataValue>"
        f"<Offset>0</Offset><Scale>{band.scale!r}</Scale>"
        f'<SourceFilename relativetoVRT="1">{escape(rows.path.name)}</SourceFilename>'
        f"<ImageOffset>{i * rows.grid.width * size}</ImageOffset><PixelOffset>{size}</PixelOffset>"
        f"<LineOffset>{raster.row_bytes(rows.grid.width)}</LineOffset>"
        f"<ByteOrder>{'LSB' if sys.byteorder == 'little' else 'MSB'}</ByteOrder></VRTRasterBand>"
    )


def _metadata(tags: Mapping[str, str]) -> str:
    entries = (f'<MDI key="{escape(key)}">{escape(value)}</MDI>' for key, value in tags.items())
    return f"<Metadata>{''.join(entries)}</Metadata>"
