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

from undercast import Stack, load_model, predict
from undercast.metrics import CalibrationAccumulator

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


def test_sigma_and_errors_of_hidden_ground_are_told_beside_those_of_the_rest(
    recipe: dict[str, Any],
) -> None:
    ones = np.ones((13, 10, 10))
    mask = np.zeros((2, 10, 10), bool)
    mask[0], mask[1, :3] = True, True  # three rows that no date shows
    target, error, variance = 0.2 * ones, 0.01 * ones, 0.04 * ones
    error[:, :3], variance[:, :3] = 0.03, 0.16
    target[:, :, 9] = np.nan  # not known
    error[:, :, 9] = 9.0
    found = recipe["measure"].hidden_ground
    case = SimpleNamespace(mask=mask)
    told = found(case, target, target + error, variance)
    assert told == pytest.approx({"hidden_sigma": 2.0, "hidden_error": 3.0})
    case = SimpleNamespace(mask=np.ones_like(mask))
    assert set(found(case, target, target + error, variance).values()) == {None}


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
