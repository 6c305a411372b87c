"""Tiles and blending hold for any scene, tile size, overlap and shift."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from undercast.blend import Blend, Part, blend_parts
from undercast.gaussian import mixture_moments
from undercast.tiles import TilePlan


@st.composite
def plans(draw: st.DrawFn, largest: int = 60) -> TilePlan:
    size = draw(st.integers(1, 24))
    overlap = draw(st.integers(0, size // 2))
    height, width = draw(st.integers(1, largest)), draw(st.integers(1, largest))
    return TilePlan(height, width, size, overlap, draw(st.integers(0, size - overlap)))


def weighted(plan: TilePlan, blend_weights: np.ndarray) -> list[np.ndarray]:
    """Each tile's weights on the whole scene, zero outside."""
    out = []
    for tile in plan:
        layer = np.zeros((plan.height, plan.width))
        layer[tile.slices] = blend_weights
        out.append(layer)
    return out


@given(plans())
def test_every_pixel_is_in_a_tile_and_every_tile_in_the_scene(plan: TilePlan) -> None:
    seen = np.zeros((plan.height, plan.width), int)
    for tile in plan:
        assert seen[tile.slices].shape == (tile.height, tile.width) == plan.tile_shape
        seen[tile.slices] += 1
    assert seen.min() >= 1


@given(plans())
def test_tiles_come_row_by_row_without_repetition(plan: TilePlan) -> None:
    tiles = list(plan)
    assert tiles == sorted(set(tiles))
    assert len(tiles) == len(plan)


@given(plans())
def test_neighbours_share_at_least_the_overlap(plan: TilePlan) -> None:
    for starts, length in ((plan.row_starts, plan.height), (plan.col_starts, plan.width)):
        for left, right in pairwise(starts):
            assert left + min(plan.size, length) - right >= plan.overlap


@given(plans())
def test_final_rows_are_the_scene_in_order_and_untouched_by_later_tiles(plan: TilePlan) -> None:
    next_row = 0
    for number in range(len(plan.row_starts)):
        first, end = plan.final_rows(number)
        assert first == next_row
        assert all(start >= end for start in plan.row_starts[number + 1 :])
        next_row = end
    assert next_row == plan.height


@given(plans(40), st.floats(-1, 2, width=32), st.floats(2**-20, 1, width=32))
def test_blend_of_constant_is_constant(plan: TilePlan, mean: float, variance: float) -> None:
    shape = (2, *plan.tile_shape)
    part = Part(np.full(shape, mean, np.float32), np.full(shape, variance, np.float32))
    strip = blend_parts(plan, [(tile, part) for tile in plan])
    assert (strip.mean == np.float32(mean)).all()
    np.testing.assert_allclose(strip.variance, variance, rtol=1e-6)


@given(plans(40), st.integers(0, 99))
def test_blend_is_the_mixture_of_the_tiles_over_each_pixel(plan: TilePlan, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = (1, *plan.tile_shape)
    parts = [
        Part(rng.normal(size=shape).astype(np.float32), rng.random(shape).astype(np.float32))
        for _ in plan
    ]
    strip = blend_parts(plan, list(zip(plan, parts, strict=True)))
    weights = np.array(weighted(plan, Blend(plan)._weights))
    means, variances = np.zeros_like(weights), np.zeros_like(weights)
    for i, (tile, part) in enumerate(zip(plan, parts, strict=True)):
        means[i][tile.slices], variances[i][tile.slices] = part.mean[0], part.variance[0]
    expected = mixture_moments(means, variances, weights)
    np.testing.assert_allclose(strip.mean[0], expected.mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(strip.variance[0], expected.variance, rtol=1e-4, atol=1e-5)


@given(plans(40), st.integers(0, 99))
def test_variance_never_falls_below_the_smallest_tile_and_order_changes_no_bit(
    plan: TilePlan, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    shape = (1, *plan.tile_shape)
    pairs = [
        (tile, Part(rng.normal(size=shape).astype(np.float32), rng.random(shape, np.float32)))
        for tile in plan
    ]
    strip = blend_parts(plan, pairs)
    smallest = np.full((plan.height, plan.width), np.inf)
    for tile, part in pairs:
        np.minimum(smallest[tile.slices], part.variance[0], out=smallest[tile.slices])
    assert (strip.variance[0] >= smallest * (1 - 1e-6) - 1e-9).all()
    shuffled = blend_parts(plan, [pairs[i] for i in rng.permutation(len(pairs))])
    assert strip.mean.tobytes() == shuffled.mean.tobytes()
    assert strip.variance.tobytes() == shuffled.variance.tobytes()
