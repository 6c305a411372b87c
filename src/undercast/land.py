"""What is known of land where no date shows it: most land is much like other land.

Under a closed sky a network guesses, and reads more into the clouds than they tell. So there the
estimate moves towards the spectrum m of land, as if the logarithm of the reflectance were N(log m,
τ²) before anything is seen and N(log μ, σ²/μ²) for the network. How much the first one counts goes
from 0 where a date shows the ground to 1 where none does, there or around. It is no observation:
the mean moves, but σ/μ stays as it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from undercast import bands
from undercast.errors import CheckpointError
from undercast.evidence import CIRRUS, around, observed, shows_ground

DARKEST = 1e-3  # reflectance that the logarithm is taken of at least


@dataclass(frozen=True)
class Land:
    """The spectrum of land, and the standard deviation of its logarithm."""

    spectrum: tuple[float, ...]
    spread: float

    def __post_init__(self) -> None:
        numbers = (*self.spectrum, self.spread)
        if len(self.spectrum) != bands.N_S2 or not all(0 < x < math.inf for x in numbers):
            raise CheckpointError(
                f"got land of the spectrum {self.spectrum} and the spread {self.spread}, "
                f"expected {bands.N_S2} bands and numbers above 0"
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the checkpoint."""
        return {"spectrum": list(self.spectrum), "spread": self.spread}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Land:
        """The land that `to_dict` described."""
        return cls(tuple(float(x) for x in values["spectrum"]), float(values["spread"]))


def combined(
    mean: Tensor, variance: Tensor, s2: Tensor, valid: Tensor, land: Land
) -> tuple[Tensor, Tensor]:
    """(b 13 h w) the mean and variance where what is known of land counts as nothing is seen.

    mean, variance: (b 13 h w) of the network. s2: (b t 13 h w) reflectance, NaN = no data. valid:
    (b t) dates that are there. The cirrus band shows clouds, not land: it stays.

    >>> mean, variance = torch.full((1, 13, 1, 1), 0.4), torch.full((1, 13, 1, 1), 0.04)
    >>> cloud, valid = torch.full((1, 1, 13, 1, 1), 0.9), torch.ones(1, 1, dtype=torch.bool)
    >>> found, _ = combined(mean, variance, cloud, valid, Land((0.1,) * 13, 0.5))
    >>> round(float(found[0, 0]), 6)  # σ/μ is 0.5 as well: halfway in the logarithm
    0.2
    """
    relative = variance / mean.clamp(min=DARKEST).square()
    kept = 1 / (1 + hidden(mean, s2, valid) * relative / land.spread**2)
    kept[:, CIRRUS] = 1
    ratio = mean.new_tensor(land.spectrum)[:, None, None] / mean.clamp(min=DARKEST)
    towards = ratio ** (1 - kept)
    return mean * towards, variance * towards.square()


def hidden(mean: Tensor, s2: Tensor, valid: Tensor) -> Tensor:
    """(b 1 h w) 1 where no date shows the ground, nor any around it; 0 where one does."""
    covered = torch.ones_like(mean[:, :1])
    for image, there in zip(s2.unbind(1), valid.unbind(1), strict=True):
        covered *= 1 - shows_ground(image, mean) * there[:, None, None, None]
    return covered * around(covered, observed(s2, valid))
