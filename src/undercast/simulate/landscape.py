"""The ground: water, wood, towns, barren land and fields, with their parcels, roads and relief."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from undercast.simulate.fields import (
    Generator,
    line_distance,
    patch_noise,
    smoothstep,
    soft_step,
)
from undercast.simulate.parcels import N_PARCELS, Parcels, draw_parcels
from undercast.simulate.places import Place
from undercast.simulate.season import CROPS
from undercast.types import FloatArray

LAND: tuple[str, ...] = ("farm", "wood", "built", "water", "barren")


@dataclass(frozen=True)
class Landscape:
    """What does not change from date to date, on (n, n) pixels of 10 m.

    cover: (5, n, n) shares in the order of LAND, sum 1. parcel: (n, n) identity. The rest of the
    (parcels,) arrays belong to identities, the (n, n) ones to pixels.
    """

    place: Place
    cover: FloatArray
    parcel: NDArray[np.int64]
    crop: NDArray[np.int64]  # (parcels,) index into season.CROPS
    delay: FloatArray  # (parcels,) days
    vigour: FloatArray  # (parcels,) 0..1
    soil: FloatArray  # (parcels,) brightness of bare soil around 1
    fine: FloatArray  # texture of a few pixels, standard deviation 1
    coarse: FloatArray  # texture of a hundred metres and more
    roofs: FloatArray  # (5, n, n) shares inside towns: tile, asphalt, concrete, garden, tree
    conifer: FloatArray  # share of conifers in the wood
    track: FloatArray  # share of bare tracks and paths between fields
    turbid: FloatArray
    sandy: FloatArray  # share of sand (against rock) on barren land
    shrub: FloatArray  # share of plants on barren land
    height: FloatArray  # around 0, standard deviation 1
    slope: FloatArray  # (2, n, n) tangent of the slope to the south and to the east

    @property
    def size(self) -> int:
        return int(self.parcel.shape[0])

    def share(self, name: str) -> FloatArray:
        """(n, n) share of one kind of land."""
        return np.asarray(self.cover[LAND.index(name)])


def draw_landscape(rng: Generator, place: Place, size: int) -> Landscape:
    """A patch of a region, `size` pixels wide."""
    height, slope = _relief(rng, place, size)
    width = place.field_px
    fields = draw_parcels(rng, size, width, place.angle, block_px=4.5 * width, wobble=0.22 * width)
    cover, track, conifer = _cover(rng, place, size, fields, height)
    crop, delay, vigour, soil = _parcel_table(rng, place)
    return Landscape(
        place=place,
        cover=cover,
        parcel=fields.identity,
        crop=crop,
        delay=delay,
        vigour=vigour,
        soil=soil,
        fine=_texture(rng, size, fields),
        coarse=patch_noise(rng, size, 2.6, scale=90.0),
        roofs=_roofs(rng, place, size),
        conifer=conifer,
        track=track,
        turbid=_turbidity(rng, place, size),
        sandy=smoothstep(1.1 - 4.0 * place.relief + 0.3 * patch_noise(rng, size, 2.8)),
        shrub=np.clip(place.lush * (0.45 + 0.35 * patch_noise(rng, size, 1.8, scale=40)), 0, 0.9),
        height=height,
        slope=slope,
    )


def _relief(rng: Generator, place: Place, size: int) -> tuple[FloatArray, FloatArray]:
    """Height with ridges and valleys, and its slope scaled to the place's relief."""
    smooth = patch_noise(rng, size, 5.0)
    bend = 0.15 * patch_noise(rng, size, 4.4)
    ridges = 1.0 - np.abs(patch_noise(rng, size, 5.2, scale=110.0) + bend)
    spurs = 1.0 - np.abs(patch_noise(rng, size, 5.0, scale=34.0))
    rugged = min(1.0, place.relief / 0.15)
    height = smooth + rugged * (0.6 * ridges + 0.14 * spurs * (0.4 + 0.6 * ridges))
    height = ((height - height.mean()) / (height.std() + 1e-6)).astype(np.float32)
    slope = np.stack(np.gradient(height)).astype(np.float32)
    return height, slope * np.float32(place.relief / (slope.std() + 1e-9))


