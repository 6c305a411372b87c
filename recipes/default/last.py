"""Writes the last weights of a run that goes on or was stopped, for the next stage to begin with.

python recipes/default/last.py RUN --out RUN_last.safetensors
python recipes/default/last.py RUN --out RUN_own.safetensors             for the same twin alone
python recipes/default/last.py RUN TWIN --out RUN_mean.safetensors       the mean of several
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from package_choice import last_of, mean_of

from undercast.checkpoint import load_model, save_model
from undercast.weightfit import load_strictly


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+", help="folders of train.py")
    parser.add_argument(
        "--out", type=Path, required=True, help="…_last, …_own or …_mean.safetensors"
    )
    args = parser.parse_args()
    model = load_model(args.runs[0] / "best.safetensors")
    load_strictly(model.network, mean_of([last_of(run) for run in args.runs]), str(args.runs[0]))
    save_model(model, args.out)
    print(args.out)


if __name__ == "__main__":
    main()
