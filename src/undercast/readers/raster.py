"""Windows of raster files on any grid: the only place that opens GDAL datasets for scenes.

A window on the file's own grid is copied; bands of 20 or 60 m whose pixels are whole multiples of
the grid's are repeated (nearest); everything else is warped: bilinear for values, nearest for
classes. What lies outside the file is NaN.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import rasterio
from affine import Affine
from numpy.typing import NDArray
from rasterio._err import CPLE_BaseError
from rasterio.crs import CRS
from rasterio.enums import Resampling
from rasterio.errors import RasterioError
from rasterio.io import MemoryFile
from rasterio.vrt import WarpedVRT
from rasterio.warp import calculate_default_transform, transform_bounds
from rasterio.windows import Window

from undercast.errors import DataError, InputError
from undercast.types import FloatArray, Grid, Tile

_OPEN_FILES = 128  # handles per thread: four dates of a SAFE product with room to spare
_ALIGNMENT = 1e-3  # of a pixel: closer than this counts as the same place
_EXACT = 1e-6  # source pixels by which the warper may miss; it refuses 0
# For files on the web: no listing of their folder, and another try after a failure.
_REMOTE = {"GDAL_DISABLE_READDIR_ON_OPEN": "EMPTY_DIR", "GDAL_HTTP_MAX_RETRY": "3"}
_handles = threading.local()

ReadPart = Callable[[slice, slice], Any]  # rows and columns to an array (n, h, w)


@dataclass(frozen=True)
class Layer:
    """One band of one file. nodata: the declared value, or None."""

    href: str
    band: int = 1
    nodata: float | None = None


@contextmanager
def readable(href: str) -> Iterator[None]:
    """Errors of GDAL inside the block become one line that names the file."""
    try:
        yield
    except (RasterioError, CPLE_BaseError, OSError) as error:
        if isinstance(error, DataError):
            raise
        detail = str(error.__cause__ or error).strip().splitlines() or [type(error).__name__]
        raise DataError(
            f"cannot read {href}: {detail[0]} (is the file complete and a raster?)"
        ) from error


def dataset(href: str) -> Any:
    """The open dataset of a file: one handle per thread and process, reopened when it changed."""
    key = (os.getpid(), href, modified(href))
    cache: OrderedDict[Any, Any] | None = getattr(_handles, "cache", None)
    if cache is None:
        cache = _handles.cache = OrderedDict()
    if key not in cache:
        with readable(href), rasterio.Env(**(_REMOTE if "://" in href else {})):
            cache[key] = rasterio.open(href)
        while len(cache) > _OPEN_FILES:
            cache.popitem(last=False)[1].close()
    cache.move_to_end(key)
    return cache[key]


def modified(href: str) -> int:
    """When a local file (or the zip it lies in) last changed, in nanoseconds."""
    inside_zip = href.removeprefix("/vsizip/").partition(".zip/")
    path = inside_zip[0] + (".zip" if inside_zip[1] else "")
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0  # remote: taken as unchanging


def grid_of(href: str) -> Grid:
    """The grid of a file."""
    return _grid_of(href, modified(href))


@lru_cache(maxsize=1024)
def _grid_of(href: str, changed: int) -> Grid:
    source = dataset(href)
    if source.crs is None or source.transform.is_identity:
        raise InputError(
            f"got {href} without georeference, expected a CRS and a transform: "
            "add them with gdal_translate -a_srs -a_ullr, or rio edit-info"
        )
    return make_grid(source.crs, source.transform, source.height, source.width)


def make_grid(crs: CRS, transform: Affine, height: int, width: int) -> Grid:
    """A grid from rasterio's CRS and transform."""
    a, b, c, d, e, f = tuple(transform)[:6]
    return Grid(crs.to_string(), (a, b, c, d, e, f), height, width)


@lru_cache(maxsize=64)
def parse_crs(text: str) -> CRS:
    """The CRS of a grid."""
    try:
        return CRS.from_user_input(text)
    except RasterioError as error:
        raise InputError(f"got CRS {text!r}, expected EPSG:32631, WKT or PROJ ({error})") from error


def same_grid(one: Grid, other: Grid) -> bool:
    """Whether two grids have the same pixels."""
    same_size = (one.height, one.width) == (other.height, other.width)
    return same_size and _lattice(one, other) == (1, 0, 0)


def aligned(source: Grid, target: Grid) -> bool:
    """Whether a window of the target needs no interpolation of the source."""
    return _lattice(source, target) is not None


