"""Usual land: what hidden ground is taken for where nothing around it is seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from undercast.models.surroundings import HOW_MUCH, OTHER_SPREAD, USUAL, USUAL_SPREAD


def test_usual_land_is_that_of_the_many(recipe: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    many = 0.2 + 0.02 * rng.standard_normal((8000, 13))
    few = 0.8 + 0.02 * rng.standard_normal((2000, 13))
    mean, others = recipe["usual"].usual(np.concatenate((many, few)))
    np.testing.assert_allclose(mean, 0.2, atol=0.002)
    # of the rest two thirds are the few, and one third the eighth of the many that is farthest
    squares = np.sort(rng.chisquare(13, 400_000))
    tail = squares[int(0.875 * len(squares)) :].mean() / 13
    expected = (2 / 3 * (0.6**2 + 0.02**2) + 1 / 3 * 0.02**2 * tail) ** 0.5
    np.testing.assert_allclose(others, expected, rtol=0.02)


def test_the_spread_of_usual_land_is_of_land_and_of_places_that_are_most_alike(
    recipe: dict[str, Any],
) -> None:
    usual, rng = recipe["usual"], np.random.default_rng(1)
    land = np.full(13, 0.2)
    land[11] = 0.3

    def place(level: float, blocks: int = 400) -> np.ndarray:
        return land + level + 0.02 * rng.standard_normal((blocks, 13))

    usuals = [place(0.002 * rng.normal()) for _ in range(70)]
    bright = [place(0.4 + 0.1 * rng.random()) for _ in range(30)]
    water = np.full((100, 13), 0.05)
    water[:, 11] = 0.0
    shore = np.concatenate((place(0.0, 300), water))  # its water does not count
    sea = np.concatenate((place(0.0, 50), water))  # not a place of land
    found = usual.usual_spread([*usuals, shore, sea, *bright], land)
    np.testing.assert_allclose(found, (0.02**2 + 0.002**2) ** 0.5, rtol=0.03)
    off = usual.usual_spread([*usuals, *bright], land - 0.05)
    np.testing.assert_allclose(off, (0.02**2 + 0.002**2 + 0.05**2) ** 0.5, rtol=0.03)
    assert (usual.deviation(np.full((50, 13), 0.2), np.full(13, 0.2)) == usual.LEAST).all()


def test_blocks_are_means_of_eight_pixels_and_large_images_count_no_more(
    recipe: dict[str, Any],
) -> None:
    background, usual = recipe["backgrounds"].Background, recipe["usual"]
    image = np.arange(13 * 20 * 17, dtype=np.float64).reshape(1, 13, 20, 17)
    found = usual.blocks(background("small", image))
    assert found.shape == (4, 13)
    np.testing.assert_allclose(found[1], image[0, :, :8, 8:16].mean(axis=(1, 2)))
    large = background("large", np.zeros((2, 13, 256, 256), np.float32))
    assert usual.blocks(large).shape == (usual.EACH, 13)


def test_the_constants_of_the_package_are_those_of_the_training_images(
    recipe: dict[str, Any], realdata: Path
) -> None:
    usual = recipe["usual"]
    kinds = recipe["backgrounds"].training_backgrounds(realdata).values()
    places = [usual.blocks(place) for kind in kinds for place in kind]
    mean, others = usual.usual(np.concatenate(places))
    np.testing.assert_allclose(USUAL, mean, atol=0.0006)
    np.testing.assert_allclose(OTHER_SPREAD, others, atol=0.0006)
    np.testing.assert_allclose(USUAL_SPREAD, usual.usual_spread(places, mean), atol=0.0006)
    assert usual.ALIKE == HOW_MUCH
