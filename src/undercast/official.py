"""Checkpoints of the released code: a folder with `model.pth.tar` and `conf.json`.

The files are pickles: they are read with `weights_only=True`, so no code of theirs runs. Keys go
through a named mapping, then must fit exactly.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from undercast import bands
from undercast.errors import CheckpointError
from undercast.models.registry import create
from undercast.models.system import Model
from undercast.weightfit import load_strictly

WEIGHTS, CONF = "model.pth.tar", "conf.json"
RELEASED_DEFAULTS: dict[str, Any] = {
    "model": "uncrtaints",
    "encoder_widths": [128],
    "decoder_widths": [128, 128, 128, 128, 128],
    "out_conv": [bands.N_S2],
    "mean_nonLinearity": True,
    "var_nonLinearity": "softplus",
    "agg_mode": "att_group",
    "encoder_norm": "group",
    "decoder_norm": "batch",
    "block_type": "mbconv",
    "padding_mode": "reflect",
    "pad_value": 0,
    "n_head": 16,
    "d_model": 256,
    "positional_encoding": True,
    "d_k": 4,
    "use_v": False,
    "use_sar": False,
    "pretrain": False,
    "input_t": 3,
    "scale_by": 1.0,
    "separate_out": False,
}
_DAMAGED = (  # what the unpickler raises for arbitrary bytes
    pickle.UnpicklingError,
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
_MBCONV = {
    "norm": "pre_norm",
    "fn.0": "expand",
    "fn.1": "expand_norm",
    "fn.3": "depthwise",
    "fn.4": "depthwise_norm",
    "fn.6.fc.0": "excite.squeeze",
    "fn.6.fc.2": "excite.excite",
    "fn.7": "project",
    "fn.8": "project_norm",
}


@dataclass(frozen=True)
class Importer:
    """How a released system becomes one of ours: its settings, and its keys by pattern."""

    system: str
    settings: Callable[[Mapping[str, Any]], dict[str, Any]]
    keys: tuple[tuple[str, str], ...]  # (pattern over the whole key, replacement)

    def rename(self, key: str) -> str:
        """Our name of a released key; an unknown key stays and fails the strict fit."""
        for pattern, replacement in self.keys:
            if re.fullmatch(pattern, key):
                return re.sub(pattern, replacement, key)
        return key


def load_official(path: Path) -> Model:
    """A model from the folder or the weight file of an official checkpoint."""
    file = path / WEIGHTS if path.is_dir() else path
    if not file.is_file():
        raise CheckpointError(
            f"got {path}, which holds no {WEIGHTS}: expected the folder of an official checkpoint "
            "or of a training run"
        )
    conf = read_conf(file.parent / CONF)
    kind = str(conf["model"])
    if kind not in IMPORTERS:
        raise CheckpointError(
            f"got an official checkpoint of {kind!r}, expected one of {', '.join(IMPORTERS)}"
        )
    importer = IMPORTERS[kind]
    model = create(importer.system, **importer.settings(conf))
    tensors = {importer.rename(k): v for k, v in released_names(read_weights(file)).items()}
    load_strictly(model.network, tensors, str(file))
    model.provenance = {
        "source": "official checkpoint",
        "file": file.name,
        "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        "conf": {key: conf[key] for key in sorted(conf) if key in RELEASED_DEFAULTS},
    }
    return model


def read_conf(path: Path) -> dict[str, Any]:
    """The settings of a checkpoint; absent ones take the released defaults."""
    if not path.is_file():
        raise CheckpointError(f"got a checkpoint without {path}, expected its {CONF} beside it")
    try:
        conf = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"got {path}, which is not JSON ({error})") from error
    if not isinstance(conf, dict):
        raise CheckpointError(f"got {path} with a {type(conf).__name__}, expected an object")
    merged = {**RELEASED_DEFAULTS, **conf}
    for key in ("encoder_widths", "decoder_widths", "out_conv"):  # lists, or lists in a string
        merged[key] = json.loads(merged[key]) if isinstance(merged[key], str) else merged[key]
    return merged


def read_weights(file: Path) -> dict[str, Tensor]:
    """The state dict of a weight file, read without running code that a pickle may hold."""
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except _DAMAGED as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(
            f"got {file}, which is no plain file of weights ({reason}): it may be damaged, or hold "
            "code, which is not run"
        ) from error
    for key in ("state_dict", "state_dict_G"):
        if isinstance(content, dict) and key in content:
            content = content[key]
            break
    if not isinstance(content, dict) or not all(isinstance(v, Tensor) for v in content.values()):
        raise CheckpointError(
            f"got {file} without a state dict of tensors, expected the key state_dict"
        )
    return content


def released_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Keys without `netG.`, and with the newer names of the blocks (`out_block1` → `out_block.0`).

    >>> list(released_names({"netG.out_block2.conv.norm.bias": torch.zeros(1)}))
    ['out_block.1.conv.norm.bias']
    """

    def newer(match: re.Match[str]) -> str:
        return f"{match[1]}.{int(match[2]) - 1}."

    return {
        re.sub(r"^(in_block|out_block)(\d+)\.", newer, key.removeprefix("netG.")): value
        for key, value in tensors.items()
    }


def _require_released(conf: Mapping[str, Any], keys: str) -> None:
    """Refuses settings of which only the released default is supported."""
    for key in keys.split():
        expected = RELEASED_DEFAULTS[key]
        if conf[key] != expected:
            raise CheckpointError(
                f"got {key} = {conf[key]!r} in {CONF}, expected {expected!r}: this variant of the "
                "released network is not supported"
            )


