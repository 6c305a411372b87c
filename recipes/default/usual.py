"""Usual land, which is what hidden ground is taken for where nothing around it is seen.

The mean spectrum of what is trained on is pulled by snow, water and sand; this is of the land that
is most alike, and how much that, and the rest, differs. Prints the constants of
`undercast.models.surroundings`.

    python recipes/default/usual.py --real DIR
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from backgrounds import Background, training_backgrounds

from undercast.models.surroundings import GROUND

BLOCK, EACH = 8, 40  # pixels; how many blocks count of an image, however large
ALIKE = 0.7  # the share of the blocks that is usual
ROUNDS, SMALLEST = 30, 1e-6
LEAST = 0.003  # reflectance; that of B10 is less on clear days, which are not all free of cirrus


def blocks(places: Iterable[Background]) -> np.ndarray:
    """(n, 13) mean reflectance of blocks of the first clear date of every place."""
    found = []
    for place in places:
        image = place.clear[0].astype(np.float64)
        rows, cols = (n // BLOCK for n in image.shape[1:])
        image = image[:, : rows * BLOCK, : cols * BLOCK]
        means = image.reshape(13, rows, BLOCK, cols, BLOCK).mean(axis=(2, 4)).reshape(13, -1).T
        found.append(means[np.linspace(0, len(means) - 1, min(EACH, len(means))).astype(int)])
    return np.concatenate(found)


def most_alike(spectra: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """(13,) mean and standard deviation of the share of (n, 13) that is nearest to that mean, in
    the metric of its own covariance; and the root mean square by which the rest is off in bands
    that show the ground, in these deviations."""
    kept = spectra
    for _ in range(ROUNDS):
        mean = kept.mean(axis=0)
        inverse = np.linalg.inv(np.cov(kept.T) + SMALLEST * np.eye(len(mean)))
        off = spectra - mean
        distance = np.einsum("ni,ij,nj->n", off, inverse, off)
        alike = distance <= np.quantile(distance, ALIKE)
        kept = spectra[alike]
    mean, spread = np.asarray(kept.mean(axis=0)), np.maximum(kept.std(axis=0), LEAST)
    off = ((spectra[~alike] - mean) / spread)[:, GROUND]
    return mean, spread, float(np.sqrt((off**2).mean())) if off.size else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--real", type=Path, required=True)
    args = parser.parse_args()
    kinds = training_backgrounds(args.real).values()
    spectra = blocks(place for places in kinds for place in places)
    mean, spread, others = most_alike(spectra)
    for name, values in (("USUAL", mean), ("USUAL_SPREAD", spread)):
        print(f"{name} = ({', '.join(f'{value:.3f}' for value in values)})")
    print(f"HOW_MUCH, OTHER = {ALIKE}, {others:.1f}")


if __name__ == "__main__":
    main()
