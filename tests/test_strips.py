"""The network in strips of rows is the network: sizes, threads, memory that is kept, errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from random_networks import assert_close, random_batch, random_model
from undercast.models.strips import Strips
from undercast.models.system import Batch, Output
from undercast.models.uncrtaints_fast import FastUnCRtainTS

CONFIGS: list[dict[str, Any]] = [
    {},
    {"covariance": "isotropic"},
    {"covariance": "none"},
    {"sar": False},
    {"mono": True},
    {"n_e": 0},
    {"n_e": 2, "n_d": 0},
    {"mean_activation": "linear", "scale": 1.0},
    {"heads": 1},
]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_strips_equal_the_network_for_every_configuration(config: dict[str, Any]) -> None:
    model, batch = random_model(**config), random_batch(b=2)
    with torch.inference_mode():
        assert_close(FastUnCRtainTS(model.network)(batch), model.network(batch))


@given(
    st.integers(1, 2), st.integers(1, 5), st.integers(2, 70), st.integers(2, 70),
    st.sampled_from((1, 100, 700, 8192)),
)  # fmt: skip
def test_strips_equal_the_network_for_every_size(
    b: int, t: int, h: int, w: int, strip_pixels: int
) -> None:
    model, batch = random_model(), random_batch(b, t, h, w, seed=h * w)
    with torch.inference_mode():
        assert_close(FastUnCRtainTS(model.network, strip_pixels)(batch), model.network(batch))


def test_strips_equal_the_network_where_nothing_can_be_fused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("undercast.models.strips._FUSED", False)
    model, batch = random_model(), random_batch(b=2)
    with torch.inference_mode():
        assert_close(FastUnCRtainTS(model.network)(batch), model.network(batch))


def test_memory_that_is_kept_neither_changes_earlier_results_nor_enters_later_ones() -> None:
    model = random_model()
    fast = FastUnCRtainTS(model.network, 100)
    first, other = random_batch(seed=1), random_batch(t=2, seed=2)
    with torch.inference_mode():
        once = fast(first)
        kept = once.mean.clone()
        fast(other)
        fast(random_batch(h=33, w=21, seed=3))
        again = fast(first)
    assert torch.equal(once.mean, kept)
    assert torch.equal(again.mean, kept)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_strips_equal_the_network_for_every_number_of_threads(threads: int) -> None:
    model, batch, before = random_model(), random_batch(h=50, w=37), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.inference_mode():
            assert_close(FastUnCRtainTS(model.network, 100)(batch), model.network(batch))
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


def with_one_thread_and_more(threads: int) -> tuple[Output, Output]:
    """Strips of 16 rows; where strips are odd, products of few rows may round otherwise."""
    model, batch, before = random_model(), random_batch(h=96, w=64), torch.get_num_threads()
    fast = FastUnCRtainTS(model.network, 1024)
    found = []
    try:
        for number in (1, threads):
            torch.set_num_threads(number)
            with torch.inference_mode():
                found.append(fast(batch))
    finally:
        torch.set_num_threads(before)
    return found[0], found[1]


@pytest.mark.parametrize("threads", [2, 3])
def test_the_number_of_threads_changes_no_more_than_rounding(threads: int) -> None:
    one, more = with_one_thread_and_more(threads)
    assert_close(more, one, mean=1e-6, variance=1e-5)


@pytest.mark.parametrize("threads", [2, 3])
def test_the_number_of_threads_changes_no_bit_where_products_round_alike(threads: int) -> None:
    """MKL rounds by the number of threads on some processors, unless told before it starts."""
    lines = (
        "import runpy, torch",
        f"made = runpy.run_path({__file__!r})['with_one_thread_and_more']",
        f"one, more = made({threads})",
        "assert torch.equal(one.mean, more.mean) and torch.equal(one.variance, more.variance)",
    )
    here = str(Path(__file__).parent)
    environment = os.environ | {"MKL_CBWR": "COMPATIBLE", "PYTHONPATH": here}
    subprocess.run([sys.executable, "-c", "\n".join(lines)], env=environment, check=True)


def test_an_error_in_a_strip_comes_home() -> None:
    def fail(a: int, b: int) -> None:
        raise ValueError(f"rows {a} to {b}")

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with Strips(32, 32, 512) as strips, pytest.raises(ValueError, match="rows 0 to 16"):
            strips.each(fail)
    finally:
        torch.set_num_threads(before)


def test_strips_equal_the_golden_output_of_the_released_code(golden: Path) -> None:
    from undercast.official import load_official

    folder = golden / "official_checkpoint"
    model, stored = load_official(folder), np.load(folder / "expected.npz")
    network: Any = model.network
    x, days = (torch.from_numpy(stored[k].astype(np.float32)) for k in ("x", "dates"))
    batch = Batch(
        x[:, :, 2:] / network.config.scale,
        x[:, :, :2] / network.config.scale * 25 - 25,
        days,
        torch.ones(days.shape, dtype=torch.bool),
    )
    with torch.inference_mode():
        got = FastUnCRtainTS(network.eval())(batch)
    expected = torch.from_numpy(stored["y"][:, 0])
    torch.testing.assert_close(got.mean * network.config.scale, expected[:, :13], atol=1e-4, rtol=0)
