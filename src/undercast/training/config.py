"""The settings of a training run: one frozen dataclass, from YAML and `--key value`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from undercast import losses
from undercast.errors import ConfigError
from undercast.models.registry import system_class

# Settings that change how a run is carried out but not what comes out of it.
INCIDENTAL = ("out", "workers", "save_every", "log_every", "tensorboard", "progress")


def _setting(default: Any, meaning: str) -> Any:
    return field(default=default, metadata={"help": meaning})


@dataclass(frozen=True)
class TrainConfig:
    """Every setting of `undercast train`; None takes the recipe the system was published with."""

    system: str = _setting("uncrtaints", "a system of `undercast models`")
    model: dict[str, Any] = field(
        default_factory=dict, metadata={"help": "settings that differ from the published ones"}
    )
    start: str | None = _setting(None, "checkpoint of the same architecture to start from")
    data: str | None = _setting(None, "folder of the dataset")
    out: str = _setting("runs/default", "folder of the run")
    layout: str = _setting("auto", "layout of the dataset: auto, sen12mscrts or sen12mscr")
    t: int = _setting(3, "dates of each stack")
    random_t: tuple[int, int] | None = _setting(None, "draw the number of dates from this range")
    protocol: str = _setting("train", "how training inputs and targets are drawn")
    val_protocol: str = _setting("clean", "the same for validation")
    split_rule: str = _setting("exact", "exact or legacy")
    region: str = _setting("all", "region of the dataset")
    crop: int | None = _setting(None, "random crops of this many pixels")
    augment: bool = _setting(False, "flips and quarter turns")
    sar_dropout: float = _setting(0.0, "share of dates whose radar image is hidden")
    nodata: str = _setting("error", "pixels without a target: error, or skip them in the loss")
    max_samples: int | None = _setting(None, "train on this many samples, evenly chosen")
    max_val_samples: int | None = _setting(None, "validate on this many samples")
    loss: str | None = _setting(None, "l1, l2, gaussian_nll, beta_nll, nll_legacy or carl")
    loss_options: dict[str, Any] = field(
        default_factory=dict, metadata={"help": "settings of the loss, such as {beta: 0.5}"}
    )
    optimiser: str | None = _setting(None, "adam, adamw, nadam, muon or sgd")
    lr: float | None = _setting(None, "learning rate of the first epoch")
    betas: tuple[float, float] | None = _setting(None, "moments of Adam and its kin")
    weight_decay: float | None = _setting(None, "weight decay")
    decay: float | None = _setting(None, "factor of the learning rate for each epoch")
    batch_size: int | None = _setting(None, "samples of a step and process")
    epochs: int | None = _setting(None, "epochs")
    steps_per_epoch: int | None = _setting(None, "steps of an epoch; None = all samples once")
    clip_grad: float | None = _setting(None, "largest norm of the gradient")
    average: float | None = _setting(
        None, "keep weights averaged over steps, such as 0.99 for about the last 100"
    )
    frozen_norms: bool = _setting(
        False, "batch norms keep the statistics of `start`, as they do in use"
    )
    adversarial_weight: float | None = _setting(None, "weight of a GAN term, if there is one")
    seed: int = _setting(0, "of weights, order, crops and dropout")
    members: int = _setting(1, "train an ensemble of this many members, seeds seed, seed+1, …")
    device: str = _setting("auto", "auto, cpu or cuda")
    precision: str = _setting("fp32", "fp32 or bf16 (autocast)")
    channels_last: bool = _setting(True, "memory layout of convolutions")
    compile: bool = _setting(False, "torch.compile the network")
    deterministic: bool = _setting(False, "deterministic algorithms only (CUDA; CPUs are)")
    workers: int = _setting(0, "processes that read samples")
    save_every: int = _setting(100, "steps between states for resuming")
    log_every: int = _setting(10, "steps between rows of the log")
    tensorboard: bool = _setting(False, "also write TensorBoard files")
    progress: bool = _setting(True, "show a progress bar")

    def __post_init__(self) -> None:
        _check_choice("precision", self.precision, ("fp32", "bf16"))
        _check_choice("nodata", self.nodata, ("error", "skip"))
        if self.optimiser is not None:
            _check_choice("optimiser", self.optimiser, ("adam", "adamw", "nadam", "muon", "sgd"))
        for name in ("t", "members", "save_every", "log_every", "batch_size", "epochs",
                     "steps_per_epoch", "max_samples", "max_val_samples", "crop"):  # fmt: skip
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"got {name} {value}, expected at least 1")
        for name in ("lr", "decay", "clip_grad"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"got {name} {value}, expected more than 0")
        if self.average is not None and not 0 < self.average < 1:
            raise ConfigError(f"got average {self.average}, expected more than 0 and less than 1")
        if self.frozen_norms and self.start is None:
            raise ConfigError(
                "got frozen_norms without start: fresh batch norms have no statistics to keep; "
                "name a checkpoint to start from"
            )
        if not 0 <= self.sar_dropout <= 1:
            raise ConfigError(f"got sar_dropout {self.sar_dropout}, expected 0 to 1")
        if self.loss is not None:
            losses.criterion(self.loss, **self.loss_options)

    def resolved(self) -> TrainConfig:
        """The same settings with the system's recipe in place of every None."""
        cls = system_class(self.system)
        if not cls.learns:
            raise ConfigError(
                f"got system {self.system!r}, which has nothing to learn: choose another"
            )
        recipe = cls.recipe
        defaults: dict[str, Any] = {
            "loss": recipe.loss,
            "optimiser": recipe.optimiser,
            "lr": recipe.learning_rate,
            "betas": recipe.betas,
            "weight_decay": recipe.weight_decay,
            "decay": recipe.decay_per_epoch,
            "batch_size": recipe.batch_size,
            "epochs": recipe.epochs,
            "adversarial_weight": recipe.adversarial_weight,
        }
        missing = {key: value for key, value in defaults.items() if getattr(self, key) is None}
        return replace(self, **missing)

    def member(self, number: int) -> TrainConfig:
        """The run of one member of the ensemble."""
        return replace(
            self, members=1, seed=self.seed + number, out=str(Path(self.out) / f"member_{number}")
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON gives them back."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain

    def fingerprint(self) -> str:
        """A hash of every setting that decides the outcome."""
        decisive = {k: v for k, v in self.to_dict().items() if k not in INCIDENTAL}
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16]


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """The decisive settings in which two runs differ, for people.

    >>> differences({"lr": 0.1, "out": "a"}, {"lr": 0.2, "out": "b"})
    ['lr is 0.1, was 0.2']
    """
    keys = [k for k in {**theirs, **ours} if k not in INCIDENTAL]
    return [
        f"{k} is {ours.get(k)!r}, was {theirs.get(k)!r}"
        for k in keys
        if ours.get(k) != theirs.get(k)
    ]


