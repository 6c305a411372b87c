"""Which weights of a run are packaged, and what the checkpoint says about how they were trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
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
SURROUNDINGS = 96  # pixels over which seen ground tells of hidden ground
JUDGED_BY = ("series_t3", "triplets_s1")


def choose(
    stages: list[list[Path]],
    real: Path,
    wanted: str,
    before: Path | None = None,
    mean: Mapping[str, Path] = MappingProxyType({}),
) -> Model:
    """The weights to package, with the paper's attention grid.

    stages: the runs of every stage in order; those of one stage differ by their seed. before:
    packaged weights that the first of them began with. wanted: one of `candidates` of the last
    stage, or auto: the one of highest PSNR on the selecting places. mean: stage → weights that it
    ended with, averaged with those wanted in equal parts: what a stage gains at one place and loses
    at another is mostly luck, and the mean has less of it.
    Training keeps the best by likelihood, which punishes a variance that is too small; that is
    repaired by the calibration, the mean is not.
    """
    earlier = [] if before is None else stages_of(load_model(before).provenance)
    begun, found, chosen = begun_with(stages, before), candidates(stages[-1]), {}
    others = [load_model(path).network.state_dict() for path in mean.values()]
    found = {name: (mean_of([state, *others]), used) for name, (state, used) in found.items()}
    models = {name: whole(state, str(stages[-1][0])) for name, (state, _) in found.items()}
    if wanted == "auto":
        psnr = {name: selecting_psnr(model, real) for name, model in models.items()}
        wanted = max(psnr, key=lambda name: psnr[name])
        chosen = {"chosen": {name: round(value, 3) for name, value in psnr.items()}}
    if wanted not in found:
        raise CheckpointError(f"got weights {wanted!r}, expected auto or one of {', '.join(found)}")
    model = models[wanted]
    model.provenance = of_stages(stages, begun, found[wanted][1], earlier) | chosen
    if mean:
        stages_of_them = f"stage{'s' if len(mean) > 1 else ''} {', '.join(mean)}"
        model.provenance["averaged_with"] = f"what {stages_of_them} ended with"
    return model


def stages_of(packaged: dict[str, Any]) -> list[dict[str, Any]]:
    """What packaged weights say of their stages; the last one's rows tell what went into a mean."""
    rows: list[dict[str, Any]] = packaged["stages"]
    if "averaged_with" not in packaged:
        return rows
    last = max(row["stage"] for row in rows)
    more = f", and with {packaged['averaged_with']}"
    return [row | {"taken": row["taken"] + (more if row["stage"] == last else "")} for row in rows]


def candidates(runs: list[Path]) -> dict[str, tuple[dict[str, Any], dict[Path, str]]]:
    """name → weights, and of which runs: the best and the last of each, and the mean of them."""
    best = {run: load_model(run / "best.safetensors").network.state_dict() for run in runs}
    last = {run: last_of(run) for run in runs if (run / STATE).exists()}  # until it is finished
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


def last_of(run: Path) -> dict[str, Any]:
    """The last weights of a run that is not finished."""
    learner = _state(run)["learner"]
    state: dict[str, Any] = (learner.get("averaged") or learner)["network"]
    return state


def _state(run: Path) -> Any:
    return torch.load(run / STATE, map_location="cpu", weights_only=True)


def _taken_of(runs: list[Path], used: dict[Path, str], apart: bool = False) -> list[str]:
    """For each run of a stage which weights were taken; used: run → best or last.

    apart: each by the run of the next stage that goes on from it.
    """
    more = ", averaged with those of the other seeds" if len(used) > 1 and not apart else ""
    return [_taken(run, used[run]) + more if run in used else "not taken" for run in runs]


def _taken(run: Path, which: str) -> str:
    """Which weights of a run were taken, and when it had them."""
    known = _known(run)
    if which == "best":
        return f"the best weights, of epoch {known['epoch'] + 1}"
    position, steps = _state(run)["position"], known["samples"] // known["config"]["batch_size"]
    return f"the last weights, of step {position['epoch'] * steps + position['step']}"


def again(packaged: Path) -> Model:
    """Packaged weights with what goes with weights now, and without their calibration."""
    before = load_model(packaged)
    model = whole(before.network.state_dict(), str(packaged))
    model.provenance = before.provenance
    return model


def whole(state: dict[str, Any], name: str) -> Model:
    """The network with these weights, the paper's attention grid, and its surroundings."""
    model = create("uncrtaints", surroundings=SURROUNDINGS)
    load_strictly(model.network, state, name)
    return model.eval()


