"""The year: where the sun stands, what grows, what is cut, and how wet the ground is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from undercast.types import FloatArray

OVERPASS_HOUR_ANGLE = np.deg2rad(-22.5)  # Sentinel-2 passes at half past ten, mean solar time
PIXEL_M = 10.0
CROPS: tuple[str, ...] = ("winter", "rape", "summer", "grass", "orchard", "fallow", "rice")


@dataclass(frozen=True)
class Sun:
    """Where the sun stands: zenith and azimuth (clockwise from north), in radians."""

    zenith: float
    azimuth: float

    def shadow_offset(self, height_km: float) -> tuple[float, float]:
        """(rows, cols) in pixels from a cloud at that height to its shadow: h·tan(zenith).

        >>> [round(v, 6) for v in Sun(np.pi / 4, np.pi).shadow_offset(1.0)]  # sun in the south
        [-100.0, -0.0]
        """
        pixels = height_km * 1000.0 * np.tan(self.zenith) / PIXEL_M
        return float(pixels * np.cos(self.azimuth)), float(-pixels * np.sin(self.azimuth))


def day_of_year(date: np.datetime64) -> float:
    """Days since the first of January, 0 to 365."""
    return float((date - date.astype("datetime64[Y]")).astype("timedelta64[D]").astype(int))


def sun_at(latitude_deg: float, day: float) -> Sun:
    """The sun at the overpass; the zenith angle stops at 72°, beyond which S2 is not used.

    >>> sun = sun_at(48.0, 172.0)
    >>> round(np.rad2deg(sun.zenith)), round(np.rad2deg(sun.azimuth))
    (30, 136)
    """
    declination = np.deg2rad(23.44) * np.sin(2 * np.pi * (day - 81.0) / 365.0)
    latitude = np.deg2rad(latitude_deg)
    up = np.sin(latitude) * np.sin(declination) + np.cos(latitude) * np.cos(declination) * np.cos(
        OVERPASS_HOUR_ANGLE
    )
    east = -np.cos(declination) * np.sin(OVERPASS_HOUR_ANGLE)
    north = np.cos(latitude) * np.sin(declination) - np.sin(latitude) * np.cos(
        declination
    ) * np.cos(OVERPASS_HOUR_ANGLE)
    zenith = min(float(np.arccos(np.clip(up, -1.0, 1.0))), np.deg2rad(72.0))
    return Sun(float(zenith), float(np.arctan2(east, north) % (2 * np.pi)))


def season_day(latitude_deg: float, day: float) -> float:
    """The day of a northern year with the same season; the tropics follow it too."""
    return day if latitude_deg >= 0 else (day + 182.5) % 365.0


def warmth(latitude_deg: float, day: float) -> float:
    """0 (midwinter of a cold country) to 1 (summer, or the tropics all year)."""
    swing = np.clip(abs(latitude_deg) / 45.0, 0.0, 1.3)
    season = 0.5 - 0.5 * np.cos(2 * np.pi * (season_day(latitude_deg, day) - 20.0) / 365.0)
    return float(np.clip(1.0 - swing * (1.0 - season), 0.0, 1.0))


def temperature(latitude_deg: float, day: float) -> float:
    """Mean air temperature of that day in °C, at sea level and near an ocean.

    >>> [round(temperature(lat, day)) for lat, day in ((0, 20), (45, 20), (60, 20), (60, 200))]
    [27, 2, -8, 16]
    """
    from_equator = abs(latitude_deg)
    season = -np.cos(2 * np.pi * (season_day(latitude_deg, day) - 20.0) / 365.0)
    return float(27.0 - 0.45 * max(from_equator - 10.0, 0.0) + 0.2 * from_equator * season)


def _rise_and_fall(
    day: NDArray[np.float64], rise: float, fall: float, width: float
) -> NDArray[np.float64]:
    """A bump of the year between two days, soft over `width` days, periodic."""
    total = np.zeros_like(day)
    for shift in (-365.0, 0.0, 365.0):
        x = day + shift
        total += 1 / (1 + np.exp(-(x - rise) / width)) - 1 / (1 + np.exp(-(x - fall) / width))
    return np.clip(total, 0.0, 1.0)


def crop_state(
    kind: NDArray[np.int64], day: NDArray[np.float64], lush: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Green and dry cover of each parcel (0..1), from its crop and its own day of the season.

    kind: (parcels,) index into CROPS. day: (parcels,) with each parcel's lead or delay.
    lush: (parcels,) vigour 0..1. A harvest is abrupt: the falling side takes a few days.
    """
    # per crop: green from, to, width; dry from, to
    rises = {
        "winter": [(75, 178, 9.0), (310, 430, 25.0)],
        "rape": [(60, 172, 9.0), (265, 420, 18.0)],
        "summer": [(160, 268, 8.0)],
        "grass": [(70, 330, 18.0)],
        "orchard": [(95, 300, 14.0)],
        "fallow": [(85, 200, 14.0)],
        "rice": [(175, 262, 8.0)],
    }
    drying = {"winter": (182, 228), "rape": (176, 205), "summer": (262, 300), "fallow": (200, 400)}
    base = {"grass": 0.42, "orchard": 0.18, "fallow": 0.12, "winter": 0.05}
    green = np.zeros_like(day)
    dry = np.zeros_like(day)
    for index, name in enumerate(CROPS):
        here = kind == index
        if not here.any():
            continue
        bump = sum(
            (_rise_and_fall(day[here], rise, fall, width) for rise, fall, width in rises[name]),
            start=np.zeros(int(here.sum())),
        )
        low = base.get(name, 0.02)
        top = {"orchard": 0.5, "fallow": 0.55, "rape": 0.9}.get(name, 0.95)
        green[here] = low + (top - low) * np.clip(bump, 0, 1)
        if name in drying:
            dry[here] = 0.75 * _rise_and_fall(day[here], *drying[name], 4.0)
        if name == "grass":  # mowing: two short dips
            for cut in (150.0, 225.0):
                green[here] *= 1 - 0.45 * np.exp(-(((day[here] - cut) / 14.0) ** 2))
    green = green * (0.55 + 0.45 * lush)
    return green.astype(np.float32), (dry * (1 - green)).astype(np.float32)
