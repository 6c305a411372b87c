"""Train a system, or an ensemble, as a YAML file says.

A run that was interrupted goes on where it stopped when the same command is given again; a finished
run is never overwritten. Settings left out take the recipe that the system was published with.

examples:
  undercast train configs/tiny.yaml --data DIR --out runs/tiny
  undercast train configs/tiny.yaml --data DIR --out runs/three --members 3
  undercast train configs/paper/table1-uncrtaints.yaml --data DIR --model.d_m 64 --epochs 5
  undercast train configs/tiny.yaml --help                     every setting and its default
  torchrun --nproc-per-node 2 -m undercast train configs/tiny.yaml --data DIR
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from undercast.cli.common import add_json, write_json


def configure(parser: Any) -> None:
    parser.add_argument("config", help="YAML file of settings")
    add_json(parser)
    parser.add_argument(
        "settings",
        nargs=argparse.REMAINDER,
        help="--key value; `undercast train CONFIG --help` lists them",
    )


def run(args: Any) -> None:
    from undercast.train import load_config, train
    from undercast.training.config import settings_help

    settings, json_file = _without_json(args.settings, args.json)
    if {"-h", "--help"} & set(settings):
        print(settings_help())
        return
    config = load_config(args.config, settings)
    best = train(config)
    write_json(json_file, {"best": str(best), "config": config.to_dict()})
    if json_file != "-":
        print(best)


def _without_json(settings: Sequence[str], json_file: str | None) -> tuple[list[str], str | None]:
    """`--json FILE` may also stand among the settings."""
    rest = list(settings)
    if "--json" in rest[:-1]:
        at = rest.index("--json")
        json_file = rest[at + 1]
        del rest[at : at + 2]
    return rest, json_file