def selecting_psnr(model: Model, real: Path) -> float:
    """Mean PSNR over the selecting places."""
    places: dict[str, list[float]] = {}
    for chosen in (SETS[key] for key in JUDGED_BY):
        for case in chosen.cases(real, "select"):
            mean = predict(model, stack_of(case, chosen.radar)).mean
            places.setdefault(case.place, []).append(image_metrics(target_of(case), mean)["PSNR"])
    return float(np.mean([np.mean(values) for values in places.values()]))


def begun_with(stages: list[list[Path]], before: Path | None = None) -> list[str]:
    """What each stage began with: nothing, or the one before's best weights, last, mean, or own.

    Best and last are those of the first run of a stage, the mean is that of all its last ones; own
    are those of the run of the same place, so that twins go on without having met. The
    first stage may also have begun with weights that are `packaged` already, the file `before`.
    """
    each = [[_known(run)["config"]["start"] for run in runs] for runs in stages]
    for several in each:
        if len(set(several)) > 1 and not all(
            str(one).endswith("_own.safetensors") for one in several
        ):
            raise CheckpointError(
                f"got runs of one stage that began with {several}, expected one and the same, or "
                "each its …_own.safetensors"
            )
    starts = [several[0] for several in each]
    expected = None if before is None else str(before)
    if starts[0] != expected or None in starts[1:]:
        raise CheckpointError(
            f"got {len(stages)} stages that began with {starts}; expected every stage in order, "
            f"the first one with {expected or 'fresh weights'} and none of the others fresh"
        )
    begun = ["" if before is None else "packaged"]
    for start in starts[1:]:
        begun.append(Path(start).stem.split("_")[-1])
        if begun[-1] not in ("best", "last", "mean", "own"):
            raise CheckpointError(
                f"got a stage that began with {start}, expected a name that says which weights "
                "of the one before: best, …_last, …_mean or …_own"
            )
    return begun


def of_stages(
    stages: list[list[Path]],
    begun: list[str],
    used: dict[Path, str],
    earlier: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """The last stage's provenance, with what is known of every run that led there.

    begun: as of `begun_with`. used: which weights of the last stage are packaged, run → best or
    last. earlier: what the weights that the first stage began with say of their own stages.
    """
    first = max((row["stage"] for row in earlier), default=0)
    handed_on = [
        dict.fromkeys(runs, "last") if which in ("mean", "own") else {runs[0]: which}
        for runs, which in zip(stages[:-1], begun[1:], strict=True)
    ]
    rows = [
        {
            "stage": i + 1,
            "command": command(_known(run), i, start),
            "seed": _known(run)["seed"],
            "commit": _known(run)["commit"],
            "taken": words,
        }
        for i, (runs, start, taken, after) in enumerate(
            zip(stages, begun, [*handed_on, used], [*begun[1:], ""], strict=True), first
        )
        for run, words in zip(runs, _taken_of(runs, taken, after == "own"), strict=True)
    ]
    told = _known(stages[-1][0])
    for key in ("epoch", "val_loss"):  # of the best weights; the rows say which were taken
        told.pop(key, None)
    last = first + len(stages)
    before = None if last == 1 else f"stage {last - 1}"
    return told | {"config": told["config"] | {"start": before}, "stages": [*earlier, *rows]}


def _known(run: Path) -> dict[str, Any]:
    """What a run has written down about itself."""
    return load_model(run / "best.safetensors").provenance


def command(known: dict[str, Any], before: int, begun: str) -> str:
    """The command of a stage, from what its run has written down.

    before: how many stages came before it. begun: with the `best` or the `last` weights of the one
    before, with the `mean` of its runs' last ones, with its twin's `own`, or with what was
    `packaged` then.
    """
    config = known["config"]
    steps = known["samples"] // config["batch_size"]
    dates = config["random_t"][1] if config["random_t"] else config["t"]
    return (
        f"python recipes/default/train.py --pool POOL --real DIR --out RUN{before + 1} "
        f"--epochs {config['epochs']} --steps {steps} --batch {config['batch_size']} "
        f"--crop {8 * config['model']['attention_grid']} --dates {dates} "
        f"--decay {config['decay']} --lr {config['lr']} --seed {config['seed']} "
        f"--optimiser {config['optimiser']} --average {config['average'] or 0}"
        + "".join(f" --{key} {value}" for key, value in config.get("loss_options", {}).items())
        + (" --frozen" if config.get("frozen_norms") else "")
        + (" --compile" if config["compile"] else "")
        + (" --bf16" if config["precision"] == "bf16" else "")
        + (f" --start RUN{before}_{begun}.safetensors" if before else "")
    )
