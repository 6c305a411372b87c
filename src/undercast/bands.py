"""The bands of Sentinel-1 and Sentinel-2: names, order, resolution and scaling.

The only place where the number of bands, the 10000 of the digital numbers and the dB range occur.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from undercast.errors import InputError

S2: tuple[str, ...] = (
    "B1", "B2", "B3", "B4", "B5", "B6", "B7", "B8", "B8A", "B9", "B10", "B11", "B12",
)  # fmt: skip
S1: tuple[str, ...] = ("VV", "VH")
N_S2 = len(S2)
N_S1 = len(S1)
RGB: tuple[str, ...] = ("B4", "B3", "B2")
RESOLUTION_M: dict[str, int] = dict(
    zip(S2, (60, 10, 10, 10, 20, 20, 20, 10, 20, 60, 60, 20, 20), strict=True)
)
WAVELENGTH_NM: dict[str, float] = dict(
    zip(
        S2,
        (442.7, 492.4, 559.8, 664.6, 704.1, 740.5, 782.8, 832.8, 864.7, 945.1, 1373.5, 1613.7,
         2202.4),
        strict=True,
    )
)  # fmt: skip

# Top-of-atmosphere reflectance of land, on average: where a network starts from.
LAND: tuple[float, ...] = (
    0.14, 0.12, 0.11, 0.10, 0.12, 0.20, 0.24, 0.23, 0.26, 0.07, 0.002, 0.18, 0.11,
)  # fmt: skip

DN_PER_REFLECTANCE = 10000.0  # digital numbers of one unit of reflectance
DN_MAX = 10000.0
BASELINE_OFFSET_DN = -1000.0  # to add to the DN of products with processing baseline ≥ 04.00
S1_DB_MIN, S1_DB_MAX = -25.0, 0.0
REFERENCE_DATE = date(2014, 4, 3)  # day 0 of the positional encoding: the launch of Sentinel-1A


def index(names: Iterable[str]) -> list[int]:
    """Positions of Sentinel-2 bands in the canonical order; `B02` and `b2` name the same band.

    >>> index(("B4", "B03", "b2", "B8A"))
    [3, 2, 1, 8]
    """
    return [S2.index(canonical(name)) for name in names]


def canonical(name: str) -> str:
    """The canonical name of a Sentinel-2 band.

    >>> canonical("b08"), canonical("B8a"), canonical("B12")
    ('B8', 'B8A', 'B12')
    """
    text = name.strip().upper()
    plain = "B" + text[1:].lstrip("0") if text.startswith("B") else text
    if plain not in S2:
        raise InputError(f"got band {name!r}, expected one of {' '.join(S2)}")
    return plain


def scale_s2(reflectance: Any) -> Any:
    """Reflectance clipped to 0..1 with NaN as 0, for numpy arrays and torch tensors alike.

    >>> scale_s2(np.array([-0.1, 0.25, 1.7, np.nan])).tolist()
    [0.0, 0.25, 1.0, 0.0]
    """
    return _nan_to_zero(reflectance.clip(0.0, DN_MAX / DN_PER_REFLECTANCE))


def scale_s1(db: Any) -> Any:
    """Backscatter clipped to −25..0 dB and brought to 0..1, the same for VV and VH; NaN is 0.

    >>> scale_s1(np.array([-30.0, -12.5, 3.0, np.nan])).tolist()
    [0.0, 0.5, 1.0, 0.0]
    """
    return _nan_to_zero((db.clip(S1_DB_MIN, S1_DB_MAX) - S1_DB_MIN) / (S1_DB_MAX - S1_DB_MIN))


def _nan_to_zero(array: Any) -> Any:
    return array.nan_to_num(0.0) if hasattr(array, "nan_to_num") else np.nan_to_num(array, nan=0.0)


def days(dates: ArrayLike) -> NDArray[np.float64]:
    """Days since 2014-04-03, the position that the temporal encoding sees.

    >>> days(np.array(["2014-04-03", "2018-06-21"], dtype="datetime64[D]")).tolist()
    [0.0, 1540.0]
    """
    reference = np.datetime64(REFERENCE_DATE.isoformat(), "D")
    return (np.asarray(dates, dtype="datetime64[D]") - reference).astype(np.float64)
