"""See it work: clouds removed from simulated scenes, beside the truth.

Simulates scenes of several kinds of land, three cloudy dates each and the clear image of a date
between them, removes the clouds with a model, composites and flat images, and prints how near each
comes to the truth. --out gets a picture and an HTML report. Needs no data and no network.

examples:
  undercast demo
  undercast demo --out my-demo --seed 7 --scenes 2
  undercast demo --model runs/mine
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from undercast.cli.common import add_json, print_table, write_json


def configure(parser: Any) -> None:
    parser.add_argument("--model", default="default", help="what to show (default: default)")
    parser.add_argument("--out", default="demo", metavar="DIR", help="for picture and report")
    parser.add_argument("--seed", type=int, default=1, help="another number, other scenes")
    parser.add_argument("--scenes", type=int, default=6, help="how many (default: 6)")
    parser.add_argument("--size", type=int, default=256, help="pixels of a side (default: 256)")
    parser.add_argument("--no-report", action="store_true", help="the picture alone")
    add_json(parser)


def run(args: Any) -> None:
    from undercast.demo import run_demo
    from undercast.quicklook import write_png
    from undercast.report import check_report, summary, write_report

    out = Path(args.out)
    if not args.no_report:
        check_report(out / "report.html", overwrite=True)
    demo = run_demo(args.model, seed=args.seed, size=args.size, scenes=args.scenes)
    write_png(out / "quicklook.png", demo.picture)
    if not args.no_report:
        write_report(out / "report.html", demo.evaluation)
    write_json(args.json, demo.evaluation.to_dict())
    if args.json != "-":
        print_table(*summary(demo.evaluation))
        print(f"\nmeans over {args.scenes} simulated scenes of three dates each")
        print(f"picture: {out / 'quicklook.png'}")
        if not args.no_report:
            print(f"report:  {out / 'report.html'}")
