"""Every engine computes what the readable network computes."""

from __future__ import annotations

import copy
import logging
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from random_networks import assert_close, random_batch, random_model
from undercast import engines, exported
from undercast.errors import ConfigError, MissingDependencyError
from undercast.models import create
from undercast.models.ensemble import ensemble_of
from undercast.models.system import Batch, Output
from undercast.models.uncrtaints_fast import FastUnCRtainTS
from undercast.threads import start_pool

GRAPHS = ("onnx", "openvino")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UNDERCAST_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_forwards_side_by_side_are_those_one_after_the_other() -> None:
    model = engines.attach(random_model())
    batches = [random_batch(h=40, w=48, seed=seed) for seed in range(6)]

    def forward(batch: Batch) -> Output:
        with torch.inference_mode():
            return model(batch)

    with start_pool(2, 1) as pool:  # both meet an engine that is not built yet
        together = list(pool.map(forward, batches))
    with start_pool(1, 1) as pool:
        alone = list(pool.map(forward, batches))
    for got, expected in zip(together, alone, strict=True):
        assert torch.equal(got.mean, expected.mean)
        assert torch.equal(got.variance, expected.variance)


def test_streams_are_two_where_threads_can_be_shared() -> None:
    model = random_model()
    assert [engines.streams(engines.attach(model), n) for n in (1, 2, 3, 16, 44)] == [1, 2, 1, 2, 4]
    assert engines.streams(model, 2) == 2
    own = engines.EngineModel(model, "openvino")  # has threads of its own
    assert engines.streams(own, 2) == 1
    assert engines.streams(ensemble_of([model, own]), 2) == 1
    assert engines.streams(ensemble_of([model, random_model(1)]), 2) == 2


@pytest.mark.parametrize("engine", ["auto", "eager", *GRAPHS])
def test_padding_dates_change_nothing(engine: str) -> None:
    model, batch = random_model(), random_batch(b=2, t=4, h=64)
    batch = batch._replace(valid=torch.tensor([[True, False, True, False], [True] * 4]))
    alone = Batch(*(None if x is None else x[:1, [0, 2]] for x in batch))  # type: ignore[arg-type]
    runs = engines.attach(model, engine)
    with torch.inference_mode():
        got = runs(batch)
        assert_close(got, model(batch), mean=1e-4)
        assert_close(Output(got.mean[:1], got.variance[:1]), runs(alone))  # type: ignore[index]


@pytest.mark.parametrize("engine", GRAPHS)
@pytest.mark.parametrize(
    "config",
    [{}, {"covariance": "isotropic"}, {"mono": True}, {"surroundings": 16}],
    ids=str,
)
def test_graphs_equal_the_network(engine: str, config: dict[str, Any]) -> None:
    # ONNX Runtime's group norm and erf are less exact than torch's: a tolerance of its own
    mean = 1e-4 if engine == "onnx" else 1e-5
    model, batch = random_model(**config), random_batch(b=2, t=2, h=64, w=96)
    with torch.inference_mode():
        assert_close(engines.attach(model, engine)(batch), model(batch), mean)


@pytest.mark.parametrize("engine", GRAPHS)
def test_graphs_serve_sizes_that_the_attention_grid_does_not_divide(engine: str) -> None:
    model, batch = random_model(covariance="none", sar=False), random_batch(t=1, h=70, w=75)
    with torch.inference_mode():
        assert_close(engines.attach(model, engine)(batch), model(batch), 1e-4)


@pytest.mark.parametrize("engine", GRAPHS)
def test_small_inputs_are_not_worth_a_graph(engine: str, cache: Path) -> None:
    model, batch = random_model(), random_batch()
    with torch.inference_mode():
        assert_close(engines.attach(model, engine)(batch), model(batch))
    assert not cache.exists()


def test_bf16_is_close_but_not_the_same() -> None:
    model, batch = random_model(), random_batch(h=64)
    with torch.inference_mode():
        got, expected = engines.attach(model, "openvino-bf16")(batch), model(batch)
    # random weights amplify rounding: what counts is that the image is recognisably the same one
    assert float((got.mean - expected.mean).abs().max()) > 1e-5
    assert np.corrcoef(got.mean.flatten(), expected.mean.flatten())[0, 1] > 0.95


@pytest.mark.slow
def test_compiled_equals_the_network() -> None:
    """In a fresh process, as most users compile."""
    code = (
        "import torch; from random_networks import *; from undercast import engines; "
        "model, batch = random_model(n_e=0, n_d=1), random_batch(t=2); "
        "torch.inference_mode().__enter__(); "
        "assert_close(engines.attach(model, 'compiled')(batch), model(batch)); print('equal')"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert result.stdout.endswith("equal\n"), result.stderr


def test_other_systems_run_as_they_are_and_refuse_graphs() -> None:
    model, batch = create("least-cloudy"), random_batch()
    batch = batch._replace(mask=batch.s2[:, :, 0] > 0.5)
    with torch.inference_mode():
        got, expected = engines.attach(model, "auto")(batch).mean, model(batch).mean
    assert torch.equal(got.nan_to_num(-1), expected.nan_to_num(-1))
    with pytest.raises(ConfigError, match="expected auto, eager or compiled"):
        engines.attach(model, "openvino")


def test_unknown_engine_is_an_error() -> None:
    with pytest.raises(ConfigError, match="'tpu'"):
        engines.attach(random_model(), "tpu")


def test_compiled_without_a_compiler_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines.shutil, "which", lambda _: None)
    assert "compiled" not in engines.installed()
    with pytest.raises(ConfigError, match=r"install g\+\+"):
        engines.attach(random_model(), "compiled")


