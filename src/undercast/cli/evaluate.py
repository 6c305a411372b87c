"""Measure a model on a dataset, beside composites and flat images; write a report.

Several models after --model are an ensemble. --out gets report.html (pictures, reliability diagram,
discard curve, tables by band and by cloud cover) and results.json.

examples:
  undercast evaluate --model default --data DIR --split test
  undercast evaluate --model runs/a runs/b runs/c --data DIR --out report/
  undercast evaluate --model default --data DIR --protocol legacy --t 3 --no-s1 --json -
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from undercast.cli.common import add_json, print_table, write_json


def configure(parser: Any) -> None:
    parser.add_argument("--model", nargs="+", required=True, help="model, or several = an ensemble")
    parser.add_argument("--data", required=True, metavar="DIR", help="dataset folder")
    parser.add_argument("--split", default="test", help="train, val, test or all")
    parser.add_argument("--protocol", default="clean", choices=("clean", "legacy"))
    parser.add_argument("--t", type=int, default=3, help="input dates")
    parser.add_argument("--no-s1", action="store_true", help="without Sentinel-1")
    parser.add_argument("--batch", type=int, default=4, help="samples at once")
    parser.add_argument("--workers", type=int, default=0, help="processes that read")
    parser.add_argument("--limit", type=int, default=None, help="only N samples, evenly spread")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, …")
    parser.add_argument(
        "--clear-targets-only", action="store_true", help="leave out masked pixels of the target"
    )
    parser.add_argument("--out", default=None, metavar="DIR", help="folder for the report")
    parser.add_argument("--overwrite", action="store_true", help="replace a report that is there")
    add_json(parser)


def run(args: Any) -> None:
    from undercast.checkpoint import load_model
    from undercast.evaluate import evaluate, open_part, train_spectrum_of
    from undercast.report import check_report, summary, write_report

    if args.out is not None:
        check_report(Path(args.out) / "report.html", args.overwrite)
    model = load_model(args.model if len(args.model) > 1 else args.model[0])
    options = {"t": args.t, "protocol": args.protocol, "sar": not args.no_s1}
    evaluation = evaluate(
        model,
        open_part(args.data, args.split, args.limit, **options),
        batch_size=args.batch,
        workers=args.workers,
        device=args.device,
        train_spectrum=train_spectrum_of(args.data),
        clear_targets_only=args.clear_targets_only,
        info={
            "checkpoint": [Path(m).name for m in args.model],
            "dataset": Path(args.data).resolve().name,
            "split": args.split,
            **options,
            "clear_targets_only": args.clear_targets_only,
        },
    )
    results = evaluation.to_dict()
    if args.out is not None:
        write_json(str(Path(args.out) / "results.json"), results)
        write_report(Path(args.out) / "report.html", evaluation)
    write_json(args.json, results)
    if args.json != "-":
        print_table(*summary(evaluation))
        print(f"\n{results['info']['images']} images, all pixels")
        for note in results["info"]["notes"]:
            print(f"note: {note}")
