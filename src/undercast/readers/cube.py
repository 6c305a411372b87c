"""Zarr stores and xarray datasets: time × band × y × x, read window by window.

`s2 (time, band, y, x)` with band names, or one variable per band `(time, y, x)`; optionally
`s1 (time, polarisation, y, x)` in dB with `s1_time (time)`, and `mask (time, y, x)` or `scl`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from affine import Affine
from numpy.typing import NDArray

from undercast import bands
from undercast.errors import DataError, InputError, MissingDependencyError
from undercast.masks import SCL_UNUSABLE
from undercast.readers import raster
from undercast.readers.filling import fill_bands, fillable
from undercast.readers.image import Image, Source, blank_zeros, read_mask_file
from undercast.readers.raster import Layer
from undercast.types import BoolArray, DateArray, FloatArray, Grid, parse_dates

_ALL = slice(None)


@lru_cache(maxsize=16)
def _open_zarr(href: str, modified: int) -> Any:
    try:
        import xarray
        import zarr  # noqa: F401  (xarray would complain in its own words)
    except ImportError as error:
        raise MissingDependencyError("reading Zarr stores", "zarr") from error
    try:
        # Without Dask: a window is decoded where it is read, in the process that reads it.
        consolidated = False if Path(href).exists() else None
        return xarray.open_zarr(href, chunks=None, consolidated=consolidated)
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise DataError(f"cannot read {href} as a Zarr store: {error}") from error


@dataclass(frozen=True, eq=False)
class Cube:
    """A dataset in memory (`data`), or one in a Zarr store that every process opens for itself."""

    href: str
    data: Any | None = None
    offset: float = 0.0

    @property
    def dataset(self) -> Any:
        if self.data is not None:
            return self.data
        return _open_zarr(self.href, raster.modified(f"{self.href}/zarr.json"))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The canonical band names, in the order of the store."""
        found = self.dataset
        if "s2" in found:
            if "band" not in found["s2"].coords:
                raise InputError(
                    f"got s2 without band names in {self.href}, expected a coordinate `band`"
                )
            return tuple(bands.canonical(str(name)) for name in found["s2"]["band"].values)
        return tuple(bands.canonical(str(name)) for name in self._band_variables)

    @cached_property
    def _band_variables(self) -> tuple[str, ...]:
        named = {}
        for name in self.dataset.data_vars:
            try:
                named[bands.canonical(str(name))] = str(name)
            except InputError:
                continue
        if not named:
            raise InputError(
                f"got variables {', '.join(map(str, self.dataset.data_vars))} in {self.href}, "
                "expected s2 (time, band, y, x) or one variable per band, named B02, B03, …"
            )
        return tuple(named[band] for band in bands.S2 if band in named)

    @cached_property
    def missing(self) -> tuple[str, ...]:
        return fillable(self.names)

    @cached_property
    def dates(self) -> DateArray:
        if "time" not in self.dataset.coords:
            raise InputError(f"got {self.href} without dates, expected a coordinate `time`")
        times = np.atleast_1d(self.dataset["time"].values)
        return parse_dates(times, times.size, "time")

    @cached_property
    def s1_dates(self) -> DateArray | None:
        if "s1" not in self.dataset:
            return None
        if "s1_time" not in self.dataset:
            return self.dates
        return parse_dates(self.dataset["s1_time"].values, len(self.dates), "s1_time")

    @cached_property
    def scale(self) -> float:
        """1 for reflectance, 10000 for digital numbers; xarray has applied scale factors."""
        variable = self.dataset["s2" if "s2" in self.dataset else self._band_variables[0]]
        if not np.issubdtype(variable.dtype, np.floating):
            return bands.DN_PER_REFLECTANCE
        middle = [int(variable.sizes[axis]) // 2 for axis in ("y", "x")]
        rows, cols = (slice(max(0, at - 64), at + 64) for at in middle)
        part = self._values(0, rows, cols)
        positive = part[np.isfinite(part) & (part > 0)]
        looks_like_dn = positive.size and np.median(positive) > 2
        return bands.DN_PER_REFLECTANCE if looks_like_dn else 1.0

    @property
    def has_mask(self) -> bool:
        return any(name in self.dataset for name in ("mask", "scl", "SCL"))

    def s2(self, index: int, rows: slice = _ALL, cols: slice = _ALL) -> FloatArray:
        """(13, H, W) reflectance of one date, missing bands filled."""
        values = self._values(index, rows, cols)
        offset = self.offset if self.scale > 1 else 0.0
        blank_zeros(values, np.full(len(values), offset, np.float32))
        s2 = np.full((bands.N_S2, *values.shape[1:]), np.nan, np.float32)
        s2[bands.index(self.names)] = (values + np.float32(offset)) / np.float32(self.scale)
        return fill_bands(s2, self.missing)

    def _values(self, index: int, rows: slice, cols: slice) -> FloatArray:
        found = self.dataset
        at = {"time": index, "y": rows, "x": cols}
        if "s2" in found:
            part = _at(found["s2"], at).transpose("band", "y", "x")
            return np.array(part.values, np.float32)
        parts = [_at(found[name], at).transpose("y", "x").values for name in self._band_variables]
        return np.stack(parts).astype(np.float32)

    def s1(self, index: int, rows: slice = _ALL, cols: slice = _ALL) -> FloatArray:
        """(2, H, W) backscatter of one date in dB."""
        part = _at(self.dataset["s1"], {"time": index, "y": rows, "x": cols})
        axis = next(str(name) for name in part.dims if name not in ("y", "x"))
        part = part.transpose(axis, "y", "x")
        if axis in part.coords:
            part = part.sel({axis: list(bands.S1)})
        return np.array(part.values, np.float32)

    def mask(self, index: int, rows: slice = _ALL, cols: slice = _ALL) -> BoolArray:
        """(H, W) True = unusable."""
        name = next(name for name in ("mask", "scl", "SCL") if name in self.dataset)
        part = _at(self.dataset[name], {"time": index, "y": rows, "x": cols}).transpose("y", "x")
        if name == "mask":
            return np.asarray(part.values != 0)
        return np.isin(part.values, tuple(SCL_UNUSABLE))

    @cached_property
    def grid(self) -> Grid:
        """Where the pixels lie: x and y are their centres, the CRS as rioxarray writes it."""
        x, y = (np.asarray(self.dataset[axis].values, float) for axis in ("x", "y"))
        dx, dy = _step(x, self.href), _step(y, self.href)
        transform = Affine(dx, 0, x[0] - dx / 2, 0, dy, y[0] - dy / 2)
        crs = raster.parse_crs(_crs(self.dataset, self.href))
        return raster.make_grid(crs, transform, len(y), len(x))


def _at(variable: Any, at: dict[str, Any]) -> Any:
    """The part of a variable; a dataset of one date may come without the axis `time`."""
    return variable.isel({axis: where for axis, where in at.items() if axis in variable.dims})


def _step(centres: NDArray[np.float64], href: str) -> float:
    steps = np.diff(centres)
    if steps.size == 0 or not np.allclose(steps, steps[0], rtol=1e-4):
        raise InputError(f"got uneven x or y in {href}, expected at least two evenly spaced pixels")
    return float((centres[-1] - centres[0]) / (len(centres) - 1))


def _crs(found: Any, href: str) -> str:
    reference = found["spatial_ref"].attrs if "spatial_ref" in found.variables else {}
    for attributes in (reference, found.attrs):
        for key in ("crs_wkt", "spatial_ref", "crs", "proj:code"):
            if attributes.get(key):
                return str(attributes[key])
    raise InputError(
        f"got {href} without a CRS, expected a coordinate `spatial_ref` with crs_wkt (rioxarray's "
        "write_crs) or the attribute crs such as EPSG:32631"
    )


@dataclass(frozen=True, eq=False)
class CubeImage:
    """One date of a cube."""

    cube: Cube
    index: int
    source: Source
    mask_layer: Layer | None = None

    @property
    def grid(self) -> Grid:
        return self.cube.grid

    @property
    def missing(self) -> tuple[str, ...]:
        return self.cube.missing

    @property
    def has_mask(self) -> bool:
        return self.mask_layer is not None or self.cube.has_mask

    @property
    def mask_knows_no_data(self) -> bool:
        return False

    @property
    def radar(self) -> CubeRadar | None:
        dates = self.cube.s1_dates
        if dates is None:
            return None
        href = f"{self.source.href}/s1"
        return CubeRadar(self.cube, self.index, Source(href, dates[self.index], "S1"))

    def with_mask(self, href: str) -> CubeImage:
        """The same image with a mask file: other than 0 = unusable."""
        return replace(self, mask_layer=Layer(href))

    def read(self, grid: Grid) -> FloatArray:
        """(13, H, W) reflectance on any grid, missing bands filled, NaN = no data."""
        return raster.read_array(
            lambda rows, cols: self.cube.s2(self.index, rows, cols), self.grid, grid
        )

    def read_mask(self, grid: Grid) -> BoolArray:
        """(H, W) True = unusable; outside the store everything is."""
        if self.mask_layer is not None:
            return read_mask_file(self.mask_layer, grid)
        values = raster.read_array(
            lambda rows, cols: self.cube.mask(self.index, rows, cols)[None], self.grid, grid, True
        )[0]
        return np.asarray((values != 0) | np.isnan(values))


@dataclass(frozen=True, eq=False)
class CubeRadar:
    """The radar image of one date of a cube."""

    cube: Cube
    index: int
    source: Source

    @property
    def grid(self) -> Grid:
        return self.cube.grid

    def read(self, grid: Grid) -> FloatArray:
        """(2, H, W) VV and VH in dB on any grid, NaN = missing."""
        return raster.read_array(
            lambda rows, cols: self.cube.s1(self.index, rows, cols), self.grid, grid
        )


def is_cube(item: Any) -> bool:
    """Whether an input is an xarray object or the folder or address of a Zarr store."""
    if hasattr(item, "to_dataset") or hasattr(item, "data_vars"):
        return True
    path = Path(str(item))
    markers = ("zarr.json", ".zgroup", ".zmetadata")
    return path.suffix == ".zarr" or any((path / marker).is_file() for marker in markers)


def as_cube(item: Any, offset: float | None = None) -> Cube:
    """A cube of a path, a Dataset, or a DataArray (time, band, y, x)."""
    if hasattr(item, "data_vars"):
        return Cube("xarray dataset", item, offset or 0.0)
    if hasattr(item, "to_dataset"):
        return Cube("xarray dataset", item.to_dataset(name="s2"), offset or 0.0)
    return Cube(str(item), None, offset or 0.0)


def open_cube(item: Any, offset: float | None = None) -> list[Image]:
    """The images of a Zarr store or xarray object, one per date."""
    cube = as_cube(item, offset)
    level = str(cube.dataset.attrs.get("level", "unknown"))
    digest_of = None if cube.data is not None else _metadata_file(cube.href)
    return [
        CubeImage(
            cube,
            i,
            Source(
                href=f"{cube.href}#{i}",
                date=date,
                level=level if level in ("L1C", "L2A") else "unknown",
                offset=cube.offset if cube.scale > 1 else 0.0,
                digest_of=digest_of,
            ),
        )
        for i, date in enumerate(cube.dates)
    ]


def _metadata_file(href: str) -> str | None:
    """The file that stands for a local store: its metadata, not its chunks."""
    found = [Path(href) / name for name in ("zarr.json", ".zmetadata", ".zgroup")]
    return next((str(path) for path in found if path.is_file()), None)
