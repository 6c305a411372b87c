"""The findings: intervals, what is kept of each image, verdicts by rule, the page, a tiny run."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

from undercast import experiments, findings
from undercast.cli import main
from undercast.errors import InputError
from undercast.experiments import Setup
from undercast.findings import claims, measure, page, plan, run
from undercast.findings.figure import discard_figure
from undercast.findings.intervals import (
    Interval,
    draw_interval,
    mean_interval,
    region_draws,
    t_quantile,
)
from undercast.findings.measure import HALF, METRICS, PARTS, Measured, Scored
from undercast.metrics import calibration_metrics, image_metrics
from undercast.models.system import Output
from undercast.papertables import SMALL

NAMES = (*METRICS, *PARTS, HALF)


@given(st.floats(0.5, 0.9995), st.integers(1, 80))
def test_the_quantile_of_students_t_is_scipys(probability: float, freedom: int) -> None:
    expected = scipy.stats.t.ppf(probability, freedom)
    assert t_quantile(probability, freedom) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(st.integers(2, 30), st.integers(0, 99), st.sampled_from([0.8, 0.95, 0.99]))
def test_the_interval_of_paired_differences_is_that_of_the_paired_t_test(
    n: int, seed: int, level: float
) -> None:
    a, b = np.random.default_rng(seed).normal(size=(2, n))
    expected = scipy.stats.ttest_rel(a, b).confidence_interval(level)
    found = mean_interval(a - b, level)
    assert found == pytest.approx((expected.low, expected.high), rel=1e-9)


def test_one_value_has_no_interval_and_a_bad_probability_is_refused() -> None:
    assert mean_interval([1.0]) == Interval(-math.inf, math.inf)
    with pytest.raises(InputError, match="degrees of freedom"):
        t_quantile(1.0, 2)


def test_images_of_a_region_are_drawn_together_and_regions_are_equally_likely() -> None:
    regions = ["a", "b", "a", "c"]
    weights = region_draws(regions, 4000)
    assert (weights[:, 0] == weights[:, 2]).all()
    assert (weights[:, [0, 1, 3]].sum(1) == 3).all()
    assert weights.mean(0) == pytest.approx([1, 1, 1, 1], abs=0.06)


def test_the_bootstrap_of_a_mean_agrees_with_the_t_interval() -> None:
    values = np.random.default_rng(3).normal(2.0, 1.0, 200)
    weights = region_draws([str(i) for i in range(200)], 4000)
    found = draw_interval(weights @ values / 200)
    assert found == pytest.approx(mean_interval(values), abs=0.02)


def images(n: int = 6, seed: int = 0) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    variance = rng.uniform(1e-4, 4e-3, (n, 1, 1, 1)) * rng.uniform(0.5, 2, (n, 13, 16, 16))
    target = rng.uniform(0.1, 0.5, (n, 13, 16, 16))
    mean = target + rng.normal(size=target.shape) * np.sqrt(variance)
    return tuple(torch.from_numpy(x) for x in (target, mean, variance))


def measured(target: Any, mean: Any, variance: Any) -> Measured:
    rows = [
        measure._row(target[i : i + 1], Output(mean[i : i + 1], variance[i : i + 1]))
        for i in range(len(target))
    ]
    columns = {key: np.stack([row[key] for row in rows]) for key in rows[0]}
    names = np.array([str(i) for i in range(len(rows))])
    return Measured(
        names=names, regions=names, seconds=np.array(1.0), machine=np.array("m"), **columns
    )


def test_metrics_from_what_is_kept_of_each_image_are_those_of_the_images() -> None:
    target, mean, variance = images()
    found = measure.metrics_of(measured(target, mean, variance))
    exact = calibration_metrics(target, mean, variance) | image_metrics(target, mean)
    for name in ("RMSE", "PSNR", "SSIM", "SAM", "NLL", "CRPS", "coverage_90", "sharpness",
                 "UCE_im"):  # fmt: skip
        assert found[name] == pytest.approx(exact[name], rel=1e-9), name
    # streaming rounds the edges of bins; see docs/metrics.md
    assert found["UCE"] == pytest.approx(exact["UCE"], abs=0.005 * exact["sharpness"])
    assert found["UCE_legacy"] == pytest.approx(exact["UCE_legacy"], abs=0.05 * exact["sharpness"])
    assert found["variance"] == pytest.approx(float(variance.mean()))


def test_an_image_that_is_drawn_twice_counts_twice() -> None:
    target, mean, variance = images()
    weights = np.array([2, 0, 1, 3, 0, 0])
    drawn = [0, 0, 2, 3, 3, 3]
    found = measure.metrics_of(measured(target, mean, variance), weights)
    expected = measure.metrics_of(measured(target[drawn], mean[drawn], variance[drawn]))
    for name in (n for n in NAMES if n not in ("aleatoric", "epistemic")):
        assert found[name] == pytest.approx(expected[name], rel=1e-9), name


def test_the_error_of_the_certain_half_is_relative_to_all() -> None:
    target, _, variance = images(4)
    scale = torch.tensor([1.0, 2.0, 3.0, 4.0])[:, None, None, None]
    flat = torch.ones_like(variance)
    found = measure.metrics_of(measured(target, target + 0.01 * scale, 1e-4 * scale * flat))
    assert found[HALF] == pytest.approx((1 + 4) / 2 / ((1 + 4 + 9 + 16) / 4))


def test_what_is_stored_is_read_back_whole(tmp_path: Path) -> None:
    before = measured(*images())
    measure.save(before, tmp_path / "a.npz")
    after = measure.load(tmp_path / "a.npz")
    assert measure.metrics_of(after) == pytest.approx(measure.metrics_of(before), nan_ok=True)
    (tmp_path / "b.npz").write_bytes(b"no archive")
    with pytest.raises(OSError, match="delete it"):
        measure.load(tmp_path / "b.npz")


def scored(noise: float = 0.0, seed: int = 0, **values: float) -> Scored:
    """Made-up metrics: 1 unless given, draws around them."""
    rng = np.random.default_rng(seed)
    found = {name: values.get(name, 1.0) for name in NAMES}
    return Scored(found, {n: v + noise * rng.normal(size=200) for n, v in found.items()})


def test_differences_and_factors_are_paired_by_seed() -> None:
    a, b = [3.0, 4.0, 6.5], [1.0, 2.0, 3.0]
    scores = {
        "a": [scored(UCE=x) for x in a],
        "b": [scored(UCE=x) for x in b],
        "one": [scored(UCE=2.0)],
    }
    estimate, _, seeds = claims.compared(scores, "a", "b", "UCE", "difference")
    expected = scipy.stats.ttest_rel(a, b).confidence_interval(0.95)
    assert estimate == pytest.approx(np.mean(np.subtract(a, b)))
    assert seeds == pytest.approx((expected.low, expected.high))
    estimate, at_images, seeds = claims.compared(scores, "a", "b", "UCE", "ratio")
    logs = scipy.stats.ttest_rel(np.log(a), np.log(b)).confidence_interval(0.95)
    assert estimate == pytest.approx(scipy.stats.gmean(np.divide(a, b)))
    assert seeds == pytest.approx((math.exp(logs.low), math.exp(logs.high)))
    assert at_images == pytest.approx((estimate, estimate))  # draws without noise
    estimate, _, _ = claims.compared(scores, "one", "b", "UCE", "difference")
    assert estimate == pytest.approx(0.0)  # one ensemble against each member


@pytest.mark.parametrize(
    ("at_images", "seeds", "expected"),
    [
        ((1.1, 1.9), (1.2, 1.8), claims.HOLDS),
        ((0.1, 0.9), (2.1, 3.0), claims.FAILS),
        ((0.9, 1.9), (1.2, 1.8), claims.UNCLEAR),
        ((1.1, 1.9), (0.2, 2.8), claims.UNCLEAR),
        ((0.1, 0.9), (0.2, 1.1), claims.UNCLEAR),
        ((1.1, 1.9), (-math.inf, math.inf), claims.UNCLEAR),
        ((1.0, 1.0), (1.0, 1.0), claims.FAILS),  # no difference is not a difference
    ],
)
def test_the_verdict_needs_both_intervals_on_one_side(
    at_images: tuple[float, float], seeds: tuple[float, float], expected: str
) -> None:
    assert claims.verdict((1.0, 2.0), Interval(*at_images), Interval(*seeds)) == expected


def made_up() -> dict[str, list[Scored]]:
    """Isotropic 1.5 times worse in UCE, legacy σ exactly half, PSNR of radar lost in noise."""

    def three(**values: float) -> list[Scored]:
        return [scored(1e-4, s, **{k: v * (1 + 1e-3 * s) for k, v in values.items()})
                for s in range(3)]  # fmt: skip

    radar = [20.0, 30.0, 25.0]
    scores = {
        "isotropic": three(UCE=0.015, PSNR=26.0),
        "diagonal": three(UCE=0.010, PSNR=27.0, sharpness=0.04, half_error=0.5),
        "legacy": three(UCE=0.020, PSNR=27.0, sharpness=0.02),
        "no-sar": [scored(1e-4, UCE=0.02, PSNR=psnr) for psnr in radar],
        "ensemble": [scored(1e-4, UCE=0.005, PSNR=28.0, aleatoric=3e-4, epistemic=1e-4,
                            variance=4e-4)],
        "diagonal, calibrated": three(UCE=0.004),
        "ensemble, calibrated": [scored(1e-4, UCE=0.003)],
    }  # fmt: skip
    lengths = {f"T = {t}": three(UCE=0.01 / t, PSNR=20.0 + t) for t in plan.LENGTHS}
    return scores | lengths


def results_of(scores: dict[str, list[Scored]]) -> dict[str, Any]:
    curve = {"kept": [i / 20 for i in range(1, 21)], "mse": [1e-4 * i for i in range(1, 21)]}
    return run.plain(
        {
            "command": "undercast experiments findings --scale small --out DIR --seeds 3",
            "seeds": [0, 1, 2],
            "machine": ["abacus"],
            "images": 80,
            "regions": 40,
            "budget": {**SMALL, **plan.BUDGET, **plan.WIDTH},
            "trained_parameters": 44314,
            "runs": [{"row": "legacy", "seed": 1, "seconds": 240.0, "command": "one row"}],
            "evaluation_seconds": 60.0,
            "rows": run.tables(scores),
            "baselines": {"median": {"RMSE": 0.049, "PSNR": 29.58, "SSIM": 0.838, "SAM": 6.49}},
            "comparisons": claims.all_comparisons(scores),
            "claims": claims.all_claims(scores),
            "discard": {"diagonal": [curve] * 3, "ensemble": [curve]},
            "cost": {"table2": run.cost_rows("table2", Setup(Path("o/d"), Path("o")))},
        }
    )


def test_made_up_results_get_the_verdicts_that_they_deserve() -> None:
    found = {c["claim"]: c for c in results_of(made_up())["claims"]}

    def of(part: str) -> str:
        (verdict,) = [c["verdict"] for text, c in found.items() if part in text]
        return str(verdict)

    assert of("better calibrated than one for all") == claims.HOLDS
    assert of("three-fold better (UCE, ") == claims.FAILS
    assert of("σ half as large") == claims.HOLDS
    assert of("(PSNR, diagonal − isotropic > 0)") == claims.HOLDS
    assert of("radar improves PSNR") == claims.UNCLEAR
    assert of("T = 4 is better calibrated") == claims.HOLDS
    assert of("ensemble is better calibrated") == claims.HOLDS
    assert of("almost halves") == claims.HOLDS
    threefold = next(c for c in found.values() if "three-fold better (UCE, " in c["claim"])
    assert threefold["paper"] == "3.3"  # 0.023 / 0.007
    assert threefold["estimate"] == pytest.approx(1.5)


def test_the_page_has_every_section_and_the_facts_of_its_making() -> None:
    text = page.markdown(results_of(made_up()))
    for part in (
        "# The paper's findings", "## Verdicts", "## 1. Uncertainty", "## 2. Radar",
        "## 3. Sequence length", "## 4. The ensemble", "## 5. Discarding", "## 6. Blocks and heads",
        "## Runs", "abacus", "80 images of 40 regions", "500 steps", "5.0 min in total",
        "| legacy | 1 | 4.0 min | `one row` |", "| ensemble | 3 | 1 | 4 |",
        "| *paper, diagonal* | 0.051 | 27.84 | 0.866 | 10.16 | 0.007 | 0.010 | – |",
        "| 50 % | 10 | 0.50 | 10 | 0.50 |",
        "| median | 0.0490 | 29.58 | 0.838 | 6.49 |", "| diagonal | 1.0000 | 27.03 |",
        "--rows table2-e1-d3 --seed 0`", "not run / 27.03", "**does not hold**",
    ):  # fmt: skip
        assert part in text, part
    assert "None" not in text
    assert "nan" not in text


def test_the_figure_is_svg_with_a_line_for_each_member_and_the_ensemble() -> None:
    curve = {"kept": [0.5, 1.0], "mse": [1.0, 2.0]}
    tree = ElementTree.fromstring(discard_figure({"diagonal": [curve] * 3, "ensemble": [curve]}))
    lines = [e for e in tree if e.tag.endswith("polyline")]
    assert len(lines) == 4
    assert lines[0].get("points") == "300.0,155.0 540.0,20.0"  # half the height, then the top


def test_variants_differ_in_nothing_but_what_they_are_called_after() -> None:
    a_plan = plan.Plan(Setup(Path("o/d"), Path("o")), Path("t"), "all")
    configs = {name: a_plan.config(name, 1) for name in plan.VARIANTS}
    base = configs["diagonal"].to_dict()
    assert base["batch_size"] == 4
    assert base["model"] == {"covariance": "diagonal", **plan.WIDTH}

    def changed(name: str) -> dict[str, Any]:
        return {k: v for k, v in configs[name].to_dict().items() if v != base[k]}

    assert changed("isotropic") == {"model": {**base["model"], "covariance": "isotropic"}}
    assert changed("no-sar") == {"model": {**base["model"], "sar": False}}
    assert changed("legacy") == {"loss": "nll_legacy"}
    members = experiments.member_runs(a_plan.config("diagonal", 0, members=3), a_plan.setup)
    alone = [experiments.member_runs(a_plan.config("diagonal", s), a_plan.setup) for s in range(3)]
    assert members == [run for runs in alone for run in runs]  # the ensemble trains nothing anew


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rows", "triangular"], "isotropic, diagonal, legacy, no-sar"),
        (["--scale", "paper"], "table5"),
        (["--seeds", "1"], "at least 2"),
    ],
)
def test_what_cannot_be_run_is_refused_before_the_work(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "o"
    assert main(["experiments", "findings", *arguments, "--out", str(out)]) == 2
    assert message in capsys.readouterr().err
    assert not out.exists()


def test_the_help_names_findings_and_one_row_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["experiments", "--help"])
    assert "findings --rows legacy --seed 1" in capsys.readouterr().out


@pytest.mark.slow
def test_tiny_findings_run_from_nothing_and_are_not_run_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = {"rois": 6, "patches": 3, "dates": 6, "size": 32, "seed": 0}
    budget = {**SMALL, "crop": 32, "batch_size": 2, "progress": False}
    monkeypatch.setattr(experiments, "SMALL_DATA", tiny)
    monkeypatch.setattr(experiments, "SMALL", budget)
    monkeypatch.setattr(plan, "BUDGET", {"epochs": 1, "steps_per_epoch": 2})
    monkeypatch.setattr(plan, "WIDTH", {"d_m": 16, "heads": 4, "n_d": 1, "attention_grid": 8})
    test = {**tiny, "rois": 4, "patches": 1, "seed": 1, "layout": "sen12mscrts"}
    monkeypatch.setattr(plan, "TEST_DATA", test)
    monkeypatch.setattr(run, "TEST_DATA", test)
    monkeypatch.setattr(run, "DRAWS", 20)
    command = ["experiments", "findings", "--seeds", "2", "--out", str(tmp_path)]
    assert main([*command[:2], "--rows", "legacy", "--seed", "1", *command[4:]]) == 0
    assert "| legacy |" in capsys.readouterr().out
    assert len(list((tmp_path / "runs").iterdir())) == 1
    assert not (tmp_path / "findings.md").exists()
    assert main(command) == 0
    assert len(list((tmp_path / "runs").iterdir())) == 8  # four variants, two seeds, no ninth
    first = (tmp_path / "findings.json").read_bytes()
    results = json.loads(first)
    assert set(results["rows"]) == set(made_up())
    assert results["baselines"]["mosaic"]["images"] == 4
    assert (results["images"], results["regions"]) == (4, 4)
    assert len(results["claims"]) == len(claims.CLAIMS)
    (whole,), members = results["rows"]["ensemble"], results["rows"]["diagonal"]
    assert whole["variance"] == pytest.approx(whole["aleatoric"] + whole["epistemic"], rel=1e-5)
    mean = np.mean([member["variance"] for member in members])
    assert whole["aleatoric"] == pytest.approx(mean, rel=1e-5)
    assert (tmp_path / run.FIGURE).read_text().startswith("<svg")

    def forbidden(*_: Any, **__: Any) -> None:
        raise AssertionError("finished work was done again")

    monkeypatch.setattr(experiments, "train", forbidden)
    monkeypatch.setattr(measure, "measure", forbidden)
    assert main(command) == 0
    assert (tmp_path / "findings.json").read_bytes() == first
    assert findings.markdown(results) == (tmp_path / "findings.md").read_text()
