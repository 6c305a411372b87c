"""Agreement of the rule-based cloud masks with s2cloudless and with people, on real samples.

    python benchmarks/masks.py REALDATA [--json FILE]

REALDATA is a folder with `sen12mscr_triplets.npz`, `sen12mscr_pairs.npz`, `s2cloudless_scene.npz`
and `cloudsen12_series.npz`. The classifier takes some minutes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from undercast import masks
from undercast.types import BoolArray, FloatArray


def agreement(found: BoolArray, reference: BoolArray) -> dict[str, float]:
    """How a mask compares with a reference that is taken as true."""
    return {
        "recall": float(found[reference].mean()),
        "false_alarms": float(found[~reference].mean()),
        "iou": float((found & reference).sum() / (found | reference).sum()),
        "accuracy": float((found == reference).mean()),
        "cover": float(found.mean()),
        "reference_cover": float(reference.mean()),
    }


def samples(folder: Path) -> Iterator[tuple[str, FloatArray, np.ndarray | None]]:
    """Name of the set, reflectance (T, 13, H, W) and labels (T, H, W) where people drew some."""
    for name in ("sen12mscr_triplets", "sen12mscr_pairs"):
        with np.load(folder / f"{name}.npz") as file:
            for kind in ("cloudy", "clear"):
                yield f"SEN12MS-CR {kind}", _reflectance(file[f"s2_{kind}"]), None
    with np.load(folder / "s2cloudless_scene.npz") as file:
        yield "s2cloudless scene", _reflectance(file["s2"][None]), None
    with np.load(folder / "cloudsen12_series.npz") as file:
        for key in (key for key in file.files if key.endswith("_s2")):
            labels = file[key.replace("_s2", "_label")]
            yield "CloudSEN12 series", _reflectance(file[key]), labels


def measure(folder: Path) -> dict[str, dict[str, float]]:
    """One row for each comparison."""
    pixels: dict[str, list[tuple[BoolArray, BoolArray, np.ndarray | None]]] = {}
    for name, s2, labels in samples(folder):
        by_rules, by_s2cloudless = (masks.cloud_mask(s2, m) for m in ("rules", "s2cloudless"))
        flat = None if labels is None else labels.ravel()
        pixels.setdefault(name, []).append((by_rules.ravel(), by_s2cloudless.ravel(), flat))
    rows = {}
    for name, parts in pixels.items():
        rules, s2cloudless = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        rows[f"{name}: rules against s2cloudless"] = agreement(rules, s2cloudless)
        if parts[0][2] is not None:
            labels = np.concatenate([part[2] for part in parts if part[2] is not None])
            cloud = np.isin(labels, (1, 2))
            for method, found in (("rules", rules), ("s2cloudless", s2cloudless)):
                rows[f"{name}: {method} against people, cloud"] = agreement(found, cloud)
                rows[f"{name}: {method} against people, cloud or shadow"] = agreement(
                    found, labels > 0
                )
    return rows


def _reflectance(dn: np.ndarray) -> FloatArray:
    return dn.astype(np.float32) / np.float32(10000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("realdata", type=Path, help="folder of the real samples")
    parser.add_argument("--json", type=Path, help="write the result to this file")
    args = parser.parse_args()
    rows = measure(args.realdata)
    for name, row in rows.items():
        print(f"{name:62}", "  ".join(f"{key} {value:.3f}" for key, value in row.items()))
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
