"""Show what a dataset folder holds: counts per split, overlaps of splits, broken files.

examples:
  undercast data audit data/
  undercast data audit data/ --split-rule legacy    the released substring rule and what it leaks
  undercast data audit SEN12MSCR/ SEN12MSCRTS/      also what leaks when both are used together
"""

from __future__ import annotations

from typing import Any

from undercast.cli.common import add_json, print_table, write_json


def configure(parser: Any) -> None:
    """The options of `undercast data audit`."""
    parser.add_argument("dirs", nargs="+", metavar="DIR", help="one dataset or several")
    parser.add_argument(
        "--split-rule", default="exact", choices=["exact", "legacy"], help="how ROIs are matched"
    )
    parser.add_argument("--region", default="all", help="region list of SEN12MS-CR-TS")
    parser.add_argument(
        "--layout", default="auto", choices=["auto", "sen12mscr", "sen12mscrts"], help="file names"
    )
    add_json(parser)


def run(args: Any) -> None:
    """Audit, and print the report."""
    from undercast.datasets import audit

    found = audit(*args.dirs, layout=args.layout, split_rule=args.split_rule, region=args.region)
    if args.json != "-":
        for dataset in found["datasets"]:
            _print(dataset, found)
        if len(found["datasets"]) > 1:
            _print_overlaps("different splits of the datasets", found["cross_overlaps"])
    write_json(args.json, found)


def _print(dataset: dict[str, Any], found: dict[str, Any]) -> None:
    print(f"{dataset['root']}: {dataset['layout']}, index {dataset['index_sha256'][:12]}")
    header = ["split", "ROIs", "patches", "images", "mean cover", "clear", "overcast"]
    print_table(header, [_row(name, part) for name, part in dataset["splits"].items()])
    print(f"cloud cover by {dataset['masks'] or 'nobody yet: undercast data prepare computes it'}")
    _print_overlaps(f"two splits (rule {found['split_rule']})", dataset["overlaps"])
    for pair, shared in dataset["published_overlaps"].items():
        if shared["shared"]:
            _, name = pair.split(" and ")
            print(f"  of the published list: {shared['shared']} of {shared['of']} {name} ROIs leak")
    print(f"problems: {len(dataset['problems'])}")
    for problem in dataset["problems"]:
        print(f"  {problem['kind']}: {problem['path']}: {problem['detail']}")


def _row(name: str, part: dict[str, Any]) -> list[str]:
    counts = [str(part[key]) for key in ("rois", "patches", "images")]
    shares = ("mean", "clear_share", "overcast_share")
    cover = [f"{part['cover'][key]:.0%}" if part["cover"] else "–" for key in shares]
    return [name, *counts, *cover]


def _print_overlaps(where: str, overlaps: list[dict[str, Any]]) -> None:
    print(f"ROIs in {where}: {len(overlaps)}")
    for found in overlaps:
        via = "" if found["via"] == found["roi"] else f", matched by the entry {found['via']}"
        print(f"  {found['roi']} in {' and '.join(found['splits'])}{via}")
