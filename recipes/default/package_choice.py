"""Which weights of a run are packaged, and what the checkpoint says about how they were trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import SETS, stack_of, target_of

from undercast import load_model, predict
from undercast.errors import CheckpointError
from undercast.metrics import image_metrics
from undercast.models import create
from undercast.models.system import Model
from undercast.weightfit import load_strictly

STATE = "training_state.pt"
JUDGED_BY = ("series_t3", "triplets_s1")


def choose(runs: list[Path], twins: list[Path], real: Path, wanted: str) -> Model:
    """The weights to package, with the paper's attention grid.

    runs: every stage in order. twins: runs that differ from the last stage by their seed. wanted:
    one of `candidates`, or auto: the one of highest PSNR on the selecting places. Training keeps
    the best by likelihood, which punishes a variance that is too small; that is repaired by the
    calibration, the mean is not.
    """
    known, together = _of_stages(runs), [runs[-1], *twins]
    stage = known["stages"].pop()
    found = candidates(together)
    models = {name: _whole(state, known, runs[-1]) for name, (state, _) in found.items()}
    if wanted == "auto":
        psnr = {name: selecting_psnr(model, real) for name, model in models.items()}
        wanted = max(psnr, key=lambda name: psnr[name])
        known["chosen"] = {name: round(value, 3) for name, value in psnr.items()}
    if wanted not in found:
        raise CheckpointError(f"got weights {wanted!r}, expected auto or one of {', '.join(found)}")
    for run in together:
        seed = load_model(run / "best.safetensors").provenance["seed"]
        command = stage["command"].replace(f"--seed {stage['seed']} ", f"--seed {seed} ")
        used = found[wanted][1].get(run)
        taken = "not taken" if used is None else _taken(run, used)
        if len(found[wanted][1]) > 1:
            taken += ", averaged with those of the other seeds"
        known["stages"].append(stage | {"command": command, "seed": seed, "taken": taken})
    for key in ("epoch", "val_loss"):  # of the best weights; the stages say which were taken
        del known[key]
    return models[wanted]


def candidates(runs: list[Path]) -> dict[str, tuple[dict[str, Any], dict[Path, str]]]:
    """name → weights, and of which runs: the best and the last of each, and the mean of them."""
    best = {run: load_model(run / "best.safetensors").network.state_dict() for run in runs}
    last = {run: _last(run) for run in runs if (run / STATE).exists()}  # until it is finished
    found = {}
    for i, run in enumerate(runs):
        for name, states in (("best", best), ("last", last)):
            if run in states:
                found[f"{name}{i or ''}"] = (states[run], {run: name})
    if len(runs) > 1:
        for name, states in (("best", best), ("last", last)):
            if len(states) == len(runs):
                mean = mean_of(list(states.values()))
                found[f"mean {name}"] = (mean, dict.fromkeys(runs, name))
    return found


def mean_of(states: list[dict[str, Any]]) -> dict[str, Any]:
    """The mean of each tensor; counters are the first one's."""
    return {
        name: torch.stack([state[name] for state in states]).mean(0)
        if tensor.is_floating_point()
        else tensor
        for name, tensor in states[0].items()
    }


def _last(run: Path) -> dict[str, Any]:
    learner = _state(run)["learner"]
    state: dict[str, Any] = (learner.get("averaged") or learner)["network"]
    return state


def _state(run: Path) -> Any:
    return torch.load(run / STATE, map_location="cpu", weights_only=True)


def _taken(run: Path, which: str) -> str:
    """Which weights of a run were taken, and when it had them."""
    known = load_model(run / "best.safetensors").provenance
    if which == "best":
        return f"the best weights, of epoch {known['epoch'] + 1}"
    position, steps = _state(run)["position"], known["samples"] // known["config"]["batch_size"]
    return f"the last weights, of step {position['epoch'] * steps + position['step']}"


def _whole(state: dict[str, Any], known: dict[str, Any], run: Path) -> Model:
    model = create("uncrtaints")
    model.provenance = known
    load_strictly(model.network, state, str(run))
    return model.eval()


def selecting_psnr(model: Model, real: Path) -> float:
    """Mean PSNR over the selecting places."""
    places: dict[str, list[float]] = {}
    for chosen in (SETS[key] for key in JUDGED_BY):
        for case in chosen.cases(real, "select"):
            mean = predict(model, stack_of(case, chosen.radar)).mean
            places.setdefault(case.place, []).append(image_metrics(target_of(case), mean)["PSNR"])
    return float(np.mean([np.mean(values) for values in places.values()]))


def _of_stages(runs: list[Path]) -> dict[str, Any]:
    """The last stage's provenance, with what is known of every stage that led there."""
    stages = [load_model(run / "best.safetensors").provenance for run in runs]
    fresh = [stage["config"]["start"] is None for stage in stages]
    if fresh != [True] + [False] * (len(stages) - 1):
        raise CheckpointError(
            f"got {len(runs)} runs, of which these began with fresh weights: {fresh}; "
            "expected every stage in order, the first one fresh"
        )
    # what a stage began with: the best weights of the run before, or its last ones
    starts = [Path(stage["config"]["start"] or "").stem for stage in stages]
    begun = ["best" if name == "best" else "last" for name in starts]
    rows = [
        {
            "stage": i + 1,
            "command": command(stage, i, begun[i]),
            "seed": stage["seed"],
            "commit": stage["commit"],
        }
        for i, stage in enumerate(stages)
    ]
    for row, run, which in zip(rows[:-1], runs[:-1], begun[1:], strict=True):
        row["taken"] = _taken(run, which)
    start = None if len(stages) == 1 else f"stage {len(stages) - 1}"
    config = stages[-1]["config"] | {"start": start}
    return stages[-1] | {"config": config, "stages": rows}


def command(known: dict[str, Any], before: int, begun: str) -> str:
    """The command of a stage, from what its run has written down.

    before: how many stages came before it. begun: with the `best` or the `last` weights of those.
    """
    config = known["config"]
    steps = known["samples"] // config["batch_size"]
    return (
        f"python recipes/default/train.py --pool POOL --real DIR --out RUN{before + 1} "
        f"--epochs {config['epochs']} --steps {steps} --batch {config['batch_size']} "
        f"--crop {8 * config['model']['attention_grid']} --dates {config['random_t'][1]} "
        f"--decay {config['decay']} --lr {config['lr']} --seed {config['seed']} "
        f"--optimiser {config['optimiser']} --average {config['average'] or 0}"
        + (f" --beta {config['loss_options']['beta']}" if config.get("loss_options") else "")
        + (" --compile" if config["compile"] else "")
        + (" --bf16" if config["precision"] == "bf16" else "")
        + (f" --start RUN{before}_{begun}.safetensors" if before else "")
    )
