"""The paper's tables: configs, computed costs, shared runs, missing systems, the printed table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from undercast import experiments
from undercast.errors import ConfigError, TrainingError
from undercast.experiments import (
    Setup,
    find_rows,
    row_config,
    row_cost,
    run_table,
    scaled,
)
from undercast.models.registry import create, names
from undercast.papertables import NARROW, SMALL, TABLES, Row
from undercast.tablepages import markdown, minutes, row_seconds

ROWS = [(name, row) for name, table in TABLES.items() for row in table.rows]
SETUP = Setup(Path("data"), Path("out"))


def test_every_config_is_a_row_and_every_row_has_a_config() -> None:
    files = {file.stem for file in experiments.config_folder().glob("*.yaml")}
    assert files == {row.config for _, row in ROWS}


@pytest.mark.parametrize("row", [row for _, row in ROWS], ids=lambda row: row.config)
def test_every_config_builds_its_system_at_both_scales(row: Row) -> None:
    published = row_config(row.config)
    assert published.system in names()
    for scale in experiments.SCALES:
        config = scaled(published, Setup(Path("data"), Path("out"), scale))
        with torch.device("meta"):
            create(config.system, **config.model)


def test_rows_train_with_the_settings_of_the_paper() -> None:
    for name, row in ROWS:
        config = row_config(row.config)
        if config.system not in ("uncrtaints", "utae"):
            continue
        config = config.resolved()
        assert (config.optimiser, config.lr, config.batch_size) == ("adam", 1e-3, 4)
        assert (config.epochs, config.decay) == (20, 0.8)
        if name in ("table2", "table3", "table4"):
            assert config.loss == "l2"
            assert config.model["covariance"] == "none"
        assert config.members == (5 if "ensemble" in row.config or name == "table6" else 1)


@pytest.mark.parametrize("name", ["table2", "table3"])
def test_computed_parameters_and_multiply_adds_agree_with_the_paper(name: str) -> None:
    for row in TABLES[name].rows:
        cost = row_cost(row_config(row.config))
        assert cost["params_k"] == pytest.approx(row.paper["params_k"], rel=0.01)
        assert cost["GMAC"] == pytest.approx(row.paper["GMAC"], rel=0.09)


def test_the_mono_network_without_variance_has_the_known_size() -> None:
    assert row_cost(row_config("table4-uncrtaints"))["params_k"] == pytest.approx(518.541)


def test_small_scale_gives_every_row_the_same_samples() -> None:
    budgets = set()
    for _, row in ROWS:
        config = scaled(row_config(row.config), SETUP)
        budgets.add(
            (
                config.batch_size,
                config.epochs,
                config.steps_per_epoch,
                config.crop,
                config.precision,
            )
        )
    assert len(budgets) == 1


def test_rows_that_are_trained_alike_share_one_run() -> None:
    def run_of(name: str, member: int = 0) -> str:
        return scaled(row_config(name), SETUP).member(member).resolved().fingerprint()

    assert (
        run_of("table2-e1-d5") == run_of("table3-heads16") == run_of("table1-uncrtaints-no-sigma")
    )
    assert run_of("table1-uncrtaints") == run_of("table5-diagonal") == run_of("table5-ensemble")
    for t in (2, 3, 4):  # evaluated at T, trained at 3: no row is trained again
        assert run_of(f"table6-t{t}", 1) == run_of("table5-ensemble", 1)
        assert row_config(f"table6-t{t}").t == 3
    assert [row.t for row in TABLES["table6"].rows] == [2, 3, 4]
    assert run_of("table5-ensemble", 1) != run_of("table5-ensemble", 0)


def test_rows_are_chosen_by_label_or_config_and_others_are_refused() -> None:
    table = TABLES["table1"]
    assert [r.label for r in find_rows(table, ["table1-utae", "STGAN"])] == ["STGAN", "U-TAE"]
    with pytest.raises(ConfigError, match="table9-x"):
        find_rows(table, ["table9-x"])
    with pytest.raises(ConfigError, match="scale"):
        Setup(Path("d"), Path("o"), "huge")


@pytest.fixture
def without_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiments, "_baselines", lambda *_: {})


@pytest.mark.usefixtures("without_work")
def test_a_system_that_is_not_there_is_missing_and_not_faked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiments, "names", lambda: ["uncrtaints"])
    results = run_table("table1", Setup(tmp_path, tmp_path / "out"), ["table1-stgan"])
    (row,) = results["rows"]
    assert row["status"] == "missing"
    assert "ours" not in row
    assert "STGAN (missing: no system 'stgan' here) | – / 0.057" in markdown(results)


@pytest.mark.usefixtures("without_work")
def test_a_row_that_diverges_is_failed_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverge(*_: Any) -> None:
        raise TrainingError("the loss diverged")

    monkeypatch.setattr(experiments, "train", diverge)
    results = run_table("table1", Setup(tmp_path, tmp_path / "out"), ["table1-utae"])
    assert results["rows"][0]["status"] == "failed"
    assert "the loss diverged" in (tmp_path / "out" / "table1.md").read_text()


def test_the_discard_figure_is_printed_relative_to_the_error_of_all_images() -> None:
    row = {
        "label": "UnCRtainTS", "config": "x", "status": "done", "paper": {}, "ours": {"RMSE": 0.05},
        "discard_curve": {"kept": [0.5, 1.0], "mse": [0.001, 0.002]},
    }  # fmt: skip
    text = markdown(
        {"table": "discard", "title": "t", "scale": "small", "seed": 0, "command": "c",
         "machine": "m", "columns": ["RMSE"], "rows": [row], "baselines": {}, "notes": []}
    )  # fmt: skip
    assert "| UnCRtainTS | 0.050 / – |" in text
    assert "| 50 % | 0.001 | 0.50 |" in text


def test_a_page_says_how_and_how_long_it_was_made() -> None:
    done = {
        "label": "a", "config": "x", "status": "done", "paper": {}, "ours": {"RMSE": 0.05},
        "training_seconds": {"run": 600.0}, "evaluation_seconds": 60.0, "machine": "abacus",
    }  # fmt: skip
    shared = {**done, "label": "b", "evaluation_seconds": None}
    unknown = {**done, "label": "c", "training_seconds": {"old": None}}
    text = markdown(
        {"table": "table1", "title": "t", "scale": "small", "seed": 7, "command": "do this",
         "machine": "other", "columns": ["RMSE"], "rows": [done, shared, unknown],
         "baselines": {}, "notes": []}
    )  # fmt: skip
    assert "do this" in text
    assert "seed 7" in text
    assert "Machine: abacus." in text
    assert "| a | 0.050 / – | 11.0 min |" in text
    assert "| b | 0.050 / – | 10.0 min |" in text
    assert "| c | 0.050 / – | – |" in text
    assert "12.0 min in total" in text  # the shared run once, both known evaluations


def test_the_time_of_a_run_comes_from_its_log(tmp_path: Path) -> None:
    assert experiments.run_seconds(tmp_path) is None
    rows = [
        {"kind": "epoch", "samples": 80, "samples_per_s": 4.0},
        {"kind": "epoch", "samples": 160, "samples_per_s": 5.0},
        {"kind": "step", "samples": 164, "samples_per_s": 9.0},
    ]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert experiments.run_seconds(tmp_path) == 32.0  # 160 samples at 5 a second
    assert row_seconds({"evaluation_seconds": 3.0}) == 3.0  # a rule has no run
    assert row_seconds({}) is None
    assert minutes(None) == "–"


def test_the_paper_scale_needs_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from undercast.cli import main

    arguments = ["experiments", "table1", "--scale", "paper", "--out", str(tmp_path / "o")]
    assert main(arguments) == 2
    assert "--data" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


@pytest.mark.slow
def test_a_small_table_runs_from_nothing_and_is_not_run_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulate, train an ensemble, evaluate it at three lengths; the second time only read."""
    data = {"rois": 3, "patches": 3, "dates": 6, "size": 32, "seed": 0}
    budget = {"crop": 32, "batch_size": 2, "epochs": 1, "steps_per_epoch": 2, "progress": False}
    monkeypatch.setattr(experiments, "SMALL_DATA", data)
    monkeypatch.setattr(experiments, "SMALL", {**SMALL, **budget})
    monkeypatch.setattr(experiments, "SMALL_MEMBERS", 2)
    monkeypatch.setitem(
        NARROW, "uncrtaints", {"d_m": 16, "heads": 4, "n_d": 1, "attention_grid": 8}
    )
    root = experiments.simulated_data(TABLES["table6"], tmp_path)
    first = run_table("table6", Setup(root, tmp_path))
    assert [row["status"] for row in first["rows"]] == ["done"] * 3
    assert len(list((tmp_path / "runs").iterdir())) == 2  # two members, trained once
    lengths = [row["ours"]["RMSE"] for row in first["rows"]]
    assert len(set(lengths)) == 3  # T matters
    assert {"mosaic", "flat-train-mean"} <= set(first["baselines"])

    def forbidden(*_: Any) -> None:
        raise AssertionError("a finished row was run again")

    monkeypatch.setattr(experiments, "train", forbidden)
    monkeypatch.setattr(experiments, "evaluate", forbidden)
    assert experiments.simulated_data(TABLES["table6"], tmp_path) == root
    again = run_table("table6", Setup(root, tmp_path))
    assert json.dumps(again) == json.dumps(first)
    assert first["rows"][0]["discard_curve"]["kept"]
    assert all(row_seconds(row) > 0 for row in first["rows"])
    assert "thread(s) used, torch" in (tmp_path / "table6.md").read_text()
