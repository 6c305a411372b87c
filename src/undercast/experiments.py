"""The paper's experiments: train the rows of a table, evaluate them, print ours beside theirs.

Rows come from `configs/paper/*.yaml`; rows that are trained alike share one run. Whatever is
finished in the output folder is not run again.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from undercast.checkpoint import load_model
from undercast.errors import ConfigError, TrainingError
from undercast.evaluate import evaluate, open_part, train_spectrum_of
from undercast.models.cost import gmac, parameters
from undercast.models.registry import create, names, system_class
from undercast.models.system import Model
from undercast.papertables import (
    NARROW,
    SMALL,
    SMALL_DATA,
    SMALL_LR,
    SMALL_MEMBERS,
    SMALL_TEST_SAMPLES,
    TABLES,
    Row,
    Table,
)
from undercast.tablepages import markdown
from undercast.train import finished_run, train
from undercast.training.config import TrainConfig, load_config
from undercast.training.state import read_json, read_log, write_bytes, write_json

SCALES = ("paper", "small")


@dataclass(frozen=True)
class Setup:
    """Where the data lie, where results go, and how large the experiment is."""

    data: Path
    out: Path
    scale: str = "small"
    seed: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.scale not in SCALES:
            raise ConfigError(f"got scale {self.scale!r}, expected {' or '.join(SCALES)}")

    @property
    def limit(self) -> int | None:
        """Test samples; None = all."""
        return SMALL_TEST_SAMPLES if self.scale == "small" else None

    def command(self, name: str) -> str:
        """The command line that gives these results, with DIR for folders of this machine."""
        given = "" if self.data.parent == self.out else " --data DATASET"
        return f"undercast experiments {name} --scale {self.scale}{given} --out DIR"


def run_table(name: str, setup: Setup, rows: Sequence[str] | None = None) -> dict[str, Any]:
    """Trains and evaluates the rows of a table; results as plain values, also written to `out`.

    rows: labels or config names of some rows; None = all. A system that is not in the registry is
    reported as missing, a run that diverged as failed.
    """
    table = find_table(name)
    chosen = find_rows(table, rows)
    results = {
        "table": name,
        "title": table.title,
        "scale": setup.scale,
        "seed": setup.seed,
        "columns": list(table.columns),
        "machine": machine(),
        "command": f"{setup.command(name)} --seed {setup.seed}{_chosen(rows)}",
        "rows": [run_row(row, setup) for row in chosen],
        "baselines": _baselines(table, setup),
        "notes": [*table.notes, *_scale_notes(setup)],
    }
    write_json(setup.out / f"{name}.json", results)
    write_bytes(setup.out / f"{name}.md", markdown(results).encode())
    return results


def run_row(row: Row, setup: Setup) -> dict[str, Any]:
    """One row: {label, status, ours, paper, …}; finished work is read back."""
    found: dict[str, Any] = {"label": row.label, "config": row.config, "paper": dict(row.paper)}
    published = row_config(row.config)
    if published.system not in names():
        return {**found, "status": "missing", "why": f"no system {published.system!r} here"}
    found |= row_cost(published)
    config = scaled(published, setup)
    try:
        model = trained(config, setup)
    except TrainingError as error:
        return {**found, "status": "failed", "why": str(error)}
    evaluation = evaluated(model, config, row, setup)
    runs = member_runs(config, setup) if system_class(config.system).learns else []
    system = evaluation["systems"][model.name]
    ours = {**system["image"]["all"], **((system["calibration"] or {}).get("all") or {})}
    found |= {
        "status": "done",
        "images": evaluation["info"]["images"],
        "trained_parameters": parameters(model.network),
        "training_seconds": {Path(run.out).name: run_seconds(Path(run.out)) for run in runs},
        "evaluation_seconds": evaluation["info"].get("seconds"),
        "machine": evaluation["info"].get("machine"),
        "ours": {k: ours.get(k) for k in ("RMSE", "MAE", "PSNR", "SSIM", "SAM", "UCE_im", "UCE")},
    }
    if system["calibration"] is not None:
        found["discard_curve"] = system["calibration"]["discard_curve"]
    return found


def find_table(name: str) -> Table:
    """A table by its name."""
    if name not in TABLES:
        raise ConfigError(f"got {name!r}, expected one of {', '.join(TABLES)}")
    return TABLES[name]


def find_rows(table: Table, rows: Sequence[str] | None) -> list[Row]:
    """Rows by label or config name, in the order of the table."""
    if not rows:
        return list(table.rows)
    known = {key for row in table.rows for key in (row.label, row.config)}
    unknown = [key for key in rows if key not in known]
    if unknown:
        raise ConfigError(
            f"got rows {', '.join(unknown)}, expected some of "
            f"{', '.join(row.config for row in table.rows)}"
        )
    return [row for row in table.rows if {row.label, row.config} & set(rows)]


def config_folder() -> Path:
    """`configs/paper`, of the installed package or of the repository."""
    here = Path(__file__).resolve().parent
    for folder in (here / "configs" / "paper", here.parents[1] / "configs" / "paper"):
        if folder.is_dir():
            return folder
    raise ConfigError("the folder configs/paper is missing: install undercast from its repository")


def row_config(name: str) -> TrainConfig:
    """The settings of a row as they stand in its file."""
    return load_config(config_folder() / f"{name}.yaml")


def scaled(published: TrainConfig, setup: Setup) -> TrainConfig:
    """A row's settings for a setup; the small scale gives every row the same budget."""
    config = replace(
        published, data=str(setup.data), seed=setup.seed, device=setup.device, progress=True
    )
    if setup.scale == "paper":
        return config
    model = {**config.model, **NARROW.get(config.system, {})}
    members = min(config.members, SMALL_MEMBERS)
    small = {**SMALL, "lr": SMALL_LR.get(config.system, SMALL["lr"])}
    return replace(config, **small, model=model, members=members)


