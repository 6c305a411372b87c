"""Reflectance of materials in the 13 bands, and the atmosphere above them.

The numbers are rounded class medians of clear top-of-atmosphere patches (EuroSAT, SEN12MS-CR
training regions) less the molecular path, split into materials so that they mix linearly.
B9 and B10 hold what the surface would reflect; water vapour takes most of it away on the way.
"""

from __future__ import annotations

import numpy as np

from undercast import bands
from undercast.types import FloatArray

#      B1   B2   B3   B4   B5   B6   B7   B8   B8A  B9   B10  B11  B12   in percent
_PERCENT: dict[str, tuple[float, ...]] = {
    "green":     (1.0, 1.4, 4.8, 2.5, 8.5, 32., 42., 42., 46., 46., 46., 19., 7.5),
    "dry":       (5.0, 7.0, 10.8, 15., 19., 24., 27., 28., 30., 30., 30., 33., 22.),
    "soil":      (4.5, 6.0, 8.8, 12.5, 15., 17.5, 19.5, 20.5, 22.5, 22.5, 22.5, 28., 23.),
    "red_soil":  (2.5, 3.5, 6.5, 13.5, 16.5, 18.5, 20.5, 21.5, 23.5, 23.5, 23.5, 30., 25.),
    "sand":      (9.0, 14., 22., 31., 34., 36., 38., 39., 41., 41., 41., 49., 44.),
    "rock":      (6.0, 8.0, 10., 12., 13., 14.5, 15.5, 16., 17., 17., 17., 20., 17.5),
    "broadleaf": (0.9, 0.9, 3.2, 1.8, 6.0, 23., 31., 31., 35.5, 35.5, 35.5, 15.5, 5.8),
    "autumn":    (1.8, 2.2, 4.8, 6.5, 11., 20., 24., 24.5, 27.5, 27.5, 27.5, 19., 9.5),
    "leafless":  (2.2, 2.8, 4.0, 5.5, 7.5, 11., 12.5, 13.5, 15., 15., 15., 15.5, 9.5),
    "conifer":   (0.8, 0.7, 1.8, 1.3, 3.3, 11.5, 15., 15., 17.5, 17.5, 17.5, 8.0, 3.0),
    "asphalt":   (4.5, 5.2, 6.2, 7.0, 7.8, 8.8, 9.5, 9.8, 10.5, 10.5, 10.5, 12.5, 12.),
    "concrete":  (16., 21., 25., 28., 28.5, 29.5, 30.5, 31., 32., 32., 32., 33., 30.),
    "tile":      (3.0, 4.0, 6.5, 12.5, 15., 17., 18.5, 19.5, 21., 21., 21., 26., 24.),
    "water":     (1.2, 0.8, 1.0, 0.6, 0.5, 0.4, 0.4, 0.3, 0.3, 0.3, 0.3, 0.1, 0.1),
    "turbid":    (3.0, 5.0, 8.5, 9.0, 8.0, 4.5, 4.5, 3.5, 3.0, 3.0, 3.0, 0.6, 0.4),
    "snow":      (72., 72., 70., 71., 72., 71., 69., 66., 65., 65., 65., 6.0, 5.0),
}  # fmt: skip


def _percent(*rows: tuple[float, ...]) -> FloatArray:
    return np.asarray(np.array(rows) / 100, dtype=np.float32)


MATERIALS: tuple[str, ...] = tuple(_PERCENT)
INDEX: dict[str, int] = {name: i for i, name in enumerate(MATERIALS)}
SPECTRA: FloatArray = _percent(*_PERCENT.values())  # (materials, 13)

# Molecular path reflectance for the sun in the zenith; it grows with the air mass.
PATH: FloatArray = _percent((7.9, 5.7, 3.3, 1.75, 1.4, 1.1, 0.9, 0.7, 0.6, 0.2, 0.06, 0.15, 0.1))[0]
AEROSOL: FloatArray = np.array(
    [(550.0 / bands.WAVELENGTH_NM[name]) ** 1.3 for name in bands.S2], dtype=np.float32
)  # Ångström law, 1 at 550 nm
# Share of skylight that reaches a shadowed surface.
DIFFUSE: FloatArray = _percent((42, 36, 29, 24, 22, 20, 19, 18, 17, 17, 17, 12, 10))[0]
# Colour of thick water cloud and of ice cloud at the top of the atmosphere, relative to B8A.
WATER_CLOUD: FloatArray = _percent((70, 76, 76, 85, 86, 91, 95, 93, 100, 100, 100, 89, 72))[0]
ICE_CLOUD: FloatArray = _percent((89, 90, 88, 94, 95, 97, 98, 97, 99, 99, 99, 54, 41))[0]
B9, B10 = bands.index(("B9", "B10"))


def gas_transmission(vapour: float, height_km: float = 0.0) -> FloatArray:
    """(13,) two-way transmission of water vapour above a height: low in B9, nil in B10.

    vapour: column over the ground in cm, 0.3 (cold, dry) to 5 (tropics).

    >>> [bool(gas_transmission(2.0, h)[B10] < 0.02) for h in (0.0, 1.5, 10.0)]
    [True, True, False]
    """
    transmission = np.ones(bands.N_S2, dtype=np.float32)
    in_cloud = 1.2 if height_km > 0 else 1.0  # light takes longer ways inside a cloud
    transmission[B9] = np.exp(-0.95 * vapour**0.55 * in_cloud * np.exp(-height_km / 3.5))
    transmission[B10] = np.exp(-6.5 * np.exp(-((height_km / 5.5) ** 2)))
    return transmission
