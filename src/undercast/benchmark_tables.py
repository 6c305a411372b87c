"""The results of `undercast benchmark` as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from tqdm import tqdm

from undercast.benchmark import NAIVE, Plan, Results
from undercast.errors import ConfigError

Table = tuple[str, list[str], list[list[str]]]


def plan_of(args: Any) -> Plan:
    """The plan that command-line options describe."""
    plan = Plan()
    if args.quick:
        plan = replace(
            plan, engines=("naive", "eager"), sizes=(64,), dates=(2,), repeat=2, train_size=32,
            train_batch=1, trainings=("naive", "eager"), sections=("forward", "train"),
        )  # fmt: skip
    told: dict[str, Any] = {
        name: getattr(args, name) for name in ("engines", "sizes", "dates", "sections")
    }
    told = {name: tuple(value) for name, value in told.items() if value}
    plan = replace(plan, **told)
    if args.repeat is not None:
        plan = replace(plan, repeat=args.repeat)
    if args.scene is not None:
        plan = replace(plan, scene=args.scene)
    asked = {"scaling": args.scaling, "scene": args.scene is not None}
    more = tuple(n for n, yes in asked.items() if yes and n not in plan.sections)
    return replace(plan, sections=(*plan.sections, *more))


def checked(args: Any, progress: Callable[[str], None]) -> Results:
    """The check of engines that command-line options describe."""
    from undercast.benchmark_accuracy import check_engines

    if args.data is None:
        raise ConfigError("got --check without --data, expected the folder of a prepared dataset")
    source = args.check if len(args.check) > 1 else args.check[0]
    return check_engines(source, args.data, args.engines, limit=args.samples, progress=progress)


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """A bar on standard error that names what is being measured."""
    with tqdm(bar_format="{desc} [{elapsed}]", leave=False) as bar:

        def say(what: str) -> None:
            bar.set_description_str(what)

        yield say


def tables(results: Results) -> list[Table]:
    """Title, header and rows of every section that was measured."""
    made = [_machine(results["machine"])]
    for case, engines in results.get("forward", {}).items():
        made.append(_timings(f"forward, H x W x T = {case}", engines))
    if "train" in results:
        made.append(_timings("training step", results["train"]))
    if "memory" in results:
        rows = [
            [f"{kind}, {name}", f"{megabytes:.0f}"]
            for kind, found in results["memory"].items()
            for name, megabytes in found.items()
        ]
        made.append(("peak memory above model and imports", ["", "MB"], rows))
    if "throughput" in results:
        rows = [[name.replace("_", " "), f"{v:g}"] for name, v in results["throughput"].items()]
        made.append(("throughput", ["", "per second"], rows))
    for what, found in results.get("scaling", {}).items():
        rows = [[str(name), f"{seconds:.3f}"] for name, seconds in found.items()]
        made.append((f"scaling with {what}", [what, "seconds"], rows))
    if "scene" in results:
        rows = [[name.replace("_", " "), str(value)] for name, value in results["scene"].items()]
        made.append(("scene, seconds per tile", ["", ""], rows))
    return made


def accuracy_table(checked: Results) -> Table:
    """What `check_engines` found."""
    columns = ("psnr", "psnr_change", "max_abs_diff", "mean_rel_variance", "coverage_90",
               "coverage_90_change")  # fmt: skip
    rows = [
        [name, *(_change(row.get(c)) for c in columns), "yes" if row["holds"] else "no"]
        for name, row in checked["engines"].items()
    ]
    header = ["", *(column.replace("_", " ") for column in columns), "holds"]
    return f"engines on {checked['samples']} samples", header, rows


def _change(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _machine(machine: Results) -> Table:
    rows = [[name.replace("_", " "), str(value)] for name, value in machine.items()]
    if not NAIVE.is_file():
        rows.append(["no ratios", "benchmarks/naive.py is in the repository, not in the package"])
    return "machine", ["", ""], rows


def _timings(title: str, found: Results) -> Table:
    columns = ("seconds", "spread", "ratio", "gmac_per_s", "first_call", "max_abs_diff",
               "max_rel_variance", "mean_rel_variance")  # fmt: skip
    used = [c for c in columns if any(row.get(c) is not None for row in found.values())]
    rows = [
        [name, *(_cell(column, row.get(column)) for column in used)] for name, row in found.items()
    ]
    return title, ["", *(column.replace("_", " ") for column in used)], rows


def _cell(column: str, value: float | None) -> str:
    if value is None:
        return ""
    if "diff" in column or "variance" in column:
        return f"{value:.1e}"
    return f"{value:.2f}×" if column == "ratio" else f"{value:.3g}"


def markdown(results: Results) -> str:
    """The same tables in Markdown."""
    return markdown_of(tables(results))


def markdown_of(made: list[Table]) -> str:
    """Tables in Markdown."""
    parts = []
    for title, header, rows in made:
        lines = [f"**{title}**", "", f"| {' | '.join(header)} |"]
        lines.append("|---" + "|---:" * (len(header) - 1) + "|")
        lines += [f"| {' | '.join(row)} |" for row in rows]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"
