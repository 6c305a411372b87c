"""U-TAE: the released function, the published sizes, and what its attention promises."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from undercast.errors import CheckpointError, ConfigError
from undercast.models import create
from undercast.models.utae import UTAE
from undercast.official import load_official


def golden_checkpoint(golden: Path, folder: Path, **changes: object) -> dict[str, np.ndarray]:
    """Writes the golden U-TAE as an official checkpoint; gives its input and expected output."""
    with np.load(golden / "utae_T3.npz") as file:
        arrays = dict(file)
    released = json.loads(str(arrays["config"]))
    conf = {
        "model": "utae",
        **{k: released[k] for k in ("encoder_widths", "decoder_widths", "out_conv", "n_head")},
        **{k: released[k] for k in ("d_model", "d_k", "scale_by", "agg_mode", "encoder_norm")},
        "use_sar": True,
        **changes,
    }
    weights = {
        "netG." + key.removeprefix("w/"): torch.from_numpy(
            value.astype(np.float32) if value.dtype == np.float16 else value
        )
        for key, value in arrays.items()
        if key.startswith("w/")
    }
    torch.save({"epoch": 1, "state_dict": weights}, folder / "model.pth.tar")
    (folder / "conf.json").write_text(json.dumps(conf))
    return arrays


def test_released_utae_checkpoint_gives_the_released_output(golden: Path, tmp_path: Path) -> None:
    arrays = golden_checkpoint(golden, tmp_path)
    network = load_official(tmp_path).network.eval()
    assert isinstance(network, UTAE)
    x = torch.from_numpy(arrays["x"].astype(np.float32))
    days = torch.from_numpy(arrays["dates"].astype(np.float32))
    with torch.no_grad():
        mean = network.reconstruct(x, days, torch.ones(1, 3, dtype=torch.bool))
    np.testing.assert_allclose(mean.numpy(), arrays["y"][:, 0], atol=1e-4, rtol=0)


def test_unsupported_variant_of_the_released_utae_is_refused(golden: Path, tmp_path: Path) -> None:
    golden_checkpoint(golden, tmp_path, agg_mode="mean")
    with pytest.raises(CheckpointError, match="agg_mode = 'mean'"):
        load_official(tmp_path)


def test_released_utae_weights_of_other_widths_are_refused(golden: Path, tmp_path: Path) -> None:
    golden_checkpoint(golden, tmp_path, decoder_widths=[16, 8, 16, 32])
    with pytest.raises(CheckpointError):
        load_official(tmp_path)


def test_impossible_widths_and_heads_are_refused() -> None:
    with pytest.raises(ConfigError, match="equal last ones"):
        create("utae", encoder_widths=(8, 8), decoder_widths=(8, 16), heads=4, d_model=16)
    with pytest.raises(ConfigError, match="divisor of d_model"):
        create("utae", heads=12)
