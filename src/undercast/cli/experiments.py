"""Run the paper's tables: train and evaluate their rows, ours beside the paper's figures.

Finished rows are not run again: give the same command to go on after an interruption. The small
scale simulates its own data where none is given, and takes about an hour a table on two cores.

examples:
  undercast experiments table1 --scale small --out experiments/
  undercast experiments table2 --scale small --rows table2-e1-d5 table2-e0-d5 --out experiments/
  undercast experiments table5 --scale paper --data /data/SEN12MS-CR-TS --out experiments/
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from undercast.cli.common import add_json, write_json

NAMES = ("table1", "table2", "table3", "table4", "table5", "table6", "discard")


def configure(parser: Any) -> None:
    parser.add_argument("table", choices=NAMES, help="a table of the paper, or its discard figure")
    parser.add_argument("--data", default=None, metavar="DIR", help="a prepared dataset")
    parser.add_argument("--scale", default="small", choices=("paper", "small"))
    parser.add_argument("--rows", nargs="+", default=None, help="some rows only, by config name")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--out", default="experiments", metavar="DIR", help="runs and results")
    add_json(parser)


def run(args: Any) -> None:
    from undercast.errors import ConfigError
    from undercast.experiments import Setup, find_rows, find_table, run_table
    from undercast.experiments import simulated_data as simulated
    from undercast.tablepages import markdown

    table, out = find_table(args.table), Path(args.out)
    find_rows(table, args.rows)  # a wrong name fails before the work
    if args.data is None and args.scale == "paper":
        raise ConfigError("got no dataset for the paper scale, expected --data DIR")
    data = Path(args.data) if args.data else simulated(table, out)
    setup = Setup(data, out, args.scale, args.seed, args.device)
    results = run_table(args.table, setup, args.rows)
    write_json(args.json, results)
    if args.json != "-":
        print(markdown(results), end="")
