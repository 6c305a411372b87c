"""A scene larger than a tile from GeoTIFFs to product, and a picture of what went in and came out.

    python benchmarks/spain.py --model default --real ../shared/realdata --out /tmp/spain
    python benchmarks/spain.py --model default --simulated --out /tmp/simulated
    python benchmarks/spain.py --model default --simulated --out /tmp/simulated \\
        --picture docs/images/scene.png --shown 224

--real: the clear image and radar of spain_s1_s2_512px.npz under simulated clouds, three dates. Its
pixels are not ours: the picture is for local viewing. --simulated: three simulated dates of 512 px
with radar; the truth is the clear image of the middle one. --out gets the GeoTIFFs, the product of
`undercast predict` in product/, picture.png and figures.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from undercast import bands, quicklook
from undercast.cli import main as undercast
from undercast.cli.common import write_json
from undercast.errors import DataError
from undercast.metrics import calibration_metrics, image_metrics, within_image_correlation
from undercast.product import read_product
from undercast.simulate import add_clouds, simulate_series
from undercast.types import Grid, Stack

SIZE = 512
DATES = ("2018-06-01", "2018-06-11", "2018-06-21")
COVER = (0.25, 0.45, 0.35)  # share of cloud on each date
SHOWN = 0.1  # reflectance at the bright end of the maps of sigma and error


def real_scene(folder: Path, seed: int) -> tuple[Stack, np.ndarray, Grid]:
    """The cloudy stack, the clear image and the grid of the Spanish scene."""
    path = folder / "spain_s1_s2_512px.npz"
    if not path.is_file():
        raise DataError(f"got no {path}, expected the clear scene with radar")
    data = np.load(path)
    clear = data["s2"].astype(np.float32) / np.float32(bands.DN_PER_REFLECTANCE)
    radar = np.where(data["s1_db"] == 0, np.nan, data["s1_db"]).astype(np.float32)  # 0 dB = fill
    stack = Stack(*(np.repeat(clear[None], 3, axis=0), DATES, np.repeat(radar[None], 3, axis=0)))
    _, height, width = clear.shape
    grid = Grid(str(data["crs"]), tuple(data["transform"].tolist()), height, width)
    return add_clouds(stack, seed, COVER, latitude=40.0), clear, grid


def simulated_scene(seed: int, size: int = SIZE) -> tuple[Stack, np.ndarray, Grid]:
    """The same of a simulated landscape; the truth is the middle date without clouds."""
    series = simulate_series(seed, size=size, dates=DATES, biome="cropland", cover=0.0)
    clear = Stack(series.clear, series.stack.dates, series.stack.s1)
    grid = Grid("EPSG:32631", (10.0, 0.0, 500000.0, 0.0, -10.0, 4600000.0), size, size)
    return add_clouds(clear, seed, COVER), series.clear[1], grid


def write_files(folder: Path, stack: Stack, grid: Grid) -> tuple[list[str], list[str]]:
    """One GeoTIFF of digital numbers and one of radar for each date; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    assert stack.s1 is not None
    s2, s1 = [], []
    for i, date in enumerate(stack.dates):
        numbers = np.rint(stack.s2[i] * bands.DN_PER_REFLECTANCE).clip(1, 65535)
        s2.append(_write(folder / f"s2_{date}.tif", numbers.astype(np.uint16), grid, bands.S2))
        s1.append(_write(folder / f"s1_{date}.tif", stack.s1[i], grid, bands.S1))
    return s2, s1


def _write(path: Path, values: np.ndarray, grid: Grid, names: Sequence[str]) -> str:
    import rasterio
    from affine import Affine

    with rasterio.open(
        path, "w", driver="GTiff", count=len(values), height=grid.height, width=grid.width,
        dtype=values.dtype, crs=grid.crs, transform=Affine(*grid.transform), tiled=True,
        compress="deflate",
    ) as file:  # fmt: skip
        file.write(values)
        file.descriptions = names
    return str(path)


