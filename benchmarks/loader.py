"""Training samples per second that one core reads: T = 3, 128 px crops, masks cached.

    python benchmarks/loader.py [--data DIR] [--json FILE]

Without --data a dataset is simulated into a temporary folder first. Every epoch draws other dates,
places and turns, so that nothing but the operating system's file cache helps.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from undercast.datasets import collate, open_dataset, prepare
from undercast.simulate import write_dataset

TARGET = 20.0


def measure(root: Path, seconds: float, profile: bool = False) -> dict[str, Any]:
    """Samples per second of process time and of wall time, in batches of 4."""
    dataset = open_dataset(
        root, "train", t=3, protocol="train", crop=128, augment=True, sar_dropout=0.1
    )
    dataset[0]  # imports and first opening
    profiler = cProfile.Profile()
    count, epoch, start, cpu = 0, 0, time.perf_counter(), time.process_time()
    if profile:
        profiler.enable()
    while time.perf_counter() - start < seconds:
        dataset.set_epoch(epoch)
        for first in range(0, len(dataset), 4):
            items = range(first, min(first + 4, len(dataset)))
            count += len(collate([dataset[i] for i in items]).samples)
        epoch += 1
    wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    if profile:
        profiler.disable()
        pstats.Stats(profiler).sort_stats("tottime").print_stats(12)
    return {
        "samples": count,
        "samples_per_second": count / wall,
        "samples_per_cpu_second": count / cpu,
        "target_per_second": TARGET,
        "t": 3,
        "crop": 128,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, help="a prepared dataset with 256 px patches")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long to read")
    parser.add_argument("--profile", action="store_true", help="show where the time goes")
    parser.add_argument("--json", type=Path, help="write the result to this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        root = args.data or Path(folder) / "data"
        if args.data is None:
            write_dataset(root, rois=3, patches=2, dates=8, size=256, seed=0)
            prepare(root, method="rules")
        result = measure(root, args.seconds, args.profile)
    print(
        f"{result['samples_per_second']:.1f} samples/s of wall time, "
        f"{result['samples_per_cpu_second']:.1f} per second of one core (wanted: {TARGET:.0f})"
    )
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
