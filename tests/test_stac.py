"""The item of a product against the STAC item schema and its extensions, without a network.

pystac brings the schemas of the core. It brings none of the extensions, so those are checked
against `FIELDS`: what the public definition of each declared version allows for the fields used.
"""

from __future__ import annotations

import copy
import hashlib
import json
import socket
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from makers import GRID, dn_stack, write_geotiff_scene, write_s1
from undercast import predict_scene
from undercast.checkpoint import save_model
from undercast.models import create
from undercast.products.item import EXTENSIONS
from undercast.types import Grid, Stack

jsonschema = pytest.importorskip("jsonschema")
pystac = pytest.importorskip("pystac")

LISTED = "stac_extensions"
NUMBER, POSITIVE = {"type": "number"}, {"type": "number", "exclusiveMinimum": 0}
FIELDS: dict[str, dict[str, Any]] = {  # extension → field → what its definition allows
    "projection/v2.0.0": {
        "proj:code": {"type": ["string", "null"], "pattern": "^[A-Z]+:[0-9A-Za-z]+$"},
        "proj:wkt2": {"type": ["string", "null"]},
        "proj:shape": {
            "type": "array",
            "items": {"type": "integer", "minimum": 1},
            "minItems": 2,
            "maxItems": 2,
        },
        "proj:transform": {"type": "array", "items": NUMBER, "minItems": 6, "maxItems": 6},
    },
    "raster/v2.0.0": {"raster:scale": NUMBER, "raster:offset": NUMBER},
    "eo/v2.0.0": {"eo:center_wavelength": POSITIVE},
    "file/v2.1.0": {
        "file:size": {"type": "integer", "minimum": 0},
        "file:checksum": {"type": "string", "pattern": "^1220[a-f0-9]{64}$"},  # SHA-256
    },
    "processing/v1.2.0": {
        "processing:software": {
            "type": "object",
            "minProperties": 1,
            "additionalProperties": {"type": "string"},
        }
    },
}
WHERE = {  # extension → where an item may carry its fields
    "projection/v2.0.0": {"properties", "assets", "bands"},
    "raster/v2.0.0": {"assets", "bands"},
    "eo/v2.0.0": {"properties", "assets", "bands"},
    "file/v2.1.0": {"assets", "links"},
    "processing/v1.2.0": {"properties", "assets"},
}
NO_CODE = "+proj=laea +lat_0=47 +lon_0=11 +x_0=0 +y_0=0 +ellps=bessel +units=m +no_defs"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Products that differ in what their items say."""
    folder = tmp_path_factory.mktemp("stac")
    torch.manual_seed(0)
    weights = folder / "tiny.safetensors"
    save_model(create("uncrtaints", d_m=16, heads=4, n_d=1), weights)
    grid = Grid(GRID.crs, GRID.transform, 48, 40)
    stack = dn_stack(grid=grid, s1=True)
    s2 = stack.s2.copy()
    s2[:, :, :7] = np.nan
    stack = Stack(s2, stack.dates, stack.s1)
    files, s1 = write_geotiff_scene(folder, stack, grid), write_s1(folder, stack, grid)
    elsewhere = Grid(NO_CODE, (10.0, 0.0, 1000.0, 0.0, -10.0, 2000.0), 48, 40)
    own = write_geotiff_scene(folder / "own", stack, elsewhere)
    told: dict[str, tuple[Any, Any, dict[str, Any]]] = {
        "network": (files, weights, {"s1": s1}),
        "float32": (files, weights, {"s1": s1, "dtype": "float32"}),
        "composite": (files[:1], "mosaic", {}),
        "own crs": (own, "median", {}),
    }
    for name, (inputs, model, options) in told.items():
        predict_scene(inputs, folder / name, model, clouds="rules", progress=False, **options)
    return {name: folder / name for name in told}


KINDS = ("network", "float32", "composite", "own crs")


def item_of(folder: Path) -> dict[str, Any]:
    item: dict[str, Any] = json.loads((folder / "item.json").read_text())
    return item


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the schemas of the core come with pystac")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def validate_core(item: dict[str, Any]) -> None:
    from pystac.validation import JsonSchemaSTACValidator

    JsonSchemaSTACValidator().validate_core(item, pystac.STACObjectType.ITEM, "1.1.0")


def objects(item: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object of an item that may carry fields of extensions, with its place."""
    yield "properties", item["properties"]
    for link in item["links"]:
        yield "links", link
    for asset in item["assets"].values():
        yield "assets", asset
        for band in asset.get("bands", []):
            yield "bands", band


