"""The slopes of colours over echoes are those of the training images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from undercast.models.echo import SLOPES, USUAL_ECHO

GIVEN = np.random.default_rng(1).normal(0, 0.005, (2, 13))


def place(recipe: dict[str, Any], seed: int, noise: float = 0.0, level: float = 0.0) -> Any:
    """Land whose colours follow its smooth echoes, and noise."""
    rng = np.random.default_rng(seed)
    rows, cols = np.meshgrid(*[np.arange(64)] * 2, indexing="ij")
    waves = np.stack([np.sin(rows / 30 + seed), np.cos(cols / 40 - seed)])
    s1 = np.array([-10.0, -17.0])[:, None, None] + 3 * waves
    usual = np.full((13, 1, 1), 0.2) + level
    usual[11] = 0.3
    clear = (
        usual + np.einsum("pc,phw->chw", GIVEN, 3 * waves) + noise * rng.normal(size=(13, 64, 64))
    )
    background = recipe["backgrounds"].Background
    return background(f"place{seed}", clear[None].astype(np.float32), s1.astype(np.float32))


def test_slopes_of_images_of_any_level_come_back_without_a_ridge(recipe: dict[str, Any]) -> None:
    slopes = recipe["slopes"]
    known = slopes.images([place(recipe, 1), place(recipe, 2, level=0.05)])
    found = slopes.slopes(known, 0.0)
    np.testing.assert_allclose(found, GIVEN, rtol=0.03, atol=1e-5)  # cells are a little smoother
    assert all(slopes.explained(one, found) > 0.99 for one in known)
    assert slopes.slopes(known, 1e9).max() < 1e-6
    louder = [one._replace(echo=one.echo + np.array([2.0, 1.0])) for one in known]
    shift = slopes.usual_echo([*known, *louder]) - slopes.usual_echo(known)
    np.testing.assert_allclose(shift, [1.0, 0.5])


def test_the_ridge_is_large_where_images_do_not_agree(recipe: dict[str, Any]) -> None:
    slopes = recipe["slopes"]
    alike = slopes.images([place(recipe, seed, noise=0.01) for seed in range(4)])
    assert slopes.best_ridge(alike) == min(slopes.RIDGES)
    unlike = [one._replace(colour=-one.colour) if i % 2 else one for i, one in enumerate(alike)]
    assert slopes.best_ridge(unlike) == max(slopes.RIDGES)


def test_water_and_images_without_both_polarisations_do_not_count(recipe: dict[str, Any]) -> None:
    slopes, good = recipe["slopes"], place(recipe, 3)
    water = good.clear.copy()
    water[:, 11] = 0.01
    half = good.s1.copy()
    half[1] = np.nan
    kind = type(good)
    places = [kind("water", water, good.s1), kind("vv", good.clear, half), kind("no", good.clear)]
    assert slopes.images(places) == []
    partly = good.clear.copy()
    partly[:, 11, :, :32] = 0.01
    assert len(slopes.images([kind("shore", partly, good.s1)])[0].echo) == 64 * 32


def test_the_constants_of_the_package_are_those_of_the_training_images(
    recipe: dict[str, Any], realdata: Path
) -> None:
    slopes = recipe["slopes"]
    kinds = recipe["backgrounds"].training_backgrounds(realdata).values()
    known = slopes.images(place for places in kinds for place in places)
    ridge = slopes.best_ridge(known)
    np.testing.assert_allclose(SLOPES, slopes.slopes(known, ridge), atol=6e-6)
    np.testing.assert_allclose(USUAL_ECHO, slopes.usual_echo(known), atol=0.006)
    assert np.mean(slopes.left_out(known, ridge)) > 0.03


def test_the_slopes_of_the_package_explain_something_of_every_place_not_trained_on(
    recipe: dict[str, Any], realdata: Path
) -> None:
    slopes = recipe["slopes"]
    shares = [slopes.explained(one, np.array(SLOPES)) for one in slopes.elsewhere(realdata)]
    assert len(shares) == 7
    assert min(shares) > 0.01
    assert np.mean(shares) > 0.08
