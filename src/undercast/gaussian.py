"""Gaussians: moments of mixtures, shared by ensembles and by the blending of tiles."""

from __future__ import annotations

from typing import Any, NamedTuple


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

    >>> import numpy as np
    >>> mixture_moments(np.array([0.0, 2.0]), np.array([1.0, 1.0]))
    Moments(mean=np.float64(1.0), within=np.float64(1.0), between=np.float64(1.0))
    """
    if weights is None:
        mean = means.mean(0)
        return Moments(mean, variances.mean(0), ((means - mean) ** 2).mean(0))
    share = weights / weights.sum(0)
    mean = (share * means).sum(0)
    return Moments(mean, (share * variances).sum(0), (share * (means - mean) ** 2).sum(0))
