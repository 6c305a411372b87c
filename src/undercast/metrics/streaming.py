"""The metrics over a whole test set in constant memory: `feed` images, ask for the `result`.

Pixels go into a fine histogram of log variance (4096 cells, 0.8 % wide) that keeps the exact sums
of count, squared error and variance of each cell, so that only the bin edges of UCE are rounded to
a cell. A few numbers are kept for each image (its squared error and variance).
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from undercast.errors import InputError
from undercast.metrics import bins, calibration
from undercast.metrics.bins import Floats
from undercast.metrics.calibration import ImageMoments, Samples, band_names
from undercast.metrics.image import (
    BAND_METRICS,
    IMAGE_METRICS,
    ErrorMaps,
    Scores,
    error_maps,
    scores,
)

N_CELLS = 4096
_LOG_MIN, _LOG_MAX = np.log(1e-12), np.log(1e2)  # reflectance²; what lies outside goes to the ends


class ImageAccumulator:
    """RMSE, MAE, PSNR, SSIM and SAM as means over images, and per band with the correlation."""

    def __init__(self, n_bands: int) -> None:
        self.n_bands = n_bands
        self.images = 0
        self._image = np.zeros((len(IMAGE_METRICS), 2))  # sum, count
        self._band = np.zeros((len(BAND_METRICS), n_bands, 2))

    def feed(self, target: Any, mean: Any, where: Any = None) -> None:
        """Add images (N, C, H, W); `where` names the pixels that count."""
        self.feed_scores(scores(error_maps(target, mean), where))

    def feed_maps(self, maps: ErrorMaps, where: Any = None) -> None:
        """Add images whose maps are known; saves time where several sets of pixels are averaged."""
        self.feed_scores(scores(maps, where))

    def feed_scores(self, found: Scores) -> None:
        """Add the scores of each image; an image that has none (NaN) does not count."""
        self.images += int((~torch.isnan(found.image["RMSE"])).sum())
        for row, name in zip(self._image, IMAGE_METRICS, strict=True):
            row += _sum_and_count(found.image[name][:, None])[0]
        for table, name in zip(self._band, BAND_METRICS, strict=True):
            table += _sum_and_count(found.band[name])

    def merge(self, other: ImageAccumulator) -> Self:
        """Add what another accumulator has seen."""
        _same_bands(self.n_bands, other.n_bands)
        self.images += other.images
        self._image += other._image
        self._band += other._band
        return self

    def result(self) -> dict[str, float]:
        """The means over images, and the correlation averaged over bands; NaN without images."""
        found = dict(zip(IMAGE_METRICS, _ratio(self._image).tolist(), strict=True))
        correlations = _ratio(self._band[BAND_METRICS.index("correlation")])
        return found | {"correlation": _nanmean(correlations)}

    def per_band(self) -> dict[str, dict[str, float]]:
        """Band → metric → mean over images."""
        table = _ratio(self._band)
        return {
            band: dict(zip(BAND_METRICS, table[:, i].tolist(), strict=True))
            for i, band in enumerate(band_names(self.n_bands))
        }


class CalibrationAccumulator:
    """Every calibration metric of all images fed so far, overall and (if asked) per band."""

    def __init__(self, n_bands: int, per_band: bool = False) -> None:
        self.n_bands = n_bands
        rows = 1 + n_bands if per_band else 1  # row 0: mean over bands
        self._cells = np.zeros((rows, 4, N_CELLS))  # count, e², variance, squared signed error
        self._oracle = np.zeros((rows, 2, N_CELLS))  # count and e² in cells of e²
        self._values = np.zeros((n_bands, 1 + len(calibration.TABLE)))
        self._images = _Columns(3 * rows)  # squared error, variance, signed error of each row

    def feed(self, target: Any, mean: Any, variance: Any, where: Any = None) -> None:
        """Add images (N, C, H, W); `where` names the pixels that count."""
        found = calibration.samples(target, mean, variance, where)
        _same_bands(self.n_bands, found.error.shape[1])
        self._values += calibration.value_sums(found)
        squared, signed, spread = calibration.pixel_moments(found)
        pixels = np.zeros(squared.size, dtype=np.intp)
        _add_to_cells(self._cells[:1], pixels, spread, (squared, spread, signed**2))
        _add_to_cells(self._oracle[:1], pixels, squared, (squared,))
        moments = [calibration.image_moments(found)]
        if len(self._cells) > 1:
            moments += self._feed_bands(found)
        self._images.append(np.stack([field for row in moments for field in row]))

    def _feed_bands(self, found: Samples) -> list[ImageMoments]:
        band = torch.arange(self.n_bands, device=found.error.device)[:, None, None]
        bands = band.expand_as(found.error)[found.counted].cpu().numpy()
        squared = (found.error[found.counted] ** 2).cpu().numpy()
        spread = found.variance[found.counted].cpu().numpy()
        _add_to_cells(self._cells[1:], bands, spread, (squared, spread, squared))
        _add_to_cells(self._oracle[1:], bands, squared, (squared,))
        images = calibration.image_moments(found, per_band=True)
        return [ImageMoments(*(x[:, c] for x in images)) for c in range(self.n_bands)]

    def merge(self, other: CalibrationAccumulator) -> Self:
        """Add what another accumulator has seen."""
        _same_bands(self.n_bands, other.n_bands)
        if len(self._cells) != len(other._cells):
            raise InputError("got one accumulator with bands and one without, expected two alike")
        self._cells += other._cells
        self._oracle += other._oracle
        self._values += other._values
        self._images.append(other._images.values)
        return self

    def result(self) -> dict[str, float]:
        """The metrics of `calibration_metrics`; NaN without samples."""
        return self._result(0, self._values.sum(0))

    def per_band(self) -> dict[str, dict[str, float]]:
        """Band → metric, for an accumulator made with `per_band=True`."""
        if len(self._cells) == 1:
            raise InputError("got an accumulator without bands, expected one with per_band=True")
        return {
            band: self._result(i + 1, self._values[i])
            for i, band in enumerate(band_names(self.n_bands))
        }

    def reliability(self, binning: bins.Binning = "equal_mass") -> bins.Reliability:
        """The reliability diagram over pixels."""
        return bins.reliability(bins.Groups(*self._cells[0, :3]), binning)

    def discard_curve(self) -> bins.DiscardCurve:
        """Mean squared error of the x % most certain images."""
        return calibration.discard_curve(self._image_moments(0))

    def _result(self, row: int, values: Floats) -> dict[str, float]:
        count, squared, variance, signed = self._cells[row]
        groups = bins.Groups(count, squared, variance)
        oracle = bins.Groups(self._oracle[row, 0], self._oracle[row, 1], np.zeros(N_CELLS))
        images = self._image_moments(row)
        return {
            **calibration.uce_values(groups, bins.Groups(count, signed, variance), ""),
            **calibration.uce_values(*calibration.image_groups(images), "_im"),
            "ENCE": bins.reliability(groups, "equal_mass").ence,
            "AUSE": bins.ause(groups, oracle),
            "discard_area": calibration.discard_curve(images).area,
            **calibration.value_metrics(values),
        }

    def _image_moments(self, row: int) -> ImageMoments:
        return ImageMoments(*self._images.values[3 * row : 3 * row + 3])


class _Columns:
    """Columns that grow. One block that doubles: many small arrays would fragment the heap."""

    def __init__(self, rows: int) -> None:
        self._block = np.empty((rows, 64))
        self._n = 0

    @property
    def values(self) -> Floats:
        """(rows, n) what was appended."""
        return self._block[:, : self._n]

    def append(self, columns: Floats) -> None:
        """Add (rows, m) columns."""
        n = self._n + columns.shape[1]
        if n > self._block.shape[1]:
            larger = np.empty((len(self._block), 2 * n))
            larger[:, : self._n] = self.values
            self._block = larger
        self._block[:, self._n : n] = columns
        self._n = n


def cell_of(values: Floats) -> NDArray[np.intp]:
    """The cell of the fine logarithmic histogram that each value falls into."""
    with np.errstate(divide="ignore"):
        position = (np.log(values) - _LOG_MIN) / (_LOG_MAX - _LOG_MIN)
    return np.asarray(np.clip(position * N_CELLS, 0, N_CELLS - 1), dtype=np.intp)


def _add_to_cells(
    tables: Floats, rows: NDArray[np.intp], keys: Floats, columns: tuple[Floats, ...]
) -> None:
    """Add samples to histograms (R, 1 + columns, cells): the row and the cell of each sample."""
    shape = (len(tables), N_CELLS)
    cell = rows * N_CELLS + cell_of(keys)
    tables[:, 0] += np.bincount(cell, minlength=shape[0] * shape[1]).reshape(shape)
    for column, values in enumerate(columns, start=1):
        summed = np.bincount(cell, weights=values, minlength=shape[0] * shape[1])
        tables[:, column] += summed.reshape(shape)


def _sum_and_count(values: torch.Tensor) -> Floats:
    """(C, 2) sum and number of the values (N, C) that are not NaN."""
    array = values.cpu().numpy()
    known = ~np.isnan(array)
    return np.stack([np.where(known, array, 0).sum(0), known.sum(0)], axis=-1)


def _ratio(table: Floats) -> Floats:
    with np.errstate(invalid="ignore"):
        return np.asarray(table[..., 0] / table[..., 1])


def _nanmean(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")


def _same_bands(mine: int, theirs: int) -> None:
    if mine != theirs:
        raise InputError(f"got {theirs} bands, expected {mine} as before")
