"""Dates: found in names and tags, matched between sensors, chosen for their use."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from undercast.errors import InputError
from undercast.types import DateArray, parse_dates

# The correlation of clear near-infrared images of one farmland falls to 1/e in about this time.
MEMORY_DAYS = 50.0
_DATE = re.compile(r"(?<!\d)(20\d\d)([-_.]?)(0[1-9]|1[0-2])\2(0[1-9]|[12]\d|3[01])(?!\d)")
_TAGS = (
    "ACQUISITION_DATE", "ACQUISITIONDATE", "DATE_ACQUIRED", "ACQUISITION_DATETIME", "SENSING_TIME",
    "PRODUCT_START_TIME", "DATATAKE_1_DATATAKE_SENSING_START", "DATETIME", "DATE",
    "TIFFTAG_DATETIME",
)  # fmt: skip


def date_in_text(text: str) -> np.datetime64 | None:
    """The first calendar date in a name: 2018-06-21, 2018_06_21, 20180621 or 20180621T105031.

    >>> date_in_text("S2A_MSIL1C_20180621T105031_N0206_R051_T31UFS_20180622T000000")
    np.datetime64('2018-06-21')
    >>> date_in_text("tile_12345678.tif") is None
    True
    """
    for year, _, month, day in _DATE.findall(text):
        try:
            return np.datetime64(f"{year}-{month}-{day}", "D")
        except ValueError:  # 31 February and the like
            continue
    return None


def date_in_tags(tags: Mapping[str, str]) -> np.datetime64 | None:
    """The date in the tags of a file; `2018:06:21 10:50:31` is TIFF's own way to write it."""
    upper = {key.upper(): value for key, value in tags.items()}
    for tag in _TAGS:
        found = date_in_text(re.sub(r"^(\d{4}):(\d\d):(\d\d)", r"\1-\2-\3", upper.get(tag, "")))
        if found is not None:
            return found
    return None


def nearest_dates(wanted: DateArray, offered: DateArray, tolerance_days: float) -> list[int | None]:
    """For each wanted date the position of the nearest offered one, or None beyond the tolerance.

    Of two equally near ones the earlier date counts, of equal dates the first given.

    >>> wanted = np.array(["2018-06-10", "2018-07-20"], "datetime64[D]")
    >>> nearest_dates(wanted, np.array(["2018-06-16", "2018-06-04"], "datetime64[D]"), 7)
    [1, None]
    """
    matches: list[int | None] = []
    for date in wanted:
        gaps = np.abs((offered - date).astype(int))
        order = np.lexsort((np.arange(len(offered)), offered.astype(int), gaps))
        near = len(order) > 0 and gaps[order[0]] <= tolerance_days
        matches.append(int(order[0]) if near else None)
    return matches


def usefulness(dates: DateArray, cover: ArrayLike, around: np.datetime64) -> NDArray[np.float64]:
    """(T,) clear share × exp(−days away / 50): what an acquisition tells about the wanted day."""
    away = np.abs((dates - around).astype(float))
    return np.asarray((1.0 - np.asarray(cover, float)) * np.exp(-away / MEMORY_DAYS))


def choose_dates(dates: Any, cover: ArrayLike, around: Any, count: int) -> NDArray[np.intp]:
    """The positions of the `count` most useful dates, in order of time.

    cover: (T,) unusable share of each date, 0..1. Equal scores: the nearer date, then the earlier.

    >>> dates = ["2018-06-01", "2018-06-11", "2018-06-21", "2018-07-01"]
    >>> choose_dates(dates, [0.1, 0.9, 0.3, 0.0], "2018-06-21", 2).tolist()
    [2, 3]
    """
    shares = np.asarray(cover, float)
    known = parse_dates(dates, shares.size, "dates")
    wanted = parse_dates([around], 1, "around")[0]
    if not ((shares >= 0) & (shares <= 1)).all():
        raise InputError(f"got cloud cover {shares.tolist()}, expected shares between 0 and 1")
    if not 1 <= count <= len(known):
        raise InputError(
            f"got count {count} for {len(known)} dates, expected 1 to {len(known)}: "
            "ask for fewer dates or give more images"
        )
    score = usefulness(known, shares, wanted)
    away = np.abs((known - wanted).astype(int))
    best = np.lexsort((known.astype(int), away, -score))[:count]
    return np.asarray(best[np.lexsort((best, known[best].astype(int)))])
