"""Gaussians: density, CRPS, intervals, and the moments of mixtures that ensembles and tiles share.

Every function takes numpy arrays or torch tensors and gives the same kind back.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import torch

from undercast.errors import InputError

_LOG_2PI = math.log(2 * math.pi)


class Moments(NamedTuple):
    """Mean and variance of a mixture; variance = within (aleatoric) + between (epistemic)."""

    mean: Any
    within: Any
    between: Any

    @property
    def variance(self) -> Any:
        """The law of total variance; never below `within`."""
        return self.within + self.between


def mixture_moments(means: Any, variances: Any, weights: Any = None) -> Moments:
    """Moments of a mixture of Gaussians stacked along the first axis (numpy or torch).

    Two passes: the deviations from the mean are squared, never a difference of squares, so the
    between-variance cannot be negative. Weights are normalised here; None means equal ones.

    >>> mixture_moments(np.array([0.0, 2.0]), np.array([1.0, 1.0]))
    Moments(mean=np.float64(1.0), within=np.float64(1.0), between=np.float64(1.0))
    """
    if weights is None:
        mean = means.mean(0)
        return Moments(mean, variances.mean(0), ((means - mean) ** 2).mean(0))
    share = weights / weights.sum(0)
    mean = (share * means).sum(0)
    return Moments(mean, (share * variances).sum(0), (share * (means - mean) ** 2).sum(0))


def log_density(value: Any, mean: Any, variance: Any) -> Any:
    """log N(value; mean, variance) = −½ (log 2π + log σ² + e²/σ²), elementwise.

    >>> round(float(log_density(np.array(1.0), np.array(1.0), np.array(1.0))), 6)
    -0.918939
    """
    log = torch.log if isinstance(variance, torch.Tensor) else np.log
    return -0.5 * (_LOG_2PI + log(variance) + (value - mean) ** 2 / variance)


def crps(value: Any, mean: Any, variance: Any) -> Any:
    """Continuous ranked probability score of N(mean, variance), in the unit of the value.

    σ (z (2Φ(z) − 1) + 2φ(z) − 1/√π) with z = (value − mean)/σ; |value − mean| as σ → 0.

    >>> round(float(crps(np.array(0.0), np.array(0.0), np.array(1.0))), 6)
    0.233695
    """
    sigma = variance**0.5
    z = (value - mean) / sigma
    exp = torch.exp if isinstance(z, torch.Tensor) else np.exp
    density = exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    return sigma * (z * _erf(z / math.sqrt(2)) + 2 * density - 1 / math.sqrt(math.pi))


def half_width(level: float) -> float:
    """How many σ the central interval that holds `level` of a Gaussian reaches to each side.

    >>> round(half_width(0.95), 4)
    1.96
    """
    if not 0 < level < 1:
        raise InputError(f"got the level {level}, expected a probability between 0 and 1")
    return NormalDist().inv_cdf((1 + level) / 2)


def interval(mean: Any, variance: Any, level: float) -> tuple[Any, Any]:
    """Lower and upper bound of the central interval that holds `level` of a Gaussian."""
    reach = half_width(level) * variance**0.5
    return mean - reach, mean + reach


def _erf(x: Any) -> Any:
    # numpy has no error function; torch's works on the array's own memory
    if isinstance(x, torch.Tensor):
        return torch.erf(x)
    return torch.erf(torch.as_tensor(x)).numpy()
