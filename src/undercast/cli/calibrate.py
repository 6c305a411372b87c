"""Calibrate a model's variance on a held-out split; write it with the calibration inside.

One half of the split fits, the other half (of other regions, where there are two) gives the table
of before and after and the conformal factors. The mean is not changed.

examples:
  undercast calibrate --model runs/tiny --data DIR --split val -o tiny.safetensors
  undercast calibrate --model a.safetensors --data DIR -o b.safetensors --method scale --json -
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from undercast.cli.common import add_json, print_table, write_json


def configure(parser: Any) -> None:
    parser.add_argument("--model", nargs="+", required=True, help="model, or several = an ensemble")
    parser.add_argument("--data", required=True, metavar="DIR", help="dataset folder")
    parser.add_argument("--split", default="val", help="train, val, test or all")
    parser.add_argument("--protocol", default="clean", choices=("clean", "legacy"))
    parser.add_argument("--t", type=int, default=3, help="input dates")
    parser.add_argument("--no-s1", action="store_true", help="without Sentinel-1")
    parser.add_argument(
        "--method",
        default="auto",
        choices=("auto", "scale", "power", "floor", "monotone"),
        help="a factor for each band; a factor and a power, or a factor and a floor, for all; "
        "a curve for each; or the best",
    )
    parser.add_argument("--batch", type=int, default=4, help="samples at once")
    parser.add_argument("--workers", type=int, default=0, help="processes that read")
    parser.add_argument("--limit", type=int, default=None, help="only N samples, evenly spread")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, …")
    parser.add_argument("-o", "--out", required=True, help="file for the calibrated model")
    parser.add_argument("--overwrite", action="store_true", help="replace the file if it is there")
    add_json(parser)


def run(args: Any) -> None:
    from undercast.calibrate import calibrate, table_rows
    from undercast.checkpoint import load_model, save_model
    from undercast.errors import DataError
    from undercast.evaluate import open_part

    out = Path(args.out)
    if out.suffix != ".safetensors":
        raise DataError(f"got {out}, expected a name that ends in .safetensors")
    if out.exists() and not args.overwrite:
        raise DataError(f"{out} is already there: choose another name, or pass --overwrite")
    model = load_model(args.model if len(args.model) > 1 else args.model[0])
    dataset = open_part(
        args.data, args.split, args.limit, t=args.t, protocol=args.protocol, sar=not args.no_s1
    )
    calibrated, report = calibrate(
        model,
        dataset,
        method=args.method,
        batch_size=args.batch,
        workers=args.workers,
        device=args.device,
    )
    save_model(calibrated, out)
    write_json(args.json, report.to_dict() | {"out": str(out)})
    if args.json != "-":
        print_table(*table_rows(report))
        fitted, measured = report.images
        print(f"\nfitted on {fitted} images, measured on {measured} others: {report.method}")
        print(out)
