"""Training on tiny in-memory data: logs, resuming, refusals, ensembles, adversaries."""

from __future__ import annotations

import csv
import importlib.util
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from undercast.checkpoint import load_model, save_model
from undercast.errors import CheckpointError, ConfigError, DataError, TrainingError
from undercast.models import create
from undercast.train import TrainConfig, load_config, train
from undercast.training.data import Batches, Item, check_target, epoch_order, padded
from undercast.training.group import Group
from undercast.training.learner import Learner
from undercast.training.state import PATIENCE, WARM_UP, Position, read_log

FAKES = Path(__file__).with_name("train_fakes.py")
_spec = importlib.util.spec_from_file_location("train_fakes", FAKES)
assert _spec is not None
assert _spec.loader is not None
fakes = importlib.util.module_from_spec(_spec)
sys.modules["train_fakes"] = fakes
_spec.loader.exec_module(fakes)
fakes.register_gan()

CONFIGS = Path(__file__).resolve().parents[1] / "configs"


def tiny(out: Path, **settings: Any) -> TrainConfig:
    settings = {"batch_size": 2, "epochs": 2, "log_every": 1, "progress": False, **settings}
    if "system" not in settings:
        settings["model"] = {**fakes.TINY, **settings.get("model", {})}
    return TrainConfig(out=str(out), device="cpu", **settings)


def weights(path: Path) -> dict[str, torch.Tensor]:
    return load_file(path)


def same(one: Path, other: Path) -> bool:
    a, b = weights(one), weights(other)
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def run_process(settings: dict[str, Any], options: dict[str, Any] | None = None) -> int:
    command = [sys.executable, str(FAKES), json.dumps(settings), json.dumps(options or {})]
    return subprocess.run(command, check=False, timeout=300).returncode


def test_training_lowers_the_loss_and_writes_what_it_promises(tmp_path: Path) -> None:
    best = train(tiny(tmp_path, epochs=6, lr=0.01), fakes.splits())
    rows = list(csv.DictReader((tmp_path / "epochs.csv").open()))
    assert [int(row["epoch"]) for row in rows] == list(range(6))
    assert float(rows[-1]["train_loss"]) < 0.5 * float(rows[0]["train_loss"])
    assert [float(row["lr"]) for row in rows] == pytest.approx([0.01 * 0.8**e for e in range(6)])
    steps = [row for row in read_log(tmp_path / "log.jsonl") if row["kind"] == "step"]
    assert len(steps) == 6 * 6
    assert all(math.isfinite(row["psnr"]) and row["samples_per_s"] > 0 for row in steps)
    model = load_model(best)
    lowest = min(rows, key=lambda row: float(row["val_loss"]))
    assert model.provenance["epoch"] == int(lowest["epoch"])
    assert model.provenance["val_loss"] == pytest.approx(float(lowest["val_loss"]))
    assert model.provenance["config"]["lr"] == 0.01
    assert (tmp_path / "done.json").exists()
    assert not (tmp_path / "training_state.pt").exists()


def test_a_step_of_the_loop_is_a_step_of_adam_on_the_mean_loss(tmp_path: Path) -> None:
    """One step of the loop equals one step written out with torch alone."""
    config = tiny(tmp_path, epochs=1, steps_per_epoch=1, loss="l2", model={"dropout": 0.0})
    train(config, fakes.splits())
    torch.manual_seed(config.seed)
    network = create("uncrtaints", **config.model).network.train()
    network.to(memory_format=torch.channels_last)
    optimiser = torch.optim.Adam(network.parameters(), 1e-3)
    chosen = epoch_order(12, 2, seed=0, epoch=0)
    data = fakes.splits()[0]
    from undercast.datasets import collate

    raw = collate([data[i] for i in chosen])
    torch.nn.functional.mse_loss(network(raw.batch).mean, raw.target).backward()
    optimiser.step()
    found = weights(tmp_path / "best.safetensors")
    compared = 0
    for key, value in network.named_parameters():
        assert value.grad is not None
        clear = value.grad.abs() > 1e-5  # Adam makes full steps of the noise in zero gradients
        torch.testing.assert_close(found[key][clear], value.detach()[clear], atol=1e-6, rtol=1e-5)
        compared += int(clear.sum())
    assert compared > 1000


