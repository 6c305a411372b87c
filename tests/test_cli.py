"""The command line teaches, answers programs in JSON, and fails in one line with exit code 2."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import undercast
from undercast import cli, load_model


def test_without_a_command_the_help_is_shown(capsys) -> None:
    assert cli.main([]) == 0
    out = capsys.readouterr().out
    assert "undercast demo" in out
    assert all(name in out for name in cli.COMMANDS)


def test_the_version_is_that_of_the_package(capsys) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--version"])
    assert stopped.value.code == 0
    assert undercast.__version__ in capsys.readouterr().out


ALL = [[name] for name in cli.COMMANDS] + [
    [group, name] for group, (_, names) in cli.GROUPS.items() for name in names
]


@pytest.mark.parametrize("command", ALL, ids=" ".join)
def test_every_command_explains_itself_with_an_example(command: list[str], capsys) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main([*command, "--help"])
    assert stopped.value.code == 0
    assert f"undercast {' '.join(command)}" in capsys.readouterr().out.split("example")[1]


@pytest.mark.parametrize(
    "arguments",
    [["no-such-command"], ["models", "--no-such-option"], ["models", "--size", "many"]],
)
def test_a_wrong_call_is_one_line_and_exit_code_2(arguments: list[str], capsys) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    assert stopped.value.code == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "--help" in err


def test_models_lists_every_system_with_parameters_and_multiply_adds(capsys) -> None:
    assert cli.main(["models"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in undercast.models.names())
    assert "570,010" in out
    assert "multiply-adds" in out


def test_models_as_json(capsys) -> None:
    assert cli.main(["models", "--json", "-"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["systems"]}
    assert rows["uncrtaints"]["parameters"] == 570_010
    assert rows["uncrtaints (no variance)"]["gmac"] == pytest.approx(38.7, rel=0.08)
    assert rows["mosaic"]["takes"] == "3 dates, S2 + mask"


def test_import_official_writes_a_checkpoint_that_loads(
    golden: Path, tmp_path: Path, capsys
) -> None:
    out = tmp_path / "tiny.safetensors"
    call = ["import-official", str(golden / "official_checkpoint"), "-o", str(out)]
    assert cli.main(call) == 0
    assert load_model(out).provenance["source"] == "official checkpoint"
    before = out.read_bytes()
    assert cli.main(call) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert out.read_bytes() == before
    assert cli.main([*call, "--overwrite"]) == 0


def test_a_failed_import_leaves_nothing_behind(golden: Path, tmp_path: Path, capsys) -> None:
    folder = tmp_path / "broken"
    shutil.copytree(golden / "official_checkpoint", folder)
    (folder / "model.pth.tar").write_bytes(b"broken")
    assert cli.main(["import-official", str(folder), "-o", str(tmp_path / "x.safetensors")]) == 2
    err = capsys.readouterr().err
    assert err.startswith("undercast: error: ")
    assert err.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["broken"]


def test_an_output_that_cannot_be_written_is_one_line(golden: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "file").write_text("not a folder")
    out = tmp_path / "file" / "x.safetensors"
    call = ["import-official", str(golden / "official_checkpoint"), "-o", str(out)]
    assert cli.main(call) == 2
    assert capsys.readouterr().err.count("\n") == 1
