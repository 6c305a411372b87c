"""Index a dataset and compute the cloud cover and mask of every image, once.

examples:
  undercast data prepare data/                      s2cloudless, all cores
  undercast data prepare data/ --masks rules        no extra package, tens of times faster

Stop it at any time: the next run goes on where this one ended. Results lie in DIR/.undercast, or
in the cache folder (UNDERCAST_CACHE) where DIR is read-only.
"""

from __future__ import annotations

import os
from typing import Any

from undercast.cli.common import add_json, write_json


def configure(parser: Any) -> None:
    """The options of `undercast data prepare`."""
    parser.add_argument("dir", help="root of SEN12MS-CR or SEN12MS-CR-TS, or of a part of it")
    parser.add_argument(
        "--masks", default="s2cloudless", choices=["s2cloudless", "rules"], help="cloud detector"
    )
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count() or 1, help="processes that compute masks"
    )
    parser.add_argument(
        "--layout", default="auto", choices=["auto", "sen12mscr", "sen12mscrts"], help="file names"
    )
    add_json(parser)


def run(args: Any) -> None:
    """Prepare, and say what was done."""
    from undercast.datasets import prepare

    done = prepare(args.dir, layout=args.layout, method=args.masks, workers=args.workers)
    problems = [*done.index.problems, *done.problems]
    if args.json != "-":
        print(
            f"{done.index.layout}: {len(done.index.rois)} ROIs, {len(done.index.patches)} patches; "
            f"masks by {done.method}: {done.computed} computed, {done.reused} reused"
        )
        if problems:
            print(f"{len(problems)} problems: undercast data audit {args.dir} lists them")
    write_json(
        args.json,
        {
            "layout": done.index.layout,
            "index_sha256": done.index.hash,
            "rois": len(done.index.rois),
            "patches": len(done.index.patches),
            "masks": done.method,
            "computed": done.computed,
            "reused": done.reused,
            "problems": [problem._asdict() for problem in problems],
        },
    )
