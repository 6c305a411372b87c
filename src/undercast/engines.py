"""How a model is run: `attach(model, engine)` gives the same model on another engine.

auto           `eager` where it agrees with the plain network on a small input, else the network
eager          UnCRtainTS in row strips, norms folded (`models/uncrtaints_fast.py`); other systems
               as they are
compiled       `torch.compile`, channels last; needs a C++ compiler and a minute for each new shape
onnx           UnCRtainTS as a graph of ONNX Runtime, exported and cached for each shape
openvino       the same in OpenVINO, in float32
openvino-bf16  the same in bfloat16: fast only on CPUs that have it, and less exact

`auto` never lowers the precision. Engines serve evaluation without gradients; in training, and
where gradients are on, an attached model runs its plain network.
"""

from __future__ import annotations

import copy
import logging
import os
import shutil
import threading
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch

from undercast.errors import ConfigError, MissingDependencyError
from undercast.models.ensemble import Ensemble
from undercast.models.system import Batch, Model, Output, System
from undercast.models.uncrtaints import UnCRtainTS
from undercast.models.uncrtaints_fast import FastUnCRtainTS

NAMES = ("auto", "eager", "compiled", "onnx", "openvino", "openvino-bf16")
MEAN_TOLERANCE = 1e-5  # reflectance
VARIANCE_TOLERANCE = 1e-3  # relative

STREAM_THREADS = 8  # a tile has no more strips than that

Runner = Callable[[Batch], Output]
_building = threading.Lock()
log = logging.getLogger(__name__)


def attach(model: Model, engine: str = "auto") -> Model:
    """The same weights, calibration and provenance, run by `engine`; each member of an ensemble.

    Nothing is compiled or exported here: that happens at the first batch.
    """
    if engine not in NAMES:
        raise ConfigError(f"got engine {engine!r}, expected one of {', '.join(NAMES)}")
    if isinstance(model.network, Ensemble):
        members = Ensemble([attach(member, engine) for member in model.network.models])
        return Model(model.name, members, model.calibration, model.provenance)
    _require(engine, model)
    return EngineModel(model, engine).train(model.training)


def installed() -> list[str]:
    """The engines that can run here, `auto` left out."""
    return [
        name
        for name in NAMES[1:]
        if (name != "compiled" or _has_compiler())
        and all(find_spec(package) for package in _PACKAGES.get(name, ("", ()))[1])
    ]


class EngineModel(Model):
    """A model whose evaluation runs on an engine, built at the first batch and after unpickling."""

    def __init__(self, model: Model, engine: str) -> None:
        super().__init__(model.name, model.network, model.calibration, model.provenance)
        self.engine = engine
        self._runner: Runner | None = None
        self._state: Any = None

    def forward(self, batch: Batch) -> Output:
        """The calibrated output; a sample without a valid date is the plain network's to judge."""
        if self.training or torch.is_grad_enabled() or not bool(batch.valid.any(dim=1).all()):
            return super().forward(batch)
        return self.finished(self._current(batch.s2.device)(batch), batch)

    def _current(self, device: torch.device) -> Runner:
        """The runner of the present weights; threads that come together wait for the first."""
        with _building:
            state = _state_of(self.network, device)
            if self._runner is None or self._state != state:  # new weights need new folded ones
                self._runner, self._state = build(self.network, self.engine, device), state
            return self._runner

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_runner": None, "_state": None}


