"""Real clouds over other ground: clear air shows it, opaque clouds hide it, shadows darken it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest


def even(*values: float) -> tuple[np.ndarray, ...]:
    """Images (13, 32, 32) of one reflectance each."""
    return tuple(np.full((13, 32, 32), value, np.float32) for value in values)


def textured(seed: int, mean: float) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(0, 0.02, (13, 32, 32))
    return (mean + noise).astype(np.float32)


def test_a_view_without_clouds_shows_the_other_ground_as_it_is(recipe: dict[str, Any]) -> None:
    here, there = textured(0, 0.2), textured(1, 0.3)
    view = recipe["views"].view_of(here, here)
    np.testing.assert_allclose(view.over(there), there, atol=2e-3)
    assert view.cover == 0


def test_an_opaque_cloud_hides_the_other_ground(recipe: dict[str, Any]) -> None:
    here, there, cloud = textured(0, 0.1), textured(1, 0.3), textured(2, 0.93)
    view = recipe["views"].view_of(here, cloud)
    assert view.cover == 1
    np.testing.assert_allclose(view.over(there), cloud, atol=0.015)


def test_thick_cloud_shows_the_surroundings_and_gaps_show_the_ground(
    recipe: dict[str, Any],
) -> None:
    here, cloud, below, around = even(0.1, 0.8, 0.2, 0.5)
    half = np.where(np.arange(32) < 16, cloud, here)
    view = recipe["views"].view_of(here, half)
    seen = view.over(below, 0.5 / 0.2)
    hidden, open_ = np.s_[:, :, :14], np.s_[:, :, 18:]
    np.testing.assert_allclose(seen[hidden], view.over(around)[hidden], atol=0.005)
    assert (seen[hidden] > view.over(below)[hidden] + 0.005).all()
    np.testing.assert_allclose(seen[open_], below[open_], atol=1e-5)


@pytest.mark.parametrize("reflected", [0.1, 0.3, 0.6])
def test_a_cloud_that_absorbs_nothing_is_as_bright_over_other_ground_as_it_should_be(
    recipe: dict[str, Any], reflected: float
) -> None:
    """r + (1 − r)² g / (1 − r g), the light between cloud and ground summed up."""

    def seen(ground: float) -> float:
        return reflected + (1 - reflected) ** 2 * ground / (1 - reflected * ground)

    here, there, view = even(0.08, 0.3, seen(0.08))
    found = recipe["views"].view_of(here, view).over(there)
    np.testing.assert_allclose(found, seen(0.3), atol=0.025)
    assert abs(found.mean() - view.mean()) > 0.02  # the ground does show


def test_a_shadow_is_a_share_of_the_light(recipe: dict[str, Any]) -> None:
    here, there = textured(0, 0.2), textured(1, 0.3)
    found = recipe["views"].view_of(here, 0.4 * here).over(there)
    np.testing.assert_allclose(found, 0.4 * there, atol=0.005)


def test_new_snow_and_clear_views_are_no_clouds(recipe: dict[str, Any]) -> None:
    views, (ground, cloud) = recipe["views"], even(0.15, 0.5)
    snow = cloud.copy()
    snow[10:] = 0.1
    place = recipe["backgrounds"].Background
    kept = [place(str(i), ground[None], None, x) for i, x in enumerate((cloud, snow, ground, None))]
    assert len(views.views_of(kept)) == 1


def test_the_clouds_of_the_training_images_come_back_over_their_own_ground(
    recipe: dict[str, Any], realdata: Path
) -> None:
    """But for what is smoothed: haze, and ground that has changed since."""
    places = recipe["backgrounds"].training_backgrounds(realdata)
    pairs = [b for b in places["pairs"] + places["triplets"] if b.cloudy is not None]
    found = [b for b in pairs if recipe["views"]._clouds(b.clear[0], b.cloudy)]
    assert len(found) == 8
    for place in found:
        view = recipe["views"].view_of(place.clear[0], place.cloudy)
        error = np.abs(view.over(place.clear[0]) - place.cloudy)
        assert error.mean() < 0.04
        thick = view.reflected > 0.3
        assert not thick.any() or error[:, thick].mean() < 0.02


def test_a_closed_part_of_a_real_sky_is_drawn_where_one_is_asked_for(
    recipe: dict[str, Any],
) -> None:
    ground, cloud = even(0.1, 0.9)
    place = recipe["backgrounds"].Background
    places = {
        "pairs": [place("closed", ground[None], None, cloud)],
        "open": [place("half", ground[None], None, np.where(np.arange(32) < 16, cloud, ground))],
    }
    mix, rng = recipe["mix"], np.random.default_rng(0)
    drawn = mix.Mix(Path("no pool"), places, 32, 1, 1, 0)
    for _ in range(20):
        closed, half = (
            drawn._under_a_view(rng, 2 * ground, kind, np.ones((13, 1, 1)))
            for kind in (mix.CLOSED, mix.OPEN)
        )
        assert closed[1].min() > 0.5
        assert 0.1 < (half[1] > 0.5).mean() < 0.9
        assert half[1].min() == pytest.approx(0.2, abs=0.03)
    only = mix.Mix(Path("no pool"), {"pairs": places["pairs"]}, 32, 1, 1, 0)
    assert only._under_a_view(rng, ground, mix.OPEN, np.ones((13, 1, 1))) is None