def _over(field: FloatArray, share: float, common: float = 0.0) -> FloatArray:
    """The field (standard normal) less the level that a share of all patches exceeds.

    common: a standard normal number of the patch, for half of the variance lies between patches:
    one is all wood, the next has none.
    """
    share = min(max(share, 1e-5), 1 - 1e-5)
    mixed = field if common == 0.0 else (field + np.float32(common)) * np.float32(np.sqrt(0.5))
    return np.asarray(mixed - NormalDist().inv_cdf(1 - share), dtype=np.float32)


def _cover(
    rng: Generator, place: Place, size: int, fields: Parcels, height: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(5, n, n) shares of land, share of tracks, share of conifers in the wood."""
    owner = rng.standard_normal(N_PARCELS, dtype=np.float32)[fields.identity]
    natural = 0.96 * patch_noise(rng, size, 3.2, scale=130.0) + 0.2 * patch_noise(
        rng, size, 2.8, scale=40.0
    )
    wooded, urban, dry, wet = rng.standard_normal(4)
    ragged = _over(0.88 * natural + 0.47 * owner, place.wood, wooded)
    wood = soft_step(ragged, 0.15)
    hedge = rng.random(N_PARCELS, dtype=np.float32)[fields.identity] < place.hedges
    wood = np.maximum(wood, 0.8 * hedge * soft_step(0.9 - fields.edge, 1.0))

    sprawl = 0.5 * max(0.2, 1 - 1.5 * place.built)  # villages follow parcels, cities cover them
    town = patch_noise(rng, size, 2.8, scale=90.0) * float(np.sqrt(1 - sprawl**2)) + sprawl * owner
    town = _over(town, place.built, urban)
    built = soft_step(town, 0.3)
    barren = soft_step(
        _over(0.9 * patch_noise(rng, size, 3.0) + 0.44 * height, place.barren, dry), 1.0
    )
    wood *= 1 - barren * 0.8
    road, track = _roads(rng, size, fields, place)
    water, shore = _water(rng, place, size, height, wet)
    barren = np.maximum(barren, shore)
    road *= 1 - 0.85 * water  # some bridges remain

    land = np.zeros((len(LAND), size, size), dtype=np.float32)
    left = np.ones((size, size), dtype=np.float32)
    for name, share in (("water", water), ("built", np.maximum(built, road)), ("wood", wood),
                        ("barren", barren)):  # fmt: skip
        land[LAND.index(name)] = left * share
        left = left * (1 - share)
    land[LAND.index("farm")] = left
    conifer = soft_step(_over(0.7 * natural + 0.7 * owner, place.conifer), 1.2)
    return land, track, conifer


def _roads(
    rng: Generator, size: int, fields: Parcels, place: Place
) -> tuple[FloatArray, FloatArray]:
    """Paved roads (along blocks of fields, and a winding main road) and tracks between fields."""
    road = 0.75 * soft_step(0.5 - fields.block_edge, 1.0)
    road *= patch_noise(rng, size, 3.0, scale=80.0) > 0.4 - 4 * place.built
    if rng.random() < 0.15 + 2.5 * place.built:
        line = line_distance(rng, size, 0.06)
        road = np.maximum(road, 0.95 * soft_step(rng.uniform(0.6, 1.6) - line, 1.0))
    tracks = rng.random(N_PARCELS, dtype=np.float32)[fields.identity] < 0.4
    track = 0.5 * tracks * soft_step(0.45 - fields.edge, 1.0)
    return road.astype(np.float32), track.astype(np.float32)


def _water(
    rng: Generator, place: Place, size: int, height: FloatArray, wet: float
) -> tuple[FloatArray, FloatArray]:
    """Sea or lakes below a level, a river whose width varies along its course; and beaches."""
    level = _over(-0.8 * height + 0.6 * patch_noise(rng, size, 3.2), place.water, wet)
    water = soft_step(level, 0.06)
    sandy = 0.12 * patch_noise(rng, size, 3.5, scale=80.0) + 0.02
    shore = soft_step(level + sandy, 0.1) * (place.water > 0.2)
    if rng.random() < 0.28:
        width = rng.uniform(0.7, 2.0) * np.exp(rng.exponential(0.6))
        width = width * (1 + 0.3 * patch_noise(rng, size, 3.0, scale=60.0))
        water = np.maximum(water, soft_step(width - line_distance(rng, size, 0.22), 1.0))
    return water.astype(np.float32), shore.astype(np.float32)


def _turbidity(rng: Generator, place: Place, size: int) -> FloatArray:
    """Share of turbid water, in plumes."""
    return np.asarray(np.clip(place.turbidity + 0.12 * patch_noise(rng, size, 3.4), 0.0, 1.0))


def _texture(rng: Generator, size: int, fields: Parcels) -> FloatArray:
    """Fine texture: crowns, clods and stubble, with faint tillage rows."""
    rows = np.sin(2 * np.pi * fields.stripe / 3.1) * (fields.identity % 5 == 0)
    noise = 0.8 * patch_noise(rng, size, 0.9) + 0.5 * patch_noise(rng, size, 2.0, scale=30.0)
    return np.asarray(noise + 0.25 * rows, dtype=np.float32)


def _roofs(rng: Generator, place: Place, size: int) -> FloatArray:
    """(5, n, n) shares of tile, asphalt, concrete, garden and tree inside towns."""
    houses = draw_parcels(rng, size, 2.0, place.angle, block_px=16.0, wobble=0.5)
    halls = draw_parcels(rng, size, 6.0, place.angle, block_px=40.0, wobble=0.5)
    style = rng.dirichlet((1.5, 1.7, 0.6, 2.0, 1.4), N_PARCELS).astype(np.float32)
    style **= 1.5
    style /= style.sum(axis=1, keepdims=True)
    shares = np.moveaxis(style[houses.identity], -1, 0).copy()
    hall = rng.dirichlet((0.4, 1.2, 1.2, 0.3, 0.1), N_PARCELS).astype(np.float32)
    works = soft_step(_over(patch_noise(rng, size, 3.0, scale=60.0), 0.12), 0.2)
    shares += works * (np.moveaxis(hall[halls.identity], -1, 0) - shares)
    dense = patch_noise(rng, size, 3.0, scale=50.0)
    shares[3:] *= np.exp(-0.5 * dense)
    street = 0.85 * soft_step(0.6 - houses.block_edge, 1.0)
    street = np.maximum(street, 0.95 * soft_step(0.9 - halls.block_edge, 1.0))
    street = np.maximum(street, 0.35 * soft_step(0.35 - houses.edge, 1.0))
    shares /= shares.sum(axis=0, keepdims=True)
    shares *= 1 - street
    shares[1] += street
    return np.asarray(shares, dtype=np.float32)


def _parcel_table(
    rng: Generator, place: Place
) -> tuple[NDArray[np.int64], FloatArray, FloatArray, FloatArray]:
    crop = rng.choice(len(CROPS), size=N_PARCELS, p=np.array(place.crops) / sum(place.crops))
    delay = rng.normal(0, 9.0, N_PARCELS)
    vigour = rng.beta(3.2, 1.4, N_PARCELS)
    soil = np.exp(rng.normal(0, 0.17, N_PARCELS))
    return (
        crop.astype(np.int64),
        delay.astype(np.float32),
        vigour.astype(np.float32),
        soil.astype(np.float32),
    )