def streams(model: Model, threads: int) -> int:
    """How many forwards are best computed side by side, the threads shared evenly among them.

    Two on a CPU: threads that compute different tiles need not wait for each other. One where an
    engine has threads of its own, on other devices, and where threads cannot be shared evenly, as
    that could change the rounding from one run to the next.
    """
    members = model.network.models if isinstance(model.network, Ensemble) else [model]
    own = any(getattr(member, "engine", "eager") not in ("auto", "eager") for member in members)
    device = next((p.device.type for p in model.parameters()), "cpu")
    if own or device != "cpu":
        return 1
    return max(n for n in range(1, max(2, threads // STREAM_THREADS) + 1) if threads % n == 0)


def build(network: System, engine: str, device: torch.device) -> Runner:
    """What runs a network in evaluation mode on a device."""
    if engine == "auto":
        return _checked(network, device)
    if engine == "eager":
        return _eager(network, device)
    if engine == "compiled":
        return _compiled(network)
    if device.type != "cpu":
        raise ConfigError(
            f"got engine {engine} on {device}, expected cpu: choose eager or compiled"
        )
    from undercast.exported import Exported

    assert isinstance(network, UnCRtainTS)
    return Exported(network, engine)


def _checked(network: System, device: torch.device) -> Runner:
    """The eager engine if it agrees with the network, else the network; a fallback is logged."""
    runner = _eager(network, device)
    if runner is network:
        return network
    try:
        problem = disagreement(network, runner, device)
    except RuntimeError as error:  # a kernel that this torch or this CPU does not have
        problem = f"{type(error).__name__}: {error}"
    if problem is None:
        return runner
    log.warning("engine auto runs the plain network: the fast path failed its check (%s)", problem)
    return network


def disagreement(network: System, runner: Runner, device: torch.device) -> str | None:
    """How a runner differs from its network on a small input, or None where it does not."""
    generator = torch.Generator().manual_seed(0)
    batch = Batch(
        s2=torch.rand(1, 2, 13, 24, 40, generator=generator),
        s1=-25 * torch.rand(1, 2, 2, 24, 40, generator=generator),
        days=torch.tensor([[1500.0, 1510.0]]),
        valid=torch.ones(1, 2, dtype=torch.bool),
    ).to(device)
    expected, got = network(batch), runner(batch)
    gap = float((expected.mean - got.mean).abs().max())
    if not gap <= MEAN_TOLERANCE:
        return f"means differ by {gap:.1e} reflectance, expected at most {MEAN_TOLERANCE:.0e}"
    if expected.variance is None or got.variance is None:
        return None if expected.variance is got.variance else "one has a variance, one has none"
    gap = float((got.variance / expected.variance - 1).abs().max())
    if not gap <= VARIANCE_TOLERANCE:
        return f"variances differ by {gap:.1e}, expected at most {VARIANCE_TOLERANCE:.0e}"
    return None


def _eager(network: System, device: torch.device) -> Runner:
    if isinstance(network, UnCRtainTS) and device.type == "cpu":
        return FastUnCRtainTS(network)
    return network


def _compiled(network: System) -> Runner:
    copied = copy.deepcopy(network).eval()
    copied.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    compiled = torch.compile(copied, dynamic=False, options={"freezing": True})

    def run(batch: Batch) -> Output:
        with torch.no_grad():
            output: Output = compiled(batch)
        return output

    return run


_PACKAGES = {  # engine → extra, packages
    "onnx": ("ort", ("onnxruntime", "onnx")),
    "openvino": ("openvino", ("openvino",)),
    "openvino-bf16": ("openvino", ("openvino",)),
}


def _has_compiler() -> bool:
    names = (os.environ.get("CXX"), "g++", "clang++", "cl")
    return any(shutil.which(name) for name in names if name)


def _require(engine: str, model: Model) -> None:
    if engine == "compiled" and not _has_compiler():
        raise ConfigError(
            "got engine compiled, which needs a C++ compiler: install g++, or choose engine auto"
        )
    if engine not in _PACKAGES:
        return
    extra, packages = _PACKAGES[engine]
    if not isinstance(model.network, UnCRtainTS):
        raise ConfigError(
            f"got engine {engine} for {model.name}, expected auto, eager or compiled: "
            "only uncrtaints is exported"
        )
    if not all(find_spec(package) for package in packages):
        raise MissingDependencyError(f"engine {engine}", extra)


def _state_of(network: System, device: torch.device) -> Any:
    """What changes when weights do: their addresses and version counters."""
    tensors = [*network.parameters(), *network.buffers()]
    versions = [(t.data_ptr(), 0 if t.is_inference() else t._version) for t in tensors]
    return device, versions
