"""A table's results as a page of Markdown: how it was made, ours beside the paper's figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from undercast.papertables import COST, TABLES

_DIGITS = {"PSNR": 2, "SAM": 2, "params_k": 0, "GMAC": 1}


def markdown(results: dict[str, Any]) -> str:
    """The table as a page: how it was made, then every cell ours / the paper's."""
    columns = results["columns"]
    lines = [
        *_heading(results),
        f"| ours / paper | {' | '.join(columns)} | time |",
        f"|---|{'---|' * len(columns)}---|",
    ]
    for row in results["rows"]:
        cells = [*(_cell(row, column) for column in columns), minutes(row_seconds(row))]
        mark = "" if row["status"] == "done" else f" ({row['status']}: {row['why']})"
        lines.append(f"| {row['label']}{mark} | {' | '.join(cells)} |")
    for name, scores in results["baselines"].items():
        cells = [_number(scores.get(column), column) for column in columns]
        lines.append(f"| *{name}* | {' | '.join(cells)} | |")
    lines += ["", *(f"- {note}" for note in results["notes"])]
    if TABLES[results["table"]].curve:
        lines += ["", *_curve(results)]
    return "\n".join(lines) + "\n"


def _heading(results: dict[str, Any]) -> list[str]:
    """Title, command, seed, machine and wall time."""
    done = [row for row in results["rows"] if row["status"] == "done"]
    machines = sorted({row.get("machine") or "" for row in done} - {""})
    runs = {run: s for row in done for run, s in row.get("training_seconds", {}).items()}
    known = [s for s in [*runs.values(), *(r.get("evaluation_seconds") for r in done)] if s]
    rows = ", ".join(f"`{row['config']}`" for row in results["rows"])
    return [
        f"# {results['table']}: {results['title']}",
        "",
        "```",
        results["command"],
        "```",
        "",
        f"Scale {results['scale']}, seed {results['seed']}. "
        f"Machine: {'; '.join(machines) or _written_on(results)}. Training and evaluation: "
        f"{minutes(sum(known) if known else None)} in total, a run that rows share counted once; "
        "the last column is the wall time of each row (– not recorded). "
        f"One row alone: add `--rows` and one of {rows}.",
        "",
    ]


def _written_on(results: Mapping[str, Any]) -> str:
    return f"not recorded with the rows; this page was written on {results['machine']}"


def row_seconds(row: Mapping[str, Any]) -> float | None:
    """Wall time of a row: its runs and, where it was recorded, its evaluation."""
    parts = [*row.get("training_seconds", {}).values(), row.get("evaluation_seconds")]
    trained_in = parts[:-1]
    if None in trained_in or all(part is None for part in parts):
        return None
    return float(sum(part or 0.0 for part in parts))


def minutes(seconds: float | None) -> str:
    """A duration for a table.

    >>> minutes(None), minutes(42.0), minutes(600.0)
    ('–', '42 s', '10.0 min')
    """
    if seconds is None:
        return "–"
    return f"{seconds:.0f} s" if seconds < 60 else f"{seconds / 60:.1f} min"


def _cell(row: dict[str, Any], column: str) -> str:
    ours = row.get(column) if column in COST else row.get("ours", {}).get(column)
    paper = row["paper"].get(column)
    if ours is None and paper is None:
        return "–"
    return f"{_number(ours, column)} / {_number(paper, column)}"


def _number(value: float | None, column: str) -> str:
    return "–" if value is None else f"{value:.{_DIGITS.get(column, 3)}f}"


def _curve(results: dict[str, Any]) -> list[str]:
    """The discard curve: the error of the most certain images, relative to that of all."""
    lines = ["| kept images | mean squared error | relative |", "|---|---|---|"]
    for row in results["rows"]:
        curve = row.get("discard_curve")
        for kept, mse in zip(curve["kept"], curve["mse"], strict=True) if curve else ():
            lines.append(f"| {100 * kept:.0f} % | {mse:.3g} | {mse / curve['mse'][-1]:.2f} |")
    return lines
