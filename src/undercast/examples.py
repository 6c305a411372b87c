"""A handful of pictures from an evaluation, from mild haze to fully overcast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from undercast import quicklook
from undercast.datasets.samples import SampleBatch
from undercast.models.system import Output
from undercast.quicklook import Rgb

SLOTS = 6  # of equal cloud cover; one example each
_SHOWN_DATES = 4


@dataclass(frozen=True, eq=False)
class Example:
    """What the report shows of one sample; pictures share the brightness of the target."""

    title: str
    cover: float
    inputs: tuple[Rgb, ...]
    prediction: Rgb
    target: Rgb
    error: NDArray[np.float32]  # (H, W) RMSE over bands
    sigma: NDArray[np.float32] | None  # (H, W) root of the mean variance over bands


class Examples:
    """One sample for each slot of cloud cover, drawn evenly from all that are fed (a reservoir)."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._kept: dict[int, Example] = {}
        self._fed = np.zeros(SLOTS, dtype=np.int64)

    def feed(self, part: SampleBatch, output: Output) -> None:
        """Offer the samples of a batch; those with unknown cover are not shown."""
        for i, sample in enumerate(part.samples):
            if not np.isfinite(sample.cover):
                continue
            slot = min(int(sample.cover * SLOTS), SLOTS - 1)
            self._fed[slot] += 1
            if self._rng.random() * self._fed[slot] < 1:
                self._kept[slot] = _example(part, output, i)

    def result(self) -> tuple[Example, ...]:
        """The examples by increasing cover."""
        return tuple(sorted(self._kept.values(), key=lambda example: example.cover))


def _example(part: SampleBatch, output: Output, i: int) -> Example:
    target, mean = _array(part.target[i]), _array(output.mean[i])
    gain = quicklook.natural_gain(target)
    dates = [date for date in range(part.batch.valid.shape[1]) if part.batch.valid[i, date]]
    variance = None if output.variance is None else _array(output.variance[i])
    return Example(
        title=part.samples[i].id,
        cover=part.samples[i].cover,
        inputs=tuple(
            quicklook.rgb(_array(part.batch.s2[i, date]), gain) for date in dates[:_SHOWN_DATES]
        ),
        prediction=quicklook.rgb(mean, gain),
        target=quicklook.rgb(target, gain),
        error=_root_mean((mean - target) ** 2),
        sigma=None if variance is None else _root_mean(variance),
    )


def _array(tensor: Tensor) -> Any:
    return tensor.float().cpu().numpy()


def _root_mean(values: Any) -> NDArray[np.float32]:
    return np.asarray(np.sqrt(values.mean(axis=0)), dtype=np.float32)
