"""The folder of a run: its config, the state to resume from, the best weights, its log.

config.json  training_state.pt  best.safetensors  log.jsonl  epochs.csv  done.json
"""

from __future__ import annotations

import csv
import io
import json
import os
import pickle
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from undercast.checkpoint import save_model
from undercast.errors import DataError, TrainingError
from undercast.files import final_file
from undercast.models.system import Model
from undercast.training.config import TrainConfig, differences
from undercast.training.group import Group

BEST = "best.safetensors"
FORMAT = 1
WINDOW = 200  # losses that the watch remembers
WARM_UP = 50  # losses it needs before it judges
PATIENCE = 20  # steps in a row that must be far off


@dataclass
class Position:
    """How far a run is: enough, with the weights, to go on exactly."""

    epoch: int = 0
    step: int = 0  # steps done in this epoch
    loss: float = 0.0  # sums over these steps
    psnr: float = 0.0
    best: float | None = None  # validation loss
    best_epoch: int = -1
    recent: list[float] = field(default_factory=list)  # losses in the normal range
    far_off: int = 0  # steps in a row outside of it

    def add(self, loss: float, psnr: float) -> None:
        """One more step; stops a run whose loss has left its usual range for good."""
        self.step += 1
        self.loss += loss
        self.psnr += psnr
        if len(self.recent) >= WARM_UP and loss > usual_limit(self.recent):
            self.far_off += 1
        else:
            self.far_off = 0
            self.recent = [*self.recent, loss][-WINDOW:]
        if self.far_off >= PATIENCE:
            raise TrainingError(
                f"the loss diverged: {loss:.4g} after a median of "
                f"{statistics.median(self.recent):.4g}; lower lr or set clip_grad"
            )

    def next_epoch(self) -> None:
        """The beginning of the next epoch."""
        self.epoch, self.step, self.loss, self.psnr = self.epoch + 1, 0, 0.0, 0.0


def usual_limit(recent: list[float]) -> float:
    """The median plus ten times the median deviation from it, but at least ten times itself.

    Likelihoods may be negative, so a mere multiple of the median will not do.

    >>> usual_limit([1.0, 1.1, 0.9])
    11.0
    >>> usual_limit([-2.0, -3.0, -2.5])
    22.5
    """
    median = statistics.median(recent)
    spread = statistics.median(abs(x - median) for x in recent)
    return median + 10 * max(spread, abs(median))


class RunFolder:
    """Who may write into a run's folder, and what lies in it."""

    def __init__(self, config: TrainConfig, group: Group) -> None:
        self.path = Path(config.out)
        self._config, self._group = config, group
        self._check()
        group.wait()  # every rank has read before one writes
        if group.leads:
            write_json(self.path / "config.json", config.to_dict())
        group.wait()

    @property
    def best(self) -> Path:
        return self.path / BEST

    def _check(self) -> None:
        """Refuses a finished run, a run of other settings, and weights of unknown origin."""
        stored = self.path / "config.json"
        if (self.path / "done.json").exists():
            raise TrainingError(
                f"{self.path} holds a finished run ({self.best.name}): choose another --out, "
                "or delete that folder"
            )
        if not stored.exists():
            if self.best.exists():
                raise TrainingError(
                    f"{self.best} exists but no config.json beside it: choose another --out"
                )
            return
        changed = differences(self._config.to_dict(), read_json(stored))
        if changed:
            raise TrainingError(
                f"{self.path} holds an unfinished run of other settings ({'; '.join(changed)}): "
                "choose another --out, or delete that folder"
            )

    def resume(self, learner: Any) -> Position:
        """Where to go on: restores the learner from the last state, or starts afresh."""
        path = self.path / "training_state.pt"
        if not path.exists():
            return Position()
        try:
            state = torch.load(path, map_location=self._group.device, weights_only=True)
        except (RuntimeError, OSError, EOFError, pickle.UnpicklingError) as error:
            raise TrainingError(
                f"{path} cannot be read ({error}): delete it to start this run afresh"
            ) from error
        if state.get("format") != FORMAT or state["fingerprint"] != self._config.fingerprint():
            raise TrainingError(f"{path} is the state of another run: delete it to start afresh")
        learner.restore(state["learner"])
        return Position(**state["position"])

    def save_state(self, learner: Any, position: Position) -> None:
        """Everything a resumed run needs, under its name when complete; rank 0 only."""
        if not self._group.leads:
            return
        buffer = io.BytesIO()  # first to memory: a full disk then fails in one plain write
        torch.save(
            {
                "format": FORMAT,
                "fingerprint": self._config.fingerprint(),
                "learner": learner.state(),
                "position": asdict(position),
            },
            buffer,
        )
        write_bytes(self.path / "training_state.pt", buffer.getbuffer())

    def save_best(self, model: Model) -> None:
        """The weights with the best validation loss so far; rank 0 only."""
        if self._group.leads:
            with disk_errors(self.best):
                save_model(model, self.best)

    def finish(self, summary: dict[str, Any]) -> None:
        """Marks the run as finished, and drops the state that only a resumed run needs."""
        if self._group.leads:
            write_json(self.path / "done.json", summary)
            (self.path / "training_state.pt").unlink(missing_ok=True)
        self._group.wait()


