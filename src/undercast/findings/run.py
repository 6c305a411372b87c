"""Train, measure, compare: from a plan to results as plain values. Finished work is read back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from undercast.calibrate import calibrate
from undercast.errors import InputError
from undercast.evaluate import open_part, plain
from undercast.experiments import (
    Setup,
    baselines_on,
    device_of,
    find_table,
    member_runs,
    row_config,
    row_cost,
    run_seconds,
    trained,
)
from undercast.findings import measure, page
from undercast.findings.claims import all_claims, all_comparisons
from undercast.findings.figure import discard_figure
from undercast.findings.intervals import region_draws
from undercast.findings.measure import Measured, Scored
from undercast.findings.plan import BUDGET, LENGTHS, TEST_DATA, VARIANTS, WIDTH, Plan
from undercast.models.cost import parameters
from undercast.models.registry import create
from undercast.papertables import SMALL
from undercast.training.config import TrainConfig
from undercast.training.state import read_json, write_bytes, write_json

T = 3  # dates of training
DRAWS = 1000
FIGURE = "findings-discard.svg"
Rows = dict[str, list[Measured]]  # label → one for each seed, or one alone


def run_findings(plan: Plan) -> dict[str, Any]:
    """Every section, written to `out` as findings.json, findings.md and a figure.

    The seeds of the plan are 0, 1, …: the members of the ensemble.
    """
    rows = every_row(plan)
    weights = region_draws(_same_images(rows).regions.tolist(), DRAWS)
    scores = {
        label: [measure.scored(m, weights) for m in row]
        for label, row in tqdm(rows.items(), desc="bootstrap", unit="row")
    }
    results: dict[str, Any] = plain(
        {
            **facts(plan, list(VARIANTS), rows),
            "rows": tables(scores),
            "baselines": baselines(plan),
            "comparisons": all_comparisons(scores),
            "claims": all_claims(scores),
            "discard": {
                label: [measure.curve_of(m) for m in rows[label]]
                for label in ("diagonal", "ensemble")
            },
            "cost": {name: cost_rows(name, plan.setup) for name in ("table2", "table3")},
        }
    )
    out = plan.setup.out
    write_bytes(out / FIGURE, discard_figure(results["discard"]).encode())
    write_json(out / "findings.json", results)
    write_bytes(out / "findings.md", page.markdown(results).encode())
    return results


def run_rows(plan: Plan, variants: Sequence[str]) -> dict[str, Any]:
    """Some variants with the seeds of the plan, measured at T = 3; nothing is compared."""
    rows = {name: [_measured(plan, plan.config(name, s)) for s in plan.seeds] for name in variants}
    scored = {
        label: [Scored(measure.metrics_of(m), {}) for m in found] for label, found in rows.items()
    }
    made = facts(plan, variants, rows)
    seed = f" --seed {plan.seeds[0]}" if len(plan.seeds) == 1 else f" --seeds {len(plan.seeds)}"
    made["command"] = f"{plan.setup.command('findings')} --rows {' '.join(variants)}{seed}"
    found: dict[str, Any] = plain({**made, "rows": tables(scored)})
    return found


def every_row(plan: Plan) -> Rows:
    """What all sections need: variants, lengths, the ensemble, and calibrated models."""
    rows: Rows = {
        name: [_measured(plan, plan.config(name, seed)) for seed in plan.seeds] for name in VARIANTS
    }
    members = [plan.config("diagonal", seed) for seed in plan.seeds]
    for t in LENGTHS:
        rows[f"T = {t}"] = (
            rows["diagonal"] if t == T else [_measured(plan, config, t) for config in members]
        )
    ensemble = plan.config("diagonal", 0, members=len(plan.seeds))
    rows["ensemble"] = [_measured(plan, ensemble)]
    rows["diagonal, calibrated"] = [_measured(plan, c, calibrated=True) for c in members]
    rows["ensemble, calibrated"] = [_measured(plan, ensemble, calibrated=True)]
    return rows


def _measured(plan: Plan, config: TrainConfig, t: int = T, calibrated: bool = False) -> Measured:
    """A model on the test images, trained if need be; read back where it is there already."""
    digest = _digest(plan, config.fingerprint(), t, calibrated)
    stored = plan.setup.out / "results" / f"findings-{digest}.npz"
    if stored.exists():
        return measure.load(stored)
    model, device = trained(config, plan.setup), device_of(config)
    options: dict[str, Any] = {"layout": config.layout, "crop": config.crop}
    if calibrated:
        held_out = open_part(plan.setup.data, "val", t=T, **options)
        model, _ = calibrate(model, held_out, device=device)
    test = open_part(plan.test, plan.split, t=t, **options)
    done = measure.measure(model, test, device)
    measure.save(done, stored)
    return done


def _digest(plan: Plan, *what: Any) -> str:
    """A name for what was found on the test images of a plan."""
    images = TEST_DATA if plan.split == "all" else str(plan.test)
    key = json.dumps([*what, images, plan.split, "clean"])
    return hashlib.sha256(key.encode()).hexdigest()[:16]


def baselines(plan: Plan) -> dict[str, Any]:
    """Composites and flat images on the same test images: what needs no learning."""
    config = plan.config("diagonal", 0)
    name = f"findings-baselines-{_digest(plan, config.crop, T)}.json"
    stored, options = plan.setup.out / "results" / name, {"layout": config.layout, "t": T}
    return baselines_on(
        stored, plan.setup.data, plan.test, plan.split, None, crop=config.crop, **options
    )


def _same_images(rows: Rows) -> Measured:
    """Any of the rows, after a check that all of them are of the same images."""
    first, *others = [m for found in rows.values() for m in found]
    if any(other.names.tolist() != first.names.tolist() for other in others):
        raise InputError("got measurements of different images, expected the same for every row")
    return first


def tables(scores: dict[str, list[Scored]]) -> dict[str, list[dict[str, float]]]:
    """Label → the metrics of each seed."""
    kept = (*measure.METRICS, *measure.PARTS, measure.HALF)
    return {
        label: [{name: float(s.values[name]) for name in kept} for s in found]
        for label, found in scores.items()
    }


def facts(plan: Plan, variants: Sequence[str], rows: Rows) -> dict[str, Any]:
    """How it was made: command, budget, machine, time of each run."""
    runs = []
    for name in variants:
        for seed in plan.seeds:
            (run,) = member_runs(plan.config(name, seed), plan.setup)
            again = f"{plan.setup.command('findings')} --rows {name} --seed {seed}"
            seconds = run_seconds(Path(run.out))
            runs.append({"row": name, "seed": seed, "seconds": seconds, "command": again})
    every = [m for found in rows.values() for m in found]
    first = every[0]
    network = create("uncrtaints", **plan.config("diagonal", 0).model).network
    return {
        "command": f"{plan.setup.command('findings')} --seeds {len(plan.seeds)}",
        "seeds": list(plan.seeds),
        "machine": sorted({str(m.machine) for m in every}),
        "images": len(first.names),
        "regions": len(set(first.regions.tolist())),
        "budget": {**SMALL, **BUDGET, **WIDTH},
        "trained_parameters": parameters(network),
        "runs": runs,
        # T = 3 is measured once and stands under two labels
        "evaluation_seconds": sum({id(m): float(m.seconds) for m in every}.values()),
    }


def cost_rows(name: str, setup: Setup) -> list[dict[str, Any]]:
    """Parameters and multiply-adds, computed, and the quality of one seed where it was run."""
    stored = setup.out / f"{name}.json"
    known = {row["config"]: row for row in (read_json(stored)["rows"] if stored.exists() else ())}
    return [
        {
            "label": row.label,
            **row_cost(row_config(row.config)),
            "paper": {k: row.paper[k] for k in ("params_k", "GMAC", "PSNR")},
            "PSNR": known.get(row.config, {}).get("ours", {}).get("PSNR"),
            "command": f"{setup.command(name)} --rows {row.config} --seed {setup.seed}",
        }
        for row in find_table(name).rows
    ]
