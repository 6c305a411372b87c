"""The calibration of the packaged weights: which fit is taken, and what the held-out places say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


def test_places_count_alike_however_many_images_they_have(recipe: dict[str, Any]) -> None:
    calibration = recipe["package_calibration"]
    ones = np.ones((13, 8, 8))

    def seen(error: float) -> Any:
        return calibration.Seen(ones * error, ones * 0, ones * 1.0)

    # e²/σ² is 1 at one place and 9 at the other: the factor is their mean, not that of six images
    fitted = calibration._fitted({"a": [seen(1.0)] * 4, "b": [seen(3.0)] * 2}).scale()
    np.testing.assert_allclose(fitted.scale, 5.0, rtol=1e-6)


def test_a_variance_that_is_four_times_too_small_is_multiplied_by_four(
    recipe: dict[str, Any], rng: np.random.Generator
) -> None:
    calibration = recipe["package_calibration"]

    def seen() -> Any:
        variance = np.exp(rng.normal(-6, 0.5, (13, 64, 64)))
        error = rng.normal(0, 2, variance.shape) * np.sqrt(variance)
        return calibration.Seen(error, np.zeros_like(error), variance)

    places = {place: [seen(), seen()] for place in "abc"}
    fitted, report = calibration.fit(places)
    variance = places["a"][0].variance
    np.testing.assert_allclose(np.mean(fitted.apply(variance) / variance), 4.0, rtol=0.05)
    assert report["held_out"]["raw"]["coverage_90"] < 0.65
    assert report["held_out"][report["method"]]["coverage_90"] == pytest.approx(0.9, abs=0.01)
    level, factors = fitted.conformal[2]
    assert level == 0.9
    np.testing.assert_allclose(factors, 1.645, rtol=0.05)


def test_a_fit_is_widened_by_what_the_places_held_out_of_it_show(
    recipe: dict[str, Any], rng: np.random.Generator
) -> None:
    """Three places with errors of 1, 2 and 3 σ: each is judged by the other two's mean square."""
    calibration = recipe["package_calibration"]
    variance = np.exp(rng.normal(-6, 0.5, (13, 64, 64)))
    places = {
        str(size): [calibration.Seen(size * np.sqrt(variance), 0 * variance, variance)]
        for size in (1.0, 2.0, 3.0)
    }
    fitted, report = calibration.fit(places)
    assert report["method"] == "one factor"
    wider = np.mean([1 / 6.5, 4 / 5.0, 9 / 2.5])
    assert report["wider"] == pytest.approx(wider, rel=1e-3)
    np.testing.assert_allclose(fitted.scale, 14 / 3 * wider, rtol=1e-3)
    # the intervals are those of the held-out places all the same: 3 σ over √2.5 σ reach all
    reach = dict(fitted.conformal)[0.95][0] * np.sqrt(wider)
    assert reach == pytest.approx(3 / np.sqrt(2.5), rel=5e-3)
