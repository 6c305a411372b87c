"""See it work: clouds removed from a simulated scene, beside the truth.

Simulates three cloudy dates and the clear image of a date between them, removes the clouds with
every system that needs no training and with the packaged weights, prints how near each comes to
the truth, and writes a picture. Needs no data and no network.

examples:
  undercast demo
  undercast demo --out my-demo --seed 7
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from undercast.cli.common import add_json, print_table, write_json


def configure(parser: Any) -> None:
    parser.add_argument("--out", default="demo", metavar="DIR", help="where the picture goes")
    parser.add_argument("--seed", type=int, default=1, help="another number, another scene")
    parser.add_argument("--size", type=int, default=256, help="pixels of a side (default: 256)")
    add_json(parser)


def run(args: Any) -> None:
    from undercast.demo import run_demo

    rows = run_demo(Path(args.out), args.seed, args.size)
    if args.json != "-":
        columns = ("PSNR", "SSIM", "SAM", "RMSE", "coverage_90")
        print_table(
            ("system", "PSNR dB", "SSIM", "SAM °", "RMSE", "in the 90 % interval"),
            [(r["system"], *(f"{r[c]:.3f}" if c in r else "–" for c in columns)) for r in rows],
        )
        print(f"\npicture: {Path(args.out) / 'quicklook.png'}")
    write_json(args.json, {"systems": rows})
