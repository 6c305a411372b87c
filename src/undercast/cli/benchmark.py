"""Time engines, training and data side by side, as ratios to a naive module.

Runs are interleaved and repeated; the figures are medians. The naive module is part of the
repository (benchmarks/naive.py), so ratios need a checkout; an installed package gives seconds.
--check compares the engines' images and variances on a dataset instead of their times.

examples:
  undercast benchmark                                       without --scaling and --scene, ~25 min
  undercast benchmark --quick                               a minute, small inputs
  undercast benchmark --sections forward --sizes 256 --dates 3 --engines naive eager openvino
  undercast benchmark --sections scaling scene --markdown table.md --json results.json
  undercast benchmark --check default --data DIR --samples 50
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from undercast.cli.common import add_json, print_table, write_json


def configure(parser: Any) -> None:
    add = parser.add_argument
    add("--engines", nargs="+", default=None, help="some of naive auto eager compiled onnx …")
    reference = "the first is the reference"
    add("--sizes", nargs="+", type=int, default=None, metavar="PX", help=reference)
    add("--dates", nargs="+", type=int, default=None, metavar="T", help=reference)
    add("--sections", nargs="+", default=None, help="forward train memory throughput scaling scene")
    add("--repeat", type=int, default=None, metavar="N", help="repetitions (5)")
    add("--threads", type=int, default=None, metavar="N", help="threads of torch and the runtimes")
    add("--quick", action="store_true", help="small inputs, two engines")
    add(
        "--scaling", action="store_true", help="also against area, dates, members, threads, workers"
    )
    add("--scene", nargs="?", type=int, const=1536, default=None, metavar="PX",
        help="also what a scene costs beyond its network (1536 pixels a side)")  # fmt: skip
    add("--check", nargs="+", default=None, metavar="MODEL", help="engines on --data, not times")
    add("--data", default=None, metavar="DIR", help="prepared dataset, with --check")
    add("--samples", type=int, default=None, metavar="N", help="of the test split, with --check")
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
    with benchmark_tables.progress() as say:
        if args.check is None:
            results = benchmark.run(benchmark_tables.plan_of(args), say)
            made = benchmark_tables.tables(results)
        else:
            results = benchmark_tables.checked(args, say)
            made = [benchmark_tables.accuracy_table(results)]
    write_json(args.json, results)
    if args.markdown is not None:
        with final_file(Path(args.markdown)) as temporary:
            temporary.write_text(benchmark_tables.markdown_of(made))
    if args.json != "-":
        for title, header, rows in made:
            print(f"\n{title}")
            print_table(header, rows)
