"""What the surroundings of hidden ground give, beside the network alone."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from random_networks import random_model
from undercast import Stack, predict
from undercast.bands import N_S2
from undercast.calibration import Calibration

DATES = ["2020-05-01", "2020-05-11"]


def test_alone_is_the_same_network_and_calibration_without_surroundings(
    recipe: dict[str, Any],
) -> None:
    model = random_model(surroundings=16, sar=False)
    model.calibration = Calibration((4.0,) * N_S2)
    s2 = torch.rand(2, N_S2, 32, 40, generator=torch.Generator().manual_seed(0)).numpy()
    stack = Stack(s2, DATES)
    found = predict(recipe["hidden"].alone(model), stack)
    plain = predict(random_model(sar=False), stack)
    np.testing.assert_allclose(found.mean, plain.mean, atol=1e-6)
    np.testing.assert_allclose(found.variance, 4 * plain.variance, rtol=1e-4)
    assert np.abs(predict(model, stack).mean - plain.mean).max() > 1e-3


def test_every_way_is_told_of_its_own_masks_and_places_count_alike(
    recipe: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = recipe["hidden"]
    given = np.zeros((1, 8, 8), bool)
    given[:, 0] = True
    stack = Stack(np.full((1, N_S2, 8, 8), 0.2), DATES[:1], mask=given)
    model, bare = object(), object()
    told = {}

    def figures(chosen: Any, inputs: Stack, target: Any) -> dict[str, float]:
        told[chosen is bare, None if inputs.mask is None else int(inputs.mask.sum())] = inputs
        return {"PSNR": target, "NLL": -target}

    questions = [("closed", "a", stack, 10.0), ("closed", "b", stack, 20.0)]
    monkeypatch.setattr(hidden, "asked", lambda real: iter([*questions, questions[1]]))
    monkeypatch.setattr(hidden, "alone", lambda model: bare)
    monkeypatch.setattr(hidden, "figures", figures)
    monkeypatch.setattr(hidden, "cloud_mask", lambda s2, name: np.full((1, 8, 8), name == "rules"))
    found = hidden.table(model, Path())
    assert set(told) == {(True, 8), (False, 8), (False, None), (False, 0), (False, 64)}
    assert list(found["closed"]) == [
        hidden.ALONE, hidden.GIVEN, hidden.WITHOUT, *hidden.DETECTORS
    ]  # fmt: skip
    for row in found["closed"].values():
        assert row == {"PSNR": 15.0, "NLL": -15.0}
    without = hidden.table(model, Path(), masks=False)
    assert {way: found["closed"][way] for way in (hidden.ALONE, hidden.GIVEN)} == without["closed"]


def test_the_mean_is_of_sets_in_which_ground_is_hidden(recipe: dict[str, Any]) -> None:
    hidden = recipe["hidden"]
    sets = {"select a": 1.0, "calibrate b": 4.0, "select clear": 50.0, "closed": 70.0}
    found = {name: {"way": {"PSNR": psnr, "NLL": -psnr}} for name, psnr in sets.items()}
    assert hidden.mean_of_sets(found, "way") == {"PSNR": 2.5, "NLL": -2.5}


def test_other_settings_are_numbers_that_there_are(recipe: dict[str, Any]) -> None:
    setting = recipe["hidden"].setting
    assert setting("MASKED=0.7") == ("MASKED", 0.7)
    for wrong in ("FOO=1", "CELL=8", "USUAL=1", "from_surroundings=1", ""):
        with pytest.raises(argparse.ArgumentTypeError, match="expected one of ALWAYS"):
            setting(wrong)
    with pytest.raises(ValueError, match="could not convert"):  # argparse says so
        setting("MASKED=much")
