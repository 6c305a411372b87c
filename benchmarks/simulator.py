"""How many patches the simulator makes per second and core.

    python benchmarks/simulator.py [--patches 4] [--dates 10] [--size 256] [--json FILE]

One patch is one date of 13 + 2 bands, written as GeoTIFF; CPU seconds of this one process count,
so that other work on the machine does not.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np

from undercast import Stack
from undercast.simulate import add_clouds, write_dataset


def main() -> None:
    parser = argparse.ArgumentParser(description="How fast the simulator is.")
    parser.add_argument("--patches", type=int, default=4)
    parser.add_argument("--dates", type=int, default=10)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_dataset(Path(folder) / "warm", rois=1, patches=1, dates=1, size=64)
        wall, cpu = time.perf_counter(), time.process_time()
        write_dataset(
            Path(folder) / "set", rois=3, patches=args.patches, dates=args.dates, size=args.size
        )
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    images = 3 * args.patches * args.dates
    clear = Stack(np.full((20, 13, args.size, args.size), 0.2), ["2018-06-01"] * 20)
    start = time.process_time()
    add_clouds(clear, 0)
    clouds = time.process_time() - start
    result = {
        "size": args.size, "images": images,
        "patches_per_cpu_second": images / cpu, "patches_per_second": images / wall,
        "add_clouds_per_cpu_second": 20 / clouds,
    }  # fmt: skip
    print(f"{images} patches of {args.size} px: {images / cpu:.1f} per second and core")
    print(f"by the clock: {images / wall:.1f} per second")
    print(f"add_clouds: {20 / clouds:.1f} images per second and core")
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
