"""By how much the weights are better than a flat image where one date shows hardly any ground.

The demand on the triplets is about the mean of two images. This says how much single images differ,
and how often the mean of two is not below 0, on fresh draws of the training mix; and it lists every
such date of the selecting and calibrating places, with the brightness of its land, for these are
few and a flat image is far off where land is bright; also of the estimate drawn towards the flat
image, which keeps a share of their difference. The measuring places are not asked.

    python recipes/default/chance.py --model default --pool POOL --real DIR
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from backgrounds import Case, series_cases, training_backgrounds, triplet_cases
from measure import mean_spectrum, stack_of, target_of
from mix import Mix
from tqdm import tqdm

from undercast import Stack, load_model, predict
from undercast.masks import cloud_mask
from undercast.metrics import image_metrics

HIDDEN = 0.9  # the share of the ground, at least: the two images that are measured have 0.93, 0.96
KEPT = (1.0, 0.75, 0.5, 0.25)  # of the difference between the estimate and the flat image
SEED, CROP = 90_000, 64  # a seed that no training has had


def of_mix(pool: Path, real: Path, draws: int) -> Iterator[tuple[Stack, np.ndarray]]:
    """Single dates of the training mix of which s2cloudless calls nearly all cloudy."""
    mix = Mix(pool, training_backgrounds(real), CROP, 1, draws, SEED)
    for number in tqdm(range(draws), desc="mix"):
        sample = mix[number]
        if cloud_mask(sample.stack.s2, "s2cloudless").mean() >= HIDDEN:
            yield sample.stack, sample.target


def of_places(real: Path) -> list[Case]:
    """Single dates of the selecting and calibrating places of which nearly all is cloudy."""
    parts = ("select", "calibrate")
    cases = [case for part in parts for case in series_cases(real, part, dates=4)]
    cases += [case for part in parts for case in triplet_cases(real, part)]
    return [one for case in cases for one in single_dates(case)]


def single_dates(case: Case) -> list[Case]:
    """The dates of a case that hide nearly all, each by itself."""
    return [
        replace(case, s2=case.s2[[i]], mask=case.mask[[i]])
        for i in range(len(case.s2))
        if case.mask[i].mean() >= HIDDEN
    ]


def better_by(
    model: Any, flat: np.ndarray, stack: Stack, target: np.ndarray, kept: Sequence[float] = (1.0,)
) -> list[float]:
    """dB of PSNR above the flat image, for every share `kept` of the difference from it."""
    same = np.broadcast_to(flat[:, None, None], target.shape)
    more = predict(model, stack).mean - same
    images = [same, *(same + share * more for share in kept)]
    psnr = [image_metrics(target, image)["PSNR"] for image in images]
    return [float(value - psnr[0]) for value in psnr[1:]]


def summary(differences: list[float]) -> dict[str, float]:
    """Mean and standard deviation, and how often one image, or the mean of two, is not below 0."""
    pairs = [a + b >= 0 for a, b in combinations(differences, 2)]
    return {
        "images": len(differences),
        "mean": float(np.mean(differences)),
        "deviation": float(np.std(differences, ddof=1)),
        "one": float(np.mean(np.array(differences) >= 0)),
        "two": float(np.mean(pairs)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="default")
    parser.add_argument("--pool", type=Path, required=True)
    parser.add_argument("--real", type=Path, required=True)
    parser.add_argument("--draws", type=int, default=800, help="of the mix, closed or not")
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    model, flat = load_model(args.model), mean_spectrum(args.real)
    mix = summary(
        [better_by(model, flat, *one)[0] for one in of_mix(args.pool, args.real, args.draws)]
    )
    print("mix", "  ".join(f"{key} {value:.3g}" for key, value in mix.items()))
    places = [
        {
            "date": case.name,
            "brightness": float(np.nanmean(target_of(case))),
            "better_by": better_by(
                model, flat, stack_of(case, radar=case.s1 is not None), target_of(case), KEPT
            ),
        }
        for case in of_places(args.real)
    ]
    print(f"{'':35s}dB, of the difference kept: {', '.join(map(str, KEPT))}")
    for row in places:
        values = "".join(f"{value:+8.2f}" for value in row["better_by"])
        print(f"{row['date']:16s} brightness {row['brightness']:.3f}  {values}")
    means = np.mean([row["better_by"] for row in places], axis=0)
    print(f"{'mean':35s}" + "".join(f"{value:+8.2f}" for value in means))
    if args.json:
        args.json.write_text(json.dumps({"mix": mix, "places": places}, indent=2) + "\n")


if __name__ == "__main__":
    main()
