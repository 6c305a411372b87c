"""What an echo tells of land: reflectance per dB, from the few training images that have radar.

The slopes are of pixels within images, each image alike, so that no two of them are compared: the
levels of so few images are too few to learn from. A ridge keeps them small; its size is the one
whose slopes, fitted to the other images, explain most of the squares of an image that was left out,
in the bands that show the ground. Prints that, the same on places that are neither trained on nor
measured, and the constants of `undercast.models.echo`.

    python recipes/default/slopes.py --real DIR
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import torch
from backgrounds import Background, fill, training_backgrounds, triplet_cases

from undercast.bands import DN_PER_REFLECTANCE
from undercast.models.cells import to_pixels
from undercast.models.echo import echo_levels
from undercast.models.surroundings import GROUND, how_much_land

RIDGES = (0.3, 1.0, 3.0, 10.0, 30.0)  # dB²
FEWEST = 0.3  # of the pixels that are land, for an image to count


class Image(NamedTuple):
    """The land pixels of one image: (n, 2) dB of their echoes and (n, 13) reflectance."""

    name: str
    echo: np.ndarray
    colour: np.ndarray


def images(places: Iterable[Background]) -> list[Image]:
    """Those that have both polarisations and are land, on their first clear date."""
    return [
        found
        for place in places
        if place.s1 is not None and np.isfinite(place.s1).all(axis=0).any()
        if (found := image(place.name, place.clear[0], place.s1)) is not None
    ]


def image(name: str, clear: np.ndarray, s1: np.ndarray) -> Image | None:
    """The land of a clear image (13, H, W) with radar (2, H, W) in dB, as smooth as the package
    sees it; None if it is mostly water or snow."""
    levels = echo_levels(torch.from_numpy(s1)[None, None].float())
    echo = to_pixels(levels, *clear.shape[-2:])[0].numpy()
    land = how_much_land(torch.from_numpy(clear)[None])[0, 0].numpy() > 0.5
    there = land & np.isfinite(echo).all(axis=0)
    if there.mean() < FEWEST:
        return None
    return Image(name, *(x[:, there].T.astype(np.float64) for x in (echo, clear)))


def slopes(fitted: Sequence[Image], ridge: float) -> np.ndarray:
    """(2, 13) reflectance per dB."""
    echoes, colours = zip(*(centred(one) for one in fitted), strict=True)
    squares = sum(x.T @ x / len(x) for x in echoes)
    products = sum(x.T @ y / len(x) for x, y in zip(echoes, colours, strict=True))
    return np.asarray(np.linalg.solve(squares + ridge * np.eye(2), products))


def centred(one: Image) -> tuple[np.ndarray, np.ndarray]:
    """Echoes and colours of an image without their means."""
    return one.echo - one.echo.mean(axis=0), one.colour - one.colour.mean(axis=0)


def explained(one: Image, fit: np.ndarray) -> float:
    """The share of the squares of an image, in the bands that show the ground."""
    echo, colour = centred(one)
    left = (colour - echo @ fit)[:, GROUND]
    return float(1 - (left**2).sum() / (colour[:, GROUND] ** 2).sum())


def left_out(known: Sequence[Image], ridge: float) -> list[float]:
    """What slopes of the others explain of every image."""
    return [explained(one, slopes([x for x in known if x is not one], ridge)) for one in known]


def best_ridge(known: Sequence[Image]) -> float:
    """Of `RIDGES`, that which explains most of images left out."""
    return max(RIDGES, key=lambda ridge: float(np.mean(left_out(known, ridge))))


def elsewhere(real: Path) -> list[Image]:
    """Clear images with radar that are not trained on: the triplets that select and calibrate, and
    those of TerraMesh."""
    found = [
        image(case.name, case.target, case.s1[0])
        for part in ("select", "calibrate")
        for case in triplet_cases(real, part)
        if case.s1 is not None
    ]
    for path in sorted(real.glob("terramesh_*.npz")):
        stored = np.load(path)
        clear = (stored["s2l1c"] - stored["dn_offset_to_subtract"]) / DN_PER_REFLECTANCE
        found.append(image(path.stem, clear.astype(np.float32), fill(stored["s1rtc_db"])))
    return [one for one in found if one is not None]


def usual_echo(known: Sequence[Image]) -> np.ndarray:
    """(2,) dB, the mean over images."""
    return np.asarray(np.mean([one.echo.mean(axis=0) for one in known], axis=0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--real", type=Path, required=True)
    args = parser.parse_args()
    kinds = training_backgrounds(args.real).values()
    known = images(place for places in kinds for place in places)
    print(f"{'left out:':12s}" + "".join(f"{one.name:>10s}" for one in known) + f"{'mean':>10s}")
    for ridge in RIDGES:
        shares = left_out(known, ridge)
        cells = "".join(f"{share:10.3f}" for share in (*shares, np.mean(shares)))
        print(f"ridge {ridge:<6g}{cells}")
    fit = slopes(known, best_ridge(known))
    for one in elsewhere(args.real):
        print(f"not trained on: {one.name:26s}{explained(one, fit):8.3f}")
    print("USUAL_ECHO =", tuple(np.round(usual_echo(known), 2).tolist()))
    print("SLOPES =", [tuple(row) for row in np.round(fit, 5).tolist()])


if __name__ == "__main__":
    main()
