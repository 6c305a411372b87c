"""What the inputs say about each pixel: how often it was seen clear, when, and what was missing."""

from __future__ import annotations

from enum import IntFlag
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undercast.types import BoolArray, DateArray, Stack

NODATA = -32768  # of the counts and of the days; flags have a bit for it instead
LAYERS = ("clear_observations", "nearest_clear_days", "flags")


class Flag(IntFlag):
    """Bits of the third layer."""

    EXTRAPOLATED = 1  # no clear observation on any date: the model's word alone
    MISSING_SAR = 2  # no radar value on any date
    MISSING_BAND = 4  # a band was not in the inputs and was filled by rule
    NODATA = 8  # no observation at all
    KEPT = 16  # the clear observation of the reference date, unchanged
    UNCERTAIN = 32  # set to no data because sigma is too large


def clear_observations(stack: Stack, mask: BoolArray) -> BoolArray:
    """(T, H, W) True where a date was observed in every band and is not masked."""
    return np.asarray(np.isfinite(stack.s2.sum(axis=1)) & ~mask)  # one NaN makes the sum NaN


def quality_layers(
    stack: Stack, clear: BoolArray, reference: np.datetime64, missing_band: bool = False
) -> NDArray[np.int16]:
    """(3, H, W): clear observations, days from the reference date to the nearest one, flags.

    >>> stack = Stack(np.full((2, 13, 1, 2), 0.1), ["2018-06-01", "2018-06-26"])
    >>> clear = np.array([[[True, False]], [[True, False]]])
    >>> quality_layers(stack, clear, np.datetime64("2018-06-21"))[:, 0].tolist()
    [[2, 0], [5, -32768], [2, 3]]
    """
    count = clear.sum(axis=0)
    seen = stack.observed
    flags = np.full(seen.shape, Flag.MISSING_BAND if missing_band else 0, np.int16)
    flags[count == 0] |= Flag.EXTRAPOLATED
    if stack.s1 is None:
        flags |= Flag.MISSING_SAR
    else:
        flags[~np.isfinite(stack.s1).all(axis=1).any(axis=0)] |= Flag.MISSING_SAR
    flags[~seen] = Flag.NODATA
    return np.stack(
        (
            np.where(seen, count, NODATA),
            _nearest_clear(stack.dates, clear, reference),
            flags,
        )
    ).astype(np.int16)


def _nearest_clear(dates: DateArray, clear: BoolArray, reference: np.datetime64) -> NDArray[Any]:
    """(H, W) days from the reference date to the nearest clear one, the earlier in a tie."""
    days = (dates - reference).astype(int)
    order = np.lexsort((days, np.abs(days)))
    first = clear[order].argmax(axis=0)
    return np.where(clear.any(axis=0), days[order][first], NODATA)


def middle_date(dates: DateArray) -> np.datetime64:
    """The date nearest to the middle of the period, the earlier in a tie.

    >>> str(middle_date(np.array(["2018-06-01", "2018-06-06", "2018-06-21"], "datetime64[D]")))
    '2018-06-06'
    """
    days = (dates - dates.min()).astype(int)
    order = np.argsort(days, kind="stable")
    return np.datetime64(dates[order][np.abs(days[order] - days.max() / 2).argmin()])


def nearest_date(dates: DateArray, wanted: Any) -> np.datetime64:
    """The date nearest to the wanted one, the earlier in a tie."""
    ordered = np.sort(dates)
    return np.datetime64(
        ordered[np.abs((ordered - np.datetime64(wanted, "D")).astype(int)).argmin()]
    )