def _uncrtaints_settings(conf: Mapping[str, Any]) -> dict[str, Any]:
    _require_released(
        conf,
        "var_nonLinearity agg_mode encoder_norm decoder_norm block_type padding_mode "
        "positional_encoding separate_out use_v",
    )
    widths = {*conf["encoder_widths"], *conf["decoder_widths"]}
    if len(widths) != 1 or (not conf["pretrain"] and conf["d_model"] != 2 * max(widths)):
        raise CheckpointError(
            f"got widths {conf['encoder_widths']} and {conf['decoder_widths']}, d_model "
            f"{conf['d_model']} in {CONF}, expected one width d_m throughout and d_model = 2·d_m"
        )
    n_variance = conf["out_conv"][-1] - bands.N_S2  # whatever covmode says
    kinds = {0: "none", 1: "isotropic", bands.N_S2: "diagonal"}
    if n_variance not in kinds:
        raise CheckpointError(
            f"got out_conv {conf['out_conv']} in {CONF}, expected {bands.N_S2} means and "
            f"0, 1 or {bands.N_S2} variances"
        )
    return {
        "n_e": len(conf["encoder_widths"]),
        "n_d": len(conf["decoder_widths"]),
        "d_m": widths.pop(),
        "heads": 1 if conf["pretrain"] else conf["n_head"],
        "d_k": conf["d_k"],
        "covariance": kinds[n_variance],
        "mono": bool(conf["pretrain"]),  # the released code has no other switch
        "sar": bool(conf["use_sar"]),
        "scale": float(conf["scale_by"]),
        "variance_floor": 1e-9 if conf["scale_by"] == 1 else 1e-3,
        "mean_activation": "sigmoid" if conf["mean_nonLinearity"] else "linear",
    }


def _utae_settings(conf: Mapping[str, Any]) -> dict[str, Any]:
    _require_released(
        conf,
        "agg_mode encoder_norm decoder_norm padding_mode positional_encoding separate_out out_conv",
    )
    return {
        "encoder_widths": tuple(conf["encoder_widths"]),
        "decoder_widths": tuple(conf["decoder_widths"]),
        "heads": conf["n_head"],
        "d_k": conf["d_k"],
        "d_model": conf["d_model"],
        "sar": bool(conf["use_sar"]),
        "scale": float(conf["scale_by"]),
        "mean_activation": "sigmoid" if conf["mean_nonLinearity"] else "linear",
    }


_LTAE_KEYS = (
    (r"temporal_encoder\.in_norm\.(.*)", r"attention.norm.\1"),
    (r"temporal_encoder\.inconv\.(.*)", r"attention.project.\1"),
    (r"temporal_encoder\.attention_heads\.Q", r"attention.query"),
    (r"temporal_encoder\.attention_heads\.fc1_k\.(.*)", r"attention.key.\1"),
)
_UTAE_CONVOLUTIONS = {
    r"in_conv\.conv": "embed",
    r"down_blocks\.(\d+)\.down": r"down.\1.halve",
    r"down_blocks\.(\d+)\.conv1": r"down.\1.first",
    r"down_blocks\.(\d+)\.conv2": r"down.\1.second",
    r"up_blocks\.(\d+)\.conv1": r"up.\1.first",
    r"up_blocks\.(\d+)\.conv2": r"up.\1.second",
}
_UTAE_KEYS = (
    *(
        (rf"{theirs}\.conv\.{position}\.(?P<end>\w+)", rf"{ours}.{part}.\g<end>")
        for theirs, ours in _UTAE_CONVOLUTIONS.items()
        for position, part in ((0, "conv"), (1, "norm"))
    ),
    (r"up_blocks\.(\d+)\.skip_conv\.0\.(\w+)", r"up.\1.skip.conv.\2"),
    (r"up_blocks\.(\d+)\.skip_conv\.1\.(\w+)", r"up.\1.skip.norm.\2"),
    (r"up_blocks\.(\d+)\.up\.0\.(\w+)", r"up.\1.grow.\2"),
    (r"up_blocks\.(\d+)\.up\.1\.(\w+)", r"up.\1.grow_norm.\2"),
    *_LTAE_KEYS,
    (r"temporal_encoder\.mlp\.0\.(.*)", r"attention.perceptron.\1"),
    (r"temporal_encoder\.mlp\.1\.(.*)", r"attention.perceptron_norm.\1"),
    (r"temporal_encoder\.out_norm\.(.*)", r"attention.out_norm.\1"),
    (r"out_conv\.conv\.conv\.0\.(.*)", r"head.\1"),
)


IMPORTERS: dict[str, Importer] = {
    "utae": Importer("utae", _utae_settings, _UTAE_KEYS),
    "uncrtaints": Importer(
        "uncrtaints",
        _uncrtaints_settings,
        (
            (r"in_conv\.conv\.conv\.0\.(.*)", r"embed.\1"),
            (r"in_conv\.conv\.conv\.1\.(.*)", r"embed_norm.\1"),
            *(
                (rf"{theirs}\.(\d+)\.conv\.{re.escape(part)}\.(\w+)", rf"{ours}.\1.{name}.\2")
                for theirs, ours in (("in_block", "encoder"), ("out_block", "decoder"))
                for part, name in _MBCONV.items()
            ),
            *_LTAE_KEYS,
            (r"out_conv\.conv\.conv\.0\.(.*)", r"head.\1"),
        ),
    ),
}