def row_cost(published: TrainConfig) -> dict[str, float]:
    """Parameters (thousands) and multiply-adds (10⁹) of the published size, computed."""
    with torch.device("meta"):  # shapes only
        network = create(published.system, **published.model).network
    return {"params_k": parameters(network) / 1e3, "GMAC": gmac(network)}


def trained(config: TrainConfig, setup: Setup) -> Model:
    """The model of a row: a rule, a finished run, or a new run; members are runs of their own."""
    if not system_class(config.system).learns:
        return create(config.system, **config.model).eval()
    paths = [finished_run(one) or train(one) for one in member_runs(config, setup)]
    return load_model(paths[0] if len(paths) == 1 else list(paths))


def member_runs(config: TrainConfig, setup: Setup) -> list[TrainConfig]:
    """The runs that a row needs, each with the folder that its settings name."""
    runs = []
    for number in range(config.members):
        one = replace(config.member(number).resolved(), out="")
        runs.append(replace(one, out=str(setup.out / "runs" / f"{one.system}-{one.fingerprint()}")))
    return runs


def run_seconds(folder: Path) -> float | None:
    """Wall time of a run with its validation, from its log; None where the log does not tell.

    A run that was interrupted counts as if it had gone on at the speed since its last start.
    """
    epochs = [row for row in read_log(folder / "log.jsonl") if row["kind"] == "epoch"]
    if not epochs or not epochs[-1].get("samples_per_s"):
        return None
    return float(epochs[-1]["samples"] / epochs[-1]["samples_per_s"])


def machine() -> str:
    """The processor, its cores and threads in use, and the version of torch, for people."""
    names = [
        line.split(":", 1)[1].strip()
        for line in _cpu_lines()
        if line.split(":", 1)[0].strip() == "model name"
    ]
    processor = names[0] if names else platform.processor() or platform.machine()
    return (
        f"{processor}, {os.cpu_count()} cores, {torch.get_num_threads()} thread(s) used, "
        f"torch {torch.__version__}"
    )


def _cpu_lines() -> list[str]:
    described = Path("/proc/cpuinfo")  # Linux; elsewhere Python names the processor
    return described.read_text().splitlines() if described.exists() else []


