"""Blending: no data, layers, streaming, and going on from a saved state."""

from __future__ import annotations

import numpy as np
import pytest

from undercast.blend import Blend, Part, blend_parts, tile_weights
from undercast.errors import InputError
from undercast.tiles import TilePlan
from undercast.types import Tile

PLAN = TilePlan(50, 41, size=16, overlap=5)


def random_parts(plan: TilePlan, rng: np.random.Generator) -> list[tuple[Tile, Part]]:
    shape = (3, *plan.tile_shape)
    return [
        (
            tile,
            Part(
                rng.normal(size=shape).astype(np.float32),
                rng.random(shape, np.float32),
                (rng.integers(0, 9, shape[1:])[None].astype(np.int16),),
            ),
        )
        for tile in plan
    ]


def test_weights_of_neighbours_add_up_to_one() -> None:
    weights = tile_weights(64, 64, 16)
    np.testing.assert_allclose(weights[-16:] + weights[:16], weights[32][None].repeat(16, 0), 1e-6)
    assert weights.min() > 0


def test_nodata_stays_nodata_and_does_not_bleed() -> None:
    plan = TilePlan(40, 40, size=16, overlap=8)
    image = np.full((2, 40, 40), 0.25, np.float32)
    image[:, 10:20, 5:30] = np.nan
    image[0, 0, 0] = np.nan  # one band only
    parts = [(t, Part(image[:, *t.slices], image[:, *t.slices])) for t in plan]
    strip = blend_parts(plan, parts)
    np.testing.assert_array_equal(strip.mean, image)
    np.testing.assert_allclose(strip.variance, image, rtol=1e-6)


@pytest.mark.parametrize("first", [0, 7])
def test_bands_without_data_at_different_pixels_are_blended_each_for_itself(
    rng: np.random.Generator, first: int
) -> None:
    """From the first tile on, or after tiles in which all bands were alike."""
    parts = random_parts(PLAN, rng)
    for number, (_, part) in enumerate(parts):
        if number >= first:
            part.mean[0, 3:9, 2:12] = np.nan
            part.variance[1, 5:6, :] = np.nan
    whole = blend_parts(PLAN, parts)
    for band in range(len(whole.mean)):
        one = slice(band, band + 1)
        alone = [(tile, Part(part.mean[one], part.variance[one])) for tile, part in parts]
        expected = blend_parts(PLAN, alone)
        np.testing.assert_array_equal(whole.mean[one], expected.mean)
        np.testing.assert_array_equal(whole.variance[one], expected.variance)
    assert np.isnan(whole.mean[0]).any()


def test_a_tile_of_nodata_leaves_the_others_alone() -> None:
    plan = TilePlan(16, 24, size=16, overlap=8)
    first, second = plan
    empty = Part(np.full((1, 16, 16), np.nan, np.float32))
    strip = blend_parts(plan, [(first, empty), (second, Part(np.ones((1, 16, 16), np.float32)))])
    assert np.isnan(strip.mean[0, :, :8]).all()
    assert (strip.mean[0, :, 8:] == 1).all()


def test_disagreement_of_two_tiles_is_their_weighted_variance() -> None:
    plan = TilePlan(4, 6, size=4, overlap=2)
    low, high = (np.full((1, 4, 4), v, np.float32) for v in (0.0, 1.0))
    zero = np.zeros((1, 4, 4), np.float32)
    strip = blend_parts(plan, list(zip(plan, (Part(low, zero), Part(high, zero)), strict=True)))
    share = strip.mean[0, 0, 2:4]  # the weight of the second tile, for values 0 and 1
    np.testing.assert_allclose(share, np.sin(np.pi / 4 * np.array([0.5, 1.5])) ** 2, rtol=1e-6)
    np.testing.assert_allclose(strip.variance[0, 0, 2:4], share * (1 - share), rtol=1e-5)


def test_layers_come_from_the_tile_whose_middle_is_nearest() -> None:
    plan = TilePlan(8, 12, size=8, overlap=4)
    parts = [
        (tile, Part(np.zeros((1, 8, 8), np.float32), None, (np.full((1, 8, 8), i, np.uint8),)))
        for i, tile in enumerate(plan)
    ]
    (layer,) = blend_parts(plan, parts).layers
    assert layer.dtype == np.uint8
    assert layer[0, 0].tolist() == [0] * 6 + [1] * 6


def test_rows_come_out_as_soon_as_they_are_final(rng: np.random.Generator) -> None:
    blend, rows = Blend(PLAN), []
    for i, (tile, part) in enumerate(random_parts(PLAN, rng), start=1):
        blend.feed(tile, part)
        rows += [strip.mean.shape[1] for strip in blend.rows()]
        assert len(rows) == i // len(PLAN.col_starts)
    assert rows == [11, 11, 11, 1, 16]


@pytest.mark.parametrize("stop", range(1, 5))
def test_a_restored_blend_gives_the_same_bits(rng: np.random.Generator, stop: int) -> None:
    parts = random_parts(PLAN, rng)
    whole = blend_parts(PLAN, parts)
    before, after = Blend(PLAN), Blend(PLAN)
    done = stop * len(PLAN.col_starts)
    strips = []
    for tile, part in parts[:done]:
        before.feed(tile, part)
        strips += list(before.rows())
    after.restore(before.state())
    for tile, part in parts[done:]:
        after.feed(tile, part)
    strips += list(after.rows())
    for i, name in ((1, "mean"), (2, "variance")):
        joined = np.concatenate([strip[i] for strip in strips], axis=1)
        assert joined.tobytes() == getattr(whole, name).tobytes(), name
    joined = np.concatenate([strip.layers[0] for strip in strips], axis=1)
    np.testing.assert_array_equal(joined, whole.layers[0])


def test_a_tile_fed_twice_or_of_another_plan_is_refused() -> None:
    blend = Blend(PLAN)
    part = Part(np.zeros((1, 16, 16), np.float32))
    blend.feed(Tile(0, 0, 16, 16), part)
    for tile in (Tile(0, 0, 16, 16), Tile(1, 0, 16, 16)):
        with pytest.raises(InputError, match="each tile of the plan once"):
            blend.feed(tile, part)
    with pytest.raises(InputError, match="shape"):
        blend.feed(Tile(0, 11, 16, 16), Part(np.zeros((1, 8, 8), np.float32)))
