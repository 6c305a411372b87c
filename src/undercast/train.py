"""Training: one visible loop that resumes exactly, alone or under torchrun.

>>> best = train(load_config("configs/tiny.yaml"))                           # doctest: +SKIP
"""

from __future__ import annotations

import math
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tqdm import tqdm

import undercast
from undercast.checkpoint import load_model, save_model
from undercast.errors import CheckpointError, TrainingError
from undercast.heap import keep_freed_memory
from undercast.models.ensemble import ensemble_of
from undercast.models.registry import create
from undercast.models.system import Model
from undercast.training.config import INCIDENTAL, TrainConfig, load_config
from undercast.training.data import (
    Batches,
    Dataset,
    data_hash,
    open_splits,
    seed_step,
    validation_items,
)
from undercast.training.group import Group, process_group
from undercast.training.learner import Learner, StepResult, psnr
from undercast.training.state import Position, RunFolder, RunLog, read_json, write_json
from undercast.weightfit import load_strictly

__all__ = ["TrainConfig", "load_config", "train"]

Splits = tuple[Dataset, Dataset]


def train(config: TrainConfig, splits: Splits | None = None) -> Path:
    """Trains a system, or an ensemble of `config.members`; returns the file of its best weights.

    An interrupted run of the same settings in `config.out` goes on where it stopped; a finished
    one is an error. splits: training and validation datasets of `Sample`s in place of
    `config.data`. Under torchrun every rank calls this, and rank 0 writes.
    """
    config = config.resolved()
    with process_group(config.device) as group, _torch_settings(config):
        if group.device.type == "cpu":
            keep_freed_memory()
        if config.members > 1:
            return _train_members(config, splits, group)
        return _train_one(config, splits, group)


def _train_one(config: TrainConfig, splits: Splits | None, group: Group) -> Path:
    folder = RunFolder(config, group)
    model = _fresh_model(config)
    training, validation = splits or open_splits(config, model.network)
    learner = Learner(config, model.network, group)
    batches = Batches(config, training, model.network, group)
    position = folder.resume(learner)
    provenance = _provenance(config, training)
    log = RunLog(folder.path, position, config.tensorboard, group)
    progress = _Progress(config, batches, position, group)
    assert config.epochs is not None
    for epoch in range(position.epoch, config.epochs):
        rate = learner.set_epoch(epoch)
        for step, item in batches.of_epoch(epoch, position.step):
            seed_step(config.seed, epoch, step, group.rank)
            with _said_what_is_kept(folder):
                result = learner.step(item)
                position.add(result.loss, result.psnr)
            progress.show(result)
            if step % config.log_every == 0:
                log.write("step", epoch, step, lr=rate, **result._asdict(), **progress.speed())
            if position.step % config.save_every == 0:
                folder.save_state(learner, position)
        scores = _validate(config, learner, validation, group)
        if position.best is None or scores.loss <= position.best:
            position.best, position.best_epoch = scores.loss, epoch
            provenance |= {"epoch": epoch, "val_loss": scores.loss}
            folder.save_best(Model(model.name, learner.outcome, provenance=provenance))
        log.write("epoch", epoch, position.step, **_epoch_row(position, scores, rate, progress))
        position.next_epoch()
        folder.save_state(learner, position)
    log.close()
    progress.close()
    folder.finish({"best_epoch": position.best_epoch, "val_loss": position.best})
    return folder.best


def _train_members(config: TrainConfig, splits: Splits | None, group: Group) -> Path:
    """The members one after the other, finished ones left alone; then the ensemble as one file."""
    out = Path(config.out)
    best = out / "best.safetensors"
    if (out / "ensemble.json").exists():
        raise TrainingError(
            f"{out} holds a finished ensemble: choose another --out, or delete that folder"
        )
    members = []
    for number in range(config.members):
        one = config.member(number)
        members.append(finished_run(one) or _train_one(one, splits, group))
    if group.leads:
        save_model(ensemble_of([load_model(path) for path in members]), best)
        names = [str(path.relative_to(out)) for path in members]
        write_json(out / "ensemble.json", {"members": names, "config": config.to_dict()})
    group.wait()
    return best


def finished_run(config: TrainConfig) -> Path | None:
    """The best weights of a finished run of these very settings in its folder, or None."""
    out = Path(config.out)
    marker = "ensemble.json" if config.members > 1 else "done.json"
    if not (out / marker).exists():
        return None
    if config.members > 1:
        stored = read_json(out / marker)["config"]
    else:
        stored = read_json(out / "config.json")
    ours = config.resolved().to_dict()
    same = all(ours[k] == stored.get(k) for k in ours if k not in INCIDENTAL)
    return out / "best.safetensors" if same else None


