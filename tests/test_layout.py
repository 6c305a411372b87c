"""Files import only from their own group or groups before it, and importing is light."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "undercast"
GROUPS = {  # in the order of the flow, as in CONTRIBUTING.md
    "A": "__init__ types bands errors",
    "B": "files heap threads gaussian losses tiles blend calibration metrics",
    "C": "models checkpoint official weightfit engines exported fingerprint",
    "D": "scene readers masks radiometry product products quicklook datasets simulate",
    "E": "inference tilework pipeline cluster train training evaluate calibrate examples "
    "experiments papertables tablepages findings benchmark benchmark_accuracy benchmark_costs "
    "benchmark_scene benchmark_training benchmark_tables demo",
    "F": "cli report viewer __main__",
}
GROUP_OF = {name: group for group, names in GROUPS.items() for name in names.split()}


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """The rooms of undercast that a file imports outside `if TYPE_CHECKING`."""
    tree = ast.parse(path.read_text())
    skipped = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.dump(block.test)
        for node in ast.walk(block)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("undercast"):
            parts = (node.module or "").split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
            found |= {parts[1] for parts in names if parts[0] == "undercast" and len(parts) > 1}
    return found


FILES = sorted(PACKAGE.rglob("*.py"))


def test_every_file_has_a_room() -> None:
    assert {room(path) for path in FILES} <= set(GROUP_OF)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_file_imports_only_from_its_group_or_groups_before(path: Path) -> None:
    own = GROUP_OF[room(path)]
    later = {name for name in imports(path) if name in GROUP_OF and GROUP_OF[name] > own}
    assert not later, f"group {own} imports {later}"


def test_only_the_cluster_imports_dask() -> None:
    users = [
        p.name for p in FILES if "import dask" in p.read_text() or "distributed" in imported(p)
    ]
    assert set(users) <= {"cluster.py"}


def imported(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    names = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    names |= {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    return {name.split(".")[0] for name in names}


def test_importing_undercast_loads_no_heavy_package_and_writes_nothing(tmp_path: Path) -> None:
    code = (
        "import numpy, sys, time; t = time.perf_counter(); import undercast; "
        "print(time.perf_counter() - t); "
        "print([m for m in ('torch', 'rasterio', 'jsonargparse') if m in sys.modules])"
    )
    environment = {**os.environ, "HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        check=True,
    )
    seconds, heavy = result.stdout.splitlines()
    assert heavy == "[]"
    assert float(seconds) < 0.3
    assert not list(tmp_path.iterdir())


def test_the_public_names_are_few_and_there() -> None:
    import undercast

    assert len(undercast.__all__) <= 12
    assert all(hasattr(undercast, name) for name in undercast.__all__)
    assert callable(undercast.models.create)
    with pytest.raises(AttributeError, match="no_such"):
        undercast.no_such  # noqa: B018
