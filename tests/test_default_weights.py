"""The packaged weights: the scripts that make them, the files, and the wheel they travel in."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from undercast import Stack, load_model, predict
from undercast.checkpoint import save_model
from undercast.errors import CheckpointError
from undercast.metrics import CalibrationAccumulator
from undercast.models import create

ROOT = Path(__file__).resolve().parents[1]
RECIPE = ROOT / "recipes" / "default"
WEIGHTS = ROOT / "src" / "undercast" / "weights"


def test_no_place_serves_two_purposes() -> None:
    places = json.loads((RECIPE / "places.json").read_text())
    for parts in places.values():
        every = [place for part in parts.values() for place in part]
        assert len(every) == len(set(every))
    trained_on = {f"patch_0{k}" for k in range(5)}
    assert not trained_on & {p for part in places["triplets"].values() for p in part}


def test_the_most_certain_half_of_the_pixels_is_the_half_of_smallest_variance(
    recipe: dict[str, Any], rng: np.random.Generator
) -> None:
    variance = np.exp(rng.normal(-6, 1, (13, 40, 40))) * np.ones((13, 1, 1))
    variance[:] = variance[:1]
    error = rng.normal(0, 1, variance.shape) * np.sqrt(variance)
    fed = CalibrationAccumulator(13)
    fed.feed(np.zeros_like(error)[None], error[None], variance[None])
    found = recipe["measure"].half_of_pixels(fed)
    squared, order = (error**2).mean(axis=0).ravel(), np.argsort(variance[0].ravel())
    assert found["mse_all"] == pytest.approx(squared.mean())
    assert found["mse_half"] == pytest.approx(squared[order[:800]].mean(), rel=0.01)


def test_every_band_has_a_coverage_of_its_own(recipe: dict[str, Any]) -> None:
    row, ones = recipe["measure"].Row(), np.ones((13, 32, 32))
    ground = ones * np.linspace(0.1, 0.3, 32)
    error = ones * 0.01  # one standard deviation
    error[9], error[10, :8] = 0.02, 0.02
    row.feed("here", ground, ground + error, ones * 0.01**2)
    found = row.result()
    expected = dict.fromkeys(found["bands"], 1.0) | {"B9": 0.0, "B10": 0.75}
    assert found["bands"] == pytest.approx(expected)
    assert found["pooled"]["coverage_90"] == pytest.approx(11.75 / 13)


def test_ground_that_changed_between_the_dates_is_told_from_ground_that_was_not_seen(
    recipe: dict[str, Any],
) -> None:
    ones = np.ones((13, 8, 8), np.float32)
    target = 0.3 * ones
    target[:, :, 7] = np.nan  # not known
    s2 = np.stack([0.9 * ones, 0.2 * ones])  # clouds; ground that is darker by 0.1
    mask = np.stack([np.ones((8, 8), bool), np.zeros((8, 8), bool)])
    mask[1, :2] = True
    case = SimpleNamespace(s2=s2, mask=mask)
    found = recipe["measure"].seen_ground(case, target)
    assert found["clear"] == pytest.approx(6 * 7 / 64 / 2)
    assert found["inputs_PSNR"] == pytest.approx(20.0, abs=1e-4)
    closed = SimpleNamespace(s2=s2, mask=np.ones_like(mask))
    assert recipe["measure"].seen_ground(closed, target)["inputs_PSNR"] is None


def test_every_image_is_told_by_itself(
    recipe: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two images of known errors; their places' figures are means of what is told of each."""
    measure, ones = recipe["measure"], np.ones((13, 16, 16), np.float32)
    ground = ones * np.linspace(0.1, 0.3, 16, dtype=np.float32)
    dates, clear = np.array(["2020-05-01"], "datetime64[D]"), np.zeros((1, 16, 16), bool)

    def case(place: str, error: float) -> Any:
        s2 = (ground + error)[None]
        return SimpleNamespace(place=place, s2=s2, mask=clear, dates=dates, s1=None,
                               target=ground, usable=np.ones((16, 16), bool))  # fmt: skip

    def estimates(case: Any, model: Any, flat: np.ndarray, radar: bool) -> dict[str, Any]:
        return {"flat mean": (ground + 0.1, None), "model": (case.s2[0], ones * 0.05**2)}

    monkeypatch.setattr(measure, "estimates", estimates)
    found = measure.measure([case("a", 0.01), case("b", 0.1)], object(), ground, False)
    assert [image["place"] for image in found["each"]] == ["a", "b"]
    for image, psnr, inside in zip(found["each"], (40, 20), (1.0, 0.0), strict=True):
        assert image["PSNR"] == pytest.approx(psnr, abs=1e-3)
        assert image["inputs_PSNR"] == pytest.approx(psnr, abs=1e-3)
        assert image["flat_PSNR"] == pytest.approx(20, abs=1e-3)
        assert image["coverage_90"] == inside
    model = found["systems"]["model"]
    assert model["PSNR"] == pytest.approx(30, abs=1e-3)
    assert model["pooled"]["coverage_90"] == pytest.approx(0.5)


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

    def small(state: dict[str, Any], _: Path) -> Any:
        model = create("uncrtaints", d_m=16, n_d=1, heads=4)
        model.network.load_state_dict(state)
        return model

    monkeypatch.setattr(choice, "_whole", small)
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
    monkeypatch.setattr(choice, "_whole", lambda *_: None)  # those of this test are small
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
    with pytest.raises(CheckpointError, match="best, …_last or …_mean"):
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


