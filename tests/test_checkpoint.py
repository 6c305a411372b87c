"""Checkpoints come back as they were, or fail with a line that names what is wrong."""

from __future__ import annotations

import json
import pickle
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from reference.released import as_float32
from undercast import load_model
from undercast.calibration import Calibration
from undercast.checkpoint import packaged, save_model
from undercast.errors import CheckpointError
from undercast.models import create


@pytest.fixture
def official(golden: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "official"
    shutil.copytree(golden / "official_checkpoint", folder)
    return folder


def rewrite(folder: Path, change) -> None:
    """Changes the stored state dict in place."""
    content = torch.load(folder / "model.pth.tar", weights_only=True)
    change(content["state_dict"])
    torch.save(content, folder / "model.pth.tar")


def run_golden(model, golden: Path) -> tuple[torch.Tensor, torch.Tensor]:
    stored = np.load(golden / "official_checkpoint" / "expected.npz")
    x, days = as_float32(stored["x"]), as_float32(stored["dates"])
    with torch.no_grad():
        out = model.network.reconstruct(x, days, torch.ones(x.shape[:2], dtype=torch.bool))
    return torch.cat((out.mean, out.variance), dim=1), as_float32(stored["y"])[:, 0]


def test_an_official_checkpoint_gives_the_released_output(golden, official) -> None:
    for source in (official, official / "model.pth.tar", str(official)):
        ours, expected = run_golden(load_model(source), golden)
        assert (ours[:, :13] - expected[:, :13]).abs().max() < 1e-4
        assert ((ours[:, 13:] - expected[:, 13:]) / expected[:, 13:]).abs().max() < 1e-3


def test_the_older_names_of_the_blocks_are_taken_too(golden, official) -> None:
    def older(state: dict) -> None:
        for key in list(state):
            for kind in ("in_block", "out_block"):
                for i in range(5):
                    if f"{kind}.{i}." in key:
                        state[key.replace(f"{kind}.{i}.", f"{kind}{i + 1}.")] = state.pop(key)

    rewrite(official, older)
    keys = torch.load(official / "model.pth.tar", weights_only=True)["state_dict"]
    assert any("in_block1." in key for key in keys)
    ours, expected = run_golden(load_model(official), golden)
    assert (ours[:, :13] - expected[:, :13]).abs().max() < 1e-4


def test_absent_settings_take_the_released_defaults(official) -> None:
    path = official / "conf.json"
    conf = json.loads(path.read_text())
    for key in ("covmode", "d_k", "agg_mode", "mean_nonLinearity", "pretrain"):
        conf.pop(key)
    conf["encoder_widths"] = "[16]"  # as on the command line
    path.write_text(json.dumps(conf))
    config = load_model(official).config
    assert (config["d_k"], config["covariance"], config["mono"]) == (4, "diagonal", False)


def test_variance_channels_follow_the_output_layer_whatever_covmode_says(official) -> None:
    path = official / "conf.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "covmode": "iso"}))
    assert load_model(official).config["covariance"] == "diagonal"


HEAD = "netG.out_conv.conv.conv.0.weight"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.update({"netG.renamed": s.pop(HEAD)}), ["missing head.weight", "renamed"]),
        (lambda s: s.pop(HEAD), ["missing head.weight"]),
        (lambda s: s.update({"netG.extra": torch.zeros(1)}), ["unexpected extra"]),
        (lambda s: s.update({HEAD: torch.zeros(26, 8, 1, 1)}), ["head.weight is (26, 8, 1, 1)"]),
    ],
    ids=["renamed", "missing", "extra", "misshapen"],
)
def test_a_key_that_does_not_fit_is_named(official, change, words) -> None:
    rewrite(official, change)
    with pytest.raises(CheckpointError) as caught:
        load_model(official)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "\n" not in str(caught.value)


class Malicious:
    """Its pickle creates a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def test_a_pickle_with_code_is_refused_and_not_run(official, tmp_path) -> None:
    for dump in (torch.save, lambda obj, f: Path(f).write_bytes(pickle.dumps(obj))):
        dump({"state_dict": Malicious(tmp_path / "ran")}, official / "model.pth.tar")
        with pytest.raises(CheckpointError, match="not run"):
            load_model(official)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", [b"", b"garbage", b"PK\x03\x04broken"])
def test_a_damaged_official_file_is_one_clear_line(official, content) -> None:
    (official / "model.pth.tar").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model\.pth\.tar") as caught:
        load_model(official)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("conf", "word"),
    [
        ({"model": "unet3d"}, "unet3d"),
        ({"separate_out": True}, "separate_out"),
        ({"out_conv": [20]}, "out_conv"),
        ({"decoder_widths": [16, 32]}, "widths"),
    ],
)
def test_variants_that_are_not_supported_are_refused(official, conf, word) -> None:
    path = official / "conf.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **conf}))
    with pytest.raises(CheckpointError, match=word):
        load_model(official)


def test_a_folder_without_weights_or_settings_says_what_is_missing(official, tmp_path) -> None:
    (official / "conf.json").unlink()
    with pytest.raises(CheckpointError, match=r"conf\.json"):
        load_model(official)
    with pytest.raises(CheckpointError, match=r"model\.pth\.tar"):
        load_model(tmp_path)


def test_our_checkpoint_comes_back_with_everything_inside(tmp_path) -> None:
    model = create("uncrtaints", d_m=16, heads=4, n_d=2, covariance="isotropic")
    model.calibration = Calibration(scale=tuple(float(i + 1) for i in range(13)))
    model.provenance = {"seed": 7, "sar_dropout": True}
    path = tmp_path / "m.safetensors"
    save_model(model, path)
    back = load_model(path)
    assert (back.name, back.config) == (model.name, model.config)
    assert back.provenance == model.provenance
    assert back.calibration == model.calibration
    for key, value in model.network.state_dict().items():
        assert torch.equal(back.network.state_dict()[key], value)
    assert [p.name for p in tmp_path.iterdir()] == ["m.safetensors"]


def test_a_damaged_or_foreign_safetensors_file_is_one_clear_line(tmp_path) -> None:
    path = tmp_path / "m.safetensors"
    save_model(create("uncrtaints", d_m=16, heads=4, n_d=1), path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="complete"):
        load_model(path)
    save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(CheckpointError, match="undercast header"):
        load_model(path)


def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(CheckpointError, match="least-cloudy"):
        load_model("no-such-model")
    with pytest.raises(CheckpointError, match="neither a file"):
        load_model("uncrtaints")  # a system that has to be trained first


def test_every_packaged_weight_file_loads() -> None:
    for name in packaged():
        assert load_model(name).network.learns


@given(st.binary(max_size=200))
def test_no_bytes_whatever_raise_anything_but_a_checkpoint_error(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "conf.json").write_text("{}")
        (Path(folder) / "model.pth.tar").write_bytes(content)
        with pytest.raises(CheckpointError):
            load_model(folder)
