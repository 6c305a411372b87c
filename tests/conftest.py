"""What every test shares: a deterministic hypothesis profile, and where data lie."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

if "PYTEST_XDIST_WORKER" in os.environ:  # workers that share cores must not wait for each other
    os.environ["OMP_NUM_THREADS"] = "1"

settings.register_profile(
    "deterministic",
    derandomize=True,
    deadline=None,
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("deterministic")

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def golden() -> Path:
    """The folder of stored outputs of the released implementation."""
    return ROOT / "tests" / "reference" / "golden"


@pytest.fixture(scope="session")
def realdata() -> Path:
    """The folder of real satellite samples, which are not part of the repository."""
    folder = ROOT.parent / "shared" / "realdata"
    if not folder.is_dir():
        pytest.skip("the real satellite samples are not on this machine")
    return folder


@pytest.fixture(scope="module")
def recipe() -> Iterator[dict[str, Any]]:
    """The modules of the recipe of the packaged weights, which is a folder of scripts."""
    folder = ROOT / "recipes" / "default"
    names = [path.stem for path in folder.glob("*.py")]
    sys.path.insert(0, str(folder))
    yield {name: __import__(name) for name in names}
    sys.path.remove(str(folder))
    for name in names:
        sys.modules.pop(name, None)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Three dates as files, with what is in them."""
    from scene_files import three_dates  # torch must not be imported before its threads are set

    return three_dates(tmp_path_factory.mktemp("scene"))


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a small network that fits the scene."""
    from scene_files import small_weights

    return small_weights(tmp_path_factory.mktemp("weights") / "tiny.safetensors")


@pytest.fixture(scope="module")
def product(scene: dict[str, Any], weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished product of the scene, not to be changed."""
    from undercast import predict_scene

    out = tmp_path_factory.mktemp("product") / "out"
    predict_scene(scene["files"], out, weights, masks=scene["masks"], progress=False)
    return out
