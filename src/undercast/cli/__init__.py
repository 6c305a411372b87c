"""The command line: `undercast COMMAND`, one file for each command.

A command module has a docstring (shown by --help), `configure(parser)` and `run(args)`, and imports
what is heavy inside `run`. Errors end as one line on standard error and exit code 2.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

import jsonargparse

import undercast
from undercast.errors import UndercastError

COMMANDS: dict[str, str] = {  # name → module
    "demo": "demo",
    "simulate": "simulate",
    "predict": "predict",
    "models": "models",
    "import-official": "import_official",
    "train": "train",
    "experiments": "experiments",
    "evaluate": "evaluate",
    "calibrate": "calibrate",
    "benchmark": "benchmark",
}
GROUPS: dict[str, tuple[str, dict[str, str]]] = {  # name → (help, subcommands)
    "data": (
        "Prepare and audit SEN12MS-CR and SEN12MS-CR-TS, or parts of them.",
        {"prepare": "data_prepare", "audit": "data_audit"},
    ),
}

DESCRIPTION = """\
Remove clouds from Sentinel-2 time series, with a calibrated uncertainty for every pixel and band.

new here?            undercast demo
your own scenes      undercast predict SCENES... -o DIR
data to learn from   undercast simulate DIR, then undercast data prepare DIR
which systems?       undercast models
one command          undercast COMMAND --help
"""


class _HelpFormatter(jsonargparse.DefaultHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Keeps the line breaks of the descriptions, so that examples stay readable."""


class Parser(jsonargparse.ArgumentParser):
    """A parser whose errors are one line."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, formatter_class=_HelpFormatter, **kwargs)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        text = " ".join(str(message).split())
        _say(f"{self.prog}: {text} (see {self.prog} --help)")
        sys.exit(2)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    parser = build_parser()
    arguments = sys.argv[1:] if argv is None else list(argv)
    if not arguments:
        parser.print_help()
        return 0
    args = parser.parse_args(arguments)
    warnings.showwarning = _show_warning
    try:
        _module_of(args).run(_arguments_of(args))
    except UndercastError as error:
        _say(f"undercast: error: {' '.join(str(error).split())}")
        return 2
    except BrokenPipeError:  # the reader of a pipe went away, as in `undercast models | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        _say(f"undercast: error: {error}")
        return 2
    except KeyboardInterrupt:
        _say("undercast: stopped")
        return 130
    return 0


def build_parser() -> Parser:
    """The whole command line, for `main` and for the documentation."""
    parser = Parser(prog="undercast", description=DESCRIPTION)
    parser.add_argument("--version", action="version", version=undercast.__version__)
    commands = parser.add_subcommands(dest="command", title="commands")
    for name, module in COMMANDS.items():
        _add(commands, name, module)
    for name, (help_line, subcommands) in GROUPS.items():
        group = Parser(description=help_line)
        commands.add_subcommand(name, group, help=help_line)  # before its own subcommands
        inner = group.add_subcommands(dest="subcommand", title="subcommands")
        for sub_name, module in subcommands.items():
            _add(inner, sub_name, module)
    return parser


def _add(commands: Any, name: str, module_name: str) -> None:
    module = importlib.import_module(f"undercast.cli.{module_name}")
    parser = Parser(description=module.__doc__)
    module.configure(parser)
    commands.add_subcommand(name, parser, help=(module.__doc__ or "").splitlines()[0])


def _module_of(args: Any) -> Any:
    name = COMMANDS.get(args.command)
    if name is None:
        name = GROUPS[args.command][1][args[args.command].subcommand]
    return importlib.import_module(f"undercast.cli.{name}")


def _arguments_of(args: Any) -> Any:
    found = args[args.command]
    return found if args.command in COMMANDS else found[found.subcommand]


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    _say(f"undercast: warning: {' '.join(str(message).split())}")
