"""A synthetic scene from files to product: peak memory, tiles per second, and seams.

    python benchmarks/scene.py                              4096 × 2048, the paper's network
    python benchmarks/scene.py --d-m 16 --height 1024 2048  how memory grows with the height
    python benchmarks/scene.py --model mosaic               any model instead of fresh weights
    python benchmarks/scene.py --seams 896                  two grids of tiles, half a tile apart
    python benchmarks/scene.py --seams 896 --model default  the same on a simulated scene with radar

Each size runs in a process of its own, since a peak never goes down. What a scene costs beyond its
network is measured by `undercast benchmark --scene`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np


def save_network(path: Path, d_m: int) -> None:
    import torch

    from undercast.checkpoint import save_model
    from undercast.models import create

    torch.manual_seed(0)
    save_model(create("uncrtaints", d_m=d_m, heads=16 if d_m >= 64 else 4, sar=False), path)


def run_once(height: int, width: int, d_m: int, model: str | None) -> dict[str, object]:
    """Files, product, and this process's peak memory before and after."""
    from undercast.benchmark_costs import peak_mb
    from undercast.benchmark_scene import write_scene
    from undercast.pipeline import predict_scene
    from undercast.tiles import TilePlan

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = write_scene(folder, height, width)
        weights = folder / "weights.safetensors"
        save_network(weights, d_m)
        started = time.monotonic()
        predict_scene(files, folder / "out", model or weights, clouds="rules")
        seconds = time.monotonic() - started
        sizes = {path.name: path.stat().st_size / 1e6 for path in (folder / "out").glob("*.tif")}
    return {
        "height": height, "width": width, "model": model or f"uncrtaints d_m={d_m}",
        "tiles": len(TilePlan(height, width)), "seconds": round(seconds, 1),
        "peak_mb": round(peak_mb(), 1),
        **{f"{key}_mb": round(value, 1) for key, value in sizes.items()},
    }  # fmt: skip


def seam_ratio(size: int, d_m: int, source: str | None, scenes: int) -> dict[str, Any]:
    """Mean absolute difference of two shifted grids on the edges of tiles over that elsewhere.

    Fresh weights see a scene of waves; a checkpoint sees simulated ones, with radar. Differences
    are largest under clouds, so a single scene says more of where its clouds are than of edges.
    """
    from undercast import load_model, predict
    from undercast.tiles import SIZE, TilePlan

    plans = [TilePlan(size, size, shift=shift) for shift in (0, SIZE // 2)]
    edge = edges(size)
    with tempfile.TemporaryDirectory() as name:
        weights = Path(name) / "weights.safetensors"
        save_network(weights, d_m)
        model = load_model(source or weights)
        stacks = (
            (simulated(size, seed) for seed in range(scenes))
            if source
            else iter([waves(Path(name), size)])
        )
        ratios, on, off = [], [], []
        for stack in stacks:
            one, other = (predict(model, stack, plan=plan).mean for plan in plans)
            difference = np.abs(one - other).mean(axis=0)
            on.append(float(difference[edge].mean()))
            off.append(float(difference[~edge].mean()))
            ratios.append(round(on[-1] / off[-1], 3))
    return {
        "size": size,
        "model": source or f"uncrtaints d_m={d_m}",
        "edges": float(np.mean(on)),
        "elsewhere": float(np.mean(off)),
        "ratio": float(np.mean(on) / np.mean(off)),
        "of_scenes": ratios,
    }


def edges(size: int) -> Any:
    """(size, size) True on the first and last rows and columns of the tiles of both grids."""
    from undercast.tiles import SIZE, TilePlan

    edge = np.zeros((size, size), bool)
    for shift in (0, SIZE // 2):
        for start in TilePlan(size, size, shift=shift).row_starts:
            lines = [line for line in (start, start + SIZE - 1) if 0 < line < size - 1]
            edge[lines] = edge[:, lines] = True
    return edge


def simulated(size: int, seed: int) -> Any:
    """A cloudy stack of three dates with radar."""
    from undercast.simulate import simulate_series

    return simulate_series(seed, size=size, dates=3).stack


def waves(folder: Path, size: int) -> Any:
    """The stack of `write_scene`."""
    from undercast.benchmark_scene import write_scene
    from undercast.scene import open_scene
    from undercast.types import Tile

    return open_scene(write_scene(folder, size, size)).read(Tile(0, 0, size, size))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--height", type=int, nargs="+", default=[4096])
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--d-m", type=int, default=128)
    parser.add_argument("--model", default=None)
    parser.add_argument("--seams", type=int, default=None, metavar="PX")
    parser.add_argument("--scenes", type=int, default=4, help="simulated ones, for --seams")
    parser.add_argument("--here", action="store_true", help="in this process")
    args = parser.parse_args()
    if args.seams is not None:
        if args.seams < 640:
            parser.error(f"got {args.seams} pixels, expected 640 or more: the grids must differ")
        print(json.dumps(seam_ratio(args.seams, args.d_m, args.model, args.scenes)))
        return
    for height in args.height:
        if args.here:
            print(json.dumps(run_once(height, args.width, args.d_m, args.model)))
            continue
        command = [sys.executable, __file__, "--here", "--height", str(height)]
        command += ["--width", str(args.width), "--d-m", str(args.d_m)]
        command += ["--model", args.model] if args.model else []
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
