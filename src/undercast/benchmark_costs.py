"""What `undercast benchmark` measures besides forwards: memory, throughput, scaling.

Run as a module, it measures the memory of one job in its own process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from undercast import engines
from undercast.benchmark import (
    NAIVE,
    Plan,
    Results,
    bound,
    interleaved,
    median,
    paper_model,
    random_batch,
    runner_of,
)
from undercast.benchmark_training import about, is_possible, training_step
from undercast.errors import DataError
from undercast.models.system import Output
from undercast.models.uncrtaints import UnCRtainTSConfig


def measure_memory(plan: Plan) -> Results:
    """Peak resident memory of one forward and one training step, each in its own process, in MB.

    Counted above what the process holds after the imports and the model's construction.
    """
    forwards = [name for name in plan.engines if _possible(name)]
    jobs = [about(plan, n) | {"kind": "forward", "size": plan.sizes[0]} for n in forwards]
    jobs += [about(plan, n) for n in plan.trainings if "bf16" not in n and is_possible(n)]
    found: Results = {"forward": {}, "train": {}}
    for job in jobs:
        found[job["kind"]][job["name"]] = _in_process(job)
    return found


def _possible(name: str) -> bool:
    if name == "naive":
        return NAIVE.is_file()
    return name == "auto" or name in engines.installed()


def _in_process(job: Mapping[str, Any]) -> float:
    done = subprocess.run(
        [sys.executable, "-m", "undercast.benchmark_costs", json.dumps(job)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise DataError(f"measuring {job['name']} failed: {done.stderr.strip()[-300:]}")
    return float(done.stdout.split()[-1])


def memory_of(job: Mapping[str, Any]) -> float:
    """The peak memory of this process above what it held before one job, in MB."""
    torch.set_num_threads(job["threads"])
    if job["kind"] == "forward":
        runner = runner_of(job["name"], paper_model(UnCRtainTSConfig(**job["config"])))
        assert runner is not None
        batch = random_batch(1, job["t"], job["size"])
        before = resident_mb()
        with torch.inference_mode():
            runner(batch)
    else:
        step = training_step(job)
        before = resident_mb()
        step()
    return round(peak_mb() - before, 1)


def peak_mb() -> float:
    """The largest resident memory that this process has had, in MB.

    From /proc where there is one: `ru_maxrss` is at least what the parent held when it forked.
    """
    import re
    import resource

    status = Path("/proc/self/status")
    if status.is_file():
        found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
        if found is not None:
            return int(found[1]) / 2**10
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def resident_mb() -> float:
    """The resident memory of this process now, in MB; its peak where /proc does not tell."""
    statm = Path("/proc/self/statm")
    if not statm.is_file():
        return peak_mb()
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def measure_throughput(plan: Plan) -> Results:
    """Tiles/s of `predict`, patches/s of the simulator, samples/s of the loader."""
    from undercast.datasets import collate, open_dataset, prepare
    from undercast.pipeline import predict
    from undercast.simulate import simulate_series, write_dataset

    size, t = plan.sizes[0], plan.dates[0]
    found: Results = {}
    begin = time.perf_counter()
    series = simulate_series(0, size=size, dates=t)
    found["simulated_patches_per_s"] = _rate(1, begin)
    model = engines.attach(paper_model(plan.config))
    predict(model, series.stack)
    begin = time.perf_counter()
    predict(model, series.stack)
    found["predicted_tiles_per_s"] = _rate(1, begin)
    with tempfile.TemporaryDirectory() as folder:
        write_dataset(
            Path(folder) / "data", layout="sen12mscrts", rois=3, patches=2, dates=t + 2,
            size=size, seed=0, workers=1,
        )  # fmt: skip
        prepare(Path(folder) / "data", method="rules")
        dataset = open_dataset(Path(folder) / "data", "train", t=t)
        begin = time.perf_counter()
        for index in range(len(dataset)):
            collate([dataset[index]])
        found["loaded_samples_per_s"] = _rate(len(dataset), begin)
    return found


def _rate(count: int, begin: float) -> float:
    return round(count / (time.perf_counter() - begin), 3)


def measure_scaling(plan: Plan) -> Results:
    """Seconds of the default engine against area, dates, ensemble size, threads and workers."""
    from undercast.benchmark_scene import time_workers
    from undercast.models.ensemble import ensemble_of

    size, t = plan.sizes[0] // 2, plan.dates[0]
    one = engines.attach(paper_model(plan.config))
    members = [engines.attach(paper_model(plan.config, seed)) for seed in range(4)]
    threads, batch = torch.get_num_threads(), random_batch(1, t, size)

    def timed(calls: Mapping[str, Callable[[], object]]) -> dict[str, float]:
        with torch.inference_mode():
            for call in calls.values():
                call()
            times = interleaved(calls, plan.repeat)
        return {name: round(median(values), 4) for name, values in times.items()}

    sides = (size // 2, size, 2 * size)
    found: Results = {
        "area": timed({str(n * n): bound(one, random_batch(1, t, n)) for n in sides}),
        "dates": timed({str(n): bound(one, random_batch(1, n, size)) for n in range(1, 6)}),
        "members": timed({str(n): bound(ensemble_of(members[:n]), batch) for n in (1, 2, 4)}),
        "threads": timed({str(n): _on_threads(n, bound(one, batch)) for n in sorted({1, threads})}),
    }
    torch.set_num_threads(threads)
    return found | {"workers": time_workers(plan)}


def _on_threads(count: int, call: Callable[[], Output]) -> Callable[[], Output]:
    def run() -> Output:
        torch.set_num_threads(count)
        return call()

    return run


if __name__ == "__main__":
    print(memory_of(json.loads(sys.argv[1])))
