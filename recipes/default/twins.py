"""Twins judged by what neither was trained on, to decide whether their weights are packaged.

Single real dates, in dB above the flat mean: each pair that a twin has left out by that twin, the
closed dates of the selecting and calibrating places by the mean of the twins. Beside them the same
in equal parts with the weights before, which have seen the pairs, and these by themselves. Ordinary
land has a mean of its own: a flat image is far off over bright land, and to be nearer says little.

    python recipes/default/twins.py --run A B --before packaged.safetensors --real DIR
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from backgrounds import Background, Case, is_left_out, training_backgrounds
from chance import better_by, of_places
from measure import mean_spectrum, stack_of, target_of
from package_choice import last_of, mean_of, selecting_psnr, whole
from views import new_snow

from undercast import load_model
from undercast.masks import cloud_mask

HIDES = 0.3  # the share of the ground, at least, of a pair that is asked
ORDINARY = 0.16  # mean reflectance, at most, of land that is not bright
NAMES = ("twins", "with before", "before")


def pair_cases(real: Path, seed: int) -> list[Case]:
    """Those left out by a run of this seed whose clouds hide enough, but for new snow."""
    every = [b for b in training_backgrounds(real)["pairs"] if is_left_out(b, seed)]
    found = [
        case_of(b) for b in every if b.cloudy is not None and not new_snow(b.clear[0], b.cloudy)
    ]
    return [case for case in found if case.mask.mean() >= HIDES]


def case_of(pair: Background) -> Case:
    """The cloudy view as the only input."""
    assert pair.cloudy is not None
    s2, clear = pair.cloudy[None], pair.clear[0]
    usable = np.ones(clear.shape[-2:], bool)
    return Case(pair.name, pair.name, s2, cloud_mask(s2, "s2cloudless"), clear, usable)


def systems(states: list[dict[str, Any]], before: dict[str, Any]) -> list[dict[str, Any]]:
    """The weights of `NAMES`, of one twin or of the mean of several."""
    mean = mean_of(states)
    return [mean, mean_of([mean, before]), before]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, nargs="+", required=True, help="folders of train.py")
    parser.add_argument("--before", type=Path, required=True, help="weights they began with")
    parser.add_argument("--real", type=Path, required=True)
    args = parser.parse_args()
    before = load_model(args.before).network.state_dict()
    flat, last = mean_spectrum(args.real), [last_of(run) for run in args.run]
    asked: list[tuple[list[dict[str, Any]], list[Case]]] = []
    for run, state in zip(args.run, last, strict=True):
        seed = load_model(run / "best.safetensors").provenance["seed"]
        asked.append((systems([state], before), pair_cases(args.real, seed)))
    together = systems(last, before)
    asked.append((together, of_places(args.real)))
    print(f"{'':36s}{'brightness':>12s}" + "".join(f"{name:>13s}" for name in NAMES))
    rows, bright = [], []
    for states, cases in asked:
        judged = [judge(state, args.before, flat) for state in states]
        for case in cases:
            rows.append([above(case) for above in judged])
            bright.append(float(np.nanmean(target_of(case))))
            show(f"{case.name:36s}{bright[-1]:12.3f}", rows[-1])
    show(f"{'mean':48s}", np.mean(rows, axis=0))
    ordinary = np.array(bright) <= ORDINARY
    show(
        f"{f'mean of {ordinary.sum()} of ordinary land':48s}",
        np.mean(rows, axis=0, where=ordinary[:, None]),
    )
    chosen = [selecting_psnr(whole(state, str(args.before)), args.real) for state in together]
    show(f"{'selecting places, dB':48s}", chosen)


def show(what: str, values: Iterable[float]) -> None:
    """A line of the table."""
    print(what + "".join(f"{value:+13.2f}" for value in values))


def judge(state: dict[str, Any], name: Path, flat: np.ndarray) -> Callable[[Case], float]:
    """What tells by how many dB these weights are above the flat mean."""
    model = whole(state, str(name))
    return lambda case: better_by(
        model, flat, stack_of(case, radar=case.s1 is not None), target_of(case)
    )[0]


if __name__ == "__main__":
    main()