@pytest.mark.slow
def test_kill_9_in_mid_epoch_and_resume_gives_bit_identical_weights(tmp_path: Path) -> None:
    common = {"batch_size": 2, "epochs": 3, "save_every": 2, "log_every": 1}
    assert run_process({**common, "out": str(tmp_path / "whole")}) == 0
    cut = {**common, "out": str(tmp_path / "cut")}
    assert run_process(cut, {"kill_at": [1, 9]}) == -9  # in the fifth of six steps of epoch 1
    state = torch.load(tmp_path / "cut" / "training_state.pt", weights_only=True)
    assert (state["position"]["epoch"], state["position"]["step"]) == (1, 4)
    assert run_process(cut) == 0
    assert same(tmp_path / "whole" / "best.safetensors", tmp_path / "cut" / "best.safetensors")
    logs = [read_log(tmp_path / run / "log.jsonl") for run in ("whole", "cut")]
    keys = [[(r["kind"], r["epoch"], r["step"], r.get("loss")) for r in log] for log in logs]
    assert keys[0] == keys[1]  # every row once, with the same loss


def test_interrupted_adversarial_run_resumes_to_the_same_weights(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"system": "fake-gan", "save_every": 2}
    whole = train(tiny(tmp_path / "whole", **settings), fakes.splits())
    cut = tiny(tmp_path / "cut", **settings)
    with pytest.raises(KeyboardInterrupt):
        train(cut, fakes.splits(stop_at=(1, 7)))
    resumed = train(cut, fakes.splits())
    assert same(whole, resumed)


@pytest.mark.parametrize("optimiser", ["adam", "muon"])
def test_an_interrupted_run_with_averaged_weights_resumes_to_the_same(
    tmp_path: Path, optimiser: str
) -> None:
    settings: dict[str, Any] = {"average": 0.9, "optimiser": optimiser, "save_every": 2}
    whole = train(tiny(tmp_path / "whole", **settings), fakes.splits())
    cut = tiny(tmp_path / "cut", **settings)
    with pytest.raises(KeyboardInterrupt):
        train(cut, fakes.splits(stop_at=(1, 7)))
    assert same(whole, train(cut, fakes.splits()))
    plain = train(tiny(tmp_path / "plain", **settings | {"average": None}), fakes.splits())
    assert not same(whole, plain)


def test_adversary_and_generator_steps_equal_torch_written_out() -> None:
    config = TrainConfig(system="fake-gan", optimiser="sgd", lr=0.1, device="cpu").resolved()
    group = Group(0, 1, torch.device("cpu"))
    data = fakes.splits()[0]
    from undercast.datasets import collate

    raw = collate([data[0], data[1]])
    networks = []
    for _ in range(2):
        torch.manual_seed(0)
        networks.append(create("fake-gan").network.train())
    learner = Learner(config, networks[0], group)
    learner.step(Item(raw.batch, raw.target, ""))
    generator, adversary = networks[1], networks[1].adversary()
    optimisers = [torch.optim.SGD(m.parameters(), 0.1, 0.9) for m in (generator, adversary)]
    fake = generator(raw.batch).mean
    real_logits = generator.judge(adversary, raw.batch, raw.target)
    fake_logits = generator.judge(adversary, raw.batch, fake.detach())
    (0.5 * ((real_logits - 1) ** 2).mean() + 0.5 * (fake_logits**2).mean()).backward()
    optimisers[1].step()
    fooled = generator.judge(adversary, raw.batch, fake)
    loss = (fake - raw.target).abs().mean() + 0.1 * ((fooled - 1) ** 2).mean()
    optimisers[0].zero_grad()
    loss.backward()
    optimisers[0].step()
    assert learner.adversary is not None
    for ours, theirs in ((learner.network, generator), (learner.adversary, adversary)):
        for key, value in theirs.state_dict().items():
            torch.testing.assert_close(ours.state_dict()[key], value)


