"""Band names and scaling."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from undercast import bands
from undercast.errors import InputError


def test_bands_are_found_by_any_usual_spelling() -> None:
    assert bands.index(["B01", "b8a", "B8", "B12"]) == [0, 8, 7, 12]
    with pytest.raises(InputError, match="B13"):
        bands.canonical("B13")


def test_scaling_is_that_of_the_released_code_for_numpy_and_torch() -> None:
    dn = np.array([-5.0, 0.0, 2500.0, 10000.0, 23000.0, np.nan])
    expected = np.nan_to_num(np.clip(dn, 0, 10000) / 10000, nan=0.0)
    np.testing.assert_allclose(bands.scale_s2(dn / 10000), expected)
    np.testing.assert_allclose(bands.scale_s2(torch.from_numpy(dn / 10000)), expected)
    db = np.array([-40.0, -25.0, -10.0, 0.0, 4.0, np.nan])
    expected = np.nan_to_num((np.clip(db, -25, 0) + 25) / 25, nan=0.0)
    np.testing.assert_allclose(bands.scale_s1(db), expected)
    np.testing.assert_allclose(bands.scale_s1(torch.from_numpy(db)), expected)
