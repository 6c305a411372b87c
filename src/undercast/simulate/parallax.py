"""How bands see clouds: each at another moment of the pass, each with its own footprint.

Images are registered on the ground. A cloud above it shows, in every band, where the satellite saw
it against the ground at that band's moment: bands that look later see it displaced along the track,
the more the higher it is, and carried on by the wind. Clouds in real images have fringes of colour.
"""

from __future__ import annotations

import numpy as np

from undercast import bands
from undercast.simulate import sensor
from undercast.simulate.clouds import Layer, Veil, masks_of
from undercast.simulate.fields import Generator
from undercast.simulate.season import PIXEL_M
from undercast.types import FloatArray

# Seconds after B2 at which a band sees the same point of the ground.
DELAY_S: dict[str, float] = dict(
    zip(
        bands.S2,
        (2.314, 0.0, 0.527, 1.005, 1.269, 1.525, 1.790, 0.264, 2.055, 2.586, 0.851, 1.468, 2.085),
        strict=True,
    )
)
SPEED_M_S, ALTITUDE_KM = 7450.0, 786.0  # of the orbit
HEADING_DEG = (8.0, 20.0)  # from the meridian to the track
WIND_M_S = 8.0  # standard deviation along each axis
REACH = 18  # pixels that fields need on each side: cirrus at 11 km in a strong wind
MARGIN = sensor.MARGIN + 2 * REACH  # pixels that they need in all, footprints included
_DELAYS = np.array([*DELAY_S.values()]) - (min(DELAY_S.values()) + max(DELAY_S.values())) / 2


def draw_velocities(rng: Generator, layers: tuple[Layer, ...]) -> FloatArray:
    """(layers, 2) pixels (rows, cols) by which layers move in the image from second to second.

    Neighbouring detectors look forward and backward, so the parallax has either sign.
    """
    sign = 1 if rng.random() < 0.5 else -1
    heading = np.deg2rad(rng.uniform(*HEADING_DEG))
    track = sign * np.array([np.cos(heading), -np.sin(heading)])
    wind = rng.normal(0, WIND_M_S / PIXEL_M, 2)
    heights = np.array([layer.height_km for layer in layers])[:, None]
    return np.asarray(heights * SPEED_M_S / ALTITUDE_KM / PIXEL_M * track + wind, np.float32)


def displaced(field: FloatArray, velocity: FloatArray) -> FloatArray:
    """(13, H − 2 REACH, W − 2 REACH) where each band sees a field (H, W) that moves in the image.

    The band in the middle of the pass sees it in its place. No band sees it further than REACH
    away: winds above 40 m/s at the height of cirrus are cut there.
    """
    height, width = (n - 2 * REACH for n in field.shape)
    out = np.empty((bands.N_S2, height, width), dtype=np.float32)
    for band, delay in enumerate(_DELAYS):
        # what is seen here comes from where it was before it moved
        row, col = np.clip(REACH - velocity * delay, 0, 2 * REACH - 1)
        top, left = int(row), int(col)
        down, right = np.float32(row - top), np.float32(col - left)
        part = field[top : top + height + 1, left : left + width + 1]
        part = part[:-1] + down * (part[1:] - part[:-1])
        out[band] = part[:, :-1] + right * (part[:, 1:] - part[:, :-1])
    return out


def by_bands(
    veil: Veil,
    velocities: FloatArray,
    phase: tuple[int, int],
    shift: tuple[float, float],
    resampling: str,
) -> Veil:
    """The veil as the bands see it: thickness, what shades and tops are (layers, 13, h, w).

    h, w are smaller by MARGIN. A pixel is cloud, or else shadow, where it is in any band. See
    `sensor.observe` for the rest of the arguments.
    """
    height, width = (n - MARGIN for n in veil.haze.shape)
    none = np.zeros((0, bands.N_S2, height, width), np.float32)

    def observed(fields: FloatArray, moves: FloatArray) -> FloatArray:
        seen = [
            sensor.observe(displaced(field, velocity), phase, shift, resampling)
            for field, velocity in zip(fields, moves, strict=True)
        ]
        return np.stack(seen) if seen else none

    thickness = observed(veil.thickness, velocities)
    overhead = observed(veil.overhead, 0 * velocities)  # shadows lie on the ground
    cloud, shadow = (np.asarray(mask.any(axis=0)) for mask in masks_of(thickness, overhead))
    top, left = (REACH + 1 + p for p in phase)
    return Veil(
        layers=veil.layers,
        thickness=thickness,
        overhead=overhead,
        relief=observed(veil.relief, velocities),
        haze=veil.haze[top : top + height, left : left + width],
        cloud=cloud,
        shadow=shadow & ~cloud,
    )
