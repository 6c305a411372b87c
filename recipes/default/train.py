"""Trains the packaged weights; the same command again resumes.

Crops are `crop` pixels and the attention grid crop/8 cells, so that a cell is 8 pixels as in a
scene tile of 256 pixels with the paper's grid of 32, which the saved weights have.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from backgrounds import (
    series_cases,
    training_backgrounds,
    triplet_cases,
    without_pairs_of,
)
from mix import Cases, Mix
from package_choice import whole

from undercast.checkpoint import load_model, save_model
from undercast.train import TrainConfig, train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pool", type=Path, required=True)
    parser.add_argument("--real", type=Path, required=True)
    parser.add_argument("--out", default="runs/default")
    parser.add_argument("--epochs", type=int, default=28)
    parser.add_argument("--steps", type=int, default=100, help="of an epoch")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--crop", type=int, default=64)
    parser.add_argument("--dates", type=int, default=5, help="at most")
    parser.add_argument("--decay", type=float, default=0.89)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--optimiser", default="muon", choices=("adam", "muon"))
    parser.add_argument("--average", type=float, default=0.995, help="of the weights; 0: none")
    parser.add_argument("--beta", type=float, default=0.0, help="of beta_nll; 0: the likelihood")
    parser.add_argument("--images", type=float, default=0.0,
                        help="with --beta: weight of the images' own likelihood")  # fmt: skip
    parser.add_argument("--frozen", action="store_true",
                        help="batch norms keep the statistics of --start")  # fmt: skip
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", default=None, help="weights to go on from")
    parser.add_argument("--compile", action="store_true", help="torch.compile the network")
    parser.add_argument("--bf16", action="store_true", help="where the processor computes in it")
    args = parser.parse_args()
    if args.images and not args.beta:
        parser.error("got --images without --beta, expected both")
    backgrounds = without_pairs_of(training_backgrounds(args.real), args.seed)
    training = Mix(args.pool, backgrounds, args.crop, args.dates,
                   args.steps * args.batch, args.seed, args.batch)  # fmt: skip
    chosen = series_cases(args.real, "select") + triplet_cases(args.real, "select")
    config = TrainConfig(
        model={"attention_grid": args.crop // 8},
        out=args.out,
        epochs=args.epochs,
        batch_size=args.batch,
        decay=args.decay,
        lr=args.lr,
        loss="beta_nll" if args.beta else "gaussian_nll",
        loss_options=loss_options(args.beta, args.images),
        optimiser=args.optimiser,
        average=args.average or None,
        frozen_norms=args.frozen,
        clip_grad=5.0,
        t=args.dates,
        sar_dropout=0.25,
        nodata="skip",
        seed=args.seed,
        start=args.start,
        workers=1,
        compile=args.compile,
        precision="bf16" if args.bf16 else "fp32",
        save_every=50,
    )
    best = train(config, (training, Cases(chosen, args.crop, 10)))
    finish(best, Path(args.out) / "default.safetensors")


def loss_options(beta: float, images: float) -> dict[str, float]:
    """Those of beta_nll, without what is 0."""
    return {key: value for key, value in (("beta", beta), ("images", images)) if value}


def finish(best: Path, out: Path) -> None:
    """The best weights as they are packaged."""
    trained = load_model(best)
    model = whole(trained.network.state_dict(), str(best))
    model.provenance = trained.provenance
    save_model(model, out)
    print(out)


if __name__ == "__main__":
    main()
