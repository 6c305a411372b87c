"""Options and output that several commands share."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from undercast.files import final_file


def add_json(parser: Any) -> None:
    """The option `--json FILE`."""
    parser.add_argument(
        "--json",
        metavar="FILE",
        default=None,
        help="write the results as JSON; - = standard output",
    )


def write_json(path: str | None, results: Any) -> None:
    """Results to a file under its final name only when complete, or to standard output for `-`."""
    if path is None:
        return
    text = json.dumps(results, indent=2, allow_nan=False)
    if path == "-":
        print(text)
        return
    with final_file(Path(path)) as temporary:
        temporary.write_text(text + "\n")


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A plain table: first column left, the others right."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    for row in (header, ["─" * w for w in widths], *rows):
        cells = [
            c.ljust(w) if i == 0 else c.rjust(w)
            for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip(), file=sys.stdout)
