"""Broad agreement of simulated with real images; the numbers are those of benchmarks/realism.py."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from undercast import bands
from undercast.simulate import simulate_series

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "realism.py"


@pytest.fixture(scope="module")
def numbers(realdata):
    spec = importlib.util.spec_from_file_location("realism", SCRIPT)
    realism = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(realism)
    return realism.compare(realism.real_samples(realdata), realism.simulated_samples(24, 128))


@pytest.mark.slow
def test_simulated_images_agree_broadly_with_real_ones(numbers):
    """One test, for the samples are costly: levels, contrast, slopes, correlation, cover, radar."""
    simulated, real = numbers["bands"]["simulated"], numbers["bands"]["real"]
    euro = numbers["bands (EuroSAT)"]["real"]
    for name in bands.S2:
        low, high = sorted((real[name]["p50"], euro[name]["p50"]))
        assert 0.6 * low < simulated[name]["p50"] < 1.7 * high, name
        slope = numbers["slope"]["simulated"][name]
        assert slope == pytest.approx(numbers["slope"]["real"][name], abs=0.8), name
        if name != "B10":  # a few DN in both
            low, high = sorted((real[name]["inside"], euro[name]["inside"]))
            assert 0.4 * low < simulated[name]["inside"] < 3 * high, name
    assert simulated["B10"]["p95"] < 0.003  # no cirrus in clear images
    assert min(numbers["correlation"]["simulated"].values()) > 0.9
    assert min(numbers["correlation"]["real"].values()) > 0.9
    assert numbers["correlation_distance"] < 0.3
    cover = numbers["cover"]["simulated"]
    assert cover["mean"] == pytest.approx(0.5, abs=0.1)
    assert min(cover["clear (< 5 %)"], cover["overcast (> 95 %)"]) > 0.2  # two humps, as real
    for channel in bands.S1:
        for key in (f"{channel} p5", f"{channel} p50", f"{channel} p95"):
            radar = numbers["radar"]
            assert radar["simulated"][key] == pytest.approx(radar["real"][key], abs=4.5), key
    bright = numbers["cloudy p99"]["simulated"]
    assert np.median([bright[name] for name in ("B2", "B3", "B4", "B8")]) > 0.5


@pytest.mark.slow
def test_a_detector_trained_on_real_images_finds_the_simulated_clouds():
    """s2cloudless knows real clouds only: simulated ones and clear ground must convince it."""
    s2cloudless = pytest.importorskip("s2cloudless")
    detector = s2cloudless.S2PixelCloudDetector(
        threshold=0.4, all_bands=True, average_over=4, dilation_size=2
    )
    seen, thick, clear = [], [], []
    for seed in range(8):
        series = simulate_series(100 + seed, 96, 5)
        image = np.moveaxis(np.clip(series.stack.s2, 0, 1), 1, -1)
        mask = detector.get_cloud_masks(image).astype(bool)
        seen.append(mask[series.opacity >= 0.3])
        thick.append(mask == series.cloud)
        clear += [m.mean() for m, cover in zip(mask, series.cover, strict=True) if cover == 0]
    assert np.concatenate(seen).mean() > 0.85
    assert np.concatenate(thick).mean() > 0.82
    assert np.mean(clear) < 0.05
    assert np.mean(np.array(clear) < 1e-3) > 0.5  # there is a target for the series
