"""What travels along the flow: `Stack` in, `Estimate` out, `Grid` and `Tile` for where.

Arrays that belong together stay together and are checked once, on entry.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from undercast import bands
from undercast.errors import InputError

FloatArray = NDArray[np.float32]
BoolArray = NDArray[np.bool_]
DateArray = NDArray[np.datetime64]


@dataclass(frozen=True, eq=False)
class Stack:
    """Dates × bands on one grid: the input of every system.

    s2: (T, 13, H, W) top-of-atmosphere reflectance, NaN = no data. dates: T calendar dates in any
    order, equal ones allowed. s1: (T, 2, H, W) VV and VH in dB, NaN = missing, or None.
    s1_dates: None means `dates`. mask: (T, H, W) bool, True = unusable (cloud, shadow), or None.
    Composites need masks; weights with `surroundings`, as the packaged ones, are better with them.

    >>> stack = Stack(np.full((2, 13, 8, 8), 0.1), ["2018-06-21", "2018-06-01"])
    >>> stack.shape, stack.days().tolist()
    ((2, 8, 8), [1540.0, 1520.0])
    """

    s2: FloatArray
    dates: DateArray
    s1: FloatArray | None = None
    s1_dates: DateArray | None = None
    mask: BoolArray | None = None

    def __init__(
        self,
        s2: ArrayLike,
        dates: ArrayLike | Sequence[Any],
        s1: ArrayLike | None = None,
        s1_dates: ArrayLike | Sequence[Any] | None = None,
        mask: ArrayLike | None = None,
    ) -> None:
        s2 = _checked_s2(s2)
        n_dates, _, height, width = s2.shape
        checked_dates = parse_dates(dates, n_dates, "dates")
        if s1 is not None:
            s1 = _checked_s1(s1, (n_dates, bands.N_S1, height, width))
        elif s1_dates is not None:
            raise InputError("got s1_dates without s1, expected both: pass the radar array too")
        if mask is not None:
            mask = _checked_mask(mask, (n_dates, height, width))
        set_field = object.__setattr__
        set_field(self, "s2", s2)
        set_field(self, "dates", checked_dates)
        set_field(self, "s1", s1)
        set_field(
            self,
            "s1_dates",
            None if s1_dates is None else parse_dates(s1_dates, n_dates, "s1_dates"),
        )
        set_field(self, "mask", mask)

    @classmethod
    def from_xarray(cls, dataset: Any) -> Stack:
        """A stack of an xarray Dataset or DataArray.

        `s2 (time, band, y, x)` with band names, or one variable per band `(time, y, x)`; optionally
        `s1 (time, polarisation, y, x)` in dB, `s1_time (time)`, and `mask (time, y, x)` or `scl`.
        """
        stack: Stack = _interop().stack_from_xarray(dataset)
        return stack

    @property
    def shape(self) -> tuple[int, int, int]:
        """(T, H, W)."""
        return self.s2.shape[0], self.s2.shape[2], self.s2.shape[3]

    @property
    def valid_dates(self) -> BoolArray:
        """(T,) True where a date has at least one Sentinel-2 observation."""
        return np.array([any(np.isfinite(band).any() for band in image) for image in self.s2])

    @property
    def observed(self) -> BoolArray:
        """(H, W) True where any date has an observation."""
        seen = np.zeros(self.shape[1:], dtype=bool)
        for band in self.s2.reshape(-1, *self.shape[1:]):
            seen |= np.isfinite(band)
            if seen.all():
                break
        return seen

    def days(self) -> NDArray[np.float64]:
        """(T,) position of each date: the mean of its S1 and S2 days, or the S2 day alone.

        A date whose radar image is missing altogether counts as one without radar.
        """
        s2_days = bands.days(self.dates)
        if self.s1 is None or self.s1_dates is None:
            return s2_days
        has_s1 = np.isfinite(self.s1).any(axis=(1, 2, 3))
        s1_days = np.where(has_s1, bands.days(np.where(has_s1, self.s1_dates, self.dates)), s2_days)
        return np.asarray((s2_days + s1_days) / 2)

    def with_mask(self, mask: ArrayLike) -> Stack:
        """The same stack, whose pixels are not looked at again, with another mask."""
        n_dates, height, width = self.shape
        masked = copy.copy(self)
        object.__setattr__(masked, "mask", _checked_mask(mask, (n_dates, height, width)))
        return masked

    def without_mask(self) -> Stack:
        """The same stack, without its mask."""
        bare = copy.copy(self)
        object.__setattr__(bare, "mask", None)
        return bare

    def select(self, keep: Any) -> Stack:
        """The same stack with some dates only, in the order given by the index `keep`."""
        return Stack(
            self.s2[keep],
            self.dates[keep],
            None if self.s1 is None else self.s1[keep],
            None if self.s1_dates is None else self.s1_dates[keep],
            None if self.mask is None else self.mask[keep],
        )

    def crop(self, tile: Tile) -> Stack:
        """The part of the stack under a tile (views, no copies)."""
        rows, cols = tile.slices
        return Stack(
            self.s2[:, :, rows, cols],
            self.dates,
            None if self.s1 is None else self.s1[:, :, rows, cols],
            self.s1_dates,
            None if self.mask is None else self.mask[:, rows, cols],
        )


@dataclass(frozen=True, eq=False)
class Estimate:
    """The cloud-free image and how far to trust it.

    mean: (13, H, W) reflectance. variance: (13, H, W) reflectance², the total, or None for a system
    that predicts none. aleatoric and epistemic are its two parts, known for ensembles only.
    """

    mean: FloatArray
    variance: FloatArray | None = None
    aleatoric: FloatArray | None = None
    epistemic: FloatArray | None = None

    @property
    def sigma(self) -> FloatArray | None:
        """(13, H, W) standard deviation in reflectance, for products and people."""
        return None if self.variance is None else np.sqrt(self.variance)

    def to_xarray(self, grid: Grid | None = None, date: Any = None) -> Any:
        """A Dataset `mean (band, y, x)` and its variances; a grid gives it x, y and the CRS."""
        return _interop().estimate_to_xarray(self, grid, date)


@dataclass(frozen=True)
class Grid:
    """Where pixels lie: CRS, affine transform (a, b, c, d, e, f), height and width.

    x = a·col + b·row + c and y = d·col + e·row + f, as in rasterio.
    """

    crs: str
    transform: tuple[float, float, float, float, float, float]
    height: int
    width: int

    def window(self, tile: Tile) -> Grid:
        """The grid of a tile of this grid.

        >>> Grid("EPSG:32631", (10, 0, 500000, 0, -10, 4000000), 512, 512).window(
        ...     Tile(256, 128, 64, 32)
        ... ).transform
        (10, 0, 501280, 0, -10, 3997440)
        """
        a, b, c, d, e, f = self.transform
        return Grid(
            self.crs,
            (a, b, c + a * tile.col + b * tile.row, d, e, f + d * tile.col + e * tile.row),
            tile.height,
            tile.width,
        )


@dataclass(frozen=True, order=True)
class Tile:
    """The unit of inference: a window of rows and columns, halo included, in pixels."""

    row: int
    col: int
    height: int
    width: int

    @property
    def slices(self) -> tuple[slice, slice]:
        """Row and column slices into an array of the whole scene."""
        return (
            slice(self.row, self.row + self.height),
            slice(self.col, self.col + self.width),
        )


def _interop() -> Any:
    """The bridge to xarray, loaded when asked for: it is I/O and builds on these types."""
    return importlib.import_module("undercast.readers.interop")


def parse_dates(dates: Any, count: int, name: str) -> DateArray:
    """`count` calendar dates as datetime64[D], from ISO strings, datetimes or datetime64.

    >>> parse_dates(["2018-06-21", "2018-06-21T10:50:31"], 2, "dates").astype(str).tolist()
    ['2018-06-21', '2018-06-21']
    """
    try:
        parsed = np.array([np.datetime64(str(d).strip()[:10], "D") for d in np.atleast_1d(dates)])
    except ValueError as error:
        raise InputError(
            f"got {name} {_shorten(dates)}, expected ISO dates such as 2018-06-21 ({error})"
        ) from error
    if len(parsed) != count:
        raise InputError(
            f"got {len(parsed)} {name} for {count} images, expected one for each image"
        )
    if np.isnat(parsed).any():
        raise InputError(f"got a missing date in {name}, expected one ISO date for each image")
    return parsed.astype("datetime64[D]")


def _checked_s2(s2: ArrayLike) -> FloatArray:
    array, largest = _float_array(s2, "s2")
    if array.ndim != 4 or array.shape[1] != bands.N_S2:
        hint = ""
        if array.ndim == 4:
            hint = (
                f"; {array.shape[1]} bands: fill missing bands with NaN, order {' '.join(bands.S2)}"
            )
        elif array.ndim == 3:
            hint = "; one date is s2[None]"
        raise InputError(f"got s2 of shape {array.shape}, expected (T, {bands.N_S2}, H, W){hint}")
    if 0 in array.shape:
        raise InputError(f"got an empty s2 of shape {array.shape}, expected at least one pixel")
    if largest > 100:
        raise InputError(
            f"got s2 values up to {largest:.0f}, expected reflectance around 0..1: "
            f"divide digital numbers by {bands.DN_PER_REFLECTANCE:.0f}"
        )
    return array


def _checked_s1(s1: ArrayLike, shape: tuple[int, ...]) -> FloatArray:
    array, _ = _float_array(s1, "s1")
    if array.shape != shape:
        raise InputError(
            f"got s1 of shape {array.shape}, expected {shape}: "
            "one VV, VH pair for each S2 image on the same grid (NaN where there is none)"
        )
    return array


def _checked_mask(mask: ArrayLike, shape: tuple[int, ...]) -> BoolArray:
    array = np.asarray(mask)
    if array.shape != shape:
        raise InputError(f"got a mask of shape {array.shape}, expected {shape}: one for each date")
    if array.dtype != np.bool_:
        raise InputError(
            f"got a mask of type {array.dtype}, expected bool with True = unusable: "
            "pass mask != 0, or mask > 0.4 for probabilities"
        )
    return array


def _float_array(values: ArrayLike, name: str) -> tuple[FloatArray, float]:
    """The array, and its largest value, NaN passed over."""
    try:
        array = np.asarray(values, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise InputError(f"got {name} that is no array of numbers ({error})") from error
    # one pass each, without an array of booleans
    lowest = float(np.fmin.reduce(array, axis=None, initial=np.nan))
    largest = float(np.fmax.reduce(array, axis=None, initial=np.nan))
    if np.isinf([lowest, largest]).any():
        raise InputError(f"got infinite values in {name}, expected finite ones or NaN for no data")
    return array, largest


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
