"""The training mix: simulated series, and changing real images under simulated clouds."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
from backgrounds import Background, Case
from echoes import Echoes
from torch.utils.data import Dataset

from undercast import Stack, Tile
from undercast.bands import WAVELENGTH_NM, index
from undercast.datasets import Provenance, Sample
from undercast.simulate.clouds import Sky, Veil, direct_sunlight, seen_through
from undercast.simulate.fields import Generator, generator, power_noise
from undercast.simulate.radar import speckle
from undercast.training.data import epoch_order

SHARES = {
    "simulated": 0.37,
    "eurosat": 0.23,
    "cities": 0.14,
    "pairs": 0.08,
    "triplets": 0.10,
    "scenes": 0.08,
}
# Of one date alone: what it hides is guessed, so land is to be as it mostly is.
SINGLE_SHARES = {
    "simulated": 0.22,
    "eurosat": 0.28,
    "cities": 0.06,
    "pairs": 0.10,
    "triplets": 0.28,
    "scenes": 0.06,
}
DATES = (0.26, 0.14, 0.28, 0.23, 0.09)  # odds of one date, two dates, …
ECHO_SHARE, ECHO_SINGLE_SHARE = 0.25, 0.5  # of the real images without radar that get some
SHADOW_SHARE = 0.5  # of the real images' dates that carry shadows without their clouds
OVERCAST_SHARE = 0.15  # of the real images that have clouds all over, on every date
OVERCAST_RADAR_SHARE = 0.3  # of those with radar
OVERCAST_SINGLE_SHARE = 0.45  # of those with one date alone
DRY_SHARE = 0.42  # of the real images turned into dry land, which they lack
DRY_SINGLE_SHARE = 0.2  # of those with one date alone
DRY_OVERCAST_SHARE = 0.12  # of those that have clouds all over: where it rains, it is green
SNOW_SHARE, SNOW_SINGLE_SHARE = 0.06, 0.02  # of them under snow, which they lack too
SNOW_OVERCAST_SHARE = 0.02  # of those that have clouds all over
RARE_OVERCAST_SHARE = 0.01  # of either, where the one date alone has clouds all over
OPEN_DRAWS = 4  # for a sky over snow or dry land that shows some of it
# Top-of-atmosphere reflectance of bare dry soil.
SOIL = np.array([0.18, 0.18, 0.22, 0.30, 0.33, 0.35, 0.37, 0.36, 0.39, 0.12, 0.002, 0.47, 0.41])
SOIL_DB = np.array([-15.5, -23.5])  # its backscatter, between loam and sand: VV, VH
# Top-of-atmosphere reflectance of snow, dark where clouds are bright: beyond one micrometre.
SNOW = np.array([0.88, 0.86, 0.82, 0.84, 0.84, 0.83, 0.82, 0.80, 0.77, 0.30, 0.005, 0.10, 0.08])
# How a band answers when vegetation withers: red and SWIR rise, near infrared falls.
WITHERING = np.array([0.1, 0.2, 0.25, 0.6, 0.4, -0.15, -0.35, -0.4, -0.4, -0.3, 0.0, 0.35, 0.6])
# How it darkens when the ground gets wet: the longer the wave, the more.
WETTING = -np.array([0.2, 0.2, 0.3, 0.4, 0.4, 0.4, 0.4, 0.4, 0.5, 0.5, 0.0, 1.0, 1.2])
# How much of what a band sees comes from the ground: the air gives the rest, mostly blue.
GROUND = np.array([0.4, 0.55, 0.75, 0.9, 0.95, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0])
# By how much real clouds over land are brighter than simulated ones of the same blue, and how that
# varies: logarithms, from the pairs that are trained on. Vapour above the clouds darkens B9.
CLOUD = np.array([0.0, 0.0, -0.02, 0.0, 0.0, 0.04, 0.06, 0.06, 0.08, -0.4, 0.0, 0.0, 0.0])
NEAR_INFRARED = np.array([0.0, 0.0, 0.0, 0.0, 0.3, 0.8, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0])
STRENGTH = (0.1, 1.5)  # of the change between the dates of a series: from days to seasons
DRY_STRENGTH, DRY_WETNESS = 0.55, 0.3  # of it, and of its rain, where land is dry
# There whole images differ more than their pixels do, in blue as much as in red: standard deviation
# of the logarithm, by light and haze, by wet ground, and how that varies from day to day.
DAYLIGHT = (0.07, 0.06, 0.5)
OTHER_COLOUR_SHARE = 0.4  # of the green land, where it is seen, with colours that it has nowhere
# Depth of the water vapour in B9 over dry land, from high places to coasts; how much it differs
# from day to day anywhere, which is not for the seasons alone; and its multiple in B10.
VAPOUR = (0.15, 1.6)
VAPOUR_BY_DAY = 0.32
VAPOUR_BELOW_CLOUDS = 0.15  # more than on the clear days that are asked for
CIRRUS_BAND_DEPTH = 8
# What clouds scatter into the gaps between them, relative to the near infrared, and its mean there.
STRAY = np.array([1.3, 1.2, 1.1, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.4, 0.0, 0.8, 0.6])
STRAY_LIGHT = 0.01
FLIPS = ((1, 1), (1, -1), (-1, 1), (-1, -1))


class Mix(Dataset):
    """Samples of `crop`² pixels and 1 to `most` dates, each a function of (seed, epoch, number).

    The `together` samples of a training step have the same number of dates: none is padding.
    """

    def __init__(
        self,
        pool: Path,
        backgrounds: dict[str, list[Background]],
        crop: int,
        most: int,
        length: int,
        seed: int,
        together: int = 1,
    ) -> None:
        self._series = sorted(pool.glob("series_*[0-9].npy"))
        self._skies: list[tuple[Sky, Veil]] = [
            sky
            for path in sorted(pool.glob("skies_*.pickle"))
            for sky in pickle.loads(path.read_bytes())
        ]
        self._overcast = [sky for sky in self._skies if _closed(sky[1].thickness)]
        every = [place for places in backgrounds.values() for place in places]
        known = [b for b in every if b.s1 is not None and np.isfinite(b.s1).any(axis=(1, 2)).all()]
        self._echoes = Echoes(known) if known else None
        self._backgrounds, self._crop, self._most = backgrounds, crop, most
        self._length, self._seed, self._together = length, seed, together
        self.set_epoch(0)

    def __len__(self) -> int:
        return self._length

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        order = epoch_order(self._length, self._length, self._seed, epoch)
        steps = np.argsort(order) // self._together  # of each sample
        odds = np.array(DATES[: self._most]) / sum(DATES[: self._most])
        drawn = generator(self._seed, epoch).choice(len(odds), self._length, p=odds)
        self._n_dates = 1 + drawn[steps]

    def __getitem__(self, number: int) -> Sample:
        rng = generator(self._seed, self._epoch, number)
        n_dates = int(self._n_dates[number])
        shares = SINGLE_SHARES if n_dates == 1 else SHARES
        kind = str(rng.choice(list(shares), p=list(shares.values())))
        if kind == "simulated":
            stack, target, date = self._simulated(rng, n_dates)
        else:
            background = self._backgrounds[kind][rng.integers(len(self._backgrounds[kind]))]
            stack, target, date = self._real(rng, background, n_dates)
        stack, target = _turned(rng, stack, target)
        return Sample(stack, target, None, date, _provenance(kind, number, self._crop))

    def _simulated(self, rng: Generator, n_dates: int) -> tuple[Stack, np.ndarray, np.datetime64]:
        path = self._series[rng.integers(len(self._series))]
        stored = np.load(path, mmap_mode="r")
        days = np.load(path.with_name(path.name.replace("series", "days"))).astype("datetime64[D]")
        target = int(rng.integers(len(stored)))
        others = sorted(
            (i for i in range(len(stored)) if i != target), key=lambda i: abs(i - target)
        )
        inputs = sorted(rng.choice(others[: n_dates + 1], n_dates, replace=False))
        rows, cols = _window(rng, stored.shape[-2:], self._crop)
        clear = np.array(stored[target, :13, rows, cols], dtype=np.float32)
        s2 = np.array(stored[inputs, 13:26, rows, cols], dtype=np.float32)
        s1 = np.array(stored[inputs, 26:, rows, cols], dtype=np.float32)
        return Stack(s2, days[inputs], _dropped(rng, s1)), clear, days[target]

    def _real(
        self, rng: Generator, background: Background, n_dates: int
    ) -> tuple[Stack, np.ndarray, np.datetime64]:
        """Every date is one of the clear images, changed a little, under a sky of its own."""
        crop = self._crop
        rows, cols = _window(rng, background.clear.shape[-2:], crop)
        clear = background.clear[:, :, rows, cols]
        echo = None if background.s1 is None else background.s1[:, rows, cols]
        heard = ECHO_SINGLE_SHARE if n_dates == 1 else ECHO_SHARE
        if echo is None and self._echoes is not None and rng.random() < heard:
            echo = self._echoes.draw(rng, clear[0])
        ground, strength = rng.random(), float(rng.uniform(*STRENGTH))
        seen = background.cloudy is not None and rng.random() < 0.5  # the real clouds over it
        overcast, dry_share, snow_share = OVERCAST_SHARE, DRY_SHARE, SNOW_SHARE
        if n_dates == 1:
            overcast = OVERCAST_SINGLE_SHARE
            dry_share, snow_share = DRY_SINGLE_SHARE, SNOW_SINGLE_SHARE
        elif echo is not None:
            overcast = OVERCAST_RADAR_SHARE
        closed = not seen and rng.random() < overcast
        if seen:
            strength *= 0.4  # the cloudy view is of another day already
        if closed:
            rare = (RARE_OVERCAST_SHARE,) * 2
            several = DRY_OVERCAST_SHARE, SNOW_OVERCAST_SHARE
            dry_share, snow_share = rare if n_dates == 1 else several
        snowy = not seen and ground < snow_share
        dry = not seen and 1 - ground < dry_share
        if snowy:
            clear = snowed(rng, clear)
        elif dry:
            clear, echo = parched(rng, clear, echo)
        elif not seen and not closed and rng.random() < OTHER_COLOUR_SHARE:
            clear = recoloured(rng, clear)
        wetness = 1.0
        if dry:
            strength, wetness = strength * DRY_STRENGTH, DRY_WETNESS
        days = (
            np.datetime64("2016-01-01")
            + int(rng.integers(0, 2500))
            + np.cumsum(rng.integers(1, 5, n_dates + 1) * 5)
        )
        position = int(rng.integers(n_dates + 1))
        images = [change(rng, clear[rng.integers(len(clear))], strength, wetness) for _ in days]
        if dry:
            images = [daylight(rng, image) for image in images]
        target = more_vapour(images.pop(position), -VAPOUR_BELOW_CLOUDS)
        draws = OPEN_DRAWS if snowy or dry else 1
        wider = surroundings(rng)
        inputs = [self._clouded(rng, image, closed, draws, wider) for image in images]
        if seen:
            assert background.cloudy is not None
            inputs[rng.integers(n_dates)] = background.cloudy[:, rows, cols]
        s1 = None
        if echo is not None:
            grain = rng.gamma(40.0, 1 / 40.0, (n_dates, *echo.shape))
            wet = rng.normal(0, 1.5) + rng.normal(0, 0.7, (2, 1, 1))  # dB: rain, another orbit
            s1 = (echo + wet + 10 * np.log10(grain)).astype(np.float32)
            s1 = s1 if closed else _dropped(rng, s1)
        noise = rng.normal(0, 0.001, (n_dates, *target.shape))
        s2 = np.stack(inputs) + noise.astype(np.float32)
        return Stack(s2, np.delete(days, position), s1), target, days[position]

    def _clouded(
        self, rng: Generator, image: np.ndarray, closed: bool, draws: int, wider: np.ndarray
    ) -> np.ndarray:
        """The image under a sky; in dry lands a shadow often lies far from its cloud."""
        if closed:
            return self._under_a_sky(rng, image, self._overcast, wider=wider)
        if rng.random() < SHADOW_SHARE:
            image = self._under_a_sky(rng, image, self._skies, shadow_only=True)
        if rng.random() < 0.2:
            return image
        stray = rng.exponential(STRAY_LIGHT) * STRAY[:, None, None].astype(np.float32)
        return stray + self._under_a_sky(rng, image, self._skies, draws=draws, wider=wider)

    def _under_a_sky(
        self,
        rng: Generator,
        image: np.ndarray,
        skies: list[tuple[Sky, Veil]],
        shadow_only: bool = False,
        draws: int = 1,
        wider: np.ndarray | float = 1.0,
    ) -> np.ndarray:
        """Part of one of the skies; the first of so many draws that shows ground, or the last."""
        for _ in range(draws):
            sky, veil = skies[rng.integers(len(skies))]
            rows, cols = _window(rng, veil.haze.shape, self._crop)
            if not _closed(veil.thickness[:, rows, cols]):
                break
        up, left = FLIPS[rng.integers(4)]
        part = {
            name: np.asarray(getattr(veil, name)[..., rows, cols][..., ::up, ::left], np.float32)
            for name in ("thickness", "overhead", "relief", "haze")
        }
        if shadow_only:
            part |= {name: np.zeros_like(part[name]) for name in ("thickness", "haze")}
        veil = replace(veil, **part)
        seen = seen_through(scattered(image, veil.thickness, wider), veil, sky)
        white = seen_through(np.zeros_like(image), veil, sky)  # of the clouds and the haze alone
        return np.asarray(seen + white * (tint(rng)[:, None, None] - 1), dtype=np.float32)


def scattered(
    image: np.ndarray, thickness: np.ndarray, wider: np.ndarray | float = 1.0
) -> np.ndarray:
    """What a cloud lets through of the ground below: the thicker, the more of its surroundings.

    A cloud a kilometre above the ground mixes the light of about that much of it, more than a crop:
    `wider` (13, 1, 1) is how much brighter all that is than the crop.
    """
    straight = direct_sunlight(thickness).prod(axis=0)
    around = image.mean(axis=(1, 2), keepdims=True) * wider
    return np.asarray(around + straight * (image - around), dtype=np.float32)


def surroundings(rng: Generator) -> np.ndarray:
    """(13, 1, 1) how much brighter, greener and drier the land around a crop is than the crop."""
    return np.exp(_turn(rng, np.ones((1, 1)), 0.15, 0.6, 0.2) * GROUND[:, None, None])


def tint(rng: Generator) -> np.ndarray:
    """(13,) by how much clouds are brighter than those of the simulator, which know few colours."""
    tilt = rng.normal(0, 0.12) * np.log(np.array([*WAVELENGTH_NM.values()]) / 865)
    colour = CLOUD + rng.normal(0, 0.06) * NEAR_INFRARED + rng.normal(0, 0.04, 13)
    colour[index(["B9"])[0]] += rng.normal(0, 0.5)
    return np.asarray(np.exp(tilt + colour))


def change(rng: Generator, image: np.ndarray, strength: float, wetness: float = 1.0) -> np.ndarray:
    """Another date of the same place: other light, growth and wetness, as a whole and in places.

    On average two dates differ about as much as the real images of two dates that are trained on:
    0.1 (blue) to 0.3 (SWIR) in the logarithm of the mean, 0.1 to 0.2 from pixel to pixel.
    """
    red, nir = image[index(["B4"])[0]], image[index(["B8"])[0]]
    green = np.clip((nir - red) / (nir + red + 1e-4), 0, 1)
    gain = _turn(rng, green, 0.13, 0.55, 0.2 * wetness) + rng.normal(0, 0.03, (13, 1, 1))
    for scale in (6.0, 24.0):
        field = power_noise(rng, image.shape[1:], 3.0, scale=scale)
        gain += _turn(rng, green, 0.06, 0.3, 0.08 * wetness) * field
    if rng.random() < 0.7:
        field = power_noise(rng, image.shape[1:], 3.0, scale=24.0)
        patches = field > np.quantile(field, rng.uniform(0.6, 0.98))
        gain += _turn(rng, np.ones_like(green), 0.15, 0.4, 0.15 * wetness) * patches
    gain *= GROUND[:, None, None]
    changed = np.clip(image * np.exp(strength * gain), 0, 1.2).astype(np.float32)
    return more_vapour(changed, rng.normal(0, VAPOUR_BY_DAY))


def daylight(rng: Generator, image: np.ndarray) -> np.ndarray:
    """The image in the light of another day, the same for all its pixels."""
    light, wetness, spread = DAYLIGHT
    gain = _turn(rng, np.ones((1, 1)), light, 0.0, wetness) * np.exp(rng.normal(0, spread))
    return np.clip(image * np.exp(gain), 0, 1.2).astype(np.float32)


def more_vapour(image: np.ndarray, by: float) -> np.ndarray:
    """The image through air of another depth: if dry, B9 is bright and B10 shows the ground."""
    narrow, vapour, cirrus = index(["B8A", "B9", "B10"])
    depth = max(-float(np.log(image[vapour].mean() / image[narrow].mean())), 0.05)
    other = float(np.clip(depth + by, 0.05, 2.5))
    before, after = np.exp(-CIRRUS_BAND_DEPTH * np.array([depth, other]))
    image = image.copy()
    image[vapour] *= np.exp(depth - other)
    image[cirrus] = np.maximum(image[cirrus] + image[narrow] * (after - before), 0.0005)
    return image


def _turn(
    rng: Generator, green: np.ndarray, light: float, growth: float, wetness: float
) -> np.ndarray:
    """(13, H, W) logarithms by which bands change; the numbers are standard deviations."""
    turn = rng.normal(0, light) + rng.normal(0, wetness) * WETTING
    return np.asarray(
        turn[:, None, None] + rng.normal(0, growth) * WITHERING[:, None, None] * green
    )


def parched(
    rng: Generator, images: np.ndarray, s1: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """The texture of images (N, 13, H, W) with the colours of dry land, wholly or in part.

    Their radar (2, H, W) in dB becomes that of dry land in the same part, so that it tells of it.
    """
    level = images[:, index(["B3", "B4", "B11"])].mean(axis=1, keepdims=True)
    contrast = np.clip((level / level.mean()) ** rng.uniform(0.3, 0.9), 0.3, 2.0)
    soil = dry_spectrum(rng)
    share = rng.uniform(0.6, 1.0)
    dry = (1 - share) * images + share * soil[:, None, None] * contrast
    if s1 is not None:
        bare = 10 ** ((SOIL_DB + rng.normal(0, 1.5)) / 10)[:, None, None] * contrast[0]
        power = (1 - share) * 10 ** (s1 / 10) + share * bare * speckle(rng, s1.shape)
        s1 = (10 * np.log10(power)).astype(np.float32)
    return dry.astype(np.float32), s1


def dry_spectrum(rng: Generator) -> np.ndarray:
    """(13,) reflectance of some dry ground: dark or bright, rising or flat towards the infrared."""
    tilt = rng.normal(-0.2, 0.35) * np.log(np.array([*WAVELENGTH_NM.values()]) / 865)
    spectrum = SOIL * rng.triangular(0.3, 0.7, 2.0) * np.exp(tilt + rng.normal(0, 0.07, 13))
    narrow, vapour, cirrus = index(["B8A", "B9", "B10"])
    depth = rng.uniform(*VAPOUR)
    spectrum[vapour] = spectrum[narrow] * np.exp(-depth)
    spectrum[cirrus] = 0.001 + spectrum[narrow] * np.exp(-CIRRUS_BAND_DEPTH * depth)
    return np.asarray(np.minimum(spectrum, 0.95))


def recoloured(rng: Generator, images: np.ndarray) -> np.ndarray:
    """Images (N, 13, H, W) of ground with other colours, the same on all dates.

    What a clear date shows is to be believed, also of land unlike any that was trained on.
    """
    tilt = rng.normal(0, 0.25) * np.log(np.array([*WAVELENGTH_NM.values()]) / 865)
    gain = rng.normal(0, 0.25) + tilt + rng.normal(0, 0.06, 13)
    return np.asarray(images * np.exp(gain * GROUND)[:, None, None], dtype=np.float32)


def snowed(rng: Generator, images: np.ndarray) -> np.ndarray:
    """Snow on images (N, 13, H, W), everywhere or in patches, on the same ground on all dates."""
    level = images[:, index(["B3", "B4", "B11"])].mean(axis=1, keepdims=True)
    contrast = np.clip(level / level.mean(), 0.3, 2.0) ** rng.uniform(0.1, 0.4)
    snow = SNOW * rng.uniform(0.5, 1.1) * np.exp(rng.normal(0, 0.05, 13))
    field = power_noise(rng, images.shape[2:], 3.0, scale=24.0)
    bare = np.quantile(field, rng.uniform(0, 0.6))
    share = rng.uniform(0.6, 1.0) / (1 + np.exp(-(field - bare) / 0.15))
    white = snow[:, None, None] * contrast
    return ((1 - share) * images + share * white).astype(np.float32)


class Cases(Dataset):
    """Windows of real cases, the same every time."""

    def __init__(self, cases: list[Case], crop: int, each: int) -> None:
        self._items = []
        for case in cases:
            rng = generator(7, len(case.name), *map(ord, case.name))
            self._items += [
                (case, *_window(rng, case.target.shape[-2:], crop)) for _ in range(each)
            ]
        self._crop = crop

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, number: int) -> Sample:
        case, rows, cols = self._items[number]
        s1 = None if case.s1 is None else case.s1[:, :, rows, cols]
        target = np.where(case.usable, case.target, np.nan)[:, rows, cols].astype(np.float32)
        stack = Stack(case.s2[:, :, rows, cols], case.dates, s1)
        where = _provenance(case.name, number, self._crop)
        return Sample(stack, np.clip(target, 0, 1), None, np.datetime64("2019-06-06"), where)


def _closed(thickness: np.ndarray) -> bool:
    """Whether hardly any ground shows through layers (N, H, W) of cloud."""
    return bool((thickness.sum(axis=0, dtype=np.float32) > 4).mean() > 0.9)


def _window(rng: Generator, shape: tuple[int, ...], crop: int) -> tuple[slice, slice]:
    row, col = (int(rng.integers(0, n - crop + 1)) for n in shape)
    return slice(row, row + crop), slice(col, col + crop)


def _dropped(rng: Generator, s1: np.ndarray) -> np.ndarray | None:
    """Radar on all dates, on some, or on none."""
    draw = rng.random()
    if draw < 0.35:
        return None
    if draw < 0.65:
        s1[rng.random(len(s1)) < 0.5] = np.nan
    return s1


def _turned(rng: Generator, stack: Stack, target: np.ndarray) -> tuple[Stack, np.ndarray]:
    turns, mirror = int(rng.integers(4)), bool(rng.random() < 0.5)

    def turn(x: np.ndarray) -> np.ndarray:
        x = np.rot90(x, turns, axes=(-2, -1))
        return np.ascontiguousarray(x[..., ::-1] if mirror else x)

    s1 = None if stack.s1 is None else turn(stack.s1)
    return Stack(turn(stack.s2), stack.dates, s1), np.clip(turn(target), 0, 1)


def _provenance(kind: str, number: int, crop: int) -> Provenance:
    nan, tile = float("nan"), Tile(0, 0, crop, crop)
    return Provenance("mix", kind, number, "train", (), None, nan, nan, (), (), kind, tile)