def test_a_runtime_that_is_not_installed_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda _: None)
    assert engines.installed() == ["eager", "compiled"]
    with pytest.raises(MissingDependencyError, match=r"undercast\[openvino\]"):
        engines.attach(random_model(), "openvino")


def test_threads_share_an_attached_model() -> None:
    runs = engines.attach(random_model(), "openvino")
    batches = [random_batch(t=1, h=64, seed=seed) for seed in range(4)]

    def run(batch: Batch) -> torch.Tensor:
        with torch.inference_mode():
            return runs(batch).mean

    expected = [run(batch) for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        for got, alone in zip(pool.map(run, batches), expected, strict=True):
            assert torch.equal(got, alone)


def test_members_of_an_ensemble_get_the_engine() -> None:
    members = [random_model(seed) for seed in (1, 2)]
    model, batch = ensemble_of(members), random_batch()
    runs = engines.attach(model, "eager")
    assert all(isinstance(m, engines.EngineModel) for m in runs.network.models)  # type: ignore[operator,union-attr]
    with torch.inference_mode():
        assert_close(runs(batch), model(batch))


@pytest.mark.parametrize("engine", ["auto", "openvino"])
def test_an_attached_model_survives_pickling_after_use(engine: str) -> None:
    runs, batch = engines.attach(random_model(), engine), random_batch(h=64)
    with torch.inference_mode():
        expected = runs(batch)
        assert_close(pickle.loads(pickle.dumps(runs))(batch), expected)
        assert_close(copy.deepcopy(runs)(batch), expected)


def test_new_weights_are_seen() -> None:
    model, other, batch = random_model(1), random_model(2), random_batch()
    runs = engines.attach(model)
    with torch.inference_mode():
        before = runs(batch).mean
    runs.load_state_dict(other.state_dict())
    with torch.inference_mode():
        after = runs(batch)
        assert_close(after, other(batch))
    assert not torch.allclose(before, after.mean)


def test_training_and_gradients_use_the_plain_network() -> None:
    runs, batch = engines.attach(random_model()), random_batch()
    runs(batch).mean.sum().backward()
    assert all(p.grad is not None for p in runs.network.encoder.parameters())  # type: ignore[union-attr]


def test_same_digest_and_state_as_the_model_it_came_from() -> None:
    from undercast.fingerprint import model_digest

    model = random_model()
    assert model_digest(engines.attach(model)) == model_digest(model)
    assert engines.attach(model).state_dict().keys() == model.state_dict().keys()


def test_auto_falls_back_to_the_network_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(FastUnCRtainTS):
        def __call__(self, batch: Batch) -> Output:
            output = super().__call__(batch)
            return output._replace(mean=output.mean + 0.5)

    monkeypatch.setattr(engines, "FastUnCRtainTS", Broken)
    model, batch = random_model(), random_batch()
    with torch.inference_mode(), caplog.at_level(logging.WARNING):
        assert torch.equal(engines.attach(model, "auto")(batch).mean, model(batch).mean)
    assert "failed its check (means differ by 5.0e-01 reflectance" in caplog.text


def test_auto_says_nothing_where_the_check_passes(caplog: pytest.LogCaptureFixture) -> None:
    with torch.inference_mode(), caplog.at_level(logging.INFO):
        engines.attach(random_model())(random_batch())
    assert not caplog.records


@pytest.mark.parametrize("engine", GRAPHS)
def test_a_cached_graph_is_used_again(engine: str, cache: Path) -> None:
    model, batch = random_model(), random_batch(t=1, h=64)
    with torch.inference_mode():
        first = engines.attach(model, engine)(batch)
        times = {p: p.stat().st_mtime_ns for p in cache.rglob("graph.*")}
        again = engines.attach(pickle.loads(pickle.dumps(model)), engine)(batch)
    assert times
    assert {p: p.stat().st_mtime_ns for p in cache.rglob("graph.*")} == times
    assert torch.equal(first.mean, again.mean)
    assert not list(cache.glob(".part-*"))


@pytest.mark.parametrize("engine", GRAPHS)
def test_a_damaged_graph_is_exported_again(
    engine: str, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, batch = random_model(), random_batch(t=1, h=64)
    with torch.inference_mode():
        expected = engines.attach(model, engine)(batch)
        for path in cache.rglob("graph.*"):
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        got = engines.attach(model, engine)(batch)
    assert "exporting again" in caplog.text
    assert torch.equal(got.mean, expected.mean)


def test_other_weights_and_other_shapes_get_other_graphs(cache: Path) -> None:
    with torch.inference_mode():
        for seed, t in ((0, 1), (1, 1), (0, 2)):
            engines.attach(random_model(seed), "onnx")(random_batch(t=t, h=64))
    assert len(list(cache.iterdir())) == 3


def test_a_failed_export_leaves_nothing_behind(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("out of disk")

    monkeypatch.setattr(exported, "_export_onnx", fail)
    with torch.inference_mode(), pytest.raises(RuntimeError, match="out of disk"):
        engines.attach(random_model(), "onnx")(random_batch(h=64))
    assert not list(cache.iterdir())


def test_importing_openvino_leaves_the_environment_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.delenv("CI", raising=False)
    exported.import_openvino()
    assert "CI" not in os.environ
