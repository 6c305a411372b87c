"""Simulated series and skies on disk, so that training does not wait for the simulator."""

from __future__ import annotations

import argparse
import pickle
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from glint import add_glint
from tqdm import tqdm

from undercast.simulate import simulate_series
from undercast.simulate.clouds import draw_cover, draw_sky, draw_veil
from undercast.simulate.fields import generator
from undercast.simulate.season import sun_at

SIZE, DATES, SEED = 160, 7, 20_000
SKY_SIZE = 192
BIOMES = {"snow": "mountain", "glint": "coast"}
GLINT = 0.08  # reflectance, on average


def write_series(out: Path, number: int, trouble: str | None = None) -> None:
    """clear, cloudy and radar of one series as (T, 28, H, W) float16, and its days.

    trouble: what chance brings too seldom: `snow` on mountains, or `glint` on coastal water.
    """
    path = out / f"series_{number:04d}.npy"
    if path.exists():
        return
    rng = generator(SEED, number)
    start = np.datetime64("2018-01-01") + int(rng.integers(0, 300))
    if trouble == "snow":
        start = np.datetime64("2018-11-15") + int(rng.integers(0, 90))
    dates = start + np.cumsum(rng.integers(1, 4, DATES) * 5)
    cover, resampling = float(rng.uniform(0.3, 0.7)), "nearest" if rng.random() < 0.5 else "smooth"
    found = simulate_series(SEED + number, SIZE, list(dates), cover=cover, resampling=resampling,
                            biome=None if trouble is None else BIOMES[trouble])  # fmt: skip
    stack = found.stack
    if trouble == "glint":
        stack = add_glint(found, stack, SEED + number, list(rng.exponential(GLINT, DATES)))
    together = np.concatenate([found.clear, stack.s2, stack.s1], axis=1)
    temporary = path.with_suffix(".part.npy")
    np.save(temporary, together.astype(np.float16))
    np.save(out / f"days_{number:04d}.npy", dates.astype("datetime64[D]").astype(np.int64))
    temporary.rename(path)


def write_skies(out: Path, number: int, count: int = 20) -> None:
    """`count` skies with their veils, float16."""
    path = out / f"skies_{number:03d}.pickle"
    if path.exists():
        return
    rng = generator(SEED, 1_000_000 + number)
    skies = []
    for cover in draw_cover(rng, count, 0.55):
        sky = draw_sky(rng, float(max(cover, 0.02)), float(rng.uniform(0.5, 4)))
        sun = sun_at(float(rng.uniform(-55, 60)), float(rng.uniform(0, 365)))
        veil = draw_veil(rng, sky, (SKY_SIZE, SKY_SIZE), sun)
        small = {
            n: getattr(veil, n).astype(np.float16)
            for n in ("thickness", "overhead", "relief", "haze")
        }
        skies.append((sky, replace(veil, **small)))
    temporary = path.with_suffix(".part")
    temporary.write_bytes(pickle.dumps(skies))
    temporary.rename(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--series", type=int, default=160)
    parser.add_argument("--troubles", type=int, default=16, help="series of snow, and of glint")
    parser.add_argument("--skies", type=int, default=400)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(args.workers) as pool:
        jobs = [pool.submit(write_skies, args.out, i) for i in range(-(-args.skies // 20))]
        troubles = [None] * args.series + [t for t in BIOMES for _ in range(args.troubles)]
        jobs += [pool.submit(write_series, args.out, i, t) for i, t in enumerate(troubles)]
        for job in tqdm(jobs):
            job.result()


if __name__ == "__main__":
    main()
