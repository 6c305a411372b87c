"""Cloud masks: the golden s2cloudless scene, the rules against it and people, SCL and files."""

from __future__ import annotations

import builtins
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import ndimage

from fake_dataset import optical, write_tif
from undercast import masks
from undercast.errors import DataError, InputError, MissingDependencyError, UndercastWarning


def reflectance(dn: np.ndarray) -> np.ndarray:
    return dn.astype(np.float32) / np.float32(10000)


def agreement(found: np.ndarray, reference: np.ndarray) -> dict[str, float]:
    return {
        "iou": float((found & reference).sum() / (found | reference).sum()),
        "accuracy": float((found == reference).mean()),
    }


@pytest.fixture
def without_s2cloudless(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] == "s2cloudless":
            raise ImportError(name)
        return original(name, *args, **kwargs)

    masks._s2cloudless.cache_clear()
    monkeypatch.setattr(builtins, "__import__", refuse)
    for name in [name for name in sys.modules if name.split(".")[0] == "s2cloudless"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(masks.importlib.util, "find_spec", lambda name: None)


@pytest.mark.slow
def test_the_golden_scene_is_reproduced_exactly(realdata: Path) -> None:
    with np.load(realdata / "s2cloudless_scene.npz") as scene:
        s2 = reflectance(scene["s2"])[None]
        detector = masks.S2Cloudless(average_over=1, dilation_size=1, clip=False)
        probability = detector.probability(s2)
        np.testing.assert_array_equal(probability[0], scene["cl_probs"])
        np.testing.assert_array_equal(detector.mask_of(probability)[0], scene["cl_mask"] != 0)

        released = masks.S2Cloudless()
        below_one = s2[0].max(axis=0) <= 1
        rows = slice(280, 340)  # where the scene is brightest
        clipped = released.probability(s2[:, :, rows])[0]
        np.testing.assert_array_equal(
            clipped[below_one[rows]], scene["cl_probs"][rows][below_one[rows]]
        )


def test_an_image_that_holds_nothing_is_all_cloudy_without_being_classified() -> None:
    empty = np.zeros((2, 13, 16, 16), np.float32)
    empty[1] = np.nan
    assert masks.cloud_mask(empty, "s2cloudless").all()
    assert masks.cloud_mask(empty, "rules").all()


def test_pixels_without_data_are_unusable_for_every_method() -> None:
    s2 = reflectance(optical(0))[None].copy()
    s2[:, :, 3, 4] = np.nan
    for method in ("rules", "s2cloudless"):
        assert masks.cloud_mask(s2, method)[0, 3, 4]
        assert not masks.cloud_mask(s2, method)[0, 20:, 20:].any()


def test_a_bright_cloud_is_found_by_both_detectors() -> None:
    s2 = reflectance(optical(1, cloudy=0.5, size=64))[None]
    for method in ("rules", "s2cloudless"):
        mask = masks.cloud_mask(s2, method)[0]
        assert mask[:32].all(), method
        assert not mask[40:].any(), method


def test_snow_and_desert_are_no_clouds_for_the_rules() -> None:
    snow = np.array([0.9, 0.88, 0.85, 0.85, 0.84, 0.83, 0.8, 0.8, 0.78, 0.4, 0.005, 0.08, 0.06])
    desert = np.array([0.19, 0.2, 0.27, 0.38, 0.42, 0.45, 0.48, 0.48, 0.5, 0.25, 0.004, 0.6, 0.55])
    for spectrum in (snow, desert):
        s2 = np.broadcast_to(spectrum[None, :, None, None], (1, 13, 32, 32))
        assert not masks.cloud_mask(s2, "rules").any()


def test_a_dark_patch_is_shadow_only_near_a_cloud() -> None:
    s2 = np.repeat(reflectance(optical(2, size=160)).mean(axis=(1, 2)), 160 * 160)
    s2 = s2.reshape(1, 13, 160, 160).astype(np.float32)
    for row in (30, 120):
        s2[0, :, row : row + 10, 60:70] *= 0.4
    s2[0, :, 5:20, 60:80] += 0.5
    mask = masks.cloud_mask(s2, "rules")[0]
    assert mask[32:38, 62:68].all()
    assert not mask[110:].any()


def test_windows_agree_with_scipy(rng: np.random.Generator) -> None:
    mask = rng.random((23, 31)) < 0.2
    grown = ndimage.binary_dilation(mask, np.ones((5, 5)))
    np.testing.assert_array_equal(masks._grown(mask, 2), grown)
    majority = ndimage.generic_filter(mask.astype(int), np.sum, size=5, mode="nearest") > 12
    np.testing.assert_array_equal(masks._smoothed(mask), majority)


def test_the_rules_do_without_the_bands_that_level_2a_lacks() -> None:
    s2 = reflectance(optical(3, cloudy=0.5, size=64))[None].copy()
    s2[:, [0, 9, 10]] = np.nan
    mask = masks.cloud_mask(s2, "rules")[0]
    assert mask[:32].all()
    assert not mask[40:].any()
    with pytest.raises(InputError, match="B1 B9 B10"):
        masks.cloud_mask(s2, "s2cloudless")
    with pytest.warns(UndercastWarning, match="B1 B9 B10"):
        masks.cloud_mask(s2, "auto")


@pytest.mark.usefixtures("without_s2cloudless")
def test_auto_says_when_it_falls_back_to_the_rules() -> None:
    s2 = reflectance(optical(4, cloudy=0.3))[None]
    with pytest.warns(UndercastWarning, match=r"pip install 'undercast\[clouds\]'.*by rules"):
        found = masks.cloud_mask(s2)
    np.testing.assert_array_equal(found, masks.cloud_mask(s2, "rules"))


@pytest.mark.usefixtures("without_s2cloudless")
def test_a_missing_extra_names_the_command_and_the_rules() -> None:
    with pytest.raises(MissingDependencyError, match=r"method rules.*undercast\[clouds\]"):
        masks.cloud_mask(reflectance(optical(4))[None], "s2cloudless")


def test_auto_is_s2cloudless_where_it_is_installed() -> None:
    s2 = reflectance(optical(5, cloudy=0.3))[None]
    np.testing.assert_array_equal(masks.cloud_mask(s2), masks.cloud_mask(s2, "s2cloudless"))


def test_scene_classes_of_cloud_shadow_and_defects_are_unusable() -> None:
    scl = np.arange(12).reshape(1, 3, 4)
    mask = masks.cloud_mask(np.full((1, 13, 3, 4), 0.1), masks.SceneClassification(scl))
    assert mask.ravel().nonzero()[0].tolist() == [0, 1, 3, 8, 9, 10]
    with pytest.raises(InputError, match=r"expected 0\.\.11"):
        masks.scl_mask(np.array([[120]]))


def test_the_scene_classes_of_real_level_2a_dates_follow_their_brightness(realdata: Path) -> None:
    with np.load(realdata / "l2a_series_with_s1_A.npz") as series:
        unusable = masks.scl_mask(series["scl_20m"]).mean(axis=(1, 2))
        blue = np.median(series["s2_10m_B02_B03_B04_B08"][:, 0], axis=(1, 2))
    assert np.median(blue[unusable > 0.9]) > 4 * np.median(blue[unusable < 0.1])


def test_any_non_zero_value_of_a_mask_file_is_unusable(tmp_path: Path) -> None:
    values = np.array([[[0, 1], [2, 255]]], np.uint8)
    write_tif(tmp_path / "mask.tif", values)
    found = masks.cloud_mask(np.full((1, 13, 2, 2), 0.1), masks.MaskFile([tmp_path / "mask.tif"]))
    assert found.tolist() == [[[False, True], [True, True]]]
    with pytest.raises(InputError, match="on the grid of the images"):
        masks.cloud_mask(np.full((1, 13, 4, 4), 0.1), masks.MaskFile([tmp_path / "mask.tif"]))
    with pytest.raises(DataError, match=r"absent\.tif"):
        masks.read_mask(tmp_path / "absent.tif")


@pytest.mark.parametrize("s2", [np.zeros((13, 4, 4)), np.zeros((1, 12, 4, 4))])
def test_wrong_shapes_and_methods_are_errors(s2: np.ndarray) -> None:
    with pytest.raises(InputError, match="expected"):
        masks.cloud_mask(s2)
    with pytest.raises(InputError, match="s2cloudless rules"):
        masks.cloud_mask(np.zeros((1, 13, 4, 4)), "guess")


def test_the_rules_agree_with_s2cloudless_on_the_golden_scene(realdata: Path) -> None:
    with np.load(realdata / "s2cloudless_scene.npz") as scene:
        found = masks.cloud_mask(reflectance(scene["s2"])[None], "rules")[0]
        reference = masks.S2Cloudless().mask_of(scene["cl_probs"][None])[0]
    assert agreement(found, reference)["iou"] > 0.8


def test_the_rules_agree_with_people_as_well_as_documented(realdata: Path) -> None:
    found, labels = [], []
    with np.load(realdata / "cloudsen12_series.npz") as series:
        for name in (key[:5] for key in series.files if key.endswith("_s2")):
            found.append(masks.cloud_mask(reflectance(series[f"{name}_s2"]), "rules").ravel())
            labels.append(series[f"{name}_label"].ravel())
    unusable = agreement(np.concatenate(found), np.concatenate(labels) > 0)
    assert unusable["iou"] > 0.45
    assert unusable["accuracy"] > 0.70


@given(st.integers(0, 99), st.sampled_from([0.02, 0.5, 0.9]), st.sampled_from([1, 2, 7]))
def test_smoothing_and_growing_are_scipys_filters(seed: int, share: float, radius: int) -> None:
    mask = np.random.default_rng(seed).random((23, 31)) < share
    majority = ndimage.correlate(mask.astype(int), np.ones((5, 5), int), mode="nearest") > 12
    np.testing.assert_array_equal(masks._smoothed(mask), majority)
    spread = ndimage.maximum_filter(mask, size=2 * radius + 1, mode="nearest")
    np.testing.assert_array_equal(masks._grown(mask, radius), spread)
