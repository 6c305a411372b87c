"""Simulated against real: bands, correlation, spectra, clouds and radar in numbers and pictures.

    python benchmarks/realism.py --real ../shared/realdata --out /tmp/realism [--series 40]

The real samples (see docs/simulator.md) are not part of the repository. Prints tables, and writes
realism.json and RGB grids of simulated beside real images to --out.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from undercast import bands
from undercast.simulate import simulate_series

NEIGHBOURS = (("B2", "B3"), ("B3", "B4"), ("B6", "B7"), ("B7", "B8A"), ("B11", "B12"))


def real_samples(folder: Path) -> dict[str, Any]:
    """Clear (n, 13, h, w) patches and cloudy ones in reflectance, radar in dB, covers of series."""
    euro = np.load(folder / "eurosat_l1c.npz")["s2"]
    pairs = np.load(folder / "sen12mscr_pairs.npz")
    triplets = np.load(folder / "sen12mscr_triplets.npz")
    spain = np.load(folder / "spain_s1_s2_512px.npz")
    clm = np.load(folder / "l1c_scenes_and_cloud_masks.npz")
    seen = clm["is_data"] > 0
    cover = ((clm["clm"] > 0) & seen).sum((1, 2)) / np.maximum(seen.sum((1, 2)), 1)
    scale = np.float32(bands.DN_PER_REFLECTANCE)
    clear = np.concatenate((pairs["s2_clear"], triplets["s2_clear"][:5]))
    cloudy = np.concatenate((pairs["s2_cloudy"], triplets["s2_cloudy"][:5]))
    return {
        "small": euro / scale,
        "clear": clear / scale,
        "cloudy": cloudy / scale,
        "radar": [*triplets["s1"][:5], spain["s1_db"][:, :256, :256]],
        "cover": cover,
    }


def simulated_samples(count: int, size: int = 256, seed: int = 0) -> dict[str, Any]:
    """As many series of four dates, any biome."""
    series = [simulate_series(seed + i, size, 4) for i in range(count)]
    return {
        "clear": np.concatenate([s.clear for s in series]),
        "cloudy": np.concatenate([s.stack.s2 for s in series]),
        "radar": [s.stack.s1[0] for s in series if s.stack.s1 is not None],
        "cover": np.concatenate([s.cover for s in series]),
        "cloud": np.concatenate([s.cloud for s in series]),
    }


def spectrum_slope(image: Any) -> float:
    """Exponent of the power spectrum of one band, from 4 cycles a patch to Nyquist."""
    n = min(image.shape)
    window = np.hanning(n)[:, None] * np.hanning(n)[None]
    image = (image[:n, :n] - image[:n, :n].mean()) * window
    power = np.abs(np.fft.fft2(image)) ** 2
    frequency = np.hypot(np.fft.fftfreq(n)[:, None], np.fft.fftfreq(n)[None])
    edges = np.geomspace(4 / n, 0.5, 14)
    ring = np.digitize(frequency.ravel(), edges)
    mean = [power.ravel()[ring == i].mean() for i in range(1, len(edges))]
    return float(np.polyfit(np.log(np.sqrt(edges[1:] * edges[:-1])), np.log(mean), 1)[0])


def band_table(images: Any) -> dict[str, dict[str, float]]:
    """Per band: mean, standard deviation, percentiles over all pixels, contrast inside a patch."""
    table = {}
    for i, name in enumerate(bands.S2):
        values = images[:, i]
        p5, p50, p95 = np.percentile(values, (5, 50, 95))
        table[name] = {
            "mean": float(values.mean()), "std": float(values.std()),
            "p5": float(p5), "p50": float(p50), "p95": float(p95),
            "inside": float(np.median(values.std(axis=(1, 2)))),
        }  # fmt: skip
    return table


def correlations(images: Any) -> Any:
    """(13, 13) correlation over all pixels."""
    flat = np.moveaxis(images, 1, 0).reshape(bands.N_S2, -1)
    return np.corrcoef(flat[:, :: max(1, flat.shape[1] // 400_000)])


def cover_shares(cover: Any) -> dict[str, float]:
    return {
        "clear (< 5 %)": float((cover < 0.05).mean()),
        "5 to 95 %": float(((cover >= 0.05) & (cover <= 0.95)).mean()),
        "overcast (> 95 %)": float((cover > 0.95).mean()),
        "mean": float(cover.mean()),
    }


def radar_table(images: Any) -> dict[str, float]:
    """Percentiles of VV and VH in dB, local speckle and likeness of neighbours."""
    result = {}
    for i, name in enumerate(bands.S1):
        db = np.stack([image[i] for image in images]).astype(np.float64)
        for q, value in zip((5, 50, 95), np.percentile(db, (5, 50, 95)), strict=True):
            result[f"{name} p{q}"] = float(value)
        result[f"{name} neighbours"] = float(
            np.median([np.corrcoef(d[:, 1:].ravel(), d[:, :-1].ravel())[0, 1] for d in db])
        )
        n = db.shape[-1] // 5 * 5
        block = 10 ** (db[:, :n, :n].reshape(len(db), n // 5, 5, n // 5, 5) / 10)
        spread = block.var(axis=(2, 4)) / block.mean(axis=(2, 4)) ** 2
        result[f"{name} 1/cv² (25 % calmest)"] = float(1 / np.percentile(spread, 25))
    return result


def compare(real: dict[str, Any], simulated: dict[str, Any]) -> dict[str, Any]:
    """All numbers, as {topic: {real, simulated}}."""
    both = {"real": real, "simulated": simulated}
    slopes = {
        who: {
            name: float(np.median([spectrum_slope(x[i]) for x in data["clear"][:60]]))
            for i, name in enumerate(bands.S2)
        }
        for who, data in both.items()
    }
    matrix = {who: correlations(data["clear"]) for who, data in both.items()}
    return {
        "bands": {who: band_table(data["clear"]) for who, data in both.items()},
        "bands (EuroSAT)": {"real": band_table(real["small"])},
        "slope": slopes,
        "correlation": {
            who: {f"{a}-{b}": float(m[bands.S2.index(a), bands.S2.index(b)]) for a, b in NEIGHBOURS}
            for who, m in matrix.items()
        },
        "correlation_distance": float(np.abs(matrix["real"] - matrix["simulated"]).mean()),
        "cover": {who: cover_shares(data["cover"]) for who, data in both.items()},
        "radar": {who: radar_table(data["radar"]) for who, data in both.items()},
        "cloudy p99": {
            who: dict(
                zip(
                    bands.S2,
                    np.percentile(data["cloudy"], 99, axis=(0, 2, 3)).tolist(),
                    strict=True,
                )
            )
            for who, data in both.items()
        },
    }


def report(numbers: dict[str, Any]) -> None:
    real, sim = numbers["bands"]["real"], numbers["bands"]["simulated"]
    euro = numbers["bands (EuroSAT)"]["real"]
    print("clear reflectance ×10⁴      SEN12MS-CR          EuroSAT             simulated     slope")
    print("band   p5   p50   p95  in   p5   p50   p95  in   p5   p50   p95  in   real  sim")
    for name in bands.S2:
        cells = [
            f"{1e4 * t[name][k]:6.0f}"
            for t in (real, euro, sim)
            for k in ("p5", "p50", "p95", "inside")
        ]
        slopes = numbers["slope"]
        print(f"{name:4}{''.join(cells)}"
              f" {slopes['real'][name]:6.2f}{slopes['simulated'][name]:6.2f}"
              f"   p99 cloudy {1e4 * numbers['cloudy p99']['real'][name]:6.0f}"
              f"{1e4 * numbers['cloudy p99']['simulated'][name]:6.0f}")  # fmt: skip
    for topic in ("correlation", "cover", "radar"):
        print(f"\n{topic:32} real  simulated")
        for key, value in numbers[topic]["real"].items():
            print(f"  {key:28} {value:8.3f} {numbers[topic]['simulated'][key]:8.3f}")
    print(f"\nmean |difference| of the 13 × 13 correlations: {numbers['correlation_distance']:.3f}")


def picture(images: Any, gain: float, columns: int = 6) -> Any:
    """RGB grid of (n, 13, h, w) reflectance."""
    index = bands.index(bands.RGB)
    tiles = [np.clip(np.moveaxis(x[index], 0, -1) * gain, 0, 1) for x in images]
    rows = [
        np.concatenate(tiles[i : i + columns], 1)
        for i in range(0, len(tiles) - columns + 1, columns)
    ]
    return np.concatenate(rows, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--real", type=Path, default=Path("../shared/realdata"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--series", type=int, default=40)
    args = parser.parse_args()
    import matplotlib.image

    args.out.mkdir(parents=True, exist_ok=True)
    real, simulated = real_samples(args.real), simulated_samples(args.series)
    numbers = compare(real, simulated)
    report(numbers)
    (args.out / "realism.json").write_text(json.dumps(numbers, indent=2) + "\n")
    for name, data in (("real", real), ("simulated", simulated)):
        step = max(1, len(data["clear"]) // 18)
        matplotlib.image.imsave(
            args.out / f"{name}_clear.png", picture(data["clear"][::step][:18], 3.0)
        )
        matplotlib.image.imsave(
            args.out / f"{name}_cloudy.png", picture(data["cloudy"][::step][:18], 1.5)
        )


if __name__ == "__main__":
    main()
