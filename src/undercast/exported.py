"""UnCRtainTS as a graph for ONNX Runtime or OpenVINO, cached by weights and shape.

A graph takes one sample: x (1 t c h w) in the network's units and days (1 t), with fixed sizes;
each new (t, h, w) is exported once and kept in the cache folder. Invalid dates are left out.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import os
import shutil
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from undercast.errors import DataError
from undercast.models.mono import least_cloudy_date
from undercast.models.system import Batch, Output
from undercast.models.uncrtaints import UnCRtainTS
from undercast.models.uncrtaints_fast import FastUnCRtainTS, scaled_input

FORMAT = 1
MIN_PIXELS = 4096  # below, a graph does not pay, and OpenVINO crashes on some of the smallest
log = logging.getLogger(__name__)

Session = Callable[[Tensor, Tensor], list[Tensor]]


def cache_folder() -> Path:
    """`$UNDERCAST_CACHE`, or `undercast` in the user's cache folder."""
    if told := os.environ.get("UNDERCAST_CACHE"):
        return Path(told)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "undercast"


class Exported:
    """An evaluation-mode UnCRtainTS run by graphs; kind: onnx, openvino or openvino-bf16."""

    def __init__(self, network: UnCRtainTS, kind: str) -> None:
        self.network, self.kind = network, kind
        self._eager = FastUnCRtainTS(network)
        self._digest = weights_digest(network)
        self._sessions: dict[tuple[int, ...], Session] = {}

    @torch.no_grad()
    def __call__(self, batch: Batch) -> Output:
        """Physical units in and out, sample by sample."""
        if reason := self._unfit(*batch.s2.shape[-2:]):
            log.info("engine %s leaves this input to engine eager: %s", self.kind, reason)
            return self._eager(batch)
        if self.network.config.mono:
            batch = least_cloudy_date(batch)
        outputs = [self._sample(batch, index) for index in range(len(batch.s2))]
        mean = torch.cat([output[0] for output in outputs])
        if not self.network.gives_variance:
            return Output(mean)
        return Output(mean, torch.cat([output[1] for output in outputs]))

    def _unfit(self, height: int, width: int) -> str | None:
        """Why an input of this size has no graph, or None."""
        if height * width < MIN_PIXELS:
            return f"{height}×{width} px are fewer than {MIN_PIXELS}"
        grid = self.network.config.attention_grid
        if self.kind == "onnx" and (height % grid or width % grid):
            return f"ONNX cannot pool {height}×{width} px to a grid of {grid}"
        return None

    def _sample(self, batch: Batch, index: int) -> list[Tensor]:
        dates = batch.valid[index]
        if self.network.config.mono:
            dates = torch.ones_like(dates)
        s2, s1 = batch.s2[index, dates][None], batch.s1[index, dates][None]
        x = scaled_input(self.network.config, s2, s1)
        scale = self.network.config.scale
        outputs = self._session(x.shape)(x, batch.days[index, dates][None].float())
        return [output / scale**power for power, output in enumerate(outputs, start=1)]

    def _session(self, shape: tuple[int, ...]) -> Session:
        if shape not in self._sessions:
            self._sessions[shape] = self._open(shape)
        return self._sessions[shape]

    def _open(self, shape: tuple[int, ...]) -> Session:
        """A session on the cached graph; a missing or damaged one is exported (again)."""
        onnx = self.kind == "onnx"
        sizes = "x".join(str(n) for n in (shape[1], *shape[-2:]))
        folder = cache_folder() / f"{self._digest}-{sizes}.{'onnx' if onnx else 'openvino'}"
        open_graph = _open_onnx if onnx else _opener_of_openvino(self.kind)
        if folder.is_dir():
            try:
                return open_graph(folder)
            except Exception as error:  # the runtimes raise their own, undocumented classes
                log.warning(
                    "the cached graph %s cannot be read (%s): exporting again", folder, error
                )
                shutil.rmtree(folder, ignore_errors=True)
        log.info("exporting %s", folder)
        # the tracers crash on inference tensors
        with _final_folder(folder) as temporary, torch.inference_mode(False), torch.no_grad():
            (_export_onnx if onnx else _export_openvino)(self.network, shape, temporary)
        return open_graph(folder)