def load_config(path: str | Path, settings: Sequence[str] = ()) -> TrainConfig:
    """The settings of a YAML file, overridden by `--key value` (or `--model.key value`) pairs."""
    import jsonargparse

    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--config", action="config")
    parser.add_class_arguments(TrainConfig, None)
    if not Path(path).is_file():
        raise ConfigError(
            f"got {path}, which is no file: expected a YAML file such as configs/tiny.yaml"
        )
    try:
        parsed = parser.parse_args(["--config", str(path), *settings]).as_dict()
    except (jsonargparse.ArgumentError, TypeError) as error:
        known = ", ".join(f.name for f in fields(TrainConfig))
        raise ConfigError(
            f"{path}: {' '.join(str(error).split())}; settings are {known}"
        ) from error
    parsed.pop("config")
    return TrainConfig(**parsed)


def settings_help() -> str:
    """One line for each setting with its default."""
    width = max(len(f.name) for f in fields(TrainConfig))
    lines = []
    for f in fields(TrainConfig):
        default = {} if f.name in ("model", "loss_options") else f.default
        lines.append(f"  {f.name.ljust(width)}  {f.metadata['help']} [{default}]")
    return "\n".join(lines)


def _check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ConfigError(f"got {name} {value!r}, expected {' or '.join(choices)}")