def overlap(source: Grid, target: Grid) -> float:
    """The share of the target's bounding box that the source's covers, 0..1."""
    left, bottom, right, top = _bounds(target)
    if parse_crs(source.crs) == parse_crs(target.crs):
        other = _bounds(source)
    else:
        try:
            other = transform_bounds(parse_crs(source.crs), parse_crs(target.crs), *_bounds(source))
        except RasterioError:
            return 0.0  # the other side of the earth: not expressible in the target's CRS
    wide = max(0.0, min(right, other[2]) - max(left, other[0]))
    high = max(0.0, min(top, other[3]) - max(bottom, other[1]))
    return wide * high / ((right - left) * (top - bottom))


def _bounds(grid: Grid) -> tuple[float, float, float, float]:
    a, b, c, d, e, f = grid.transform
    corners = [(col, row) for col in (0, grid.width) for row in (0, grid.height)]
    xs = [a * col + b * row + c for col, row in corners]
    ys = [d * col + e * row + f for col, row in corners]
    return min(xs), min(ys), max(xs), max(ys)


def _pixel_matrix(grid: Grid) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The 2 × 2 matrix from (col, row) to (x, y), and the origin."""
    a, b, c, d, e, f = grid.transform
    return np.array([[a, b], [d, e]]), np.array([c, f])


def _lattice(source: Grid, target: Grid) -> tuple[int, int, int] | None:
    """(factor, row, col): target pixels per source pixel, and where the target starts.

    The row and column of the target's first pixel are counted in target pixels from the source's
    origin. None where the pixels do not nest.
    """
    if parse_crs(source.crs) != parse_crs(target.crs):
        return None
    (source_matrix, source_origin), (matrix, origin) = _pixel_matrix(source), _pixel_matrix(target)
    inverse = np.linalg.inv(matrix)
    ratio = inverse @ source_matrix
    col, row = inverse @ (origin - source_origin)
    factor = round(ratio[0, 0])
    # The error of the pixel size adds up over the image, so it is judged at its far edge.
    drift = np.abs(ratio - factor * np.eye(2)).max() * max(source.height, source.width)
    off = max(abs(col - round(col)), abs(row - round(row)))
    if factor < 1 or max(drift, off) > _ALIGNMENT:
        return None
    return factor, round(row), round(col)


def read_layers(layers: Sequence[Layer], grid: Grid, *, classes: bool = False) -> FloatArray:
    """(n, H, W) values on a grid, NaN outside the files and where they declare no data.

    `classes` marks categories, which are never averaged. Layers of one file are decoded together.
    """
    by_file: dict[str, list[int]] = {}
    for position, layer in enumerate(layers):
        by_file.setdefault(layer.href, []).append(position)
    if len(by_file) == 1:
        return _read_file(list(layers), grid, classes)
    values = np.empty((len(layers), grid.height, grid.width), np.float32)
    for positions in by_file.values():
        values[positions] = _read_file([layers[p] for p in positions], grid, classes)
    return values


def _read_file(layers: list[Layer], grid: Grid, classes: bool) -> FloatArray:
    href = layers[0].href
    indexes = [layer.band for layer in layers]
    nodata = layers[0].nodata
    source = dataset(href)
    place = _lattice(grid_of(href), grid)
    with readable(href):
        if place is not None:
            return _copy(source, indexes, grid, place, nodata)
        return _warp(source, indexes, grid, nodata, classes)


def _copy(
    source: Any, indexes: list[int], grid: Grid, place: tuple[int, int, int], nodata: float | None
) -> FloatArray:
    def part(rows: slice, cols: slice) -> Any:
        window = Window.from_slices(rows, cols)
        data = source.read(indexes, window=window, out_dtype="float32")
        if nodata is not None:
            data[data == np.float32(nodata)] = np.nan
        return data

    return _paste(part, len(indexes), (source.height, source.width), grid, place)


def _paste(
    part: ReadPart, count: int, shape: tuple[int, int], grid: Grid, place: tuple[int, int, int]
) -> FloatArray:
    """The window of a source of some shape, its pixels repeated `factor` times both ways."""
    factor, row, col = place
    top, left = max(row, 0), max(col, 0)
    bottom = min(row + grid.height, shape[0] * factor)
    right = min(col + grid.width, shape[1] * factor)
    if top >= bottom or left >= right:
        return np.full((count, grid.height, grid.width), np.nan, np.float32)
    rows = slice(top // factor, -(-bottom // factor))
    cols = slice(left // factor, -(-right // factor))
    fine: FloatArray = part(rows, cols).astype(np.float32, copy=False)
    if factor > 1:
        fine = fine.repeat(factor, axis=1).repeat(factor, axis=2)
    if fine.shape[1:] == (grid.height, grid.width):
        return fine
    values = np.full((count, grid.height, grid.width), np.nan, np.float32)
    skip_row, skip_col = top - rows.start * factor, left - cols.start * factor
    values[:, top - row : bottom - row, left - col : right - col] = fine[
        :, skip_row : skip_row + bottom - top, skip_col : skip_col + right - left
    ]
    return values


def read_array(part: ReadPart, source: Grid, grid: Grid, classes: bool = False) -> FloatArray:
    """(n, H, W) on any grid of an array that is read by rows and columns, as `read_layers` does."""
    place = _lattice(source, grid)
    empty = part(slice(0, 0), slice(0, 0))
    if place is not None:

        def own(rows: slice, cols: slice) -> FloatArray:
            return np.array(part(rows, cols), np.float32)  # the array may be the caller's

        return _paste(own, len(empty), (source.height, source.width), grid, place)
    rows, cols = _cover(source, grid)
    if rows.start >= rows.stop or cols.start >= cols.stop:
        return np.full((len(empty), grid.height, grid.width), np.nan, np.float32)
    values = part(rows, cols).astype(np.float32)
    tile = Tile(rows.start, cols.start, values.shape[1], values.shape[2])
    where = source.window(tile)
    profile = {
        "driver": "GTiff",
        "dtype": "float32",
        "count": len(values),
        "height": where.height,
        "width": where.width,
        "crs": parse_crs(where.crs),
        "transform": Affine(*where.transform),
    }
    with MemoryFile() as memory:
        with memory.open(**profile) as file:
            file.write(values)
        with memory.open() as file:
            return _warp(file, list(range(1, len(values) + 1)), grid, None, classes)


def _cover(source: Grid, grid: Grid) -> tuple[slice, slice]:
    """The rows and columns of the source under a grid, with a margin for the interpolation."""
    bounds = transform_bounds(parse_crs(grid.crs), parse_crs(source.crs), *_bounds(grid))
    matrix, origin = _pixel_matrix(source)
    corners = np.array([(x, y) for x in bounds[::2] for y in bounds[1::2]])
    cols, rows = np.linalg.inv(matrix) @ (corners - origin).T
    margin = 2 + int(np.ceil(1 / _pixels_per_pixel(source, grid.crs, grid.transform)))
    return (
        slice(max(0, int(min(rows)) - margin), min(source.height, int(max(rows)) + margin)),
        slice(max(0, int(min(cols)) - margin), min(source.width, int(max(cols)) + margin)),
    )


def _warp(
    source: Any, indexes: list[int], grid: Grid, nodata: float | None, classes: bool
) -> FloatArray:
    """The window through GDAL's warper.

    An all but exact transformer and a fixed scale make a pixel independent of its window.
    Where no value is declared, a pixel that is 0 in all bands is not mixed into its neighbours.
    """
    here = make_grid(source.crs, source.transform, source.height, source.width)
    extras = _fixed_scale(here, grid)
    if nodata is None:
        nodata = _silent_nodata(source.dtypes[0], classes)
        extras["UNIFIED_SRC_NODATA"] = "YES"
    with WarpedVRT(
        source,
        crs=parse_crs(grid.crs),
        transform=Affine(*grid.transform),
        height=grid.height,
        width=grid.width,
        src_nodata=nodata,
        nodata=np.nan,
        dtype="float32",
        resampling=Resampling.nearest if classes else Resampling.bilinear,
        tolerance=_EXACT,
        **extras,
    ) as view:
        return np.asarray(view.read(indexes), np.float32)


def _silent_nodata(dtype: str, classes: bool) -> float:
    if dtype.startswith("float"):
        return float("nan")
    return float(np.iinfo(dtype).max) if classes else 0.0  # class 0 is a class


def _fixed_scale(source: Grid, grid: Grid) -> dict[str, str]:
    """The warper's scale options: it would guess them from each window otherwise."""
    scale = str(min(1.0, _pixels_per_pixel(source, grid.crs, grid.transform)))
    return {"XSCALE": scale, "YSCALE": scale}


@lru_cache(maxsize=256)
def _pixels_per_pixel(source: Grid, crs: str, transform: tuple[float, ...]) -> float:
    """How many target pixels one source pixel is wide."""
    there, _, _ = calculate_default_transform(
        parse_crs(source.crs), parse_crs(crs), source.width, source.height, *_bounds(source)
    )
    ratio = abs(there.determinant / Affine(*transform).determinant)
    return float(np.sqrt(ratio))
