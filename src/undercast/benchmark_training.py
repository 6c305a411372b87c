"""Training steps against the naive module's, each variant in a process of its own.

The allocator's settings belong to a process, and the naive module is to run as anyone would run it.
Run as a module, it takes one step for each line that it reads and answers with the seconds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import torch

from undercast import bands, losses
from undercast.benchmark import (
    NAIVE,
    Plan,
    Results,
    matmul_gflops,
    naive_copy,
    paper_model,
    random_batch,
    summary,
)
from undercast.errors import DataError
from undercast.heap import keep_freed_memory
from undercast.models.uncrtaints import UnCRtainTSConfig


def time_training(plan: Plan) -> Results:
    """One optimiser step of each variant, Gaussian NLL, Adam; in turn, a step each."""
    with ExitStack() as stack:
        workers = {
            name: stack.enter_context(_Worker(about(plan, name)))
            for name in plan.trainings
            if is_possible(name)
        }
        for worker in workers.values():
            worker.step()  # compiles and warms up
        times: dict[str, list[float]] = {name: [] for name in workers}
        for _ in range(max(3, plan.repeat // 2)):
            for name, worker in workers.items():
                times[name].append(worker.step())
    return {name: summary(times[name], times.get("naive")) for name in workers}


def is_possible(name: str) -> bool:
    """Whether a variant can run here: the naive module lies in the repository only."""
    if name == "naive":
        return NAIVE.is_file()
    return not name.endswith("bf16") or has_bf16()


def has_bf16() -> bool:
    """Whether bfloat16 is arithmetic here; emulated, a step takes minutes and says nothing."""
    return matmul_gflops(torch.bfloat16, 512) > matmul_gflops(torch.float32, 512) / 2


def about(plan: Plan, name: str) -> dict[str, Any]:
    """What a process must know to train a variant."""
    return {
        "kind": "train",
        "name": name,
        "size": plan.train_size,
        "t": plan.dates[0],
        "batch": plan.train_batch,
        "threads": torch.get_num_threads(),
        "config": vars(plan.config),
    }


def training_step(job: Mapping[str, Any]) -> Callable[[], None]:
    """One step of a variant of `TRAININGS` as a function without arguments."""
    name, config = job["name"], UnCRtainTSConfig(**job["config"])
    batch = random_batch(job["batch"], job["t"], job["size"])
    target = torch.rand(job["batch"], bands.N_S2, job["size"], job["size"])
    model = paper_model(config)
    network: Any = model.network
    if name == "naive":
        network = naive_copy(model)
    else:  # as `undercast train` does
        keep_freed_memory()
        network.to(memory_format=torch.channels_last)
    network.train()
    optimiser = torch.optim.Adam(network.parameters(), 1e-4)
    forward = torch.compile(network, dynamic=False) if "compiled" in name else network

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=name.endswith("bf16")):
            output = forward(batch)
        if output.variance is None:
            loss = losses.l2(output.mean, target)
        else:
            loss = losses.gaussian_nll(output.mean, output.variance, target)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()

    return step


class _Worker:
    """A process that takes a training step when it is told to."""

    def __init__(self, job: Mapping[str, Any]) -> None:
        self._name = job["name"]
        command = [sys.executable, "-m", "undercast.benchmark_training", json.dumps(job)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def step(self) -> float:
        """The seconds of one step."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write("step\n")
            self._process.stdin.flush()
            return float(self._process.stdout.readline())
        except (OSError, ValueError) as error:
            raise DataError(f"the training of {self._name} failed: see above") from error


def serve(job: Mapping[str, Any]) -> None:
    """Steps as long as lines come in."""
    torch.set_num_threads(job["threads"])
    step = training_step(job)
    for _ in sys.stdin:
        begin = time.perf_counter()
        step()
        print(time.perf_counter() - begin, flush=True)


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