def figures(found: dict[str, np.ndarray], clear: np.ndarray, covered: np.ndarray) -> dict[str, Any]:
    """What the product is worth, everywhere and where no date shows the ground."""
    mean, sigma = found["mean"], found.get("sigma")
    rows: dict[str, Any] = {"covered_share": float(covered.mean())}
    for name, where in (("all", np.ones_like(covered)), ("covered", covered)):
        if not where.any():
            continue
        row = image_metrics(clear, mean, where)
        row["correlation"] = float(np.nanmean(within_image_correlation(clear, mean, where)))
        if sigma is not None:
            row["coverage_90"] = calibration_metrics(clear, mean, sigma**2, where)["coverage_90"]
        rows[name] = {key: round(float(value), 4) for key, value in row.items()}
    return rows


def picture(stack: Stack, found: dict[str, np.ndarray], clear: np.ndarray, side: int) -> np.ndarray:
    """Inputs above; truth, mean, sigma and error (means over the bands) below."""
    gain = quicklook.natural_gain(clear)
    top = [
        (str(date), quicklook.rgb(image, gain))
        for date, image in zip(stack.dates, stack.s2, strict=True)
    ]
    error = np.abs(found["mean"] - clear).mean(axis=0)
    below = [("mean", quicklook.rgb(found["mean"], gain))]
    if "sigma" in found:
        sigma = found["sigma"].mean(axis=0)
        below.append((f"sigma 0 - {SHOWN}", quicklook.colour_map(sigma, 0.0, SHOWN)))
    below.append((f"error 0 - {SHOWN}", quicklook.colour_map(error, 0.0, SHOWN)))
    rows = [[*top, ("truth", quicklook.rgb(clear, gain))], below]
    small = [[(title, shrunk(image, side)) for title, image in row] for row in rows]
    return quicklook.panel(small)


def shrunk(image: np.ndarray, side: int) -> np.ndarray:
    """At most `side` pixels high and wide: means of areas."""
    import torch
    from torch.nn import functional as F

    height, width, _ = image.shape
    if max(height, width) <= side:
        return image
    size = (max(1, side * height // max(height, width)), max(1, side * width // max(height, width)))
    tensor = torch.from_numpy(image).permute(2, 0, 1)[None].float()
    small = F.interpolate(tensor, size, mode="area")[0].permute(1, 2, 0)
    return np.asarray(small.round().to(torch.uint8).numpy())


def light(image: np.ndarray) -> np.ndarray:
    """With 32 levels a colour, which half the bytes hold."""
    return np.where(image > 250, image, image // 8 * 8 + 4).astype(np.uint8)


def main(told: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="default")
    parser.add_argument("--real", type=Path, default=None, metavar="DIR")
    parser.add_argument("--simulated", action="store_true")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--size", type=int, default=SIZE, help="of the simulated scene")
    parser.add_argument("--picture", type=Path, default=None, help="also here (simulated only)")
    parser.add_argument("--shown", type=int, default=SIZE, help="largest side of a part, in pixels")
    args = parser.parse_args(told)
    if args.simulated == (args.real is not None):
        parser.error("expected either --real DIR or --simulated")
    if args.picture is not None and not args.simulated:
        parser.error("got --picture with --real: real pixels stay in --out")
    made = simulated_scene(args.seed, args.size) if args.simulated else None
    stack, clear, grid = made or real_scene(args.real, args.seed)
    s2, s1 = write_files(args.out, stack, grid)
    out = args.out / "product"
    command = ["predict", *s2, "--s1", *s1, "-o", str(out), "--model", args.model, "--overwrite"]
    print("undercast", *command)
    if undercast(command) != 0:
        raise SystemExit(2)
    assert stack.mask is not None
    found = read_product(out)
    rows = figures(found, clear, stack.mask.all(axis=0))
    write_json(str(args.out / "figures.json"), rows)
    shown = picture(stack, found, clear, args.shown)
    for path, image in ((args.out / "picture.png", shown), (args.picture, light(shown))):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            quicklook.write_png(path, image)
            print(f"{path}: {path.stat().st_size / 1000:.0f} kB")
    for name, row in rows.items():
        print(name, row)


if __name__ == "__main__":
    main()