def problems(item: dict[str, Any]) -> list[str]:
    """What the declared extensions would complain about."""
    declared = [uri.split("github.io/")[1].removesuffix("/schema.json") for uri in item[LISTED]]
    fields = {name: (ext, rule) for ext in declared for name, rule in FIELDS[ext].items()}
    used, found = set(), []
    for place, holder in objects(item):
        for name, value in holder.items():
            if ":" not in name or name.startswith("undercast:"):
                continue
            if name not in fields:
                found.append(f"{name} belongs to no declared extension")
                continue
            extension, rule = fields[name]
            used.add(extension)
            if place not in WHERE[extension]:
                found.append(f"{name} may not be in {place}")
            errors = jsonschema.Draft202012Validator(rule).iter_errors(value)
            found += [f"{name}: {error.message}" for error in errors]
    return found + [f"{name} is declared and not used" for name in declared if name not in used]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("no_network")
def test_an_item_is_valid_by_the_schema_of_the_core(folders: dict[str, Path], kind: str) -> None:
    validate_core(item_of(folders[kind]))


@pytest.mark.parametrize("kind", KINDS)
def test_an_item_keeps_to_the_fields_of_the_extensions_it_declares(
    folders: dict[str, Path], kind: str
) -> None:
    item = item_of(folders[kind])
    assert set(item[LISTED]) <= set(EXTENSIONS)
    assert problems(item) == []


@pytest.mark.parametrize("kind", KINDS)
def test_sizes_checksums_codes_and_times_are_true(folders: dict[str, Path], kind: str) -> None:
    item = item_of(folders[kind])
    for asset in item["assets"].values():
        path = folders[kind] / asset["href"]
        assert asset.get("file:size", path.stat().st_size) == path.stat().st_size
        digest = "1220" + hashlib.sha256(path.read_bytes()).hexdigest()
        assert asset.get("file:checksum", digest) == digest
    told = item["properties"]
    start, end = (datetime.fromisoformat(told[f"{name}_datetime"]) for name in ("start", "end"))
    assert start < end
    assert start.utcoffset() is not None  # RFC 3339 in UTC
    assert (told["proj:code"] is None) == ("proj:wkt2" in told) == (kind == "own crs")
    from rasterio.crs import CRS

    crs = CRS.from_string(told["proj:code"] or told["proj:wkt2"])
    assert crs == CRS.from_string(NO_CODE if kind == "own crs" else GRID.crs)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("properties", "start_datetime"), None),
        (("properties", "created"), 2018),
        (("bbox",), [1, 2, 3]),
        (("assets", "mean", "href"), None),
        (("assets", "mean", "nodata"), "none"),
        (("assets", "mean", "data_type"), "u2"),
        (("geometry", "type"), "Square"),
    ],
    ids=str,
)
@pytest.mark.usefixtures("no_network")
def test_the_check_of_the_core_finds_a_broken_item(
    folders: dict[str, Path], path: tuple[str, ...], value: object
) -> None:
    item = item_of(folders["network"])
    at = item
    for name in path[:-1]:
        at = at[name]
    at[path[-1]] = value
    with pytest.raises(pystac.errors.STACValidationError):
        validate_core(item)


def test_the_check_of_the_extensions_finds_a_broken_item(folders: dict[str, Path]) -> None:
    good = item_of(folders["network"])

    def broken(place: str, name: str, value: object) -> list[str]:
        item = copy.deepcopy(good)
        dict(objects(item))[place][name] = value
        return problems(item)

    assert broken("properties", "proj:code", 32631)
    assert broken("properties", "proj:shape", [48])
    assert broken("properties", "proj:epsg", 32631)  # of version 1
    assert broken("properties", "raster:scale", 1.0)
    assert broken("bands", "raster:scale", "0.0001")
    assert broken("properties", "processing:software", {"undercast": 1})
    undeclared = good | {LISTED: [uri for uri in good[LISTED] if "/eo/" not in uri]}
    assert "eo:center_wavelength belongs to no declared extension" in problems(undeclared)
    assert problems(good) == []
