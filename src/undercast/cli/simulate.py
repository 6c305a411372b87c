"""Write a simulated dataset in the layout of SEN12MS-CR-TS or SEN12MS-CR.

Landscapes, seasons, clouds with shadows, and radar, with the folders, file names and GeoTIFF
encoding of the real data, so that every other command works on it. Regions carry real names:
with three or more there is something in each of train, val and test. The same seed gives the
same files, whatever the number of workers.

examples:
  undercast simulate data/                                          a small set, about a minute
  undercast simulate data/ --rois 4 --patches 8 --dates 12
  undercast simulate pairs/ --layout sen12mscr --rois 10 --cover 0.7
"""

from __future__ import annotations

import os
from typing import Any

from undercast.cli.common import add_json, write_json


def configure(parser: Any) -> None:
    parser.add_argument(
        "dir", metavar="DIR", help="folder to write: new, empty, or simulated before"
    )
    parser.add_argument(
        "--layout", choices=("sen12mscrts", "sen12mscr"), default="sen12mscrts",
        help="series (default) or pairs of one clear and one cloudy image",
    )  # fmt: skip
    parser.add_argument("--rois", type=int, default=4, help="regions (default: 4)")
    parser.add_argument("--patches", type=int, default=4, help="patches a region (default: 4)")
    parser.add_argument("--dates", type=int, default=12, help="dates of a series (default: 12)")
    parser.add_argument("--size", type=int, default=256, help="pixels of a side (default: 256)")
    parser.add_argument(
        "--seed", type=int, default=0, help="another seed, another world (default: 0)"
    )
    parser.add_argument("--cover", type=float, default=0.5, help="mean cloud cover (default: 0.5)")
    parser.add_argument(
        "--nodata", type=float, default=0.0,
        help="share of images cut by the edge of the swath (default: 0)",
    )  # fmt: skip
    parser.add_argument(
        "--baseline-offset", action="store_true",
        help="add 1000 to the digital numbers, as products of processing baseline 04.00 and later",
    )  # fmt: skip
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count() or 1, help="processes (default: all cores)"
    )
    add_json(parser)


def run(args: Any) -> None:
    from undercast.simulate import write_dataset

    result = write_dataset(
        args.dir, args.layout, args.rois, args.patches, args.dates, args.size, args.seed,
        workers=args.workers, cover=args.cover, nodata=args.nodata,
        baseline_offset=args.baseline_offset, progress=True,
    )  # fmt: skip
    if args.json != "-":
        print(f"{result['files']} files of {args.rois} regions in {args.dir}")
        print(f"mean cloud cover {result['mean_cover']:.0%}")
        print(f"next: undercast data audit {args.dir}")
    write_json(args.json, result)
