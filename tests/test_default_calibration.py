"""The calibration of the packaged weights: which fit is taken, and what the held-out places say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

NO_DATES = np.zeros((0, 13, 8, 8), np.float32)
LAND = np.full(13, 0.15)


def test_places_count_alike_however_many_images_they_have(recipe: dict[str, Any]) -> None:
    calibration = recipe["package_calibration"]
    ones = np.ones((13, 8, 8))

    def seen(error: float) -> Any:
        return calibration.Seen(ones * error, ones * 0, ones * 1.0, NO_DATES)

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
        return calibration.Seen(error, np.zeros_like(error), variance, NO_DATES)

    places = {place: [seen(), seen()] for place in "abc"}
    fitted, report = calibration.fit(places, LAND)
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
        str(size): [calibration.Seen(size * np.sqrt(variance), 0 * variance, variance, NO_DATES)]
        for size in (1.0, 2.0, 3.0)
    }
    fitted, report = calibration.fit(places, LAND)
    assert report["method"] == "one factor"
    wider = np.mean([1 / 6.5, 4 / 5.0, 9 / 2.5])
    assert report["wider"] == pytest.approx(wider, rel=1e-3)
    np.testing.assert_allclose(fitted.scale, 14 / 3 * wider, rtol=1e-3)
    # the intervals are those of the held-out places all the same: 3 σ over √2.5 σ reach all
    reach = dict(fitted.conformal)[0.95][0] * np.sqrt(wider)
    assert reach == pytest.approx(3 / np.sqrt(2.5), rel=5e-3)


def test_clear_dates_are_asked_where_places_held_out_say_so(
    recipe: dict[str, Any], rng: np.random.Generator
) -> None:
    """Places that vary by more or less than the network says, alike on the dates and the truth."""
    calibration = recipe["package_calibration"]
    mean, variance = np.full((13, 32, 32), 0.3), np.full((13, 32, 32), 4e-4)

    def seen(asked: bool) -> Any:
        size = rng.choice([0.003, 0.03], (1, 32, 32))
        dates = mean + size * rng.normal(0, 1, (4, 13, 32, 32))
        shown = dates[1:] if asked else mean + rng.normal(0, 0.02, (3, 13, 32, 32))
        return calibration.Seen(dates[0], mean, variance, shown)

    fitted, report = calibration.fit({place: [seen(True)] for place in "abc"}, LAND)
    assert fitted.prior_dates == report["prior_dates"]
    assert fitted.prior_dates is not None
    assert report["taken"].endswith(f", after clear dates (prior of {fitted.prior_dates:g})")
    nll = {name: row["NLL"] for name, row in report["held_out"].items()}
    assert nll[report["taken"]] == min(nll.values())
    assert min(nll.values()) < min(nll[name] for name in calibration.METHODS) - 0.1
    # dates that tell nothing of the errors are not asked
    fitted, report = calibration.fit({place: [seen(False)] for place in "abc"}, LAND)
    assert fitted.prior_dates is None


def test_land_counts_where_places_held_out_say_so(
    recipe: dict[str, Any], rng: np.random.Generator
) -> None:
    """Guesses under closed skies: too far from land as it is, or right."""
    calibration = recipe["package_calibration"]

    def seen(believed: float) -> Any:
        """Land that differs by a factor of e^±0.3, guessed with so much of an error besides."""
        truth = 0.15 * np.exp(rng.normal(0, 0.3, (13, 1, 1)) * np.ones((13, 32, 32)))
        guess = truth * np.exp(rng.normal(0, believed, truth.shape))
        return calibration.Seen(truth, guess, (0.6 * guess) ** 2, np.full((1, 13, 32, 32), 0.8))

    fitted, report = calibration.fit({p: [seen(0.6)] for p in "abcd"}, LAND)
    assert fitted.land is not None
    assert fitted.land.spread == report["land_spread"] <= 0.5
    np.testing.assert_allclose(fitted.land.spectrum, LAND)
    assert f", after land (spread of {fitted.land.spread:g})" in report["taken"]
    fitted, report = calibration.fit({p: [seen(0.01)] for p in "abcd"}, LAND)
    assert fitted.land is None
    assert report["land_spread"] is None
