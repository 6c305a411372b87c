"""The ground at one date: materials by season, wetness, snow and events; then its reflectance."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from undercast import bands
from undercast.simulate import spectra
from undercast.simulate.fields import Generator, logistic, soft_step
from undercast.simulate.landscape import Landscape
from undercast.simulate.parcels import N_PARCELS
from undercast.simulate.places import Place
from undercast.simulate.season import Sun, crop_state, season_day, sun_at, temperature, warmth
from undercast.types import DateArray, FloatArray


@dataclass(frozen=True)
class Weather:
    """What a whole region shares at one date."""

    day: float  # of the year
    sun: Sun
    warmth: float  # 0..1
    moisture: float  # of the soil, 0..1
    snow: float  # height (in landscape units) above which snow lies; large = none
    vapour: float  # cm
    aerosol: float  # reflectance at 550 nm of the even background haze
    gain: float  # small differences of illumination and calibration between dates


@dataclass(frozen=True)
class Events:
    """Abrupt change: (parcels,) day (since 1970) on which a parcel is cleared or built over."""

    day: FloatArray
    built: FloatArray  # share of it that is built over; the rest is bare


def draw_weather(rng: Generator, place: Place, dates: DateArray) -> list[Weather]:
    """Weather of each date. Soil moisture remembers: its correlation falls by half in 10 days."""
    order = np.argsort(dates, kind="stable")
    noise = rng.standard_normal((len(dates), 4))
    weather: list[Weather | None] = [None] * len(dates)
    wet, last = 0.0, None
    for i in order:
        gap = 0.0 if last is None else float((dates[i] - last).astype(int))
        keep = 0.0 if last is None else 0.5 ** (gap / 10.0)
        wet = keep * wet + np.sqrt(1 - keep**2) * noise[i, 0]
        last = dates[i]
        weather[i] = _weather(place, _day(dates[i]), float(wet), noise[i, 1:])
    return [w for w in weather if w is not None]


def _day(date: np.datetime64) -> float:
    return float((date - date.astype("datetime64[Y]").astype("datetime64[D]")).astype(int))


def _weather(place: Place, day: float, wet: float, noise: np.ndarray) -> Weather:
    warm = warmth(place.latitude, day)
    dry_season = 0.8 * (1 - place.lush) + 0.5 * warm
    # one standard deviation of height is about 1000 m: 6 °C; mountains stand higher than the sea
    degrees = (
        temperature(place.latitude, day) + 3.0 * noise[0] - (8.0 if place.relief > 0.15 else 0)
    )
    snow_line = (degrees + 6.0) / 6.0
    return Weather(
        day=day,
        sun=sun_at(place.latitude, day),
        warmth=warm,
        moisture=logistic(0.7 - 1.6 * dry_season + wet),
        snow=float(snow_line),
        vapour=float(place.vapour * (0.35 + 0.65 * warm) * np.exp(0.25 * noise[1])),
        aerosol=float(0.006 * np.exp(0.6 * noise[2])),
        gain=float(np.exp(0.02 * noise[1] * noise[2])),
    )


def draw_events(rng: Generator, first_day: float, share: float) -> Events:
    """A share of the parcels changes for good within a year from the first date."""
    day = first_day + rng.uniform(0, 365, N_PARCELS)
    day[rng.random(N_PARCELS) >= share] = np.inf
    return Events(day.astype(np.float32), rng.beta(0.4, 0.6, N_PARCELS).astype(np.float32))


@dataclass(frozen=True)
class Ground:
    """materials: (16, n, n) shares of each material. moisture, green: (n, n) 0..1, for the radar.
    cover: (5, n, n) shares of land after events and floods. snow: (n, n) share."""

    materials: FloatArray
    cover: FloatArray
    green: FloatArray
    moisture: FloatArray
    snow: FloatArray
    soil: FloatArray  # brightness of bare ground around 1


def ground_at(land: Landscape, weather: Weather, events: Events, day: float) -> Ground:
    """What lies where on one date. day: since 1970, for the events."""
    cover, bare, paved = _cover_at(land, weather, events, day)
    farm, wood, built, water, barren = cover
    green, dry, moisture, soil = _vegetation(land, weather)
    m = np.zeros((len(spectra.MATERIALS), land.size, land.size), dtype=np.float32)

    def add(name: str, share: FloatArray) -> None:
        m[spectra.INDEX[name]] += share

    open_farm = farm * (1 - land.track)
    tile, asphalt, concrete, garden, tree = land.roofs * built
    bare_soil = open_farm * (1 - green - dry) + 0.7 * farm * land.track + bare
    grass = garden + barren * land.shrub
    lawn = np.float32(0.3 + 0.5 * weather.warmth * land.place.lush)
    red = np.float32(land.place.red_soil)
    add("green", open_farm * green + grass * lawn)
    add("dry", open_farm * dry + grass * (1 - lawn) + 0.3 * farm * land.track)
    add("soil", bare_soil * (1 - red))
    add("red_soil", bare_soil * red)
    open_ground = barren * (1 - land.shrub)
    add("sand", open_ground * land.sandy * (1 - 0.4 * red))
    add("red_soil", open_ground * land.sandy * 0.4 * red)
    add("rock", open_ground * (1 - land.sandy))
    _add_wood(add, land, weather, wood + tree)
    add("tile", tile)
    add("asphalt", asphalt + 0.4 * paved)
    add("concrete", concrete + 0.6 * paved)
    add("water", water * (1 - land.turbid))
    add("turbid", water * land.turbid)
    snow = _snow(land, weather, water, wood)
    m *= 1 - snow
    add("snow", snow)
    return Ground(m, cover, open_farm * green, moisture, snow, soil)


def _cover_at(
    land: Landscape, weather: Weather, events: Events, day: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Shares of land after floods and events, with the newly bare and newly paved shares."""
    farm, wood, built, water, barren = land.cover
    flood = soft_step(weather.moisture - 0.86 - 0.1 * (land.height + 1.8), 0.05)
    flooded = flood * farm
    done = (events.day < day)[land.parcel].astype(np.float32)
    lost_farm, lost_wood = done * (farm - flooded), 0.9 * done * wood
    lost = lost_farm + lost_wood
    paved = lost * events.built[land.parcel]
    cover = np.stack((farm - flooded - lost_farm, wood - lost_wood, built, water + flooded, barren))
    return cover, lost - paved, paved


