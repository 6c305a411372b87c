"""Sampling protocols: the target is never an input, ties are stable, randomness is named."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from undercast.datasets import sampling
from undercast.errors import InputError

covers = st.lists(
    st.one_of(st.just(0.0), st.just(1.0), st.floats(0, 1, width=32)), min_size=2, max_size=30
)
lengths = st.integers(1, 8)


def dates_of(count: int, step: int = 12) -> np.ndarray:
    return np.datetime64("2018-01-04") + step * np.arange(count)


@given(cover=covers, t=lengths, seed=st.integers(0, 99))
def test_clean_and_train_never_return_the_target_as_an_input(
    cover: list[float], t: int, seed: int
) -> None:
    for choice in (
        sampling.clean(cover, dates_of(len(cover)), t),
        sampling.train(cover, t, np.random.default_rng(seed)),
    ):
        assert choice.target not in choice.inputs
        assert len(choice.inputs) == len(set(choice.inputs)) == min(t, len(cover) - 1)
        assert all(0 <= i < len(cover) for i in choice.inputs)
        assert list(choice.inputs) == sorted(choice.inputs)


@given(cover=covers, t=lengths, days=st.data())
def test_clean_takes_the_least_cloudy_earliest_date_and_its_nearest_neighbours(
    cover: list[float], t: int, days: st.DataObject
) -> None:
    shift = days.draw(st.lists(st.integers(0, 364), min_size=len(cover), max_size=len(cover)))
    dates = np.datetime64("2018-01-01") + np.array(shift)
    target, inputs = sampling.clean(cover, dates, t)
    rounded = np.asarray(cover, np.float32)
    assert rounded[target] == rounded.min()
    assert dates[target] == dates[rounded == rounded.min()].min()
    distance = np.abs(dates - dates[target]).astype(int)
    left = [i for i in range(len(cover)) if i not in inputs and i != target]
    assert all(distance[i] <= distance[j] for i in inputs for j in left)


@given(cover=covers, t=lengths)
def test_legacy_takes_the_first_dates_whatever_the_target(cover: list[float], t: int) -> None:
    target, inputs = sampling.legacy(cover, t)
    rounded = np.asarray(cover, np.float32)
    assert rounded[target] == rounded.min()
    if len(cover) >= t:
        assert inputs == tuple(range(t))


def test_legacy_can_return_the_target_as_an_input_as_the_released_code_does() -> None:
    assert sampling.legacy([0.3, 0.0, 0.2, 0.5], 3) == (1, (0, 1, 2))


@pytest.mark.parametrize(
    ("target", "inputs"),
    [(0, (1, 2, 3)), (1, (2, 3, 4)), (14, (13, 15, 16)), (28, (26, 27, 29)), (29, (26, 27, 28))],
)
def test_train_inputs_are_those_of_the_released_sampler(target: int, inputs: tuple) -> None:
    cover = np.full(30, 0.5)
    cover[target] = 0
    assert sampling.train(cover, 3, np.random.default_rng(0)) == (target, inputs)


@given(cover=covers, t=lengths, seed=st.integers(0, 9))
def test_train_inputs_are_the_middle_window_around_the_target(
    cover: list[float], t: int, seed: int
) -> None:
    target, inputs = sampling.train(cover, t, np.random.default_rng(seed))
    count, length = len(cover), min(t + 1, len(cover))
    windows = [list(range(s, s + length)) for s in range(count - length + 1)]
    holding = [window for window in windows if target in window]
    assert sorted([*inputs, target]) == holding[len(holding) // 2]


def test_train_draws_every_clear_date_equally_and_no_other() -> None:
    cover = np.array([0.0, 0.2, 0.0005, 0.002, 0.0, 0.9])
    rng = np.random.default_rng(0)
    drawn = np.bincount([sampling.train(cover, 3, rng).target for _ in range(3000)], minlength=6)
    assert drawn[[1, 3, 5]].sum() == 0
    assert (np.abs(drawn[[0, 2, 4]] - 1000) < 120).all()


def test_train_takes_the_least_cloudy_date_where_none_is_clear() -> None:
    assert sampling.train([0.5, 0.2, 0.4, 0.9], 2, np.random.default_rng(0)).target == 1


def test_random_numbers_depend_on_seed_epoch_and_sample_and_on_nothing_else() -> None:
    def draw(*key: object) -> float:
        return float(sampling.sample_rng(*key).random())  # type: ignore[arg-type]

    values = {
        (seed, epoch, name): draw(seed, epoch, name)
        for seed in (0, 1)
        for epoch in (0, 1, 11)
        for name in ("a/1", "a/11")
    }
    assert len(set(values.values())) == len(values)
    code = "from undercast.datasets.sampling import sample_rng as rng; "
    code += "print(rng(1, 11, 'a/1').random())"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(other.stdout) == values[1, 11, "a/1"]


@pytest.mark.parametrize("protocol", sampling.PROTOCOLS)
def test_choose_is_the_named_protocol(protocol: str) -> None:
    cover, dates = [0.4, 0.9, 0.2, 0.3, 0.6], dates_of(5)
    expected = {
        "clean": sampling.clean(cover, dates, 2),
        "legacy": sampling.legacy(cover, 2),
        "train": sampling.train(cover, 2, np.random.default_rng(3)),
    }
    found = sampling.choose(protocol, cover, dates, 2, np.random.default_rng(3))
    assert found == expected[protocol]


@pytest.mark.parametrize(
    ("cover", "t", "message"),
    [([0.5], 1, "at least two dates"), ([0.5, float("nan")], 1, "NaN"), ([0.5, 0.1], 0, "t = 0")],
)
def test_series_that_cannot_be_sampled_are_errors(cover: list[float], t: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        sampling.legacy(cover, t)


def test_an_unknown_protocol_and_unequal_lengths_are_errors() -> None:
    with pytest.raises(InputError, match="clean legacy train"):
        sampling.choose("fixed", [0, 1], dates_of(2), 1, np.random.default_rng(0))
    with pytest.raises(InputError, match="3 dates for 2 covers"):
        sampling.clean([0, 1], dates_of(3), 1)
