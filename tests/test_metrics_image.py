"""Image metrics: golden values, other libraries, and what counts."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import pearsonr
from skimage.metrics import structural_similarity
from torchmetrics.functional.image import peak_signal_noise_ratio, spectral_angle_mapper

from undercast.errors import InputError
from undercast.metrics import ImageAccumulator, image_metrics, within_image_correlation
from undercast.metrics.image import error_maps

Images = tuple[np.ndarray, np.ndarray]


@pytest.fixture
def images(rng: np.random.Generator) -> Images:
    target = rng.uniform(0.05, 0.5, (5, 13, 24, 30))
    return target, np.clip(target + rng.normal(0, 0.05, target.shape), 0, 1)


@pytest.mark.parametrize("case", ["a", "b", "c"])
def test_metrics_equal_the_released_implementation(golden: Path, case: str) -> None:
    with np.load(golden / "image_metrics.npz") as stored:
        found = image_metrics(stored[f"{case}/target"], stored[f"{case}/pred"])
        expected = json.loads(str(stored[f"{case}/metrics"]))
    assert found == pytest.approx(expected, abs=1e-4)
    assert set(found) == {"RMSE", "MAE", "PSNR", "SSIM", "SAM"}


def test_psnr_and_sam_equal_torchmetrics(images: Images) -> None:
    target, mean = (torch.from_numpy(x[:1]) for x in images)
    found = image_metrics(target, mean)
    assert found["PSNR"] == pytest.approx(
        float(peak_signal_noise_ratio(mean, target, data_range=1.0)), abs=1e-5
    )
    assert found["SAM"] == pytest.approx(
        math.degrees(float(spectral_angle_mapper(mean, target))), abs=1e-6
    )


def test_ssim_equals_scikit_image_away_from_the_border(images: Images) -> None:
    target, mean = (x[0] for x in images)
    ours = error_maps(target, mean).ssim[0].numpy()
    for band in range(13):
        _, theirs = structural_similarity(
            target[band], mean[band], data_range=1.0, gaussian_weights=True, sigma=1.5,
            use_sample_covariance=False, full=True,
        )  # fmt: skip
        np.testing.assert_allclose(ours[band][5:-5, 5:-5], theirs[5:-5, 5:-5], atol=1e-9)


def test_batch_is_the_mean_of_its_images_for_numpy_and_torch(images: Images) -> None:
    alone = [image_metrics(t, m) for t, m in zip(*images, strict=True)]
    expected = {name: np.mean([one[name] for one in alone]) for name in alone[0]}
    assert image_metrics(*images) == pytest.approx(expected, rel=1e-12)
    assert image_metrics(*map(torch.from_numpy, images)) == pytest.approx(expected, rel=1e-12)


def test_missing_pixels_do_not_change_the_other_metrics_than_ssim(images: Images) -> None:
    target, mean = (x[:1].copy() for x in images)
    kept = image_metrics(target[..., :20], mean[..., :20])
    target[..., 20:25] = np.nan
    mean[..., 25:] = np.nan
    found = image_metrics(target, mean)
    for name in ("RMSE", "MAE", "PSNR", "SAM"):
        assert found[name] == pytest.approx(kept[name], rel=1e-12)
    assert found["SSIM"] == pytest.approx(kept["SSIM"], abs=1e-12)  # 0 outside, as at the border


def test_where_restricts_every_metric_to_its_pixels(images: Images) -> None:
    target, mean = (x[:2].copy() for x in images)
    where = np.zeros((24, 30), bool)
    where[:, :10] = True
    spoiled = mean.copy()
    spoiled[..., 16:] = 0.9  # beyond the reach of the SSIM window
    found = image_metrics(target, spoiled, where=where)
    assert found == pytest.approx(image_metrics(target, mean, where=where), rel=1e-12)
    cut = image_metrics(target[..., :10], mean[..., :10])
    for name in ("RMSE", "MAE", "PSNR", "SAM"):
        assert found[name] == pytest.approx(cut[name], rel=1e-12)


def test_all_zero_pixel_is_left_out_of_sam(images: Images) -> None:
    target, mean = (x[0].copy() for x in images)
    expected = image_metrics(target[:, 1:], mean[:, 1:])["SAM"]
    mean[:, 0] = 0
    assert image_metrics(target, mean)["SAM"] == pytest.approx(expected, rel=1e-9)


def test_image_without_a_pixel_to_count_is_left_out(images: Images) -> None:
    target, mean = images
    where = np.zeros((5, 24, 30), bool)
    where[1:] = True
    assert image_metrics(target, mean, where) == pytest.approx(image_metrics(target[1:], mean[1:]))
    assert all(math.isnan(v) for v in image_metrics(target, mean, where & False).values())


def test_correlation_equals_scipy_and_ignores_gain_and_offset(images: Images) -> None:
    target, mean = images
    found = within_image_correlation(target, mean)
    for band in (0, 12):
        each = [pearsonr(t[band].ravel(), m[band].ravel())[0] for t, m in zip(*images, strict=True)]
        assert found[band] == pytest.approx(np.mean(each), rel=1e-9)
    assert within_image_correlation(target, 0.5 * target + 0.1) == pytest.approx([1.0] * 13)


def test_flat_image_has_correlation_zero_and_flat_target_is_left_out(images: Images) -> None:
    target, _ = images
    flat = np.broadcast_to(np.float32(0.237), target.shape)
    assert within_image_correlation(target, flat) == [0.0] * 13
    some = target.copy()
    some[0, 3] = 0.1
    assert within_image_correlation(some, target)[3] == pytest.approx(1.0)
    assert math.isnan(within_image_correlation(flat, target)[0])


@pytest.mark.parametrize("sizes", [(5,), (1, 4), (2, 2, 1)])
def test_streaming_equals_batch_for_any_batch_size_and_order(
    images: Images, sizes: tuple[int, ...]
) -> None:
    target, mean = images
    order, start = [3, 0, 4, 1, 2], 0
    stream = ImageAccumulator(13)
    for size in sizes:
        pick = order[start : start + size]
        stream.feed(target[pick], mean[pick])
        start += size
    result = stream.result()
    correlation = within_image_correlation(target, mean)
    assert result.pop("correlation") == pytest.approx(np.mean(correlation), rel=1e-12)
    assert result == pytest.approx(image_metrics(target, mean), rel=1e-12)
    per_band = stream.per_band()
    assert per_band["B8A"]["correlation"] == pytest.approx(correlation[8], rel=1e-12)
    alone = image_metrics(target[:, 8:9], mean[:, 8:9])
    for name in ("RMSE", "MAE", "PSNR", "SSIM"):
        assert per_band["B8A"][name] == pytest.approx(alone[name], rel=1e-12)


def test_merged_accumulators_equal_one(images: Images) -> None:
    target, mean = images
    one, first, second = ImageAccumulator(13), ImageAccumulator(13), ImageAccumulator(13)
    one.feed(target, mean)
    first.feed(target[:2], mean[:2])
    second.feed(target[2:], mean[2:])
    assert first.merge(second).result() == pytest.approx(one.result(), rel=1e-12)
    assert first.images == one.images == 5


def test_wrong_shapes_are_one_clear_error(images: Images) -> None:
    target, mean = images
    with pytest.raises(InputError, match="expected equal shapes"):
        image_metrics(target, mean[:2])
    with pytest.raises(InputError, match=r"expected \(C, H, W\)"):
        image_metrics(target[0, 0], mean[0, 0])
    with pytest.raises(InputError, match="expected bool"):
        image_metrics(target, mean, where=np.ones((24, 30)))
    with pytest.raises(InputError, match="expected 3 as before"):
        ImageAccumulator(3).merge(ImageAccumulator(13))
