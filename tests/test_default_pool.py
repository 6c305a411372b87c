"""Troubles that the pool of the packaged weights holds on purpose: snow, and glint on water."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from undercast.simulate import LAND, simulate_series
from undercast.simulate.spectra import gas_transmission

WATER = LAND.index("water")


def test_glint_brightens_water_alike_in_all_bands_and_lies_under_the_clouds(
    recipe: dict[str, Any],
) -> None:
    series = simulate_series(6, 96, 2, cover=0.4, biome="coast")
    bright = (0.1, 0.0)
    found = recipe["glint"].add_glint(series, series.stack, 0, bright)
    water = series.land == WATER
    assert 0.1 < water.mean() < 0.9
    more = found.s2 - series.stack.s2
    np.testing.assert_array_equal(more[1], 0)
    np.testing.assert_array_equal(more[0][:, ~water], 0)
    seen = more[0] / gas_transmission(2.0)[:, None, None] / (1 - series.opacity[0]) ** 2
    np.testing.assert_allclose(seen, np.broadcast_to(seen[0], seen.shape), atol=1e-3)
    open_water = seen[0][water & (series.opacity[0] < 0.5)]
    assert 0.05 < open_water.mean() < 0.15
    assert 0.1 < open_water.std() / open_water.mean() < 0.6


def test_the_pool_has_snow_and_glint_where_they_are_asked_for(
    recipe: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the snow index of the textbooks; by water that is bright on cloudy days alone."""
    pool = recipe["pool"]
    monkeypatch.setattr(pool, "SIZE", 64)
    kinds = (None, "snow", "glint")
    for kind in kinds:
        for number in range(4):
            folder = tmp_path / str(kind)
            folder.mkdir(exist_ok=True)
            pool.write_series(folder, number, kind)
    white, excess = {}, {}
    for kind in kinds:
        stored = [np.load(path) for path in sorted((tmp_path / str(kind)).glob("series_*.npy"))]
        clear, cloudy = (np.concatenate([x[:, cut] for x in stored]).astype(np.float32)
                         for cut in (np.s_[:13], np.s_[13:26]))  # fmt: skip
        green, swir = clear[:, 2], clear[:, 11]
        white[kind] = ((green - swir) / (green + swir) > 0.4)[green > 0.3].sum() / green.size
        dark = (clear[:, 7] < 0.06) & (cloudy[:, 10] < 0.004)  # water below a sky without cirrus
        excess[kind] = float(np.median((cloudy - clear)[:, 11][dark])) if dark.any() else 0.0
    assert white["snow"] > 0.15 > 3 * white[None]
    assert excess["glint"] > 0.01 > abs(excess[None])
