"""Series with known truth: `simulate_series`, and `add_clouds` for real clear images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undercast import bands
from undercast.errors import InputError
from undercast.simulate import clouds, parallax, radar, sensor, surface
from undercast.simulate.fields import generator
from undercast.simulate.landscape import Landscape, draw_landscape
from undercast.simulate.places import Place, draw_place
from undercast.simulate.season import Sun, day_of_year, sun_at
from undercast.types import BoolArray, DateArray, FloatArray, Stack, parse_dates

# what a generator is for: the last number of its key
(_PLACE, _DATES, _WEATHER, _COVER, _LAND, _EVENTS, _SKY, _VEIL, _NOISE, _RADAR, _EDGE,
 _TRACK) = range(12)  # fmt: skip
YEAR = 2018
GREEN = bands.index(["B3"])[0]
CHANGED_SHARE = 0.02  # of the parcels are cleared or built over within a year
_HALF = 4  # where the patch begins in a scene with margins, on average over band geometries
_PATCH = 1_000_000  # keys of patches begin here, those of dates at 0


@dataclass(frozen=True, eq=False)
class SimulatedSeries:
    """A cloudy series and the truth behind it.

    stack: what satellites see, with the true mask (cloud or shadow). clear: (T, 13, H, W) the same
    dates without cloud, shadow and uneven haze. cover: (T,) share of cloud (no shadow).
    cloud, shadow: (T, H, W) bool. opacity: (T, H, W) reflectance of the cloud layers, 0..1.
    land: (H, W) index into `LAND`. place: the region. suns: the sun at each date.
    """

    stack: Stack
    clear: FloatArray
    cover: FloatArray
    cloud: BoolArray
    shadow: BoolArray
    opacity: FloatArray
    land: NDArray[np.uint8]
    place: Place
    suns: tuple[Sun, ...]


@dataclass(frozen=True)
class Region:
    """What all patches of one region share: place, dates, weather, skies and sampling of bands."""

    seed: int
    key: tuple[int, ...]
    place: Place
    dates: DateArray
    s1_dates: DateArray
    weather: tuple[surface.Weather, ...]
    skies: tuple[clouds.Sky, ...]
    from_east: bool


def simulate_series(
    seed: int,
    size: int = 256,
    dates: int | Sequence[Any] = 6,
    *,
    cover: float = 0.5,
    biome: str | None = None,
    nodata: float = 0.0,
    resampling: str = "nearest",
) -> SimulatedSeries:
    """A series of `size` × `size` pixels with known truth, the same for the same arguments.

    dates: a number (spread over 2018), or the dates. cover: mean share of cloud, 0..1.
    biome: a key of `BIOMES`, or None for any. nodata: share of dates cut by the edge of the swath.
    resampling: of 20 and 60 m bands, `nearest` as in SEN12MS-CR, or `smooth`.
    """
    region = draw_region(seed, (), dates, cover=cover, biome=biome)
    return simulate_patch(region, 0, size, nodata=nodata, resampling=resampling)


def draw_region(
    seed: int,
    key: tuple[int, ...],
    dates: int | Sequence[Any],
    *,
    cover: float | Sequence[float] = 0.5,
    biome: str | None = None,
) -> Region:
    """A region: everything that its patches share. cover: the mean, or one number per date."""
    if isinstance(dates, (int, np.integer)):
        days = draw_dates(seed, key, int(dates))
    elif len(dates) == 0:
        raise InputError("got no dates, expected at least one")
    else:
        days = parse_dates(dates, len(dates), "dates")
    place = draw_place(generator(seed, *key, _PLACE), biome)
    weather = surface.draw_weather(generator(seed, *key, _WEATHER), place, days)
    covers = _covers(seed, key, len(days), cover)
    skies = tuple(
        clouds.draw_sky(generator(seed, *key, i, _SKY), float(c), w.vapour)
        for i, (c, w) in enumerate(zip(covers, weather, strict=True))
    )
    rng = generator(seed, *key, _RADAR)
    return Region(
        seed,
        key,
        place,
        days,
        _s1_dates(rng, days),
        tuple(weather),
        skies,
        bool(rng.random() < 0.5),
    )


def _covers(seed: int, key: tuple[int, ...], n: int, cover: float | Sequence[float]) -> FloatArray:
    values = np.atleast_1d(np.asarray(cover, dtype=np.float32))
    if not np.isfinite(values).all() or values.min() < 0 or values.max() > 1:
        raise InputError(f"got cover {cover}, expected shares of cloud between 0 and 1")
    if np.ndim(cover) == 0:
        return clouds.draw_cover(generator(seed, *key, _COVER), n, float(values[0]))
    if len(values) != n:
        raise InputError(f"got {len(values)} covers for {n} dates, expected one for each date")
    return values


def draw_dates(seed: int, key: tuple[int, ...], n: int) -> DateArray:
    """n different dates of 2018 on the 5-day grid of the two Sentinel-2 satellites, in order."""
    if not 1 <= n <= 73:
        raise InputError(f"got {n} dates, expected 1 to 73 (every fifth day of {YEAR})")
    rng = generator(seed, *key, _DATES)
    slots = np.floor((np.arange(n) + rng.random(n) * 0.999) * 73 / n).astype(int)
    slots = np.maximum.accumulate(slots - np.arange(n)) + np.arange(n)  # all different
    days = np.minimum(slots, 73 - n + np.arange(n)) * 5 + int(rng.integers(0, 5))
    return np.asarray(np.datetime64(f"{YEAR}-01-01", "D") + np.minimum(days, 364))


def _s1_dates(rng: np.random.Generator, dates: DateArray) -> DateArray:
    """The nearest pass of a 6-day cycle of its own, never further than 3 days."""
    start = int(rng.integers(0, 6))
    days = dates.astype(int)
    return (start + 6 * np.rint((days - start) / 6).astype(int)).astype("datetime64[D]")


def simulate_patch(
    region: Region, patch: int, size: int, *, nodata: float = 0.0, resampling: str = "nearest"
) -> SimulatedSeries:
    """One patch of a region, with its own landscape and clouds."""
    if size < 16:
        raise InputError(f"got a size of {size} pixels, expected at least 16")
    seed, key = region.seed, (*region.key, _PATCH + patch)
    land = draw_landscape(generator(seed, *key, _LAND), region.place, size + sensor.MARGIN)
    first = float(region.dates.min().astype(int))
    events = surface.draw_events(generator(seed, *key, _EVENTS), first, CHANGED_SHARE)
    grounds = [
        surface.ground_at(land, weather, events, float(date.astype(int)))
        for date, weather in zip(region.dates, region.weather, strict=True)
    ]
    optical = [
        _optical(region, key, i, land, ground, size, nodata, resampling)
        for i, ground in enumerate(grounds)
    ]
    echoes = [_echo(region, key, i, land, ground, size) for i, ground in enumerate(grounds)]
    images, clears, veils = zip(*optical, strict=True)
    cloud = np.stack([v.cloud for v in veils])
    shadow = np.stack([v.shadow for v in veils])
    stack = Stack(np.stack(images), region.dates, np.stack(echoes), region.s1_dates, cloud | shadow)
    return SimulatedSeries(
        stack=stack,
        clear=np.stack(clears),
        cover=cloud.mean(axis=(1, 2), dtype=np.float32),
        cloud=cloud,
        shadow=shadow,
        opacity=np.stack([_opacity(v) for v in veils]),
        land=land.cover.argmax(axis=0)[_inside(size)].astype(np.uint8),
        place=region.place,
        suns=tuple(w.sun for w in region.weather),
    )


def _inside(size: int) -> tuple[slice, slice]:
    """The patch in a scene with margins."""
    return slice(_HALF, _HALF + size), slice(_HALF, _HALF + size)


def _optical(
    region: Region,
    key: tuple[int, ...],
    i: int,
    land: Landscape,
    ground: surface.Ground,
    size: int,
    nodata: float,
    resampling: str,
) -> tuple[FloatArray, FloatArray, clouds.Veil]:
    """What Sentinel-2 sees at one date, what it would see without clouds, and the clouds."""
    weather, sky, seed = region.weather[i], region.skies[i], region.seed
    geometry = generator(seed, *region.key, _EDGE)  # the same at all dates
    phase = (int(geometry.integers(0, 6)), int(geometry.integers(0, 6)))
    shift = (float(geometry.random()), float(geometry.random()))
    scene = surface.top_of_atmosphere(surface.reflectance(land, ground, weather), weather)
    clear = sensor.observe(scene, phase, shift, resampling)
    wide = (size + parallax.MARGIN,) * 2
    veil = clouds.draw_veil(generator(seed, *key, i, _VEIL), sky, wide, weather.sun)
    velocities = parallax.draw_velocities(generator(seed, *region.key, i, _TRACK), sky.layers)
    seen = parallax.by_bands(veil, velocities, phase, shift, resampling)
    noise = generator(seed, *key, i, _NOISE)
    image = sensor.quantise(sensor.add_noise(noise, clouds.seen_through(clear, seen, sky)))
    if nodata and noise.random() < nodata:
        image[:, sensor.swath_edge(noise, (size, size))] = np.nan
    return image, clear, seen


def _echo(
    region: Region,
    key: tuple[int, ...],
    i: int,
    land: Landscape,
    ground: surface.Ground,
    size: int,
) -> FloatArray:
    """(2, H, W) VV and VH in dB; wind over water is the same in all patches of a region."""
    wind = generator(region.seed, *region.key, i, _RADAR)
    echo = radar.backscatter(wind, land, ground, from_east=region.from_east)
    echo = echo[(slice(None), *_inside(size))]
    grain = radar.speckle(generator(region.seed, *key, i, _RADAR), echo.shape)
    return radar.to_db(echo * grain)


def _opacity(veil: clouds.Veil) -> FloatArray:
    """(H, W) 1 − Π (1 − R) over the layers, as green light sees them."""
    tau = veil.thickness[:, GREEN]
    return np.asarray(1 - (1 - clouds.cloud_reflectance(tau)).prod(axis=0), dtype=np.float32)


def add_clouds(
    clear_stack: Stack,
    seed: int,
    cover: float | Sequence[float] = 0.5,
    *,
    latitude: float = 45.0,
    vapour: float = 2.0,
) -> Stack:
    """The same stack under simulated clouds, shadows and haze, with the true mask.

    Works on real clear images of any size and number of dates; NaN stays NaN, radar stays as it
    is. cover: the mean share of cloud over dates, or one number for each date. A mask that the
    stack already has is joined to the new one. latitude: for the sun. vapour: cm of water.
    """
    n_dates, height, width = clear_stack.shape
    covers = _covers(seed, (), n_dates, cover)
    images, masks = np.empty_like(clear_stack.s2), np.empty((n_dates, height, width), dtype=bool)
    for i, date in enumerate(clear_stack.dates):
        sun = sun_at(latitude, day_of_year(date))
        sky = clouds.draw_sky(generator(seed, i, _SKY), float(covers[i]), vapour)
        wide = (height + parallax.MARGIN, width + parallax.MARGIN)
        veil = clouds.draw_veil(generator(seed, i, _VEIL), sky, wide, sun)
        velocities = parallax.draw_velocities(generator(seed, i, _TRACK), sky.layers)
        seen = parallax.by_bands(veil, velocities, (0, 0), (0.0, 0.0), "nearest")
        images[i] = clouds.seen_through(clear_stack.s2[i], seen, sky)
        masks[i] = seen.cloud | seen.shadow
    if clear_stack.mask is not None:
        masks |= clear_stack.mask
    return Stack(images, clear_stack.dates, clear_stack.s1, clear_stack.s1_dates, masks)
