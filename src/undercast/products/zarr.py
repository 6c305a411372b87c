"""A product as a Zarr store that xarray opens with its scale, dates and coordinates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from undercast.errors import MissingDependencyError
from undercast.products.cog import RowFile
from undercast.types import Grid

CHUNK = 512


def write_zarr(files: Sequence[RowFile], path: Path) -> None:
    """One array (band, y, x) for each raster, one array of band names for each kind of band."""
    try:
        import zarr
    except ImportError as error:
        raise MissingDependencyError("a Zarr product", "zarr") from error
    grid = files[0].grid
    group = zarr.open_group(str(path), mode="w")
    for file in files:
        raster, dim = file.raster, f"{file.raster.name}_band"
        array = group.create_array(
            raster.name,
            shape=(len(raster.bands), grid.height, grid.width),
            chunks=(1, min(CHUNK, grid.height), min(CHUNK, grid.width)),
            dtype=raster.dtype,
            fill_value=raster.nodata if raster.dtype == "float32" else int(raster.nodata),
            dimension_names=(dim, "y", "x"),
            attributes=_attributes(file),
        )
        for row, chunk in _aligned(file):
            array[:, row : row + chunk.shape[1]] = chunk
        _coordinate(
            group,
            dim,
            np.array([band.name for band in raster.bands], dtype=np.dtypes.StringDType()),
        )
    _write_grid(group, grid)


def _attributes(file: RowFile) -> dict[str, Any]:
    raster = file.raster
    attributes: dict[str, Any] = {"units": raster.bands[0].unit, "grid_mapping": "spatial_ref"}
    if raster.dtype != "float32":
        attributes["_FillValue"] = int(raster.nodata)
    if raster.bands[0].scale != 1.0:
        attributes |= {"scale_factor": raster.bands[0].scale, "add_offset": 0.0}
    return attributes | dict(raster.tags)


def _aligned(file: RowFile) -> Any:
    """The rows in pieces that end where chunks end, so that no chunk is written twice."""
    waiting: list[Any] = []
    start = 0
    for _, rows in file.chunks():
        waiting.append(rows)
        whole = np.concatenate(waiting, axis=1)
        full = whole.shape[1] // CHUNK * CHUNK
        waiting = [whole[:, full:]]
        if full:
            yield start, whole[:, :full]
            start += full
    if waiting[0].shape[1]:
        yield start, waiting[0]


def _write_grid(group: Any, grid: Grid) -> None:
    """Pixel centres as x and y where the grid is not rotated, and the CRS as CF has it."""
    from rasterio.crs import CRS

    a, b, c, d, e, f = grid.transform
    if b == 0 and d == 0:
        _coordinate(group, "x", c + a * (np.arange(grid.width) + 0.5))
        _coordinate(group, "y", f + e * (np.arange(grid.height) + 0.5))
    spatial_ref = group.create_array("spatial_ref", shape=(), dtype="int64", dimension_names=())
    spatial_ref.attrs.update(
        crs_wkt=CRS.from_string(grid.crs).to_wkt(), GeoTransform=f"{c} {a} {b} {f} {d} {e}"
    )


def _coordinate(group: Any, name: str, values: Any) -> None:
    array = group.create_array(
        name, shape=values.shape, dtype=values.dtype, dimension_names=(name,)
    )
    array[:] = values
