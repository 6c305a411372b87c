"""Real images for training and validation, from files that stay where they are."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from undercast.bands import DN_PER_REFLECTANCE, index

PLACES = json.loads((Path(__file__).parent / "places.json").read_text())
# Seasons of the SEN12MS-CR pairs that a run of even, and of odd seed is not trained on.
SEASONS_LEFT_OUT = (("winter", "spring"), ("summer", "fall"))


@dataclass(frozen=True, eq=False)
class Background:
    """Clear images (N, 13, H, W) of one place at N dates, with radar and a cloudy view if known."""

    name: str
    clear: np.ndarray
    s1: np.ndarray | None = None  # (2, H, W) dB
    cloudy: np.ndarray | None = None  # (13, H, W), a real cloudy date


def training_backgrounds(folder: Path) -> dict[str, list[Background]]:
    """What may be trained on, by kind."""
    euro = np.load(folder / "eurosat_l1c.npz")
    cities = np.load(folder / "oscd_pairs.npz")
    pairs = np.load(folder / "sen12mscr_pairs.npz")
    triplets = np.load(folder / "sen12mscr_triplets.npz")
    spain = np.load(folder / "spain_s1_s2_512px.npz")
    scenes = np.load(folder / "l1c_scenes_and_cloud_masks.npz")
    clear, cloudy, s1 = (triplets[k] for k in ("s2_clear", "s2_cloudy", "s1"))
    return {
        "eurosat": [
            Background(str(n), reflectance(image[None]))
            for n, image in zip(euro["names"], euro["s2"], strict=True)
        ],
        "cities": [
            Background(key, reflectance(cities[key]), _vv_alone(cities, key))
            for key in cities.files
            if key.endswith("_s2")
        ],
        "pairs": [
            Background(str(n), reflectance(c[None]), None, _same_ground(c, k))
            for n, c, k in zip(pairs["names"], pairs["s2_clear"], pairs["s2_cloudy"], strict=True)
        ],
        "triplets": [
            Background(
                str(triplets["names"][i]),
                reflectance(clear[i][None]),
                fill(s1[i]),
                _same_ground(clear[i], cloudy[i]),
            )
            for i in range(len(clear))
            if str(triplets["names"][i]) in {f"patch_0{k}" for k in range(5)}
        ],
        "scenes": [
            Background("spain", reflectance(spain["s2"][None]), fill(spain["s1_db"])),
            *(
                Background(f"scene{i}", reflectance(image[None]))
                for i, image in enumerate(scenes["reference_scenes"])
            ),
        ],
    }


def without_pairs_of(
    backgrounds: dict[str, list[Background]], seed: int
) -> dict[str, list[Background]]:
    """What a run of this seed is trained on: twins can be judged by the pairs left out."""
    return backgrounds | {"pairs": [b for b in backgrounds["pairs"] if not is_left_out(b, seed)]}


def is_left_out(pair: Background, seed: int) -> bool:
    """Whether a run of this seed is not trained on a pair: all of a season, so all of a place."""
    return any(season in pair.name for season in SEASONS_LEFT_OUT[seed % 2])


def mirrored(place: Background, size: int) -> Background:
    """The same place, as wide and high as a crop: smaller images go on beyond their edges."""
    height, width = place.clear.shape[-2:]
    more = [(0, max(size - n, 0)) for n in (height, width)]
    if not any(after for _, after in more):
        return place

    def wider(x: np.ndarray | None) -> np.ndarray | None:
        if x is None:
            return None
        return np.pad(x, [(0, 0)] * (x.ndim - 2) + more, mode="symmetric")

    clear, s1, cloudy = (wider(x) for x in (place.clear, place.s1, place.cloudy))
    assert clear is not None
    return Background(place.name, clear, s1, cloudy)


def reflectance(dn: np.ndarray) -> np.ndarray:
    """DN to reflectance; all-zero pixels are no data and get the image's median instead."""
    image = dn.astype(np.float32) / DN_PER_REFLECTANCE
    image[~np.isfinite(image)] = 0.0
    empty = (image == 0).all(axis=-3, keepdims=True)
    if empty.any():
        known = np.where(empty, np.nan, image)
        median = np.nanmedian(known, axis=(-2, -1), keepdims=True)
        image = np.where(empty, median, image)
    return image.astype(np.float32)


def _same_ground(clear: np.ndarray, cloudy: np.ndarray) -> np.ndarray | None:
    """The cloudy view in reflectance; none where it is darker: snow has come or gone between."""
    image = reflectance(cloudy)
    darker = (reflectance(clear) - image)[index(["B2", "B3", "B4"])].mean()
    return None if darker > 0.1 else image


def fill(s1: np.ndarray) -> np.ndarray:
    """Radar in dB; exact zeros are gaps."""
    return np.where(s1 == 0, np.nan, s1).astype(np.float32)


def _vv_alone(cities: Any, key: str) -> np.ndarray | None:
    """A city's radar (2, H, W), where there is one: VV, and VH missing."""
    name = key.replace("_s2", "_s1_vv_db")
    if name not in cities.files:
        return None
    vv = fill(cities[name][0])
    return np.stack((vv, np.full_like(vv, np.nan)))


@dataclass(frozen=True, eq=False)
class Case:
    """One real reconstruction: inputs, their mask, and the clear image of another date."""

    name: str
    place: str
    s2: np.ndarray  # (T, 13, H, W)
    mask: np.ndarray  # (T, H, W)
    target: np.ndarray  # (13, H, W)
    usable: np.ndarray  # (H, W) where the target is clear
    s1: np.ndarray | None = None  # (T, 2, H, W)

    @property
    def dates(self) -> list[Any]:
        """The dates are not known: ten days apart."""
        return [np.datetime64("2019-06-01") + 10 * i for i in range(len(self.s2))]


def series_cases(folder: Path, part: str, dates: int = 3) -> list[Case]:
    """CloudSEN12: for each date that is at least 95 % clear, the `dates` nearest others."""
    stored = np.load(folder / "cloudsen12_series.npz")
    cases = []
    for place in PLACES["cloudsen12"][part]:
        images, label = reflectance(stored[f"{place}_s2"]), stored[f"{place}_label"]
        for date in range(len(images)):
            if (label[date] > 0).mean() > 0.05:
                continue
            others = sorted(
                (i for i in range(len(images)) if i != date), key=lambda i: abs(i - date)
            )
            inputs = sorted(others[:dates])
            cases.append(
                Case(f"{place} date {date}", place, images[inputs], label[inputs] > 0,
                     images[date], label[date] == 0)
            )  # fmt: skip
    return cases


def triplet_cases(folder: Path, part: str) -> list[Case]:
    """SEN12MS-CR with radar: one cloudy date each."""
    stored = np.load(folder / "sen12mscr_triplets.npz")
    names = [str(n) for n in stored["names"]]
    cases = []
    for place in PLACES["triplets"][part]:
        i = names.index(place)
        cloudy = stored["s2cloudless_prob_cloudy_pct"][i] > 40
        cases.append(
            Case(place, place, reflectance(stored["s2_cloudy"][i][None]), cloudy[None],
                 reflectance(stored["s2_clear"][i]), np.ones_like(cloudy),
                 fill(stored["s1"][i])[None])
        )  # fmt: skip
    return cases
