"""Kinds of country: what covers the ground, how large fields are, where on Earth it lies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from undercast.errors import InputError
from undercast.simulate.fields import Generator


@dataclass(frozen=True)
class Biome:
    """Typical shares and sizes of one kind of country; a `Place` varies around them."""

    water: float  # shares of the area; what is left is farmland
    wood: float
    built: float
    barren: float
    relief: float  # standard deviation of the slope (tangent)
    field_px: float  # width of a field
    hedges: float
    conifer: float
    red_soil: float
    crops: tuple[float, ...]  # weights in the order of season.CROPS
    latitudes: tuple[float, float]
    vapour: float  # cm of water over the ground in summer
    lush: float  # 0 dry country .. 1 green all year


BIOMES: dict[str, Biome] = {
    "cropland": Biome(
        0.04, 0.15, 0.05, 0.0, 0.03, 24, 0.15, 0.4, 0.1, (5, 2, 4, 2, 0.5, 1, 0), (38, 55), 2, 0.8
    ),
    "pasture": Biome(
        0.04, 0.25, 0.05, 0.0, 0.06, 15, 0.7, 0.3, 0.1, (2, 1, 1, 7, 0.5, 0.5, 0), (43, 57), 1.8, 1
    ),
    "smallholders": Biome(
        0.02, 0.22, 0.08, 0.0, 0.08, 9, 0.2, 0.4, 0.5, (3, 0.5, 3, 2, 3, 3, 1), (15, 44), 2.6, 0.6
    ),
    "forest": Biome(
        0.05, 0.78, 0.02, 0.0, 0.10, 22, 0.2, 0.5, 0.2, (1, 0.5, 1, 5, 0, 1, 0), (42, 64), 1.6, 0.9
    ),
    "rainforest": Biome(
        0.06, 0.82, 0.01, 0.0, 0.05, 18, 0.0, 0.0, 0.7, (0, 0, 2, 4, 2, 2, 1), (-12, 10), 4.5, 1.0
    ),
    "city": Biome(
        0.04, 0.10, 0.70, 0.0, 0.03, 14, 0.2, 0.3, 0.2, (2, 0.5, 2, 4, 0.5, 1, 0), (25, 54), 2, 0.7
    ),
    "coast": Biome(
        0.50,
        0.15,
        0.15,
        0.05,
        0.06,
        14,
        0.2,
        0.4,
        0.3,
        (2, 0.5, 2, 3, 2, 2, 0),
        (-38, 56),
        2.4,
        0.7,
    ),
    "mountain": Biome(
        0.02, 0.45, 0.01, 0.33, 0.35, 14, 0.1, 0.8, 0.2, (0, 0, 0, 6, 0, 2, 0), (30, 62), 1.0, 0.7
    ),
    "dryland": Biome(
        0.01, 0.05, 0.04, 0.55, 0.16, 26, 0.0, 0.1, 0.6, (2, 0, 2, 1, 3, 6, 0), (-32, 36), 1.8, 0.25
    ),
    "savanna": Biome(
        0.02, 0.25, 0.02, 0.10, 0.04, 24, 0.0, 0.0, 0.8, (1, 0, 3, 4, 1, 5, 0.5), (-25, 14), 3, 0.5
    ),
}
_WEIGHTS = (15, 13, 11, 15, 10, 10, 9, 7, 5, 5)


@dataclass(frozen=True)
class Place:
    """One region: a biome with its own shares, latitude, soils and orientation of the fields."""

    biome: str
    latitude: float
    water: float
    wood: float
    built: float
    barren: float
    relief: float
    field_px: float
    hedges: float
    conifer: float
    red_soil: float
    crops: tuple[float, ...]
    vapour: float
    lush: float
    angle: float
    soil_brightness: float
    turbidity: float


def draw_place(rng: Generator, biome: str | None = None) -> Place:
    """A region at random; biome fixes its kind."""
    if biome is None:
        weights = np.array(_WEIGHTS, dtype=float)
        biome = str(rng.choice(list(BIOMES), p=weights / weights.sum()))
    if biome not in BIOMES:
        raise InputError(f"got biome {biome!r}, expected one of {', '.join(BIOMES)}")
    kind = BIOMES[biome]
    vary = np.exp(rng.normal(0.0, 0.35, 6))
    crops = rng.dirichlet(np.array(kind.crops) * 1.5 + 1e-3)
    return Place(
        biome=biome,
        latitude=float(rng.uniform(*kind.latitudes)),
        water=float(np.clip(kind.water * vary[0], 0, 0.9)),
        wood=float(np.clip(kind.wood * vary[1], 0, 0.92)),
        built=float(np.clip(kind.built * vary[2], 0, 0.9)),
        barren=float(np.clip(kind.barren * vary[3], 0, 0.9)),
        relief=float(kind.relief * vary[4]),
        field_px=float(kind.field_px * vary[5]),
        hedges=kind.hedges,
        conifer=float(np.clip(kind.conifer + rng.normal(0, 0.2), 0, 1)),
        red_soil=float(np.clip(kind.red_soil + rng.normal(0, 0.2), 0, 1)),
        crops=tuple(float(c) for c in crops),
        vapour=float(kind.vapour * np.exp(rng.normal(0, 0.2))),
        lush=float(np.clip(kind.lush + rng.normal(0, 0.1), 0.05, 1)),
        angle=float(rng.uniform(0, np.pi)),
        soil_brightness=float(np.exp(rng.normal(-0.15, 0.25))),
        turbidity=float(rng.beta(1.2, 2.0)),
    )
