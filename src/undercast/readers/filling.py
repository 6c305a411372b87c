"""Bands that a product does not have, from those it has: a documented rule, flagged in the product.

Level 2A has no B10; ten-band stacks have neither B1 nor B9. See docs/inputs.md for the errors.
"""

from __future__ import annotations

import numpy as np

from undercast import bands
from undercast.errors import InputError
from undercast.types import FloatArray

# band: (constant, {other band: weight}), fitted to clear and cloudy level 1C pixels of four
# continents; the absorption bands B9 and B10 carry information that no other band has.
RULES: dict[str, tuple[float, dict[str, float]]] = {
    "B1": (0.032, {"B2": 1.171, "B4": -0.253}),
    "B9": (-0.010, {"B8A": 0.157, "B2": 0.259}),
    "B10": (0.0013, {}),
}


def fillable(present: tuple[str, ...]) -> tuple[str, ...]:
    """The missing bands of a product with the bands `present`; an error if no rule covers them.

    >>> fillable(tuple(band for band in bands.S2 if band != "B10"))
    ('B10',)
    """
    missing = tuple(band for band in bands.S2 if band not in present)
    lost = [band for band in missing if band not in RULES]
    if lost:
        raise InputError(
            f"got {len(present)} bands without {' '.join(lost)}, expected at least the ten bands "
            "of 10 and 20 m: B2 B3 B4 B5 B6 B7 B8 B8A B11 B12"
        )
    return missing


def fill_bands(s2: FloatArray, missing: tuple[str, ...]) -> FloatArray:
    """(13, H, W) reflectance with the missing bands filled in place; no data stays NaN."""
    observed = np.isfinite(s2).any(axis=0)
    for band in missing:
        constant, weights = RULES[band]
        value = np.where(observed, np.float32(constant), np.float32(np.nan))
        for other, weight in weights.items():
            value = value + np.float32(weight) * s2[bands.S2.index(other)]
        s2[bands.S2.index(band)] = value
    return s2
