"""Which date is the target and which are the inputs: pure functions of cover, dates and a seed.

`clean` and `train` cannot return the target as an input. `legacy` repeats the released test rule,
which can.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from undercast.errors import InputError

PROTOCOLS = ("clean", "legacy", "train")
CLEAR_COVER = 1e-3  # a date with less cloud cover can be a training target


class Choice(NamedTuple):
    """Positions in a series: the date to reconstruct and the dates to reconstruct it from."""

    target: int
    inputs: tuple[int, ...]


def clean(cover: ArrayLike, dates: ArrayLike, t: int) -> Choice:
    """The least cloudy date as target, the `t` other dates nearest in time as inputs.

    Equal covers: the earliest date is the target. Equal distances: the earlier date is the input.
    Inputs come in the order of the series.

    >>> clean([0.5, 0.0, 0.9, 0.0], ["2018-01-01", "2018-01-11", "2018-01-16", "2018-03-01"], t=2)
    Choice(target=1, inputs=(0, 2))
    """
    cover, days = _series(cover, t), np.asarray(dates, dtype="datetime64[D]").astype(np.int64)
    if len(days) != len(cover):
        raise InputError(f"got {len(days)} dates for {len(cover)} covers, expected as many")
    clearest = np.flatnonzero(cover == cover.min())
    target = int(min(clearest, key=lambda i: (days[i], i)))
    others = [i for i in range(len(cover)) if i != target]
    nearest = sorted(others, key=lambda i: (abs(days[i] - days[target]), days[i], i))[:t]
    return Choice(target, tuple(sorted(nearest)))


def legacy(cover: ArrayLike, t: int) -> Choice:
    """The released rule for validation and test: the first `t` dates, the target not excluded.

    Among equally clear dates numpy's unstable sort decides, as there. Only a series with fewer than
    `t` dates leaves the target out.

    >>> legacy([0.5, 0.0, 0.9, 0.3], t=3)
    Choice(target=1, inputs=(0, 1, 2))
    """
    cover = _series(cover, t)
    target = int(np.argsort(cover)[0])
    if len(cover) < t:
        return Choice(target, tuple(i for i in range(len(cover)) if i != target))
    return Choice(target, tuple(range(t)))


def train(cover: ArrayLike, t: int, rng: np.random.Generator) -> Choice:
    """A random clear date as target, and as inputs its neighbours in the series.

    The target is drawn among the dates with cover below 1e-3, or is the least cloudy one. Of the
    windows of `t` + 1 consecutive dates that hold the target, the inputs are the one in the middle
    (of an even number the later one) without the target: for t = 3 and a target i inside the series
    i−1, i+1, i+2.

    >>> train([0.5, 0.9, 0.0, 0.9, 0.3], 3, np.random.default_rng(0))
    Choice(target=2, inputs=(1, 3, 4))
    >>> train([0.5, 0.9, 0.9, 0.0, 0.9, 0.3, 0.4], 3, np.random.default_rng(0))
    Choice(target=3, inputs=(2, 4, 5))
    """
    cover = _series(cover, t)
    clear = np.flatnonzero(cover < CLEAR_COVER)
    target = int(rng.choice(clear)) if len(clear) else int(np.argmin(cover))
    length = min(t + 1, len(cover))
    starts = range(max(0, target - length + 1), min(target, len(cover) - length) + 1)
    start = starts[len(starts) // 2]
    return Choice(target, tuple(i for i in range(start, start + length) if i != target))


def choose(
    protocol: str, cover: ArrayLike, dates: ArrayLike, t: int, rng: np.random.Generator
) -> Choice:
    """The target and the inputs under a named protocol."""
    if protocol == "clean":
        return clean(cover, dates, t)
    if protocol == "legacy":
        return legacy(cover, t)
    if protocol == "train":
        return train(cover, t, rng)
    raise InputError(f"got protocol {protocol!r}, expected one of {' '.join(PROTOCOLS)}")


def sample_rng(seed: int, epoch: int, sample_id: str) -> np.random.Generator:
    """The random numbers of one sample in one epoch, on any machine, process and worker.

    >>> float(sample_rng(0, 3, "sen12mscrts/1868/73/171").random()).hex()
    '0x1.c218fc559f151p-1'
    """
    text = f"{int(seed)}/{int(epoch)}/{sample_id}"
    return np.random.default_rng(int.from_bytes(hashlib.sha256(text.encode()).digest(), "little"))


def _series(cover: ArrayLike, t: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    array = np.asarray(cover, dtype=np.float32)
    if array.ndim != 1 or len(array) < 2:
        raise InputError(f"got a cover of shape {array.shape}, expected at least two dates")
    if np.isnan(array).any():
        raise InputError("got a cover that is NaN, expected the cloud cover of every date")
    if t < 1:
        raise InputError(f"got t = {t}, expected at least one input date")
    return array
