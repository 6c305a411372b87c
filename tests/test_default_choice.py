"""Which weights of a run are packaged, and what the checkpoint says about how they were trained."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from undercast import load_model
from undercast.bands import N_S2
from undercast.calibration import Calibration
from undercast.checkpoint import save_model
from undercast.errors import CheckpointError
from undercast.models import create

ROOT = Path(__file__).resolve().parents[1]


def stage(folder: Path, start: str | None, seed: int) -> Path:
    """A run folder with what a stage of training writes down."""
    torch.manual_seed(seed)
    model = create("uncrtaints", d_m=16, n_d=1, heads=4, attention_grid=8)
    config = {"start": start, "batch_size": 8, "epochs": 5, "model": {"attention_grid": 8},
              "random_t": [1, 5], "decay": 0.9, "lr": 0.001, "seed": seed, "compile": False,
              "precision": "fp32", "optimiser": "muon", "average": 0.99}  # fmt: skip
    model.provenance = {"config": config, "seed": seed, "samples": 80, "epoch": 3, "commit": None}
    save_model(model, folder / "best.safetensors")
    return folder


def test_every_stage_of_training_is_told_and_no_folder_of_this_machine(
    recipe: dict[str, Any], tmp_path: Path
) -> None:
    first = stage(tmp_path / "a", None, 0)
    second = stage(tmp_path / "b", str(first / "best.safetensors"), 1)
    choice, stages = recipe["package_choice"], [[first], [second]]
    told = choice.of_stages(stages, choice.begun_with(stages), {second: "best"})
    assert "--start" not in told["stages"][0]["command"]
    assert "--steps 10 --batch 8" in told["stages"][0]["command"]
    assert told["stages"][0]["taken"] == "the best weights, of epoch 4"
    assert told["stages"][1]["command"].endswith(
        "--seed 1 --optimiser muon --average 0.99 --start RUN1_best.safetensors"
    )
    assert str(tmp_path) not in json.dumps(told)
    twin = told["stages"][1]
    rows = recipe["card"]._stages([told["stages"][0], twin, twin])
    assert [name for name, _ in rows] == ["stage 1", "stage 2", "stage 2"]  # whatever its seed


def test_the_loss_of_a_stage_is_part_of_its_command(recipe: dict[str, Any], tmp_path: Path) -> None:
    known = load_model(stage(tmp_path, None, 0) / "best.safetensors").provenance
    command = recipe["package_choice"].command
    assert "--beta" not in command(known, 0, "best")
    known["config"] |= {"loss": "beta_nll", "loss_options": {"beta": 0.5}}
    assert command(known, 0, "best").endswith("--average 0.99 --beta 0.5")
    known["config"] |= {"frozen_norms": True, "random_t": None, "t": 4}
    assert command(known, 0, "best").endswith("--beta 0.5 --frozen")
    known["config"]["loss_options"] = recipe["train"].loss_options(0.5, 0.1)
    assert command(known, 0, "best").endswith("--beta 0.5 --images 0.1 --frozen")
    assert recipe["train"].loss_options(0.0, 0.0) == {}
    assert " --dates 4 " in command(known, 0, "best")


def test_twins_of_the_last_stage_are_averaged_and_told(
    recipe: dict[str, Any], tmp_path: Path
) -> None:
    choice = recipe["package_choice"]
    first = stage(tmp_path / "a", None, 0)
    both = [
        stage(tmp_path / n, str(first / "best.safetensors"), s) for n, s in (("b", 1), ("c", 2))
    ]
    found = choice.candidates(both)
    assert list(found) == ["best", "best1", "mean best"]
    name = "head.weight"
    parts = [found[which][0][name] for which in ("best", "best1")]
    assert not torch.equal(*parts)
    torch.testing.assert_close(found["mean best"][0][name], (parts[0] + parts[1]) / 2)
    counter = next(n for n, t in found["best"][0].items() if not t.is_floating_point())
    assert torch.equal(found["mean best"][0][counter], found["best"][0][counter])


def test_a_stage_may_begin_with_the_mean_of_the_runs_before(
    recipe: dict[str, Any], tmp_path: Path
) -> None:
    choice = recipe["package_choice"]
    first = stage(tmp_path / "a", None, 0)
    both = [stage(tmp_path / n, "x/a_last.safetensors", s) for n, s in (("b", 1), ("c", 2))]
    third, other = (stage(tmp_path / n, "x/b_mean.safetensors", s) for n, s in (("d", 3), ("e", 4)))
    for run, step in zip((first, *both), (30, 40, 50), strict=True):
        state = {"position": {"epoch": step // 10, "step": step % 10}}
        torch.save(state, run / choice.STATE)
    stages = [[first], both, [third, other]]
    begun = choice.begun_with(stages)
    assert begun == ["", "last", "mean"]
    told = choice.of_stages(stages, begun, {other: "best"})["stages"]
    assert [row["stage"] for row in told] == [1, 2, 2, 3, 3]
    assert [row["seed"] for row in told] == [0, 1, 2, 3, 4]
    more = ", averaged with those of the other seeds"
    assert [row["taken"] for row in told] == [
        "the last weights, of step 30",
        "the last weights, of step 40" + more,
        "the last weights, of step 50" + more,
        "not taken",
        "the best weights, of epoch 4",
    ]
    assert "--seed 2 " in told[2]["command"]
    assert told[3]["command"].endswith("--start RUN2_mean.safetensors")


def test_twins_may_each_go_on_from_their_own_last_weights(
    recipe: dict[str, Any], tmp_path: Path
) -> None:
    choice = recipe["package_choice"]
    first = [stage(tmp_path / n, None, s) for n, s in (("a", 0), ("b", 1))]
    second = [stage(tmp_path / n, f"x/{n}_own.safetensors", s) for n, s in (("c", 2), ("d", 3))]
    for run, step in zip((*first, *second), (10, 20, 30, 40), strict=True):
        torch.save({"position": {"epoch": step // 10, "step": 0}}, run / choice.STATE)
    stages = [first, second]
    begun = choice.begun_with(stages)
    assert begun == ["", "own"]
    told = choice.of_stages(stages, begun, dict.fromkeys(second, "last"))["stages"]
    more = ", averaged with those of the other seeds"
    assert [row["taken"] for row in told] == [
        "the last weights, of step 10",
        "the last weights, of step 20",
        "the last weights, of step 30" + more,
        "the last weights, of step 40" + more,
    ]
    assert told[3]["command"].endswith("--start RUN1_own.safetensors")
    stages[1][1] = stage(tmp_path / "e", "x/a_mean.safetensors", 4)
    with pytest.raises(CheckpointError, match="one and the same"):
        choice.begun_with(stages)


def test_a_stage_may_begin_with_packaged_weights_whose_stages_are_told_first(
    recipe: dict[str, Any], tmp_path: Path
) -> None:
    choice = recipe["package_choice"]
    packaged = tmp_path / "packaged.safetensors"
    earlier = [{"stage": 1, "seed": 0}, {"stage": 2, "seed": 1}, {"stage": 2, "seed": 2}]
    runs = [stage(tmp_path / "a", str(packaged), 3), stage(tmp_path / "b", str(packaged), 4)]
    begun = choice.begun_with([runs], packaged)
    told = choice.of_stages([runs], begun, dict.fromkeys(runs, "best"), earlier)
    assert told["stages"][:3] == earlier
    assert [row["stage"] for row in told["stages"][3:]] == [3, 3]
    assert told["stages"][4]["command"].endswith("--start RUN2_packaged.safetensors")
    assert told["config"]["start"] == "stage 2"
    for before in (None, tmp_path / "another.safetensors"):
        with pytest.raises(CheckpointError, match="the first one with"):
            choice.begun_with([runs], before)


def test_weights_may_be_averaged_with_what_earlier_stages_ended_with(
    recipe: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = recipe["package_choice"]
    runs = [stage(tmp_path / n, None, s) for n, s in (("a", 0), ("b", 1), ("c", 2))]
    files = [run / "best.safetensors" for run in runs]

    def small(state: dict[str, Any], _: str) -> Any:
        model = create("uncrtaints", d_m=16, n_d=1, heads=4)
        model.network.load_state_dict(state)
        return model

    monkeypatch.setattr(choice, "whole", small)
    mean = {"1": files[1], "2": files[2]}
    found = choice.choose([[runs[0]]], tmp_path, "best", None, mean)
    assert found.provenance["averaged_with"] == "what stages 1, 2 ended with"
    heads = [load_model(path).network.state_dict()["head.weight"] for path in files]
    torch.testing.assert_close(found.network.state_dict()["head.weight"], sum(heads) / 3)


def test_packaged_weights_that_are_a_mean_say_so_in_the_rows_of_their_last_stage(
    recipe: dict[str, Any],
) -> None:
    rows = [{"stage": 1, "taken": "the last"}, {"stage": 2, "taken": "the best"}]
    told = recipe["package_choice"].stages_of
    assert told({"stages": rows}) == rows
    words = [row["taken"] for row in told({"stages": rows, "averaged_with": "stage 1"})]
    assert words == ["the last", "the best, and with stage 1"]


def test_weights_that_a_run_does_not_have_are_refused(
    recipe: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = recipe["package_choice"]
    monkeypatch.setattr(choice, "whole", lambda *_: None)  # those of this test are small
    with pytest.raises(CheckpointError, match="expected auto or one of best"):
        choice.choose([[stage(tmp_path, None, 0)]], tmp_path, "mean last")


def test_a_stage_without_the_one_before_it_is_refused(
    recipe: dict[str, Any], tmp_path: Path
) -> None:
    second = stage(tmp_path, "elsewhere/best.safetensors", 1)
    with pytest.raises(CheckpointError, match="every stage in order"):
        recipe["package_choice"].begun_with([[second]])


def test_a_start_whose_name_does_not_say_which_weights_is_refused(
    recipe: dict[str, Any], tmp_path: Path
) -> None:
    first, second = stage(tmp_path / "a", None, 0), stage(tmp_path / "b", "x/default.pt", 1)
    with pytest.raises(CheckpointError, match="best, …_last, …_mean or …_own"):
        recipe["package_choice"].begun_with([[first], [second]])


def test_the_last_weights_of_two_runs_are_averaged_for_the_next_stage(tmp_path: Path) -> None:
    runs = [stage(tmp_path / n, None, s) for n, s in (("a", 1), ("b", 2))]
    states = [load_model(run / "best.safetensors").network.state_dict() for run in runs]
    for run, state in zip(runs, reversed(states), strict=True):  # not those of the file beside it
        torch.save({"learner": {"network": state}}, run / "training_state.pt")
    out = tmp_path / "x_last.safetensors"
    for given, taken in ((runs[:1], states[1:]), (runs, states)):
        command = [sys.executable, ROOT / "recipes/default/last.py", *given, "--out", out]
        subprocess.run(command, check=True, capture_output=True)
        for name, tensor in load_model(out).network.state_dict().items():
            if tensor.is_floating_point():
                torch.testing.assert_close(tensor, sum(s[name] for s in taken) / len(taken))


def test_packaged_weights_again_are_the_same_with_what_goes_with_weights_now(
    recipe: dict[str, Any], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    before = create("uncrtaints")
    before.calibration = Calibration((2.0,) * N_S2)
    before.provenance = {"stages": [{"stage": 1}], "recipe_commit": "abc"}
    save_model(before, tmp_path / "default.safetensors")
    found = recipe["package_choice"].again(tmp_path / "default.safetensors")
    assert found.calibration is None
    assert found.provenance == before.provenance
    assert found.config == {
        **before.config,
        "surroundings": recipe["package_choice"].SURROUNDINGS,
    }
    for name, tensor in before.network.state_dict().items():
        assert torch.equal(found.network.state_dict()[name], tensor)