@pytest.mark.slow
@pytest.mark.parametrize("system", ["uncrtaints", "fake-gan"])
def test_two_torchrun_ranks_equal_one_process_with_the_doubled_batch(
    tmp_path: Path, system: str
) -> None:
    # SGD, because Adam turns the rounding noise of gradients that are zero in exact arithmetic
    # (a bias before a batch norm) into full steps of either sign.
    common: dict[str, Any] = {"epochs": 2, "optimiser": "sgd", "lr": 1e-4}
    if system == "uncrtaints":
        common |= {"model": {"dropout": 0.0}, "average": 0.5}
    else:
        common |= {"system": system, "lr": 0.05}
    one = {**common, "out": str(tmp_path / "one"), "batch_size": 4}
    two = {**common, "out": str(tmp_path / "two"), "batch_size": 2}
    assert run_process(one) == 0
    run_ranks(two)
    ours, theirs = (weights(tmp_path / run / "best.safetensors") for run in ("two", "one"))
    start = weights_at_start(system)
    for key, value in theirs.items():
        torch.testing.assert_close(ours[key], value, atol=1e-5, rtol=1e-4)
    assert max(float((theirs[k] - start[k]).abs().max()) for k in start) > 1e-3
    rows = [read_log(tmp_path / run / "log.jsonl") for run in ("two", "one")]
    assert len(rows[0]) == len(rows[1])  # only one rank writes


