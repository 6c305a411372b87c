"""Usual land: what hidden ground is taken for where nothing around it is seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from undercast.models.surroundings import HOW_MUCH, OTHER, USUAL, USUAL_SPREAD


def test_usual_land_is_that_of_the_many(recipe: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    many = 0.2 + 0.02 * rng.standard_normal((8000, 13))
    few = 0.8 + 0.02 * rng.standard_normal((2000, 13))
    usual = recipe["usual"]
    mean, spread, others = usual.most_alike(np.concatenate((many, few)))
    np.testing.assert_allclose(mean, 0.2, atol=0.002)
    # of the many, the seven eighths that are nearest to their mean in 13 dimensions
    squares = np.sort(rng.chisquare(13, 400_000))
    cut = squares[: int(0.875 * len(squares))].mean() / 13
    np.testing.assert_allclose(spread, 0.02 * cut**0.5, rtol=0.03)
    # of the rest two thirds are the few, and one third the many that are farthest
    tail = squares[int(0.875 * len(squares)) :].mean() / 13
    expected = (2 / 3 * (0.6**2 + 0.02**2) + 1 / 3 * 0.02**2 * tail) ** 0.5 / (0.02 * cut**0.5)
    assert others == pytest.approx(expected, rel=0.03)
    assert (usual.most_alike(np.full((50, 13), 0.2))[1] == usual.LEAST).all()


def test_blocks_are_means_of_eight_pixels_and_large_images_count_no_more(
    recipe: dict[str, Any],
) -> None:
    background, usual = recipe["backgrounds"].Background, recipe["usual"]
    image = np.arange(13 * 20 * 17, dtype=np.float64).reshape(1, 13, 20, 17)
    found = usual.blocks([background("small", image)])
    assert found.shape == (4, 13)
    np.testing.assert_allclose(found[1], image[0, :, :8, 8:16].mean(axis=(1, 2)))
    large = background("large", np.zeros((2, 13, 256, 256), np.float32))
    assert usual.blocks([large, large]).shape == (2 * usual.EACH, 13)


def test_the_constants_of_the_package_are_those_of_the_training_images(
    recipe: dict[str, Any], realdata: Path
) -> None:
    kinds = recipe["backgrounds"].training_backgrounds(realdata).values()
    spectra = recipe["usual"].blocks(place for places in kinds for place in places)
    mean, spread, others = recipe["usual"].most_alike(spectra)
    np.testing.assert_allclose(USUAL, mean, atol=0.0006)
    np.testing.assert_allclose(USUAL_SPREAD, spread, atol=0.0006)
    assert recipe["usual"].ALIKE == HOW_MUCH
    assert pytest.approx(others, abs=0.06) == OTHER
