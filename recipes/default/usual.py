"""Usual land, which is what hidden ground is taken for unless what is around says otherwise.

The mean spectrum of what is trained on is pulled by snow, water and sand; this is of the ground
that is most alike. How much the pixels of usual land differ is of land alone, and of places whose
means are most alike: whether land is usual is asked of places, not of pixels. Prints the constants
of `undercast.models.surroundings`.

    python recipes/default/usual.py --real DIR
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import torch
from backgrounds import Background, training_backgrounds

from undercast.models.surroundings import how_much_land

BLOCK, EACH = 8, 40  # pixels; how many blocks count of an image, however large
ALIKE = 0.7  # the share of the blocks, or of the places, that is usual
MOSTLY = 0.5  # of the blocks of a place are land, for it to be land
ROUNDS, SMALLEST = 30, 1e-6
LEAST = 0.003  # reflectance; that of B10 is less on clear days, which are not all free of cirrus


def blocks(place: Background) -> np.ndarray:
    """(n, 13) mean reflectance of blocks of the first clear date of a place."""
    image = place.clear[0].astype(np.float64)
    rows, cols = (n // BLOCK for n in image.shape[1:])
    image = image[:, : rows * BLOCK, : cols * BLOCK]
    means = image.reshape(13, rows, BLOCK, cols, BLOCK).mean(axis=(2, 4)).reshape(13, -1).T
    return np.asarray(means[np.linspace(0, len(means) - 1, min(EACH, len(means))).astype(int)])


def most_alike(spectra: np.ndarray) -> np.ndarray:
    """(n,) whether a spectrum of (n, 13) is of the share that is nearest to the mean of that share,
    in the metric of its own covariance."""
    alike = np.ones(len(spectra), dtype=bool)
    for _ in range(ROUNDS):
        kept = spectra[alike]
        inverse = np.linalg.inv(np.cov(kept.T) + SMALLEST * np.eye(kept.shape[1]))
        off = spectra - kept.mean(axis=0)
        distance = np.einsum("ni,ij,nj->n", off, inverse, off)
        alike = distance <= np.quantile(distance, ALIKE)
    return alike


def usual(spectra: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(13,) mean of what is most alike of (n, 13), and by how much the rest is off."""
    alike = most_alike(spectra)
    mean = spectra[alike].mean(axis=0)
    return mean, deviation(spectra[~alike], mean)


def usual_spread(places: Iterable[np.ndarray], mean: np.ndarray) -> np.ndarray:
    """(13,) by how much land is off the usual mean at places, of (n, 13) each, that are land and
    whose own means are most alike."""
    lands = [(spectra, spectra[is_land(spectra)]) for spectra in places]
    known = [land for spectra, land in lands if len(land) >= MOSTLY * len(spectra)]
    alike = most_alike(np.array([land.mean(axis=0) for land in known]))
    return deviation(np.concatenate([known[i] for i in np.flatnonzero(alike)]), mean)


def is_land(spectra: np.ndarray) -> np.ndarray:
    """(n,) whether blocks are more likely land than water or snow."""
    image = torch.from_numpy(spectra.T[None, :, :, None])
    return np.asarray(how_much_land(image)[0, 0, :, 0] > 0.5)


def deviation(spectra: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Root mean squares by which spectra are off a mean."""
    return np.asarray(np.maximum(np.sqrt(((spectra - mean) ** 2).mean(axis=0)), LEAST))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--real", type=Path, required=True)
    args = parser.parse_args()
    kinds = training_backgrounds(args.real).values()
    places = [blocks(place) for kind in kinds for place in kind]
    mean, others = usual(np.concatenate(places))
    found = {"USUAL": mean, "USUAL_SPREAD": usual_spread(places, mean), "OTHER_SPREAD": others}
    for name, values in found.items():
        print(f"{name} = ({', '.join(f'{value:.3f}' for value in values)})")
    print(f"HOW_MUCH = {ALIKE}")


if __name__ == "__main__":
    main()
