"""Twins are judged by pairs that they were not trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch


def test_a_twin_is_asked_of_pairs_that_hide_enough_and_that_it_has_not_seen(
    recipe: dict[str, Any], realdata: Path
) -> None:
    backgrounds, twins = recipe["backgrounds"], recipe["twins"]
    every = backgrounds.training_backgrounds(realdata)
    asked = [twins.pair_cases(realdata, seed) for seed in (90, 91)]
    for seed, cases in zip((90, 91), asked, strict=True):
        seen = {b.name for b in backgrounds.without_pairs_of(every, seed)["pairs"]}
        assert not seen & {case.name for case in cases}
        assert all(case.mask.mean() >= twins.HIDES for case in cases)
    assert [len(cases) for cases in asked] == [4, 1]


def test_the_case_of_a_pair_asks_for_the_clear_image_from_the_cloudy_one(
    recipe: dict[str, Any],
) -> None:
    ground = np.full((1, 13, 32, 32), 0.1, np.float32)
    cloudy = np.full((13, 32, 32), 0.7, np.float32)
    case = recipe["twins"].case_of(recipe["backgrounds"].Background("x", ground, None, cloudy))
    np.testing.assert_array_equal(case.s2, cloudy[None])
    np.testing.assert_array_equal(recipe["measure"].target_of(case), ground[0])
    assert case.mask.all()
    assert case.s1 is None


def test_half_of_what_is_averaged_is_the_weights_before(recipe: dict[str, Any]) -> None:
    """However many twins there are: a closed form of four numbers."""
    one, other, before = ({"w": torch.tensor([x])} for x in (1.0, 3.0, 10.0))
    found = recipe["twins"].systems([one, other], before)
    assert [float(state["w"]) for state in found] == pytest.approx([2.0, 6.0, 10.0])
