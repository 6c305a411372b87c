"""Time engines, training and data side by side, as ratios to a naive module.

Runs are interleaved and repeated; the figures are medians. The naive module is part of the
repository (benchmarks/naive.py), so ratios need a checkout; an installed package gives seconds.

examples:
  undercast benchmark                                       everything but --scaling, ~20 minutes
  undercast benchmark --quick                               a minute, small inputs
  undercast benchmark --sections forward --sizes 256 --dates 3 --engines naive eager openvino
  undercast benchmark --scaling --markdown table.md --json results.json
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from undercast.cli.common import add_json, print_table, write_json


def configure(parser: Any) -> None:
    add = parser.add_argument
    add("--engines", nargs="+", default=None, help="some of naive auto eager compiled onnx …")
    add(
        "--sizes",
        nargs="+",
        type=int,
        default=None,
        metavar="PX",
        help="the first is the reference",
    )
    add(
        "--dates", nargs="+", type=int, default=None, metavar="T", help="the first is the reference"
    )
    add("--sections", nargs="+", default=None, help="forward train memory throughput scaling")
    add("--repeat", type=int, default=None, metavar="N", help="repetitions (5)")
    add("--threads", type=int, default=None, metavar="N", help="threads of torch and the runtimes")
    add("--quick", action="store_true", help="small inputs, two engines")
    add("--scaling", action="store_true", help="also against area, dates, members and threads")
    add("--markdown", metavar="FILE", default=None, help="write the tables as Markdown")
    add_json(parser)


def run(args: Any) -> None:
    import torch

    from undercast import benchmark, benchmark_tables
    from undercast.errors import ConfigError
    from undercast.files import final_file

    if args.threads is not None:
        if args.threads < 1:
            raise ConfigError(f"got --threads {args.threads}, expected at least 1")
        torch.set_num_threads(args.threads)
    plan = benchmark_tables.plan_of(args)
    with benchmark_tables.progress() as say:
        results = benchmark.run(plan, say)
    write_json(args.json, results)
    if args.markdown is not None:
        with final_file(Path(args.markdown)) as temporary:
            temporary.write_text(benchmark_tables.markdown(results))
    if args.json != "-":
        for title, header, rows in benchmark_tables.tables(results):
            print(f"\n{title}")
            print_table(header, rows)
