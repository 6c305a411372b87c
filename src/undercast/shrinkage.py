"""Estimates that are not sure of themselves move towards land as it mostly is.

The positive-part rule of James and Stein: the mean keeps max(0, 1 − strength · Σ w σ² / Σ w d²) of
what it differs by, d = mean − toward, the sums over the bands of a pixel; 1/w is how much land
varies in a band. Where the ground is seen σ is small and nothing changes; what is bright, as
deserts are, differs by far more than σ and hardly changes; a guess below a closed sky comes close
to the usual land.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from undercast import bands
from undercast.errors import CheckpointError, InputError

STRENGTHS = tuple(round(0.05 * i, 2) for i in range(21))  # that `ShrinkageFit` tries
_LEAST = 1e-12  # reflectance²: where the mean is that of land, there is nothing to divide by


@dataclass(frozen=True)
class Shrinkage:
    """toward: the reflectance of each band; weights: w of each; strength: 0 changes nothing."""

    toward: tuple[float, ...]
    weights: tuple[float, ...]
    strength: float

    def __post_init__(self) -> None:
        for numbers in (self.toward, self.weights):
            if len(numbers) != bands.N_S2 or not all(map(math.isfinite, numbers)):
                raise CheckpointError(
                    f"got {numbers} of land, expected {bands.N_S2} finite numbers, one for a band"
                )
        if min(self.weights) < 0 or max(self.weights) == 0:
            raise CheckpointError(f"got weights {self.weights}, expected none below 0, some above")
        if not (math.isfinite(self.strength) and self.strength >= 0):
            raise CheckpointError(f"got the strength {self.strength}, expected 0 or more")

    def apply(self, mean: Any, variance: Any) -> Any:
        """The mean (..., 13, h, w), moved; variance is that of the network, not the calibrated."""
        land, weights = (
            mean.new_tensor(numbers)[:, None, None]
            if isinstance(mean, torch.Tensor)
            else np.array(numbers, dtype=np.asarray(mean).dtype)[:, None, None]
            for numbers in (self.toward, self.weights)
        )
        off = mean - land
        doubt = (weights * variance).sum(-3, keepdims=True)
        known = (weights * off**2).sum(-3, keepdims=True) + _LEAST * max(self.weights)
        return land + (1 - self.strength * doubt / known).clip(0) * off

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the checkpoint."""
        return {
            "toward": list(self.toward),
            "weights": list(self.weights),
            "strength": self.strength,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Shrinkage:
        """The one that `to_dict` described."""
        try:
            toward, weights = (tuple(map(float, values[key])) for key in ("toward", "weights"))
            return cls(toward, weights, float(values["strength"]))
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"got a shrinkage that cannot be read: {values}") from error


class ShrinkageFit:
    """Finds the strength of the highest mean PSNR over images that were not trained on."""

    def __init__(self, toward: tuple[float, ...], weights: tuple[float, ...]) -> None:
        self._tried = tuple(Shrinkage(toward, weights, strength) for strength in STRENGTHS)
        self._decibels = np.zeros(len(STRENGTHS))
        self._images = 0

    def feed(self, target: Any, mean: Any, variance: Any) -> None:
        """Add an image (13, h, w), target NaN where it is not known; the network's variance."""
        self._decibels += [_psnr(target, each.apply(mean, variance)) for each in self._tried]
        self._images += 1

    def gains(self) -> np.ndarray[Any, Any]:
        """dB that each of `STRENGTHS` gains over none, on average over the images."""
        if not self._images:
            raise InputError("got no image to fit the shrinkage to, expected at least one")
        return np.asarray((self._decibels - self._decibels[0]) / self._images)

    def result(self) -> Shrinkage:
        """The strongest gain."""
        return self._tried[int(np.argmax(self.gains()))]


def _psnr(target: Any, mean: Any) -> float:
    return -10 * math.log10(float(np.nanmean((np.asarray(mean) - np.asarray(target)) ** 2)))
