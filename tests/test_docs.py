"""What the documents name is there."""

from __future__ import annotations

import importlib
import re
from functools import reduce
from pathlib import Path

import pytest

from undercast.cli import build_parser

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("recipes/*/*.md")])
METHOD = (ROOT / "docs" / "method.md").read_text()


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(undercast(?:\.\w+)+)`", METHOD))))
def test_every_function_of_the_method_table_exists(name: str) -> None:
    parts = name.split(".")
    for split in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:split]))
        except ModuleNotFoundError:
            continue
        assert callable(reduce(getattr, parts[split:], module))
        return
    pytest.fail(f"no module of {name} can be imported")


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(tests/[\w/]+\.py::\w+)`", METHOD))))
def test_every_test_of_the_method_table_exists(name: str) -> None:
    path, function = name.split("::")
    assert f"def {function}(" in (ROOT / path).read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_in_the_documents_exist(page: Path) -> None:
    commands = set(build_parser()._subcommands_action.choices)
    named = re.findall(r"^\s*(?:\$ )?undercast ([a-z][a-z-]+)", page.read_text(), re.MULTILINE)
    assert set(named) <= commands
