"""Digital numbers to reflectance, and the −1000 of processing baseline 04.00 that is easily lost.

Since January 2022 (baseline 04.00, and in reprocessed older products) the digital numbers of
Sentinel-2 carry +1000, so that slightly negative reflectance can be stored.
"""

from __future__ import annotations

import re
import warnings

import numpy as np
from numpy.typing import ArrayLike

from undercast import bands
from undercast.errors import InputError, UndercastWarning
from undercast.types import BoolArray, FloatArray

FIRST_BASELINE_WITH_OFFSET = (4, 0)

# Without an offset the cirrus band of a scene is nearly black wherever there is no high cloud: 0 to
# 300 DN in its darkest pixels. With one it is at 1000 or a little more, and so is any dark band.
_DARK_SHARE = 0.001
_LEAST_WITH_OFFSET = 900.0
_CIRRUS_RANGE = (950.0, 1300.0)


def to_reflectance(
    dn: ArrayLike, baseline: str | float | None = None, offset: float | None = None
) -> FloatArray:
    """Reflectance of digital numbers (..., bands, H, W); a pixel that is 0 in all bands is NaN.

    baseline: processing baseline from the product's metadata or name (`05.09`, `N0509`, 5.09).
    offset: the DN to add, −1000 or 0, where it is known otherwise. With neither there is none, and
    a warning if the data look as if there were.

    >>> to_reflectance(np.full((13, 1, 1), 1500), baseline="04.00")[3].round(4).tolist()
    [[0.05000000074505806]]
    """
    array = np.asarray(dn)
    if array.ndim < 3:
        raise InputError(f"got an array of shape {array.shape}, expected (..., bands, H, W)")
    if baseline is not None and offset is not None:
        raise InputError("got a baseline and an offset, expected one of them: both set the offset")
    if baseline is not None:
        added = baseline_offset(baseline)
    else:
        added = 0.0 if offset is None else float(offset)
        if offset is None and np.any(suspect_offset(array)):
            warnings.warn(
                "the data look as if they carried the +1000 of processing baseline 04.00 or "
                "later, and none was removed: pass the product's baseline, or offset=-1000 "
                "(offset=0 if there is none)",
                UndercastWarning,
                stacklevel=2,
            )
    scaled = (array.astype(np.float32) + np.float32(added)) / np.float32(bands.DN_PER_REFLECTANCE)
    empty = np.broadcast_to(~array.any(axis=-3, keepdims=True), array.shape)
    return np.where(empty, np.float32(np.nan), scaled)


def baseline_offset(baseline: str | float) -> float:
    """The DN to add for a processing baseline: −1000 from 04.00 on, 0 before.

    >>> baseline_offset("02.06"), baseline_offset("N0400"), baseline_offset(5.11)
    (0.0, -1000.0, -1000.0)
    """
    text = f"{baseline:05.2f}" if isinstance(baseline, int | float) else str(baseline).strip()
    match = re.fullmatch(r"N?(\d{1,2})\.?(\d{2})|(\d{1,2})(?:\.(\d))?", text)
    if match is None:
        raise InputError(
            f"got processing baseline {baseline!r}, expected one such as 04.00, N0400 or 5.09"
        )
    major, minor = match[1] or match[3], match[2] or match[4] or "0"
    after = (int(major), int(minor)) >= FIRST_BASELINE_WITH_OFFSET
    return bands.BASELINE_OFFSET_DN if after else 0.0


def suspect_offset(dn: ArrayLike) -> BoolArray:
    """True where an image (..., 13, H, W) of digital numbers seems to carry the +1000.

    Looks at level 1C: the darkest pixels of the cirrus band lie just above 1000, and no band has
    any clearly below. Without the cirrus band (level 2A) it cannot be told and is never suspected;
    nor is an image all under high cloud. The result has the leading shape of `dn`.

    >>> [bool(suspect_offset(np.full((13, 4, 4), dn))) for dn in (1010, 60)]
    [True, False]
    """
    array = np.asarray(dn)
    if array.ndim < 3 or array.shape[-3] != bands.N_S2:
        return np.zeros(array.shape[:-3], dtype=bool)
    images = array.reshape(-1, bands.N_S2, array.shape[-2] * array.shape[-1])
    return np.array([_suspect_one(image) for image in images], dtype=bool).reshape(array.shape[:-3])


def _suspect_one(image: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> bool:
    """`image` is (13, pixels); the darkest thousandth of its pixels decides."""
    values = image[:, image.any(axis=0)].astype(np.float32)
    few = _DARK_SHARE * values.shape[1]
    low, high = _CIRRUS_RANGE
    cirrus = values[bands.S2.index("B10")]
    if np.count_nonzero(cirrus < low) > few or np.count_nonzero(cirrus <= high) <= few:
        return False
    return bool((np.count_nonzero(values < _LEAST_WITH_OFFSET, axis=1) <= few).all())
