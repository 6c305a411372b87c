"""Post-hoc calibration of the variance, fitted on held-out data and stored in the checkpoint.

A correction of the variance by maximum likelihood (a factor for each band; a factor and a power, or
a factor and a floor, for all bands; a monotone curve for each band), then split-conformal factors
for intervals of guaranteed marginal coverage. The fits are streaming: `feed` images, ask for the
result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from undercast import bands, gaussian
from undercast.errors import CheckpointError, InputError

Floats = NDArray[np.float64]
N_CELLS = 4096
_VARIANCES = (math.log(1e-12), math.log(1e2))  # range of the histogram of log v
_RATIOS = (math.log(1e-8), math.log(1e8))  # range of the histogram of log (e²/v)
_POWERS = (0.0, 2.0)  # a negative one would turn the order of variances round
# Knots of a curve with a floor, log v from the band's middle: lines between them are within 1 %.
_BENDS = np.arange(-8.0, 8.1, 0.5)
_MIN_RATIO = 1e-6  # keeps the variance above 0 where all errors of a bin are 0


@dataclass(frozen=True)
class Calibration:
    """How to correct the variance of each band: v → scale · v · exp(curve(log v)).

    curve: for each band its knots as pairs (log v, log factor); () = none. Between knots the log
    factor is linear, outside constant. conformal: (level, factor of σ for each band) pairs, where σ
    is that of the corrected variance.
    """

    scale: tuple[float, ...] = (1.0,) * bands.N_S2
    curve: tuple[tuple[tuple[float, float], ...], ...] = ()
    conformal: tuple[tuple[float, tuple[float, ...]], ...] = ()

    def __post_init__(self) -> None:
        widths = [len(self.scale), *(len(factors) for _, factors in self.conformal)]
        if self.curve:
            widths.append(len(self.curve))
        if set(widths) != {bands.N_S2}:
            raise CheckpointError(
                f"got a calibration of {widths} bands, expected {bands.N_S2} everywhere"
            )
        if not all(math.isfinite(s) and s > 0 for s in self.scale):
            raise CheckpointError(f"got factors {self.scale}, expected finite ones above 0")

    def apply(self, variance: Any) -> Any:
        """The calibrated variance of (..., 13, h, w), numpy or torch; above 0 where it was."""
        if isinstance(variance, torch.Tensor):
            out = variance * variance.new_tensor(self.scale)[:, None, None]
            if self.curve:
                log = variance.log()
                factors = [_torch_curve(log[..., c, :, :], k) for c, k in enumerate(self.curve)]
                out = out * torch.stack(factors, dim=-3).exp()
            return out
        array = np.asarray(variance)
        out = array * np.array(self.scale, dtype=array.dtype)[:, None, None]
        if self.curve:
            with np.errstate(divide="ignore"):
                log = np.log(array)
            factors = [_numpy_curve(log[..., c, :, :], k) for c, k in enumerate(self.curve)]
            out = out * np.exp(np.stack(factors, axis=-3)).astype(array.dtype)
        return out

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the checkpoint."""
        return {
            "scale": list(self.scale),
            "curve": [[list(knot) for knot in knots] for knots in self.curve],
            "conformal": [[level, list(factors)] for level, factors in self.conformal],
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Calibration:
        """The calibration that `to_dict` described."""
        try:
            return cls(
                tuple(float(s) for s in values["scale"]),
                tuple(
                    tuple((float(x), float(y)) for x, y in knots)
                    for knots in values.get("curve", ())
                ),
                tuple(
                    (float(level), tuple(float(f) for f in factors))
                    for level, factors in values.get("conformal", ())
                ),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"got a calibration that cannot be read: {values}") from error


def intervals(
    mean: Any, variance: Any, level: float, calibration: Calibration | None = None
) -> tuple[Any, Any]:
    """Lower and upper bound that hold the truth with probability `level`; (..., 13, h, w).

    variance is the calibrated one. With a calibration that was fitted for this level the bounds are
    conformal: the coverage per band is guaranteed for data exchangeable with the held-out data.
    Without a calibration they are those of the Gaussian.
    """
    if calibration is None:
        return gaussian.interval(mean, variance, level)
    for known, factors in calibration.conformal:
        if math.isclose(known, level, abs_tol=1e-9):
            sigma = variance**0.5
            if isinstance(sigma, torch.Tensor):
                reach = sigma * sigma.new_tensor(factors)[:, None, None]
            else:
                reach = sigma * np.array(factors, dtype=sigma.dtype)[:, None, None]
            return mean - reach, mean + reach
    levels = ", ".join(f"{known:g}" for known, _ in calibration.conformal) or "none"
    raise InputError(
        f"got the level {level:g}, expected one that the calibration was fitted for ({levels}): "
        "run `undercast calibrate`, or pass calibration=None for Gaussian intervals"
    )


class VarianceFit:
    """Fits factors and curves to errors and raw variances, in constant memory."""

    def __init__(self) -> None:
        # for each band and cell of log v: count, Σ e²/v, Σ log v
        self._cells = np.zeros((bands.N_S2, 3, N_CELLS))

    def feed(self, target: Any, mean: Any, variance: Any) -> None:
        """Add images (..., 13, h, w); values that are missing in any of the three do not count."""
        for table, error, v in _band_samples(target, mean, variance):
            log = np.log(v)
            cell = _cell(log, *_VARIANCES)
            ratio = error**2 / v
            row = self._cells[table]
            for sums, weights in zip(row, (np.ones_like(v), ratio, log), strict=True):
                sums += np.bincount(cell, weights=weights, minlength=N_CELLS)

    @property
    def count(self) -> int:
        """How many values of the sparsest band were fed."""
        return int(self._cells[:, 0].sum(-1).min())

    def scale(self) -> Calibration:
        """The factor of each band that maximises the likelihood: the mean of e²/σ²."""
        self._check()
        n, ratio, _ = self._cells.sum(-1).T
        return Calibration(tuple(float(s) for s in np.maximum(ratio / n, _MIN_RATIO)))

    def power(self, groups: Sequence[Sequence[str]] = (bands.S2,)) -> Calibration:
        """log σ² → log a + log v + γ (log σ² − log v), v the band's geometric mean of σ².

        The factor a and the power γ are those of the largest likelihood over all bands of a group:
        two numbers, so that a few places are enough. γ < 1 where σ² tells certain pixels from
        uncertain ones more boldly than their errors do. A band in no group stays as it is.
        """
        self._check()
        scale = np.ones(bands.N_S2)
        curve: list[tuple[tuple[float, float], ...]] = [((0.0, 0.0),)] * bands.N_S2
        for group in groups:
            chosen = bands.index(group)
            factor, power, middle = _power_of(self._cells[chosen])
            scale[chosen] = factor
            for band, m in zip(chosen, middle.tolist(), strict=True):
                curve[band] = tuple((v, (power - 1) * (v - m)) for v in _VARIANCES)
        return Calibration(tuple(scale.tolist()), tuple(curve))

    def floor(self) -> Calibration:
        """σ² → a (α σ² + (1 - α) v), v the band's geometric mean of σ².

        The factor a and the share α are those of the largest likelihood over all bands: two
        numbers, so that a few places are enough. α < 1 where a part of the errors is the same
        whatever the network says, as that of the light of another day.
        """
        self._check()
        factor, share, middle = _floor_of(self._cells)
        curve = tuple(
            tuple((float(x), float(_above_floor(x - m, share) - (x - m))) for x in _knots(m))
            for m in middle.tolist()
        )
        return Calibration((factor,) * bands.N_S2, curve)

    def monotone(self, n_bins: int = 20) -> Calibration:
        """A curve for each band: the mean e²/σ² of equal-mass bins, made monotone in σ²."""
        self._check()
        curve = tuple(_monotone_knots(cells, n_bins) for cells in self._cells)
        # One more factor, so that the mean of e²/σ² is exactly 1, as without a curve.
        scale = [_rest(cells, knots) for cells, knots in zip(self._cells, curve, strict=True)]
        return Calibration(tuple(scale), curve)

    def _check(self) -> None:
        if self.count == 0:
            raise InputError("got a band without any value to fit to, expected some in each band")


def _power_of(cells: Floats) -> tuple[float, float, Floats]:
    """The factor, the power and the geometric mean of σ² of each band, from (bands, 3, cells)."""
    x, _, squared, middle = _about_middle(cells)
    power = _bisected(lambda g: float((squared * x * np.exp((1 - g) * x)).sum()), *_POWERS)
    factor = max(float((squared * np.exp((1 - power) * x)).sum()), _MIN_RATIO)
    return factor, power, middle


def _about_middle(cells: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Of each cell log σ² from the band's middle, its share of all values, and of Σ e²/σ².

    Every band counts alike. The middle of a band is the logarithm of the geometric mean of σ².
    """
    n, ratio, log = np.moveaxis(cells, 1, 0)
    total = n.sum(-1, keepdims=True)
    middle = log.sum(-1) / total[:, 0]
    x = np.where(n > 0, log / np.maximum(n, 1) - middle[:, None], 0.0)
    return x, n / total / len(n), ratio / total / len(n), middle


def _floor_of(cells: Floats) -> tuple[float, float, Floats]:
    """The factor, the share and the geometric mean of σ² of each band, from (bands, 3, cells)."""
    x, n, squared, middle = _about_middle(cells)

    def factors(share: float) -> Floats:
        """What each cell adds to the mean of e² over what is stated without the factor."""
        return np.asarray(squared * np.exp(x - _above_floor(x, share)))

    def falling(share: float) -> float:
        """By how much more of the share makes the errors likelier, the factor being the best."""
        steeper = np.expm1(x) * np.exp(-_above_floor(x, share))
        added = factors(share)
        return float((added * steeper).sum() / max(added.sum(), _MIN_RATIO) - (n * steeper).sum())

    share = _bisected(falling, 0.0, 1.0)
    return max(float(factors(share).sum()), _MIN_RATIO), share, middle


def _above_floor(x: Any, share: float) -> Any:
    """log (share · e^x + 1 - share), for any x."""
    with np.errstate(divide="ignore"):
        return np.logaddexp(np.log(share) + x, np.log1p(-share))


def _knots(middle: float) -> Floats:
    """Where the curve of a band bends, and the ends of the range."""
    bends = middle + _BENDS
    low, high = _VARIANCES
    return np.concatenate(([low], bends[(bends > low) & (bends < high)], [high]))


class ConformalFit:
    """Split-conformal factors from the calibrated σ of data that no other step was fitted to."""

    def __init__(self) -> None:
        self._cells = np.zeros((bands.N_S2, N_CELLS))  # of log (e²/σ²)

    def feed(self, target: Any, mean: Any, variance: Any) -> None:
        """Add images (..., 13, h, w); variance is the calibrated one."""
        for band, error, v in _band_samples(target, mean, variance):
            with np.errstate(divide="ignore"):
                cell = _cell(np.log(error**2 / v), *_RATIOS)
            self._cells[band] += np.bincount(cell, minlength=N_CELLS)

    def factors(self, level: float) -> tuple[float, ...]:
        """For each band the ⌈(n + 1) level⌉-th smallest |e|/σ, rounded up to a histogram cell."""
        gaussian.half_width(level)  # refuses what is no probability
        return tuple(_order_statistic(cells, level) for cells in self._cells)


def _bisected(falling: Callable[[float], float], low: float, high: float) -> float:
    """Where a falling function crosses 0, or the end of the range that is nearer to it."""
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    return (low + high) / 2


def _order_statistic(cells: Floats, level: float) -> float:
    n = int(cells.sum())
    rank = math.ceil((n + 1) * level)
    if rank > n:
        fewest = math.ceil(level / (1 - level) - 1e-9)
        raise InputError(
            f"got {n} values, expected at least {fewest} for intervals of level {level:g}: "
            "calibrate on more images"
        )
    cell = int(np.searchsorted(np.cumsum(cells), rank))
    low, high = _RATIOS
    if cell == N_CELLS - 1:
        raise InputError(
            f"got errors beyond {math.exp(high / 2):g} σ, expected a variance of the right order: "
            "is it in reflectance²?"
        )
    return math.exp((low + (cell + 1) * (high - low) / N_CELLS) / 2)  # upper edge of the cell


def _band_samples(target: Any, mean: Any, variance: Any) -> Any:
    """For each band its index, errors and variances, flat and without missing values."""
    arrays = [_bands_first(x) for x in (target, mean, variance)]
    if len({array.shape for array in arrays}) != 1 or arrays[0].shape[0] != bands.N_S2:
        shapes = ", ".join(str(np.shape(x)) for x in (target, mean, variance))
        raise InputError(
            f"got target, mean and variance of shapes {shapes}, "
            f"expected equal ones (..., {bands.N_S2}, h, w)"
        )
    for band, (t, m, v) in enumerate(zip(*arrays, strict=True)):
        known = np.isfinite(t) & np.isfinite(m) & np.isfinite(v)
        if (v[known] <= 0).any():
            raise InputError("got a variance of 0 or below, expected it above 0 everywhere")
        yield band, (m - t)[known], v[known]


def _bands_first(values: Any) -> Floats:
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().numpy()
    array = np.asarray(values, dtype=np.float64)
    if array.ndim < 3:
        raise InputError(f"got an array of shape {array.shape}, expected (..., bands, h, w)")
    return np.moveaxis(array, -3, 0).reshape(array.shape[-3], -1)


def _cell(log: Floats, low: float, high: float) -> NDArray[np.intp]:
    position = (log - low) / (high - low) * N_CELLS
    return np.asarray(np.clip(position, 0, N_CELLS - 1), dtype=np.intp)


def _monotone_knots(cells: Floats, n_bins: int) -> tuple[tuple[float, float], ...]:
    n, ratio, log = cells[:, cells[0] > 0]
    bin_of = ((np.cumsum(n) - n / 2) / n.sum() * n_bins).astype(np.intp)
    count: Floats = np.bincount(bin_of, weights=n).astype(np.float64)
    kept = count > 0
    count = count[kept]
    x = np.bincount(bin_of, weights=log)[kept] / count
    factor = np.bincount(bin_of, weights=ratio)[kept] / count
    y = pool_adjacent_violators(x + np.log(np.maximum(factor, _MIN_RATIO)), count)
    return tuple(zip(x.tolist(), (y - x).tolist(), strict=True))


def pool_adjacent_violators(values: Floats, weights: Floats) -> Floats:
    """The nearest non-decreasing sequence in weighted least squares.

    >>> pool_adjacent_violators(np.array([1.0, 3.0, 2.0]), np.array([1.0, 1.0, 1.0])).tolist()
    [1.0, 2.5, 2.5]
    """
    blocks: list[tuple[float, float, int]] = []  # mean, weight, length
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        blocks.append((value, weight, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (m1, w1, n1), (m2, w2, n2) = blocks[-2:]
            blocks[-2:] = [((m1 * w1 + m2 * w2) / (w1 + w2), w1 + w2, n1 + n2)]
    return np.repeat([b[0] for b in blocks], [b[2] for b in blocks])


def _rest(cells: Floats, knots: Sequence[tuple[float, float]]) -> float:
    """The mean of e²/σ² that the curve leaves, from the cells of the fit."""
    n, ratio, log = cells[:, cells[0] > 0]
    corrected = ratio / np.exp(_numpy_curve(log / n, knots))
    return float(max(corrected.sum() / n.sum(), _MIN_RATIO))


def _numpy_curve(log: Any, knots: Sequence[tuple[float, float]]) -> Any:
    x, y = zip(*knots, strict=True)
    return np.interp(log, x, y)


def _torch_curve(log: torch.Tensor, knots: Sequence[tuple[float, float]]) -> torch.Tensor:
    x, y = (log.new_tensor(values) for values in zip(*knots, strict=True))
    if len(knots) == 1:
        return y.expand_as(log)
    right = torch.bucketize(log.contiguous(), x).clamp(1, len(knots) - 1)
    left = right - 1
    share = ((log - x[left]) / (x[right] - x[left])).clamp(0, 1)
    return y[left] + share * (y[right] - y[left])
