"""How much one closed date is worth, and how much chance there is in the mean of two images."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest


def test_the_chance_of_two_images_is_that_of_every_pair(recipe: dict[str, Any]) -> None:
    found = recipe["chance"].summary([1.0, -1.0, 3.0, -2.0])  # 4 of 6 pairs are not below 0
    assert found["two"] == pytest.approx(4 / 6)
    assert found["one"] == 0.5
    assert found["mean"] == pytest.approx(0.25)
    assert found["deviation"] == pytest.approx(np.sqrt((0.75**2 + 1.25**2 + 2.75**2 + 2.25**2) / 3))


def test_only_dates_that_hide_nearly_all_are_asked_each_by_itself(recipe: dict[str, Any]) -> None:
    s2 = np.arange(4, dtype=np.float32)[:, None, None, None] * np.ones((1, 13, 10, 10), np.float32)
    mask = np.zeros((4, 10, 10), bool)
    mask[1], mask[3, :9] = True, True
    mask[2, :8] = True
    case = recipe["backgrounds"].Case("x", "here", s2, mask, s2[0], ~mask[0])
    found = recipe["chance"].single_dates(case)
    assert [float(one.s2.mean()) for one in found] == [1.0, 3.0]
    assert all(one.s2.shape == (1, 13, 10, 10) and one.mask.shape == (1, 10, 10) for one in found)


def test_better_is_better_by_the_decibels_of_the_errors(
    recipe: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of 0.01 against one of 0.1 is 20 dB; half way between them one of 0.055."""
    chance, target = recipe["chance"], np.full((13, 16, 16), 0.2, np.float32)
    monkeypatch.setattr(chance, "predict", lambda *_: SimpleNamespace(mean=target + 0.01))
    found = chance.better_by(None, np.full(13, 0.3), None, target, (1.0, 0.5, 0.0))
    assert found == pytest.approx([20.0, 20 * np.log10(0.1 / 0.055), 0.0], abs=1e-3)
