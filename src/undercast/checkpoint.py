"""Models from files and to files: safetensors with config, provenance and calibration inside."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from undercast.calibration import Calibration
from undercast.engines import attach
from undercast.errors import CheckpointError
from undercast.files import final_file
from undercast.models.ensemble import Ensemble, ensemble_of
from undercast.models.registry import create, names, system_class
from undercast.models.system import Model
from undercast.official import load_official
from undercast.weightfit import load_strictly

FORMAT = 1
Source = str | Path


def load_model(
    source: Source | Sequence[Source], engine: str = "auto", device: str = "cpu"
) -> Model:
    """A model ready for `predict`; its weights are read here.

    source: the name of packaged weights ("default") or of a composite, a `.safetensors` file, the
    folder of a training run, the folder or file of an official checkpoint, or a list of those,
    which makes an ensemble. engine: how it is run, see `undercast.engines`; `auto` keeps float32.
    """
    if not isinstance(source, str | Path):
        return ensemble_of([load_model(one, engine, device) for one in source])
    return attach(_load_one(source).to(device).eval(), engine)


def _load_one(source: Source) -> Model:
    name = str(source)
    if name in packaged():
        return _load_safetensors(Path(str(_weights() / f"{name}.safetensors")))
    if name in names() and not system_class(name).learns:
        return create(name)
    path = Path(source)
    if path.is_dir() and (path / "best.safetensors").is_file():
        path = path / "best.safetensors"
    if path.is_file() and path.suffix == ".safetensors":
        return _load_safetensors(path)
    if path.exists():
        return load_official(path)
    known = [*packaged(), *(n for n in names() if not system_class(n).learns)]
    raise CheckpointError(
        f"got model {name!r}, which is neither a file nor a folder nor one of "
        f"{', '.join(known)}: expected one of these names, a .safetensors file, or the folder of "
        "an official checkpoint"
    )


def packaged() -> list[str]:
    """The names of the weights that come with the package."""
    return sorted(
        Path(entry.name).stem
        for entry in _weights().iterdir()
        if entry.name.endswith(".safetensors")
    )


def _weights() -> Any:
    return resources.files("undercast") / "weights"


def save_model(model: Model, path: Source) -> None:
    """Writes a model (or an ensemble) as one safetensors file, under its name when complete."""
    tensors = {key: value.contiguous() for key, value in model.network.state_dict().items()}
    with final_file(Path(path)) as temporary:
        save_file(tensors, temporary, metadata={"undercast": json.dumps(_header(model))})


def _header(model: Model) -> dict[str, Any]:
    header: dict[str, Any] = {
        "format": FORMAT,
        "system": model.name,
        "config": model.config,
        "provenance": model.provenance,
        "calibration": None if model.calibration is None else model.calibration.to_dict(),
    }
    if isinstance(model.network, Ensemble):
        header["members"] = [_header(member) for member in model.network.models]
    return header


def _load_safetensors(path: Path) -> Model:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"got {path}, which cannot be read as safetensors ({error}): is the file complete?"
        ) from error
    if "undercast" not in metadata:
        raise CheckpointError(
            f"got {path}, safetensors without an undercast header: expected a file that "
            "save_model, `undercast train` or `undercast import-official` wrote"
        )
    model = _from_header(json.loads(metadata["undercast"]), str(path))
    load_strictly(model.network, tensors, str(path))
    return model


def _from_header(header: Mapping[str, Any], where: str) -> Model:
    if header.get("format") != FORMAT:
        raise CheckpointError(
            f"got {where} of format {header.get('format')}, expected {FORMAT}: update undercast"
        )
    if "members" in header:
        model = ensemble_of([_from_header(member, where) for member in header["members"]])
    else:
        model = create(header["system"], **_plain(header["config"]))
    model.provenance = dict(header["provenance"])
    if header["calibration"] is not None:
        model.calibration = Calibration.from_dict(header["calibration"])
    return model


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has no tuples; frozen configs have no lists."""
    return {key: tuple(v) if isinstance(v, list) else v for key, v in config.items()}
