"""What engines change: a checkpoint on a dataset, each engine beside the plain network."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from undercast import bands, engines
from undercast.checkpoint import load_model
from undercast.errors import ConfigError, InputError
from undercast.evaluate import observed, open_part, plain, sample_loader
from undercast.metrics import CalibrationAccumulator, ImageAccumulator
from undercast.models.ensemble import Ensemble
from undercast.models.system import Model, Output

PLAIN = "network"  # the system as it is written, float32: what the others are compared with
LIMITS = {"psnr_change": 0.05, "mean_rel_variance": 0.02, "coverage_90_change": 0.01}
Results = dict[str, Any]


def check_engines(
    source: str | Path | Sequence[str | Path],
    data: str | Path,
    names: Sequence[str] | None = None,
    *,
    limit: int | None = None,
    split: str = "test",
    t: int = 3,
    progress: Callable[[str], None] = lambda _: None,
) -> Results:
    """PSNR, variance and 90 % coverage of each engine on a split, and their changes.

    names: engines, the installed ones unless told. limit: that many samples, evenly spread.
    `holds` is whether PSNR moves by at most 0.05 dB, the variance by at most 2 % on average, and
    the coverage by less than 0.01. One sample at a time: every engine sees the same.
    """
    model = load_model(source, engine="eager")
    network = _plain_model(model)
    runners = {PLAIN: network} | {n: engines.attach(network, n) for n in _chosen(names)}
    tables = {name: _Table() for name in runners}
    dataset = open_part(data, split, limit, t=t)
    for i, loaded in enumerate(sample_loader(dataset, 1, 0)):
        progress(f"sample {i + 1} of {len(dataset)}")
        part = observed(loaded, False)
        if part is None:
            continue
        with torch.inference_mode():
            expected = network(part.batch)
            for name, runner in runners.items():
                output = expected if name == PLAIN else runner(part.batch)
                tables[name].feed(part.target, output, expected)
    if not tables[PLAIN].image.images:
        raise InputError("got a dataset without any usable sample, expected at least one")
    rows = {name: table.result() for name, table in tables.items()}
    found = {name: row | _changes(row, rows[PLAIN]) for name, row in rows.items()}
    checked: Results = plain({"samples": tables[PLAIN].image.images, "engines": found})
    return checked


def _plain_model(model: Model) -> Model:
    """Without engines: what `model.network` computes, calibrated."""
    network = model.network
    if isinstance(network, Ensemble):
        network = Ensemble([_plain_model(member) for member in network.models])
    return Model(model.name, network, model.calibration, model.provenance).eval()


def _chosen(names: Sequence[str] | None) -> list[str]:
    known = engines.installed()
    if names is None:
        return known
    if unknown := sorted(set(names) - {*known, "auto"}):
        raise ConfigError(
            f"got engine {unknown[0]!r}, expected some of {', '.join(known)} to check"
        )
    return list(names)


class _Table:
    """One engine: metrics against the targets, differences from the network."""

    def __init__(self) -> None:
        self.image = ImageAccumulator(bands.N_S2)
        self.calibration: CalibrationAccumulator | None = None
        self.largest = 0.0
        self.relative = np.zeros(2)  # sum, count

    def feed(self, target: Tensor, output: Output, expected: Output) -> None:
        self.image.feed(target, output.mean)
        counted = target.isfinite()
        if not bool(counted.any()):
            return
        gap = (output.mean - expected.mean).abs()[counted]
        self.largest = max(self.largest, float(gap.max()))
        if output.variance is None or expected.variance is None:
            return
        if self.calibration is None:
            self.calibration = CalibrationAccumulator(bands.N_S2)
        self.calibration.feed(target, output.mean, output.variance)
        relative = (output.variance / expected.variance - 1).abs()[counted].double()
        self.relative += (float(relative.sum()), relative.numel())

    def result(self) -> dict[str, float]:
        found = {"psnr": self.image.result()["PSNR"], "max_abs_diff": self.largest}
        if self.calibration is None:
            return found
        return found | {
            "coverage_90": self.calibration.result()["coverage_90"],
            "mean_rel_variance": float(self.relative[0] / self.relative[1]),
        }


def _changes(row: dict[str, float], expected: dict[str, float]) -> Results:
    changes = {"psnr_change": row["psnr"] - expected["psnr"]}
    if "coverage_90" in row:
        changes["coverage_90_change"] = row["coverage_90"] - expected["coverage_90"]
    known = row | changes
    return changes | {"holds": all(within(name, known[name]) for name in LIMITS if name in known)}


def within(name: str, change: float) -> bool:
    """Whether a change is small enough; the coverage must stay below its limit.

    >>> within("psnr_change", -0.05), within("coverage_90_change", 0.01), within("psnr_change", 1)
    (True, False, False)
    """
    size = abs(change)
    if math.isnan(size):
        return False
    return size < LIMITS[name] if name.startswith("coverage") else size <= LIMITS[name]