def device_of(config: TrainConfig) -> str:
    """Where to evaluate what was trained with these settings."""
    return "cuda" if config.device != "cpu" and torch.cuda.is_available() else "cpu"


def evaluated(model: Model, config: TrainConfig, row: Row, setup: Setup) -> dict[str, Any]:
    """The evaluation of a row on the test split, read back where it is there already."""
    t = row.t or config.t
    key = json.dumps([config.fingerprint(), t, setup.limit, "clean"])
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    stored = setup.out / "results" / f"{row.config}-{digest}.json"
    if stored.exists():
        found: dict[str, Any] = read_json(stored)
        return found
    dataset = open_part(
        setup.data, "test", setup.limit, layout=config.layout, t=t, crop=config.crop
    )
    began = time.monotonic()
    info = {"row": row.config, "t": t, "machine": machine()}
    done = evaluate(model, dataset, baselines=False, device=device_of(config), info=info).to_dict()
    done["info"]["seconds"] = round(time.monotonic() - began, 1)
    write_json(stored, done)
    return done


def _baselines(table: Table, setup: Setup) -> dict[str, Any]:
    """Composites and flat images on the same test samples: what needs no learning."""
    crop = SMALL["crop"] if setup.scale == "small" else None
    stored = setup.out / "results" / f"baselines-{table.layout}-{setup.limit}.json"
    t = 1 if table.layout == "sen12mscr" else 3
    return baselines_on(
        stored, setup.data, setup.data, "test", setup.limit, layout=table.layout, t=t, crop=crop
    )


def baselines_on(
    stored: Path, training: Path, test: Path, split: str, limit: int | None, **options: Any
) -> dict[str, Any]:
    """Image metrics of composites and flat images, read back where they are `stored`.

    training: dataset whose mean spectrum is the first flat image. The rest as in `open_part`.
    """
    if stored.exists():
        found: dict[str, Any] = read_json(stored)
        return found
    dataset = open_part(test, split, limit, **options)
    if getattr(getattr(dataset, "dataset", dataset), "masks", None) is None:
        return {}  # composites need masks; the flat images alone would say little
    systems = evaluate(
        create("least-cloudy").eval(), dataset, train_spectrum=train_spectrum_of(training)
    ).to_dict()["systems"]
    shown = {name: system["image"]["all"] for name, system in systems.items()}
    write_json(stored, shown)
    return shown


def simulated_data(table: Table, out: Path) -> Path:
    """The dataset of the small scale: simulated once into `out`, with cloud masks.

    Its seed is fixed, so that seeds of training compare on the same data.
    """
    plan = {**SMALL_DATA, "layout": table.layout}
    return simulated(out, f"data-{table.layout}", plan)


def simulated(out: Path, name: str, plan: Mapping[str, Any]) -> Path:
    """A prepared dataset `out/name`, simulated unless the same plan was carried out there."""
    from undercast.datasets import prepare
    from undercast.simulate import write_dataset

    root, done = out / name, out / f"{name}.json"
    if done.exists() and read_json(done) == plan:
        return root
    write_dataset(root, progress=True, **plan)
    prepare(root, layout=plan["layout"])
    write_json(done, plan)
    return root


def _scale_notes(setup: Setup) -> list[str]:
    if setup.scale == "paper":
        return []
    steps = SMALL["epochs"] * SMALL["steps_per_epoch"]
    return [
        f"small scale: {steps} steps of {SMALL['batch_size']} crops of {SMALL['crop']}² pixels for "
        f"every row, lr {SMALL['lr']} ({_slower()}); "
        f"an eighth of the width for {', '.join(NARROW)}; "
        f"ensembles of {SMALL_MEMBERS}: compare rows with each other, not with the paper",
        "params and GMAC are those of the published size",
    ]


def _slower() -> str:
    return ", ".join(f"{rate} for {system}" for system, rate in SMALL_LR.items())


def _chosen(rows: Sequence[str] | None) -> str:
    return " --rows " + " ".join(json.dumps(r) if " " in r else r for r in rows) if rows else ""
