"""`predict` on arrays: one forward up to a tile, tiles and blend above."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from undercast import Stack, predict
from undercast.errors import InputError
from undercast.inference import infer
from undercast.models import create
from undercast.models.ensemble import ensemble_of
from undercast.models.system import Batch, Model, Output, System
from undercast.tiles import TilePlan

DATES = ["2018-06-01", "2018-06-11", "2018-06-21"]


@pytest.fixture(scope="module")
def tiny() -> Model:
    torch.manual_seed(0)
    model = create("uncrtaints", d_m=16, heads=4, n_d=2, sar=False)
    return model.eval()


def smooth_stack(height: int, width: int, dates: int = 3, seed: int = 0) -> Stack:
    """A smooth random landscape with bright blobs that differ between the dates."""
    rng = np.random.default_rng(seed)
    coarse = rng.uniform(0.02, 0.4, (dates, 13, height // 16 + 2, width // 16 + 2))
    coarse[1:] = 0.8 * coarse[:1] + 0.2 * coarse[1:]
    fine = torch.nn.functional.interpolate(
        torch.from_numpy(coarse), (height, width), mode="bicubic"
    )
    return Stack(fine.clamp(0, 1).numpy(), DATES[:dates])


def sizes_seen(model: Model, stack: Stack, plan: TilePlan | None = None) -> list[tuple[int, ...]]:
    seen: list[tuple[int, ...]] = []
    hook = model.network.register_forward_pre_hook(
        lambda _, inputs: seen.append(tuple(inputs[0].s2.shape))
    )
    predict(model, stack, plan=plan)
    hook.remove()
    return seen


@pytest.mark.parametrize(("height", "width"), [(256, 256), (40, 256), (33, 57)])
def test_up_to_256_pixels_is_one_forward_at_the_native_size(
    tiny: Model, height: int, width: int
) -> None:
    assert sizes_seen(tiny, smooth_stack(height, width)) == [(1, 3, 13, height, width)]


def test_a_larger_image_is_full_tiles_and_equals_the_forward_where_one_tile_counts(
    tiny: Model,
) -> None:
    stack = smooth_stack(64, 400)
    assert sizes_seen(tiny, stack) == [(1, 3, 13, 64, 256)] * 2
    whole = predict(tiny, stack)
    first = infer(tiny, [Stack(stack.s2[..., :256], stack.dates)])[0]
    for name in ("mean", "variance"):  # up to rounding: two tiles share the threads
        found, expected = (getattr(e, name)[..., :144] for e in (whole, first))
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert (whole.variance > 0).all()


def test_nodata_stays_nodata_even_for_whole_tiles(tiny: Model) -> None:
    stack = smooth_stack(64, 128)
    s2 = stack.s2.copy()
    s2[..., :80] = np.nan
    estimate = predict(tiny, Stack(s2, stack.dates), plan=TilePlan(64, 128, 64, 16))
    assert np.isnan(estimate.mean[..., :80]).all()
    assert np.isfinite(estimate.mean[..., 80:]).all()
    assert np.isfinite(estimate.variance[..., 80:]).all()


def test_a_stack_without_any_observation_is_an_error(tiny: Model) -> None:
    with pytest.raises(InputError, match="NaN on every date"):
        predict(tiny, Stack(np.full((2, 13, 300, 8), np.nan), DATES[:2]))


@dataclass(frozen=True)
class _PixelConfig:
    pass


class _PixelNet(System):
    """The mean over dates and a variance that grows with it: no pixel sees its neighbours."""

    gives_variance, uses_s1, needs_mask = True, False, False

    def forward(self, batch: Batch) -> Output:
        mean: Tensor = batch.s2.nanmean(dim=1)
        return Output(mean, 1e-4 + 0.01 * mean**2)


def test_a_system_without_context_gives_the_same_image_with_any_tiles() -> None:
    model = Model("pixel", _PixelNet(_PixelConfig()))
    stack = smooth_stack(100, 90)
    whole = predict(model, stack)
    for plan in (TilePlan(100, 90, 32, 8), TilePlan(100, 90, 32, 16, 11), TilePlan(100, 90, 64, 0)):
        tiled = predict(model, stack, plan=plan)
        np.testing.assert_allclose(tiled.mean, whole.mean, atol=1e-7)
        np.testing.assert_allclose(tiled.variance, whole.variance, rtol=1e-5)


def test_an_ensemble_keeps_its_parts_through_the_blend() -> None:
    torch.manual_seed(1)
    members = [create("uncrtaints", d_m=16, heads=4, n_d=1, sar=False).eval() for _ in range(2)]
    estimate = predict(ensemble_of(members), smooth_stack(48, 80), plan=TilePlan(48, 80, 48, 16))
    assert (estimate.epistemic >= 0).all()
    np.testing.assert_allclose(
        estimate.aleatoric + estimate.epistemic, estimate.variance, rtol=1e-5
    )


def test_no_seams_when_the_grid_of_tiles_is_shifted_by_half_a_tile(tiny: Model) -> None:
    """At the edges of tiles the two predictions differ at most 1.2 times as much as elsewhere."""
    stack = smooth_stack(448, 448)
    here, there = TilePlan(448, 448, 128, 48), TilePlan(448, 448, 128, 48, shift=64)
    difference = np.abs(
        predict(tiny, stack, plan=here).mean - predict(tiny, stack, plan=there).mean
    ).mean(axis=0)
    edge = np.zeros((448, 448), bool)
    for plan in (here, there):
        for starts, by_row in ((plan.row_starts, True), (plan.col_starts, False)):
            for line in {s for s in starts if s} | {s + 127 for s in starts if s + 128 < 448}:
                edge[(line, slice(None)) if by_row else (slice(None), line)] = True
    assert difference[~edge].mean() > 0
    assert difference[edge].mean() <= 1.2 * difference[~edge].mean()
