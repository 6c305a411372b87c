"""Digital numbers to reflectance, with and without the offset of baseline 04.00."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

from undercast.errors import InputError, UndercastWarning
from undercast.radiometry import baseline_offset, suspect_offset, to_reflectance


@pytest.mark.parametrize(
    ("baseline", "offset"),
    [("02.04", 0), ("03.01", 0), ("04.00", -1000), ("N0400", -1000), ("N0511", -1000),
     (2.06, 0), (4.0, -1000), ("5.1", -1000), (3, 0), ("0301", 0), (10.0, -1000)],
)  # fmt: skip
def test_the_offset_starts_with_baseline_04_00(baseline: str | float, offset: float) -> None:
    assert baseline_offset(baseline) == offset


@pytest.mark.parametrize("baseline", ["latest", "", "-4.00", "4.0.0"])
def test_an_unreadable_baseline_is_an_error(baseline: str) -> None:
    with pytest.raises(InputError, match="expected one such as"):
        baseline_offset(baseline)


def test_the_same_ground_has_the_same_reflectance_before_and_after_the_offset(
    rng: np.random.Generator,
) -> None:
    dn = rng.integers(1, 9000, (2, 13, 8, 8)).astype(np.uint16)
    before = to_reflectance(dn, baseline="03.01")
    np.testing.assert_allclose(before, dn / 10000, rtol=1e-6)
    np.testing.assert_array_equal(to_reflectance(dn + 1000, baseline="04.00"), before)
    np.testing.assert_array_equal(to_reflectance(dn + 1000, offset=-1000), before)


def test_a_pixel_that_is_zero_in_all_bands_is_no_data_and_a_dark_band_is_not() -> None:
    dn = np.full((13, 1, 3), 1200, np.uint16)
    dn[:, 0, 0] = 0
    dn[10, 0, 1] = 0
    reflectance = to_reflectance(dn, offset=-1000)
    assert np.isnan(reflectance[:, 0, 0]).all()
    assert reflectance[10, 0, 1] == np.float32(-0.1)
    assert np.isfinite(reflectance[:, 0, 1:]).all()


def test_baseline_and_offset_together_are_an_error() -> None:
    with pytest.raises(InputError, match="one of them"):
        to_reflectance(np.ones((13, 2, 2)), baseline="04.00", offset=0)


def test_a_forgotten_offset_warns_and_a_stated_one_does_not() -> None:
    dn = np.full((13, 8, 8), 1800, np.uint16)
    dn[10] = 1012
    with pytest.warns(UndercastWarning, match="offset=-1000"):
        to_reflectance(dn)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        to_reflectance(dn, offset=0)
        to_reflectance(dn, baseline="05.00")


def test_no_data_does_not_hide_a_forgotten_offset() -> None:
    dn = np.full((2, 13, 8, 8), 1800, np.uint16)
    dn[:, 10] = 1012
    dn[:, :, :, :5] = 0
    dn[1] -= 1000 * (dn[1] > 0).astype(np.uint16)
    assert suspect_offset(dn).tolist() == [True, False]
    assert not suspect_offset(np.zeros((13, 4, 4)))


def test_the_offset_of_the_real_samples_that_have_it_is_found(realdata: Path) -> None:
    found = {}
    for path in sorted(realdata.glob("terramesh_*.npz")):
        sample = np.load(path)
        found[path.stem] = bool(suspect_offset(sample["s2l1c"]))
        assert found[path.stem] == (sample["dn_offset_to_subtract"] == 1000)
        removed = sample["s2l1c"].astype(int) - sample["dn_offset_to_subtract"]
        assert not suspect_offset(removed)
    assert sum(found.values()) == 3
    assert len(found) == 5


@pytest.mark.slow  # unpacking takes the time
def test_no_other_real_sample_seems_to_have_an_offset(realdata: Path) -> None:
    count = 0
    for name in ("eurosat_l1c", "sen12mscr_pairs", "sen12mscr_triplets", "oscd_pairs",
                 "cloudsen12_series", "spain_s1_s2_512px", "s2cloudless_scene",
                 "l1c_scenes_and_cloud_masks"):  # fmt: skip
        with np.load(realdata / f"{name}.npz") as samples:
            for key in (key for key in samples.files if "s2" in key or "scenes" in key):
                array = samples[key]
                if array.dtype == np.uint16 and array.ndim >= 3 and array.shape[-3] == 13:
                    count += int(np.prod(array.shape[:-3]))
                    assert not suspect_offset(array).any(), (name, key)
    assert count > 500
