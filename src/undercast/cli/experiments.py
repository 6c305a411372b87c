"""Run the paper's tables: train and evaluate their rows, ours beside the paper's figures.

Finished rows are not run again: give the same command to go on after an interruption. The small
scale simulates its own data where none is given, and takes about an hour a table on two cores.
findings re-examines the paper's claims with several seeds and paired confidence intervals.

examples:
  undercast experiments table1 --scale small --out experiments/
  undercast experiments table2 --scale small --rows table2-e1-d5 table2-e0-d5 --out experiments/
  undercast experiments table5 --scale paper --data /data/SEN12MS-CR-TS --out experiments/
  undercast experiments findings --scale small --out experiments/
  undercast experiments findings --rows legacy --seed 1 --out experiments/
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from undercast.cli.common import add_json, write_json

NAMES = ("table1", "table2", "table3", "table4", "table5", "table6", "discard", "findings")


def configure(parser: Any) -> None:
    parser.add_argument("table", choices=NAMES, help="a table, the discard figure, or findings")
    parser.add_argument("--data", default=None, metavar="DIR", help="a prepared dataset")
    parser.add_argument("--scale", default="small", choices=("paper", "small"))
    parser.add_argument("--rows", nargs="+", default=None, help="some rows only, by config name")
    parser.add_argument("--seed", type=int, default=None, help="of training [0]")
    parser.add_argument("--seeds", type=int, default=3, help="findings: seeds 0 to N-1")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--out", default="experiments", metavar="DIR", help="runs and results")
    add_json(parser)


def run(args: Any) -> None:
    from undercast.errors import ConfigError
    from undercast.experiments import Setup, find_rows, find_table, run_table
    from undercast.experiments import simulated_data as simulated
    from undercast.tablepages import markdown

    if args.table == "findings":
        return _findings(args)
    table, out = find_table(args.table), Path(args.out)
    find_rows(table, args.rows)  # a wrong name fails before the work
    if args.data is None and args.scale == "paper":
        raise ConfigError("got no dataset for the paper scale, expected --data DIR")
    data = Path(args.data) if args.data else simulated(table, out)
    setup = Setup(data, out, args.scale, args.seed or 0, args.device)
    results = run_table(args.table, setup, args.rows)
    write_json(args.json, results)
    if args.json != "-":
        print(markdown(results), end="")


def _findings(args: Any) -> None:
    from undercast import findings
    from undercast.experiments import Setup

    out, variants = Path(args.out), findings.check_variants(args.rows)
    seeds = range(args.seeds) if args.seed is None else (args.seed,)
    some = args.rows is not None or args.seed is not None
    findings.check(args.scale, seeds, whole=not some)  # fails before the work
    data = Path(args.data) if args.data else findings.training_data(out)
    setup = Setup(data, out, args.scale, device=args.device)
    plan = findings.make_plan(setup, args.data is not None, seeds)
    results = findings.run_rows(plan, variants) if some else findings.run_findings(plan)
    write_json(args.json, results)
    if args.json != "-":
        print(findings.markdown(results), end="")