def weights_digest(network: UnCRtainTS) -> str:
    """What a cached graph depends on: settings, weights, and the versions that wrote it."""
    about = [FORMAT, torch.__version__, asdict(network.config)]
    digest = hashlib.sha256(json.dumps(about).encode())
    for name, tensor in sorted(network.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:24]


class _Graph(nn.Module):
    """The network as a function of two tensors, all dates valid."""

    def __init__(self, network: UnCRtainTS) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, days: Tensor) -> tuple[Tensor, ...]:
        output = self.network.reconstruct(x, days, torch.ones_like(days, dtype=torch.bool))
        if output.variance is None:
            return (output.mean,)
        return output.mean, output.variance


def _example(shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    return torch.rand(shape), torch.arange(1500.0, 1500.0 + shape[1])[None]


def _export_onnx(network: UnCRtainTS, shape: tuple[int, ...], folder: Path) -> None:
    names = ["reflectance", "spread"][
        : 1 + network.gives_variance
    ]  # `mean` is taken by an operator
    with _quiet():
        torch.onnx.export(
            _Graph(network).eval(), _example(shape), str(folder / "graph.onnx"), dynamo=False,
            input_names=["x", "days"], output_names=names, opset_version=18,
        )  # fmt: skip


def _open_onnx(folder: Path) -> Session:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        str(folder / "graph.onnx"), options, providers=["CPUExecutionProvider"]
    )
    taken = {put.name for put in session.get_inputs()}  # a mono graph does not need days

    def run(x: Tensor, days: Tensor) -> list[Tensor]:
        feed = {"x": x.contiguous().numpy(), "days": days.numpy()}
        outputs = session.run(None, {k: v for k, v in feed.items() if k in taken})
        return [torch.from_numpy(output) for output in outputs]

    return run


def _export_openvino(network: UnCRtainTS, shape: tuple[int, ...], folder: Path) -> None:
    openvino = import_openvino()
    example = _example(shape)
    with _quiet(), _no_telemetry():
        graph = openvino.convert_model(
            _Graph(network).eval(), example_input=example, input=[list(e.shape) for e in example]
        )
        openvino.save_model(graph, folder / "graph.xml", compress_to_fp16=False)


def _opener_of_openvino(kind: str) -> Callable[[Path], Session]:
    precision = "bf16" if kind.endswith("bf16") else "f32"

    def open_graph(folder: Path) -> Session:
        core = import_openvino().Core()
        if precision == "bf16" and "BF16" not in core.get_property(
            "CPU", "OPTIMIZATION_CAPABILITIES"
        ):
            log.warning("this CPU has no bfloat16 arithmetic: engine %s is slow here", kind)
        graph = core.compile_model(
            core.read_model(folder / "graph.xml"),
            "CPU",
            {
                "INFERENCE_PRECISION_HINT": precision,  # the default is bfloat16 on some CPUs
                "INFERENCE_NUM_THREADS": torch.get_num_threads(),
                "PERFORMANCE_HINT": "LATENCY",
            },
        )
        request, one_at_a_time = graph.create_infer_request(), threading.Lock()

        def run(x: Tensor, days: Tensor) -> list[Tensor]:
            arrays = [x.contiguous().numpy(), days.numpy()][: len(graph.inputs)]
            with one_at_a_time:
                results = request.infer(arrays)
                return [torch.from_numpy(results[port].copy()) for port in graph.outputs]

        return run

    return open_graph


def import_openvino() -> Any:
    with _no_telemetry():
        import openvino
    return openvino


@contextlib.contextmanager
def _no_telemetry() -> Iterator[None]:
    """OpenVINO's telemetry writes to the home folder unless CI is set."""
    before = os.environ.get("CI")
    os.environ["CI"] = "true"
    try:
        yield
    finally:
        if before is None:
            del os.environ["CI"]
        else:
            os.environ["CI"] = before


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Tracing prints and warns about Python branches on sizes, which are fixed here."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _final_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder that takes its name when the block succeeds; another's work may win."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".part-"))
    except OSError as error:
        raise DataError(
            f"cannot write graphs to {folder.parent}: {error.strerror}; set UNDERCAST_CACHE"
        ) from error
    try:
        yield temporary
        try:
            temporary.rename(folder)
        except OSError:  # another process has put the same graph there meanwhile
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