def test_clear_ground_that_stays_and_that_is_brightened(
    recipe: dict[str, Any], monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    """A composite of one date keeps it; 0.01 more is 40 dB. What is not clear is left out."""
    measure = recipe["measure"]
    usable = np.ones((16, 16), bool)
    usable[:4] = False
    images = [rng.uniform(0.1, 0.5, (13, 16, 16)).astype(np.float32) for _ in range(2)]
    cases = [
        recipe["backgrounds"].Case("x", "here", image[None], ~usable[None], image, usable)
        for image in images
    ]
    kept = measure.clear_ground(load_model("mosaic"), cases)["here"]
    assert kept["brightness"] == pytest.approx(np.mean([x[:, usable].mean() for x in images]))
    assert kept["bias"] == pytest.approx(0, abs=1e-6)
    assert kept["PSNR"] > 100
    monkeypatch.setattr(
        measure, "predict", lambda _, stack: SimpleNamespace(mean=stack.s2[0] + np.float32(0.01))
    )
    more = measure.clear_ground(None, cases)["here"]
    assert more["bias"] == pytest.approx(0.01, rel=1e-4)
    assert more["PSNR"] == pytest.approx(40, abs=1e-3)


def test_a_demand_is_met_on_its_edge_and_missed_below(recipe: dict[str, Any]) -> None:
    against = recipe["bars"]._against

    def rows(mine: float, other: float, key: str = "correlation") -> dict[str, Any]:
        return {"model": {key: mine}, "mosaic": {key: other}, "flat": {key: 0.0}}

    assert against("x", "correlation", rows(0.5, 0.45), at_least=0.05).met
    assert not against("x", "correlation", rows(0.499, 0.45), at_least=0.05).met
    assert not against("x", "SSIM", rows(0.9, 0.9, "SSIM")).met
    smaller = {"model": {"SAM": 2.0}, "mosaic": {"SAM": 2.1}, "flat": {"SAM": 9.0}}
    bar = against("x", "SAM", smaller)
    assert bar.met
    assert "better than mosaic (2.100)" in bar.wanted


@pytest.mark.parametrize(
    ("coverage", "uce", "met"),
    [(0.9, 0.01, [True, True]), (0.84, 0.02, [False, True]), (0.96, 0.021, [False, False])],
)
def test_intervals_have_a_lower_and_an_upper_bound(
    recipe: dict[str, Any], coverage: float, uce: float, met: list[bool]
) -> None:
    pooled = {"coverage_90": coverage, "UCE": uce}
    bars = list(
        recipe["bars"]._variance("x", {"pooled": pooled, "of_images": {"coverage_90": 0.9}})
    )
    assert [bar.met for bar in bars] == met  # places of equal weight do not count
    assert bars[0].got == f"{coverage:.3f} (0.900 with places of equal weight)"


def test_the_card_names_every_demand_that_is_missed(recipe: dict[str, Any]) -> None:
    bar = recipe["bars"].Bar
    text = recipe["card"]._falls_short(
        [bar("a", "PSNR not below mosaic", "20", False), bar("b", "under 5 MB", "2 MB", True)]
    )
    assert "1 of 2 demands are met" in text
    assert "PSNR not below mosaic" in text
    assert "under 5 MB" not in text
    assert "falls short" not in recipe["card"]._falls_short([bar("b", "x", "y", True)])


def test_the_card_explains_the_calibration_that_was_taken(recipe: dict[str, Any]) -> None:
    def text(method: str) -> str:
        row = {"UCE": 0.01, "NLL": -1.0}
        found = {"images": 4, "method": method, "wider": 1.0, "held_out": {method: row}}
        return str(recipe["card"]._calibration(found))

    assert "A power below 1" in text("factor and power")
    assert "A floor is for" in text("factor and floor")
    assert "A power" not in text("factor and floor")
    assert "A floor" not in text("raw")


def test_glint_brightens_water_alone_and_leaves_the_truth(recipe: dict[str, Any]) -> None:
    from dataclasses import replace

    failures = recipe["failures"]
    trouble = failures.TROUBLES["sunglint"]
    plain, target = failures.scene(replace(trouble, change=None), 501)
    glinting, same_target = failures.scene(trouble, 501)
    np.testing.assert_array_equal(target, same_target)
    brighter = (glinting.s2 - plain.s2).mean(axis=(0, 1))
    assert (brighter >= 0).all()
    assert 0.2 < (brighter > 0).mean() < 0.95
    assert not np.isin(failures.SUMMER[failures.TARGET], glinting.dates.astype(str))


def weight_folder(copy: Path) -> Path:
    """What the wheel is made of, in a folder of its own, with the default weights."""
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE", ".gitignore"):
        shutil.copy(ROOT / name, copy / name)
    for name in ("src", "configs"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    file = copy / "src" / "undercast" / "weights" / "default.safetensors"
    assert file.exists()
    return copy


@pytest.mark.slow
def test_weights_load_from_the_wheel_in_an_empty_folder(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="builds the wheel; part of the extra dev")
    source, empty, unpacked = (tmp_path / name for name in ("source", "empty", "unpacked"))
    source.mkdir()
    empty.mkdir()
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=weight_folder(source), check=True, capture_output=True, text=True)
    (wheel,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(unpacked)
    program = (
        "import socket, undercast; socket.socket.connect = None\n"
        "model = undercast.load_model('default')\n"
        "print(undercast.__file__); print(sum(p.numel() for p in model.parameters()))"
    )
    # -P: the folder is not searched; the wheel is found before the checkout
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], cwd=empty, env={"PYTHONPATH": str(unpacked)},
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    where, parameters = done.stdout.split()
    assert Path(where).is_relative_to(unpacked)
    expected = load_model(source / "src" / "undercast" / "weights" / "default.safetensors")
    assert int(parameters) == sum(p.numel() for p in expected.parameters())


def test_the_default_weights_are_the_papers_model_small_and_calibrated() -> None:
    model = load_model("default")
    assert sum(p.numel() for p in model.parameters()) == 570_010
    assert (WEIGHTS / "default.safetensors").stat().st_size < 5_000_000
    assert model.calibration is not None
    assert [level for level, _ in model.calibration.conformal] == [0.5, 0.8, 0.9, 0.95]


def test_the_default_weights_say_where_they_come_from_and_name_no_folder() -> None:
    known = load_model("default").provenance
    assert known["level"] == "L1C"
    assert all(stage["command"].startswith("python recipes/") for stage in known["stages"])
    assert all(data["licence"] for data in known["training_data"])
    assert '"/' not in json.dumps(known)


@pytest.mark.parametrize("dates", [1, 4])
@pytest.mark.parametrize("radar", [False, True])
def test_the_default_weights_take_any_number_of_dates_with_or_without_radar(
    dates: int, radar: bool, rng: np.random.Generator
) -> None:
    s2 = rng.uniform(0.05, 0.5, (dates, 13, 64, 64))
    s1 = rng.normal(-12, 3, (dates, 2, 64, 64)) if radar else None
    days = [f"2019-06-{1 + 5 * i:02d}" for i in range(dates)]
    estimate = predict(load_model("default"), Stack(s2, days, s1))
    assert estimate.variance is not None
    assert np.isfinite(estimate.mean).all()
    assert (estimate.variance > 0).all()


def test_figures_card_and_overview_belong_to_the_packaged_file(recipe: dict[str, Any]) -> None:
    figures = json.loads((WEIGHTS / "default.json").read_text())
    content = (WEIGHTS / "default.safetensors").read_bytes()
    assert figures["weights"]["sha256"] == hashlib.sha256(content).hexdigest()
    expected = recipe["card"].card(figures, "../../../docs/models")
    assert (WEIGHTS / "default.md").read_text() == expected
    page = recipe["card"].models_page([(WEIGHTS / "default.json", figures)])
    assert (ROOT / "MODELS.md").read_text() == page
    for case in figures["failures"].values():
        assert 0 < (ROOT / "docs" / "models" / case["picture"]).stat().st_size < 150_000
