"""`predict` on arrays: gaps, radar, pickling."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
import torch

from undercast import Stack, predict
from undercast.errors import InputError, UndercastWarning
from undercast.models import create
from undercast.models.system import Model, batch_of

DATES = ["2018-06-01", "2018-06-11", "2018-06-21"]


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    return create("uncrtaints", d_m=16, heads=4, n_d=1).eval()


@pytest.fixture
def stack() -> Stack:
    rng = np.random.default_rng(0)
    return Stack(rng.random((3, 13, 40, 48)), DATES, s1=-25 * rng.random((3, 2, 40, 48)))


def same(a, b) -> None:
    np.testing.assert_allclose(a.mean, b.mean, atol=1e-6)
    np.testing.assert_allclose(a.variance, b.variance, rtol=1e-4)


def test_an_estimate_is_one_forward_at_native_size(model, stack) -> None:
    estimate = predict(model, stack)
    with torch.no_grad():
        output = model(batch_of([stack]))
    np.testing.assert_array_equal(estimate.mean, output.mean[0].numpy())
    np.testing.assert_array_equal(estimate.variance, output.variance[0].numpy())
    assert estimate.mean.dtype == np.float32


def test_a_date_without_data_is_left_out(model, stack) -> None:
    s2 = stack.s2.copy()
    s2[1] = np.nan
    gap = Stack(s2, DATES, s1=stack.s1)
    same(predict(model, gap), predict(model, stack.select([0, 2])))


def test_no_data_on_every_date_is_an_error(model) -> None:
    with pytest.raises(InputError, match="every date"):
        predict(model, Stack(np.full((2, 13, 40, 40), np.nan), DATES[:2]))


def test_a_pixel_without_data_stays_without_and_a_gap_becomes_zero(model, stack) -> None:
    s2 = stack.s2.copy()
    s2[:, :, 5, 7] = np.nan
    s2[0, :, 9, 9] = np.nan
    zero = np.nan_to_num(s2, nan=0.0)
    a = predict(model, Stack(s2, DATES, s1=stack.s1))
    b = predict(model, Stack(zero, DATES, s1=stack.s1))
    assert np.isnan(a.mean[:, 5, 7]).all()
    assert np.isnan(a.variance[:, 5, 7]).all()
    assert np.isnan(a.mean).sum() == 13
    keep = np.isfinite(a.mean)
    np.testing.assert_allclose(a.mean[keep], b.mean[keep], atol=1e-6)


@pytest.mark.filterwarnings("ignore::undercast.errors.UndercastWarning")
def test_missing_radar_is_zero_after_scaling(model, stack) -> None:
    absent = predict(model, Stack(stack.s2, DATES))
    s1 = np.full_like(stack.s1, np.nan)
    same(absent, predict(model, Stack(stack.s2, DATES, s1=s1)))
    same(absent, predict(model, Stack(stack.s2, DATES, s1=np.full_like(s1, -25.0))))
    partly = stack.s1.copy()
    partly[1] = np.nan
    zero = np.nan_to_num(partly, nan=-25.0)
    same(
        predict(model, Stack(stack.s2, DATES, s1=partly)),
        predict(model, Stack(stack.s2, DATES, s1=zero)),
    )


def test_weights_trained_with_radar_only_warn_once(model, stack) -> None:
    bare = Stack(stack.s2, DATES)
    with pytest.warns(UndercastWarning, match="Sentinel-1"):
        predict(model, bare)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predict(model, bare)
        predict(create("uncrtaints", d_m=16, heads=4, sar=False), bare)
        with_dropout = create("uncrtaints", d_m=16, heads=4)
        with_dropout.provenance["sar_dropout"] = True
        predict(with_dropout, bare)


def test_the_order_of_dates_and_a_repeated_date_are_fine(model, stack) -> None:
    same(predict(model, stack), predict(model, stack.select([2, 0, 1])))
    twice = Stack(stack.s2, [DATES[0], DATES[0], DATES[2]], s1=stack.s1)
    assert np.isfinite(predict(model, twice).mean).all()


def test_one_date_is_enough(model, stack) -> None:
    assert np.isfinite(predict(model, stack.select([0])).mean).all()


def test_a_model_pickles(model, stack) -> None:
    back = pickle.loads(pickle.dumps(model))
    same(predict(model, stack), predict(back, stack))


def test_prediction_leaves_the_model_in_evaluation_and_the_stack_alone(model, stack) -> None:
    before = stack.s2.copy()
    model.train()
    a = predict(model, stack)
    assert not model.training
    same(a, predict(model, stack))
    np.testing.assert_array_equal(stack.s2, before)


@pytest.mark.slow
@pytest.mark.parametrize("size", [(64, 96), (97, 130), (256, 256)])
def test_the_papers_network_at_several_sizes(size) -> None:
    rng = np.random.default_rng(0)
    h, w = size
    stack = Stack(rng.random((3, 13, h, w)), DATES, s1=-25 * rng.random((3, 2, h, w)))
    estimate = predict(create("uncrtaints"), stack)
    assert estimate.mean.shape == (13, h, w)
    assert np.isfinite(estimate.mean).all()
    assert (estimate.variance > 0).all()