def _vegetation(
    land: Landscape, weather: Weather
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Green share, dry share, moisture and soil brightness of farmland, by pixel."""
    place = land.place
    tropical = abs(place.latitude) < 20
    day = season_day(place.latitude, weather.day) + land.delay * (4.0 if tropical else 1.0)
    vigour = np.clip(land.vigour * (0.35 + 0.65 * place.lush), 0, 1)
    parcel_green, parcel_dry = crop_state(land.crop, np.asarray(day, dtype=np.float64), vigour)
    drought = (1 - place.lush) * (1 - weather.moisture)
    withered = np.float32(0.7 * drought)
    parcel_dry = parcel_dry + parcel_green * withered * 0.7
    parcel_green = parcel_green * (1 - withered)
    uneven = 0.07 * land.fine + 0.08 * land.coarse
    green = np.clip(parcel_green[land.parcel] * (1 + 2 * uneven) + 0.25 * uneven, 0.0, 0.97)
    dry = np.clip(parcel_dry[land.parcel], 0.0, 1.0 - green)
    moisture = np.clip(weather.moisture + 0.08 * land.coarse - 0.08 * land.height, 0.0, 1.0)
    soil = land.place.soil_brightness * land.soil[land.parcel]
    soil = soil * np.exp(0.08 * land.coarse + 0.06 * land.fine) * (1.15 - 0.4 * moisture)
    return (
        green.astype(np.float32),
        dry.astype(np.float32),
        moisture.astype(np.float32),
        soil.astype(np.float32),
    )


def _add_wood(
    add: Callable[[str, FloatArray], None], land: Landscape, weather: Weather, wood: FloatArray
) -> None:
    """Conifers all year; broadleaves green, coloured, then bare where winters are cold."""
    day = season_day(land.place.latitude, weather.day)
    evergreen = float(np.clip((30 - abs(land.place.latitude)) / 10, 0, 1))
    leaves = 1 / (1 + np.exp(-(day - 108) / 8)) - 1 / (1 + np.exp(-(day - 305) / 9))
    leaves = evergreen + (1 - evergreen) * leaves
    turning = (1 - evergreen) * np.exp(-(((day - 288) / 16) ** 2))
    broad = wood * (1 - land.conifer)
    add("conifer", wood * land.conifer)
    add("broadleaf", broad * np.float32(leaves * (1 - 0.8 * turning)))
    add("autumn", broad * np.float32(leaves * 0.8 * turning))
    add("leafless", broad * np.float32(1 - leaves))


def _snow(land: Landscape, weather: Weather, water: FloatArray, wood: FloatArray) -> FloatArray:
    """Share of snow: above the snow line, not on water, partly hidden under trees."""
    if weather.snow > 4:
        return np.zeros_like(water)
    high = land.height * min(1.0, land.place.relief / 0.3) ** 2
    lying = soft_step(high + 0.25 * land.coarse + 0.15 * land.fine - weather.snow, 0.6)
    return np.asarray(lying * (1 - water) * (1 - 0.75 * wood), dtype=np.float32)


def illumination(land: Landscape, sun: Sun) -> FloatArray:
    """(n, n) sunlight on the slope relative to flat ground, with some skylight: relief shading."""
    south, east = land.slope
    toward_sun = south * math.cos(sun.azimuth) - east * math.sin(sun.azimuth)
    direct = 1 + math.tan(sun.zenith) * toward_sun / np.sqrt(1 + south**2 + east**2)
    return np.asarray(0.25 + 0.75 * np.clip(direct, 0.05, 2.2), dtype=np.float32)


def reflectance(land: Landscape, ground: Ground, weather: Weather) -> FloatArray:
    """(13, n, n) surface reflectance at 10 m in every band, before the sensor blurs it."""
    n = land.size
    bare = np.array([name in _BARE for name in spectra.MATERIALS])
    materials = ground.materials.copy()
    materials[bare] *= ground.soil
    image = (spectra.SPECTRA.T @ materials.reshape(len(bare), -1)).reshape(bands.N_S2, n, n)
    rough = 1 - ground.cover[3]  # water is smooth
    wooded = ground.cover[1]
    light = illumination(land, weather.sun)
    light = 1 + (light - 1) * rough
    texture = 1 + rough * (0.035 + 0.06 * wooded) * land.fine + 0.03 * rough * land.coarse
    image *= np.clip(light * texture * weather.gain, 0.02, None)
    return np.asarray(np.clip(image, 0.0005, None), dtype=np.float32)


_BARE = ("soil", "red_soil")


def top_of_atmosphere(surface: FloatArray, weather: Weather) -> FloatArray:
    """(13, n, n) reflectance seen from space through clear air: path, even haze, water vapour."""
    air_mass = 0.75 + 0.25 / max(math.cos(weather.sun.zenith), 0.25)
    path = spectra.PATH * air_mass + weather.aerosol * spectra.AEROSOL * _NO_CIRRUS
    loss = 1 - 0.9 * weather.aerosol * spectra.AEROSOL
    seen = surface * (spectra.gas_transmission(weather.vapour) * loss)[:, None, None]
    return np.asarray(seen + path[:, None, None], dtype=np.float32)


_NO_CIRRUS = np.where(np.arange(bands.N_S2) == spectra.B10, 0.005, 1.0).astype(np.float32)
_NO_CIRRUS[spectra.B9] = 0.3