def run_ranks(config: dict[str, Any]) -> None:
    """Two real ranks. Once more if a rank aborts: gloo's threads may at the end of a process."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, "--nproc-per-node", "2", str(FAKES), json.dumps(config)]
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if "SIGABRT" not in done.stderr:
            break
        shutil.rmtree(config["out"], ignore_errors=True)
    assert done.returncode == 0, done.stderr


def weights_at_start(system: str) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    model = create(system, **(fakes.TINY if system == "uncrtaints" else {}))
    return dict(model.network.state_dict())


def test_a_finished_run_is_never_overwritten(tmp_path: Path) -> None:
    best = train(tiny(tmp_path, epochs=1), fakes.splits())
    before = best.read_bytes()
    with pytest.raises(TrainingError, match="finished run"):
        train(tiny(tmp_path, epochs=1), fakes.splits())
    assert best.read_bytes() == before


def test_an_unfinished_run_of_other_settings_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(tiny(tmp_path), fakes.splits(stop_at=(0, 5)))
    with pytest.raises(TrainingError, match=r"lr is 0\.5, was 0\.001"):
        train(tiny(tmp_path, lr=0.5), fakes.splits())


def test_nan_in_the_target_stops_unless_it_is_declared_as_nodata(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="NaN in the target of 1 patch") as caught:
        train(tiny(tmp_path / "a"), fakes.splits(nan_at=3))
    assert "nodata: skip" in str(caught.value)
    best = train(tiny(tmp_path / "b", nodata="skip"), fakes.splits(nan_at=3))
    assert all(torch.isfinite(v).all() for v in weights(best).values())


@pytest.mark.parametrize("kind", ["infinite", "some bands", "everywhere"])
def test_broken_targets_stop_even_where_nodata_is_skipped(kind: str) -> None:
    target = torch.zeros(2, 13, 4, 4)
    if kind == "infinite":
        target[0, 0, 0, 0] = math.inf
    elif kind == "some bands":
        target[0, 3, 0, 0] = math.nan
    else:
        target[1] = math.nan
    with pytest.raises(DataError, match=kind):
        check_target(target, "skip", "patch 1")


def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_good_weights(tmp_path: Path) -> None:
    class Poisoned(fakes.FakeDataset):  # type: ignore[name-defined, misc]
        def __getitem__(self, i: int) -> Any:
            sample = super().__getitem__(i)
            if self.epoch == 1 and self.reads == 5:
                sample.target[:] = 1e30  # finite, but not its square
            return sample

    data = (Poisoned(12), fakes.FakeDataset(4, seed=1))
    with pytest.raises(TrainingError, match=r"the loss became inf.*best\.safetensors"):
        train(tiny(tmp_path, save_every=1), data)
    assert all(torch.isfinite(v).all() for v in weights(tmp_path / "best.safetensors").values())
    state = torch.load(tmp_path / "training_state.pt", weights_only=True)
    assert (state["position"]["epoch"], state["position"]["step"]) == (1, 2)
    assert all(torch.isfinite(v).all() for v in state["learner"]["network"].values())


@pytest.mark.parametrize("usual", [1.0, -2.0])
def test_a_loss_that_stays_far_off_is_divergence_and_one_outlier_is_not(usual: float) -> None:
    position = Position()
    for i in range(WARM_UP + 10):
        position.add(usual + 0.1 * (-1) ** i, 20.0)
    position.add(1e6, 20.0)
    position.add(usual, 20.0)
    for _ in range(PATIENCE - 1):
        position.add(1e6, 20.0)
    with pytest.raises(TrainingError, match="diverged"):
        position.add(1e6, 20.0)


def test_unknown_keys_and_wrong_values_are_config_errors(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("system: uncrtaints\nlearning_speed: 3\n")
    with pytest.raises(ConfigError, match="learning_speed"):
        load_config(file)
    file.write_text("system: uncrtaints\n")
    with pytest.raises(ConfigError, match="speed"):
        load_config(file, ["--speed", "3"])
    with pytest.raises(ConfigError, match="lr"):
        load_config(file, ["--lr", "fast"])
    with pytest.raises(ConfigError, match="no file"):
        load_config(tmp_path / "absent.yaml")
    with pytest.raises(ConfigError, match="precision"):
        TrainConfig(precision="fp8")
    with pytest.raises(ConfigError, match="nothing to learn"):
        TrainConfig(system="median").resolved()
    with pytest.raises(ConfigError, match="unknown setting depth"):
        train(tiny(tmp_path / "r", model={"depth": 3}), fakes.splits())


def test_settings_come_from_yaml_then_the_command_line_then_the_recipe(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("model: {d_m: 32, n_d: 2}\nlr: 0.5\nrandom_t: [2, 4]\n")
    config = load_config(file, ["--lr", "0.25", "--model.d_m", "64"]).resolved()
    assert (config.lr, config.model, config.random_t) == (0.25, {"d_m": 64, "n_d": 2}, (2, 4))
    assert (config.loss, config.batch_size, config.epochs) == ("gaussian_nll", 4, 20)
    assert config.decay == 0.8


def test_start_takes_weights_and_refuses_another_architecture(tmp_path: Path) -> None:
    torch.manual_seed(5)
    save_model(create("uncrtaints", **fakes.TINY), tmp_path / "a.safetensors")
    save_model(create("uncrtaints", **{**fakes.TINY, "d_m": 32}), tmp_path / "b.safetensors")
    settings: dict[str, Any] = {"epochs": 1, "steps_per_epoch": 1, "lr": 1e-12}
    best = train(
        tiny(tmp_path / "x", start=str(tmp_path / "a.safetensors"), **settings), fakes.splits()
    )
    start, end = weights(tmp_path / "a.safetensors"), weights(best)
    torch.testing.assert_close(end["head.weight"], start["head.weight"])
    with pytest.raises(CheckpointError, match="do not fit"):
        train(
            tiny(tmp_path / "y", start=str(tmp_path / "b.safetensors"), **settings), fakes.splits()
        )


def test_members_differ_in_weights_and_order_and_load_as_one_ensemble(tmp_path: Path) -> None:
    config = tiny(tmp_path, members=2, epochs=1)
    best = train(config, fakes.splits())
    first, second = (weights(tmp_path / f"member_{i}" / "best.safetensors") for i in (0, 1))
    assert not torch.equal(first["head.weight"], second["head.weight"])
    assert epoch_order(12, 12, 0, 0).tolist() != epoch_order(12, 12, 1, 0).tolist()
    ensemble = load_model(best)
    from undercast.datasets import collate

    output = ensemble(collate([fakes.splits()[0][0]]).batch)
    assert (output.variance >= output.aleatoric).all()
    names = json.loads((tmp_path / "ensemble.json").read_text())["members"]
    members = load_model([tmp_path / name for name in names])
    torch.testing.assert_close(output.mean, members(collate([fakes.splits()[0][0]]).batch).mean)
    with pytest.raises(TrainingError, match="finished ensemble"):
        train(config, fakes.splits())


def test_an_ensemble_goes_on_with_the_member_that_was_interrupted(tmp_path: Path) -> None:
    config = tiny(tmp_path, members=2, epochs=1)
    train(config.member(0), fakes.splits())
    stamp = (tmp_path / "member_0" / "best.safetensors").stat().st_mtime_ns
    train(config, fakes.splits())
    assert (tmp_path / "member_0" / "best.safetensors").stat().st_mtime_ns == stamp


def test_ranks_share_the_steps_of_one_process_with_the_larger_batch() -> None:
    data = fakes.splits()[0]
    network = create("uncrtaints", **fakes.TINY).network
    config = TrainConfig(batch_size=2).resolved()
    big = TrainConfig(batch_size=4).resolved()
    cpu = torch.device("cpu")
    whole = [i.target for _, i in Batches(big, data, network, Group(0, 1, cpu)).of_epoch(3)]
    ranks = [
        [i.target for _, i in Batches(config, data, network, Group(r, 2, cpu)).of_epoch(3)]
        for r in range(2)
    ]
    for one, a, b in zip(whole, *ranks, strict=True):
        torch.testing.assert_close(one, torch.cat((a, b)))


def test_too_few_samples_for_one_step_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="12 training samples for steps of 16"):
        train(tiny(tmp_path, batch_size=16), fakes.splits())


def test_padding_dates_changes_nothing_but_the_shape() -> None:
    from undercast.datasets import collate

    network = create("uncrtaints", **fakes.TINY).network.eval()
    batch = collate([fakes.FakeDataset(1, t=2)[0]]).batch
    longer = padded(batch, 4)
    assert longer.s2.shape[1] == 4
    with torch.no_grad():
        torch.testing.assert_close(network(batch).mean, network(longer).mean, atol=1e-5, rtol=1e-4)


def test_a_mono_temporal_system_trains_on_the_least_cloudy_date(tmp_path: Path) -> None:
    best = train(tiny(tmp_path, epochs=1, model={"mono": True}), fakes.splits())
    assert load_model(best).network.temporal == "mono"


def test_tensorboard_and_bf16_and_workers_are_options(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    config = tiny(tmp_path, epochs=1, tensorboard=True, precision="bf16", workers=1)
    train(config, fakes.splits())
    assert list((tmp_path / "tensorboard").glob("events*"))


def test_workers_do_not_change_the_weights(tmp_path: Path) -> None:
    one = train(tiny(tmp_path / "a", epochs=1), fakes.splits())
    other = train(tiny(tmp_path / "b", epochs=1, workers=2), fakes.splits())
    assert same(one, other)


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_keeps_the_previous_state(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small disk is not permitted here")
    try:
        config = tiny(disk / "run", save_every=1, epochs=2)
        with pytest.raises(KeyboardInterrupt):
            train(config, fakes.splits(stop_at=(1, 5)))
        state = (disk / "run" / "training_state.pt").read_bytes()
        free = 2**20 - sum(f.stat().st_size for f in (disk / "run").iterdir())
        (disk / "filler").write_bytes(b"0" * max(free - 60_000, 0))
        with pytest.raises(DataError, match="No space left"):
            train(config, fakes.splits())
        assert (disk / "run" / "training_state.pt").read_bytes() == state
        assert not list((disk / "run").glob(".*part*"))
        (disk / "filler").unlink()
        assert train(config, fakes.splits()).exists()
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_the_command_reports_errors_in_one_line_and_lists_its_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from undercast.cli import main

    bad = tmp_path / "bad.yaml"
    bad.write_text("systm: uncrtaints\n")
    tiny_yaml = str(CONFIGS / "tiny.yaml")
    for arguments, word in (
        ((str(bad),), "systm"),
        ((tiny_yaml, "--speed", "3"), "speed"),
        ((tiny_yaml, "--out", str(tmp_path / "r")), "--data"),
    ):
        assert main(["train", *arguments]) == 2
        error = capsys.readouterr().err
        assert len(error.strip().splitlines()) == 1
        assert word in error
    assert main(["train", str(bad), "--help"]) == 0
    assert "sar_dropout" in capsys.readouterr().out