class _Scores(NamedTuple):
    loss: float
    psnr: float


def _validate(config: TrainConfig, learner: Learner, dataset: Dataset, group: Group) -> _Scores:
    """Loss and PSNR over the validation samples of all ranks, each sample with equal weight."""
    network = learner.outcome.eval()
    sums = torch.zeros(3, dtype=torch.float64)
    with torch.no_grad(), learner.autocast():
        for item in validation_items(config, dataset, network, group):
            output = network(item.batch)
            loss = learner.criterion(output, item.target, item.batch)
            values = (float(loss), float(psnr(output.mean, item.target)), 1.0)
            sums += item.size * torch.tensor(values, dtype=torch.float64)
    sums = group.total(sums.to(group.device)).cpu()
    if sums[2] == 0:
        raise TrainingError("got an empty validation split, expected at least one sample")
    loss, quality = (sums[:2] / sums[2]).tolist()
    if not math.isfinite(loss):
        raise TrainingError(
            f"the validation loss became {loss}: check the validation data for NaN or lower lr; "
            f"the last good weights are in {config.out}"
        )
    return _Scores(loss, quality)


@contextmanager
def _said_what_is_kept(folder: RunFolder) -> Iterator[None]:
    """Where training must stop, adds where the last good weights are."""
    try:
        yield
    except TrainingError as error:
        kept = str(folder.best) if folder.best.exists() else "none: no epoch was finished"
        raise TrainingError(f"{error} (last good weights: {kept})") from error


def _fresh_model(config: TrainConfig) -> Model:
    """The system with the initial weights of its seed, or with those of `config.start`."""
    torch.manual_seed(config.seed)
    model = create(config.system, **config.model)
    if config.start is not None:
        start = load_model(config.start)
        if start.name != model.name:
            raise CheckpointError(
                f"got start {config.start}, a checkpoint of {start.name}; expected {model.name}"
            )
        load_strictly(model.network, start.network.state_dict(), str(config.start))
    return model


def _provenance(config: TrainConfig, training: Dataset) -> dict[str, Any]:
    """Where weights come from. No times in it: equal runs write equal files."""
    decisive = {k: v for k, v in config.to_dict().items() if k not in INCIDENTAL}
    return {
        "config": decisive,
        "seed": config.seed,
        "version": undercast.__version__,
        "commit": _commit(),
        "data": data_hash(training),
        "samples": len(training),  # type: ignore[arg-type]
        "sar_dropout": config.sar_dropout > 0,
    }


def _commit() -> str | None:
    """The git commit of an editable installation; None for a packaged one."""
    here = Path(__file__).resolve().parent
    if not (here.parents[1] / ".git").exists():
        return None
    command = ["git", "-C", str(here), "rev-parse", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()


def _epoch_row(
    position: Position, scores: _Scores, rate: float, progress: _Progress
) -> dict[str, Any]:
    steps = max(position.step, 1)
    return {
        "lr": rate,
        "train_loss": position.loss / steps,
        "train_psnr": position.psnr / steps,
        "val_loss": scores.loss,
        "val_psnr": scores.psnr,
        "best_epoch": position.best_epoch,
        **progress.speed(),
    }


class _Progress:
    """The progress bar and the speed."""

    def __init__(
        self, config: TrainConfig, batches: Batches, position: Position, group: Group
    ) -> None:
        assert config.epochs is not None
        done = position.epoch * batches.steps + position.step
        self._together, self._start, self._began = batches.together, done, time.monotonic()
        self._bar = tqdm(
            total=config.epochs * batches.steps,
            initial=done,
            unit="step",
            desc=Path(config.out).name,
            disable=not (config.progress and group.leads),
        )
        self._done = done

    def show(self, result: StepResult) -> None:
        self._done += 1
        self._bar.update()
        self._bar.set_postfix_str(
            f"loss {result.loss:.4g}, {result.psnr:.1f} dB, "
            f"{self.speed()['samples_per_s']:.1f} samples/s",
            refresh=False,
        )

    def speed(self) -> dict[str, float]:
        """Samples seen by the whole run, and each second since it was (re)started."""
        seconds = max(time.monotonic() - self._began, 1e-9)
        rate = (self._done - self._start) * self._together / seconds
        return {"samples": self._done * self._together, "samples_per_s": round(rate, 2)}

    def close(self) -> None:
        self._bar.close()


@contextmanager
def _torch_settings(config: TrainConfig) -> Iterator[None]:
    """Deterministic algorithms during the run only."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(config.deterministic, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