class RunLog:
    """log.jsonl, epochs.csv and, if asked for, TensorBoard; rank 0 only.

    Rows after the position a run resumes from are dropped, so that no row occurs twice.
    """

    def __init__(self, folder: Path, position: Position, tensorboard: bool, group: Group) -> None:
        self._path, self._csv, self._group = folder / "log.jsonl", folder / "epochs.csv", group
        self._board = None
        if not group.leads:
            return
        rows = [row for row in read_log(self._path) if _is_before(row, position)]
        self._epochs = [row for row in rows if row["kind"] == "epoch"]
        write_bytes(self._path, "".join(json.dumps(row) + "\n" for row in rows).encode())
        if tensorboard:
            self._board = _tensorboard(folder / "tensorboard", position)

    def write(self, kind: str, epoch: int, step: int, **values: Any) -> None:
        """One row; `kind` is step or epoch."""
        if not self._group.leads:
            return
        row = {"kind": kind, "epoch": epoch, "step": step, **values}
        with disk_errors(self._path), self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        if kind == "epoch":
            self._epochs.append(row)
            self._write_csv()
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(f"{kind}/{name}", value, values["samples"])

    def _write_csv(self) -> None:
        text = io.StringIO()
        names = [name for name in self._epochs[0] if name not in ("kind", "step")]
        writer = csv.DictWriter(text, names, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(self._epochs)
        write_bytes(self._csv, text.getvalue().encode())

    def close(self) -> None:
        """Flushes TensorBoard."""
        if self._board is not None:
            self._board.close()


def read_log(path: Path) -> list[dict[str, Any]]:
    """The rows of a log; a last line that a killed process left half-written is dropped."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


def _is_before(row: dict[str, Any], position: Position) -> bool:
    if row["kind"] == "epoch":
        return bool(row["epoch"] < position.epoch)
    return (row["epoch"], row["step"]) < (position.epoch, position.step)


def _tensorboard(folder: Path, position: Position) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        from undercast.errors import MissingDependencyError

        raise MissingDependencyError("tensorboard: true", "tensorboard") from error
    return SummaryWriter(str(folder))


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """A full or broken disk as one line; what was there before is still there."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        if isinstance(error, DataError):
            raise
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(
            f"cannot write {path}: {reason}; free some space and start again to resume"
        ) from error


def write_bytes(path: Path, data: Any) -> None:
    """A whole file, on the disk before it takes its name."""
    with disk_errors(path), final_file(path) as temporary, temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_json(path: Path, values: Any) -> None:
    """A JSON file, complete or not there."""
    write_bytes(path, (json.dumps(values, indent=2) + "\n").encode())


def read_json(path: Path) -> Any:
    """A JSON file that this package wrote."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path}: {error}") from error
