"""A synthetic scene from files to product: peak memory, tiles per second, and seams.

    python benchmarks/scene.py                              4096 × 2048, the paper's network
    python benchmarks/scene.py --d-m 16 --height 1024 2048  how memory grows with the height
    python benchmarks/scene.py --model mosaic               any model instead of fresh weights
    python benchmarks/scene.py --seams 896                  two grids of tiles, half a tile apart

Each size runs in a process of its own, since a peak never goes down.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

DATES = ("2018-06-01", "2018-06-11", "2018-06-21")


def write_scene(folder: Path, height: int, width: int, strip: int = 256) -> list[Path]:
    """Three smooth dates with round clouds, strip by strip, so that this needs little memory."""
    import rasterio
    from rasterio.transform import from_origin

    files = []
    for i, date in enumerate(DATES):
        path = folder / f"s2_{date}.tif"
        with rasterio.open(
            path, "w", driver="GTiff", count=13, height=height, width=width, dtype="uint16",
            crs="EPSG:32631", transform=from_origin(500000, 4600000, 10, 10), nodata=0,
            tiled=True, blockxsize=256, blockysize=256, compress="deflate", zlevel=1,
        ) as file:  # fmt: skip
            for row in range(0, height, strip):
                rows = slice(row, min(row + strip, height))
                window = ((rows.start, rows.stop), (0, width))
                file.write(_numbers(rows, width, i), window=window)
        files.append(path)
    return files


def _numbers(rows: slice, width: int, date: int) -> np.ndarray:
    y, x = np.mgrid[rows, 0:width].astype(np.float32)
    waves = (
        np.stack([np.sin(x / (17 + 3 * b)) * np.cos(y / (23 + 2 * b)) for b in range(13)]) * 0.06
        + np.linspace(0.08, 0.25, 13, dtype=np.float32)[:, None, None]
    )
    cloud = np.sin(x / 150 + 2 * date) * np.sin(y / 130 + date) > 0.55
    noise = np.random.default_rng([rows.start, date]).normal(0, 0.003, waves.shape)
    return np.rint(10000 * np.where(cloud, 0.75, waves + noise)).clip(1, 65535).astype(np.uint16)


def save_network(path: Path, d_m: int) -> None:
    import torch

    from undercast.checkpoint import save_model
    from undercast.models import create

    torch.manual_seed(0)
    save_model(create("uncrtaints", d_m=d_m, heads=16 if d_m >= 64 else 4, sar=False), path)


def run_once(height: int, width: int, d_m: int, model: str | None) -> dict[str, object]:
    """Files, product, and this process's peak memory before and after."""
    from undercast.benchmark_costs import peak_mb
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


def seam_ratio(size: int, d_m: int) -> dict[str, float]:
    """Mean absolute difference of two shifted grids on the edges of tiles over that elsewhere."""
    from undercast import predict
    from undercast.checkpoint import load_model
    from undercast.scene import open_scene
    from undercast.tiles import SIZE, TilePlan
    from undercast.types import Tile

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        scene = open_scene(write_scene(folder, size, size))
        save_network(folder / "weights.safetensors", d_m)
        model = load_model(folder / "weights.safetensors")
        stack = scene.read(Tile(0, 0, size, size))
    plans = [TilePlan(size, size, shift=shift) for shift in (0, SIZE // 2)]
    one, other = (predict(model, stack, plan=plan).mean for plan in plans)
    difference = np.abs(one - other).mean(axis=0)
    edge = np.zeros((size, size), bool)
    for plan in plans:
        for start in plan.row_starts:
            lines = [line for line in (start, start + SIZE - 1) if 0 < line < size - 1]
            edge[lines] = edge[:, lines] = True
    on, off = float(difference[edge].mean()), float(difference[~edge].mean())
    return {"size": size, "d_m": d_m, "edges": on, "elsewhere": off, "ratio": on / off}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--height", type=int, nargs="+", default=[4096])
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--d-m", type=int, default=128)
    parser.add_argument("--model", default=None)
    parser.add_argument("--seams", type=int, default=None, metavar="PX")
    parser.add_argument("--here", action="store_true", help="in this process")
    args = parser.parse_args()
    if args.seams:
        print(json.dumps(seam_ratio(args.seams, args.d_m)))
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
