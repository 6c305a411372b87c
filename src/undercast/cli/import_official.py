"""Turn a checkpoint of the released UnCRtainTS code into a safetensors file.

The folder holds model.pth.tar and conf.json. The file is read without running code that a pickle
may hold, and its weights must fit exactly.

examples:
  undercast import-official results/diagonal_1 -o diagonal_1.safetensors
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from undercast.cli.common import add_json, write_json
from undercast.errors import DataError


def configure(parser: Any) -> None:
    parser.add_argument("checkpoint", metavar="FOLDER", help="folder, or its model.pth.tar")
    parser.add_argument("-o", "--out", required=True, metavar="FILE", help="the .safetensors file")
    parser.add_argument("--overwrite", action="store_true", help="replace FILE if it exists")
    add_json(parser)


def run(args: Any) -> None:
    out = Path(args.out)
    if out.suffix != ".safetensors":
        raise DataError(f"got output {out}, expected a name that ends in .safetensors")
    if out.exists() and not args.overwrite:
        raise DataError(f"{out} exists: choose another name or pass --overwrite")
    from undercast.checkpoint import save_model
    from undercast.models.cost import parameters
    from undercast.official import load_official

    model = load_official(Path(args.checkpoint))
    save_model(model, out)
    count = parameters(model.network)
    print(f"{out}: {model.name}, {count:,} parameters")
    write_json(
        args.json,
        {"file": str(out), "system": model.name, "config": model.config, "parameters": count},
    )
