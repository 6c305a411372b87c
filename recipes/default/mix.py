"""The training mix: simulated series, and changing real images under simulated clouds."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
from backgrounds import Background, Case, mirrored
from echoes import Echoes
from ground import (
    DRY_STRENGTH,
    DRY_WETNESS,
    STRENGTH,
    change,
    daylight,
    more_vapour,
    other_season,
    parched,
    recoloured,
    snowed,
    surroundings,
)
from torch.utils.data import Dataset
from views import VISIBLE, View, new_snow, views_of

from undercast import Stack, Tile
from undercast.bands import WAVELENGTH_NM, index
from undercast.datasets import Provenance, Sample
from undercast.simulate import parallax
from undercast.simulate.clouds import Sky, Veil, direct_sunlight, seen_through
from undercast.simulate.fields import Generator, generator
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
    "simulated": 0.08,
    "eurosat": 0.40,
    "cities": 0.05,
    "pairs": 0.24,
    "triplets": 0.18,
    "scenes": 0.05,
}
DATES = (0.34, 0.13, 0.25, 0.21, 0.07)  # odds of one date, two dates, …
SEEN_SHARE, SEEN_SINGLE_SHARE = 0.5, 0.7  # of those with a real cloudy view, which show it
# Of the real images of one date, which is of another season than its target; of those with clouds
# all over. Where it is overcast for long, clear days are far away.
SEASON_SHARE, SEASON_OVERCAST_SHARE = 0.15, 0.6
ECHO_SHARE, ECHO_SINGLE_SHARE = 0.25, 0.5  # of the real images without radar that get some
VIEW_SHARE, VIEW_OVERCAST_SHARE = 0.4, 0.3  # of the skies that are real, by what they show
VIEW_DRAWS = 20  # for a part of a real sky that hides as much as it is to
NEAREST_SHARE = 0.75  # of the skies whose coarse bands are blocks of pixels, as in most products
RELIEF = (1.0, 3.0)  # powers of the light and shade of simulated cloud tops: real ones are rougher
THINNEST = 0.25  # of the thickness of closed skies: many real ones are grey, not white
ELSEWHERE_SHARE = 0.9  # of the skies, closed or over one date, that show the light of other land
SHADOW_SHARE = 0.5  # of the real images' dates that carry shadows without their clouds
OVERCAST_SHARE = 0.15  # of the real images that have clouds all over, on every date
OVERCAST_RADAR_SHARE = 0.3  # of those with radar
OVERCAST_SINGLE_SHARE = 0.6  # of those with one date alone
DRY_SHARE = 0.42  # of the real images turned into dry land, which they lack
DRY_SINGLE_SHARE = 0.2  # of those with one date alone
DRY_OVERCAST_SHARE = 0.12  # of those that have clouds all over: where it rains, it is green
SNOW_SHARE, SNOW_SINGLE_SHARE = 0.06, 0.02  # of them under snow, which they lack too
SNOW_OVERCAST_SHARE = 0.02  # of those that have clouds all over
RARE_OVERCAST_SHARE = 0.01  # of either, where the one date alone has clouds all over
# Mean reflectance in the visible above which land is rare: snow, sand. A few such images under
# closed skies would decide what is guessed of all others, for their errors are so large.
BRIGHT_LAND = 0.2
# Skies, by how much of a crop they hide, and how often one is drawn until it does so. Those over
# snow or dry land are to show some of it.
ANY, OPEN, CLOSED, BROKEN = (0.0, 1.0), (0.0, 0.9), (0.9, 1.0), (0.6, 0.97)
DRAWS = {ANY: 1, OPEN: 4, CLOSED: 20, BROKEN: 20}
BROKEN_SINGLE_SHARE = 0.4  # of those of one date alone that are not closed: gaps tell a little
# By how much real clouds over land are brighter than simulated ones of the same blue, and how that
# varies: logarithms, from the pairs that are trained on. Vapour above the clouds darkens B9.
CLOUD = np.array([0.0, 0.0, -0.02, 0.0, 0.0, 0.04, 0.06, 0.06, 0.08, -0.4, 0.0, 0.0, 0.0])
NEAR_INFRARED = np.array([0.0, 0.0, 0.0, 0.0, 0.3, 0.8, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0])
OTHER_COLOUR_SHARE = 0.4  # of the green land, where it is seen, with colours that it has nowhere
VAPOUR_BELOW_CLOUDS = 0.15  # more than on the clear days that are asked for
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
        self._overcast = [sky for sky in self._skies if _cover(sky[1].thickness) > CLOSED[0]]
        backgrounds = {
            kind: [mirrored(place, crop) for place in places]
            for kind, places in backgrounds.items()
        }
        every = [place for places in backgrounds.values() for place in places]
        known = [b for b in every if b.s1 is not None and np.isfinite(b.s1).any(axis=(1, 2)).all()]
        self._echoes = Echoes(known) if known else None
        self._views: list[View] = views_of(every)
        self._cloudy = {
            b.name for b in every if b.cloudy is not None and not new_snow(b.clear[0], b.cloudy)
        }
        self._bright = {b.name for b in every if b.clear[:, VISIBLE].mean() > BRIGHT_LAND}
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
        rows, cols = _window(rng, background.clear.shape[-2:], self._crop)
        clear = background.clear[:, :, rows, cols]
        echo = None if background.s1 is None else background.s1[:, rows, cols]
        heard = ECHO_SINGLE_SHARE if n_dates == 1 else ECHO_SHARE
        if echo is None and self._echoes is not None and rng.random() < heard:
            echo = self._echoes.draw(rng, clear[0])
        ground, strength = rng.random(), float(rng.uniform(*STRENGTH))
        shown = SEEN_SINGLE_SHARE if n_dates == 1 else SEEN_SHARE
        bright = n_dates == 1 and background.name in self._bright
        seen = background.name in self._cloudy and not bright and rng.random() < shown
        hidden, snowy, dry = ANY, False, False
        if seen:
            strength *= 0.4  # the cloudy view is of another day already
        else:
            hidden, snowy, dry = _scenery(rng, ground, n_dates, echo is not None)
            hidden = OPEN if bright and hidden == CLOSED else hidden
        closed = hidden == CLOSED
        if snowy:
            clear = snowed(rng, clear)
        elif dry:
            clear, echo = parched(rng, clear, echo)
        elif not seen and not closed and rng.random() < OTHER_COLOUR_SHARE:
            clear = recoloured(rng, clear)
        days = _days(rng, n_dates + 1)
        position = int(rng.integers(len(days)))
        images = _images(rng, clear, len(days), position, strength, dry)
        target = more_vapour(images.pop(position), -VAPOUR_BELOW_CLOUDS)
        if n_dates == 1 and rng.random() < (SEASON_OVERCAST_SHARE if closed else SEASON_SHARE):
            images = [other_season(rng, images[0])]
        wider = self._wider(rng, clear, hidden, n_dates)
        inputs = [self._clouded(rng, image, hidden, wider) for image in images]
        if seen:
            assert background.cloudy is not None
            inputs[rng.integers(n_dates)] = background.cloudy[:, rows, cols]
        s1 = None if echo is None else _heard(rng, echo, n_dates, closed)
        noise = rng.normal(0, 0.001, (n_dates, *target.shape))
        s2 = np.stack(inputs) + noise.astype(np.float32)
        return Stack(s2, np.delete(days, position), s1), target, days[position]

    def _wider(
        self, rng: Generator, clear: np.ndarray, hidden: tuple[float, float], n_dates: int
    ) -> np.ndarray:
        """(13, 1, 1) how much brighter than the crop the land is whose light clouds let through.

        Of one date alone, what is believed of that light is all that is known.
        """
        wider = surroundings(rng)
        other = hidden == CLOSED or (n_dates == 1 and hidden != OPEN)
        if other and rng.random() < ELSEWHERE_SHARE:
            wider = self._elsewhere(rng) / clear.mean(axis=(0, 2, 3))[:, None, None]
        return wider

    def _elsewhere(self, rng: Generator) -> np.ndarray:
        """(13, 1, 1) mean reflectance of some other land."""
        kind = str(rng.choice(list(self._backgrounds)))
        images = self._backgrounds[kind][rng.integers(len(self._backgrounds[kind]))].clear
        return np.asarray(images.mean(axis=(0, 2, 3))[:, None, None])

    def _clouded(
        self, rng: Generator, image: np.ndarray, hidden: tuple[float, float], wider: np.ndarray
    ) -> np.ndarray:
        """The image under a sky; in dry lands a shadow often lies far from its cloud."""
        closed = hidden == CLOSED
        if self._views and rng.random() < (VIEW_OVERCAST_SHARE if closed else VIEW_SHARE):
            found = self._under_a_view(rng, image, OPEN if hidden == ANY else hidden, wider)
            if found is not None:
                return found
        if closed:
            thinner = float(THINNEST ** rng.random())
            return self._under_a_sky(rng, image, self._overcast, wider=wider, thinner=thinner)
        if rng.random() < SHADOW_SHARE:
            image = self._under_a_sky(rng, image, self._skies, shadow_only=True)
        if hidden != BROKEN and rng.random() < 0.2:
            return image
        stray = rng.exponential(STRAY_LIGHT) * STRAY[:, None, None].astype(np.float32)
        return stray + self._under_a_sky(rng, image, self._skies, hidden=hidden, wider=wider)

    def _under_a_view(
        self, rng: Generator, image: np.ndarray, hidden: tuple[float, float], wider: np.ndarray
    ) -> np.ndarray | None:
        """Part of a real sky that hides as much as it is to; None where no draw was one."""
        up, left = FLIPS[rng.integers(4)]
        for _ in range(VIEW_DRAWS):
            view = self._views[rng.integers(len(self._views))]
            part = view.part(*_window(rng, view.reflected.shape, self._crop))
            if hidden[0] <= part.cover <= hidden[1]:
                seen = part.over(image[:, ::up, ::left], wider) + part.light * view_tint(rng)
                return np.asarray(seen[:, ::up, ::left], dtype=np.float32)
        return None

    def _under_a_sky(
        self,
        rng: Generator,
        image: np.ndarray,
        skies: list[tuple[Sky, Veil]],
        shadow_only: bool = False,
        hidden: tuple[float, float] = ANY,
        wider: np.ndarray | float = 1.0,
        thinner: float = 1.0,
    ) -> np.ndarray:
        """Part of one of the skies; the first draw that hides as much as it is to, or the last."""
        wide = self._crop + parallax.MARGIN
        for _ in range(DRAWS[hidden]):
            sky, veil = skies[rng.integers(len(skies))]
            rows, cols = _window(rng, veil.haze.shape, wide)
            if hidden[0] <= _cover(veil.thickness[:, rows, cols]) <= hidden[1]:
                break
        up, left = FLIPS[rng.integers(4)]
        part = {
            name: np.array(getattr(veil, name)[..., rows, cols][..., ::up, ::left], np.float32)
            for name in ("thickness", "overhead", "relief", "haze")
        }
        part["relief"] **= rng.uniform(*RELIEF)
        part["thickness"] *= thinner
        if shadow_only:
            part |= {name: np.zeros_like(part[name]) for name in ("thickness", "haze")}
        veil = parallax.by_bands(
            replace(veil, **part),
            parallax.draw_velocities(rng, veil.layers),
            (int(rng.integers(6)), int(rng.integers(6))),
            (float(rng.random()), float(rng.random())),
            "nearest" if rng.random() < NEAREST_SHARE else "smooth",
        )
        seen = seen_through(scattered(image, veil.thickness, wider), veil, sky)
        white = seen_through(np.zeros_like(image), veil, sky)  # of the clouds and the haze alone
        return np.asarray(seen + white * (tint(rng)[:, None, None] - 1), dtype=np.float32)


def _scenery(
    rng: Generator, ground: float, n_dates: int, radar: bool
) -> tuple[tuple[float, float], bool, bool]:
    """How much the skies of all dates hide, and whether the land is snowy or dry.

    ground: 0 to 1, from snowy to dry.
    """
    overcast, dry, snow = OVERCAST_SHARE, DRY_SHARE, SNOW_SHARE
    if n_dates == 1:
        overcast, dry, snow = OVERCAST_SINGLE_SHARE, DRY_SINGLE_SHARE, SNOW_SINGLE_SHARE
    elif radar:
        overcast = OVERCAST_RADAR_SHARE
    hidden = CLOSED if rng.random() < overcast else ANY
    if hidden == CLOSED:
        dry, snow = DRY_OVERCAST_SHARE, SNOW_OVERCAST_SHARE
        if n_dates == 1:
            dry = snow = RARE_OVERCAST_SHARE
    snowy, parched = ground < snow, 1 - ground < dry
    if hidden == ANY and (snowy or parched):
        hidden = OPEN
    elif hidden == ANY and n_dates == 1 and rng.random() < BROKEN_SINGLE_SHARE:
        hidden = BROKEN
    return hidden, snowy, parched


def _days(rng: Generator, n: int) -> np.ndarray:
    """Days of passes, in order."""
    first = np.datetime64("2016-01-01") + int(rng.integers(0, 2500))
    return np.asarray(first + np.cumsum(rng.integers(1, 5, n) * 5))


def _images(
    rng: Generator, clear: np.ndarray, n: int, position: int, strength: float, dry: bool
) -> list[np.ndarray]:
    """One of the clear images on each of n days, of which that at `position` is asked for.

    Of two days, land that is guessed is land as it was seen: all change is that of the cloudy day.
    """
    wetness = 1.0
    if dry:
        strength, wetness = strength * DRY_STRENGTH, DRY_WETNESS
    strengths = [strength] * n
    if n == 2:
        strengths[position], strengths[1 - position] = 0.0, 2**0.5 * strength
    images = [change(rng, clear[rng.integers(len(clear))], s, wetness) for s in strengths]
    return [daylight(rng, image) for image in images] if dry else images


def _heard(rng: Generator, echo: np.ndarray, n_dates: int, closed: bool) -> np.ndarray | None:
    """The radar (n_dates, 2, H, W) of another day and orbit; always there under closed skies."""
    grain = rng.gamma(40.0, 1 / 40.0, (n_dates, *echo.shape))
    wet = rng.normal(0, 1.5) + rng.normal(0, 0.7, (2, 1, 1))  # dB: rain, another orbit
    s1 = (echo + wet + 10 * np.log10(grain)).astype(np.float32)
    return s1 if closed else _dropped(rng, s1)


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


def tint(rng: Generator) -> np.ndarray:
    """(13,) by how much clouds are brighter than those of the simulator, which know few colours."""
    tilt = rng.normal(0, 0.12) * np.log(np.array([*WAVELENGTH_NM.values()]) / 865)
    colour = CLOUD + rng.normal(0, 0.06) * NEAR_INFRARED + rng.normal(0, 0.04, 13)
    colour[index(["B9"])[0]] += rng.normal(0, 0.5)
    return np.asarray(np.exp(tilt + colour))


def view_tint(rng: Generator) -> np.ndarray:
    """(13, 1, 1) by how much of their light real clouds are brighter on another day."""
    colour = rng.normal(0, 0.06) + rng.normal(0, 0.02, (13, 1, 1))
    colour[index(["B9"])[0]] += rng.normal(0, 0.3)
    return np.asarray(np.exp(colour) - 1)


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


def _cover(thickness: np.ndarray) -> float:
    """The share of the ground that layers (N, H, W) of cloud hide."""
    return float((thickness.sum(axis=0, dtype=np.float32) > 4).mean())


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
