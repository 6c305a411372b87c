"""Weights whose first norm leaves every image as bright as it is, for the next stage to begin with.

python recipes/default/anchor.py WEIGHTS --pool POOL --real DIR --out RUN_anchored.safetensors

The encoder of the paper begins with a group norm, which takes the mean and the spread of each image
away, and with them how bright it is as a whole: the rest of the network has to guess that back, and
is wrong by a tenth over bright land. Two channels of each group, those of least effect, become
anchors: large constants of either sign, so that the spread of the group is theirs whatever the
image, and carrying what the other channels sum up to with the opposite sign, so that its mean is a
constant. The norm is then one linear map for all images, on average the one that it was. Layers and
their sizes stay as they are.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
from backgrounds import training_backgrounds
from mix import Mix
from torch import Tensor, nn

from undercast import Stack
from undercast.checkpoint import load_model, save_model
from undercast.models.system import batch_of
from undercast.models.uncrtaints import UnCRtainTS

REACH = 12.0  # spread of a group with anchors, relative to that without
SAMPLES, SEED = 120, 5  # of the mix, for what the norm does on average


@torch.no_grad()
def anchor(network: UnCRtainTS, stacks: Iterable[Stack]) -> None:
    """Change the weights of the embedding and of its norm; stacks: what is to be trained on."""
    embed, norm = network.embed, network.embed_norm
    images = _embedded(network, stacks)
    means, spreads = _statistics(images, norm)
    mean, spread = means.mean(dim=0), 1 / (1 / spreads).mean(dim=0)  # it is divided by
    shown = torch.cat([torch.relu(norm(image)).transpose(0, 1).flatten(1) for image in images], 1)
    effect = shown.std(dim=1) * network.encoder[0].expand.weight.flatten(1).norm(dim=0)
    for group, channels in enumerate(torch.arange(len(effect)).chunk(norm.num_groups)):
        ranked = channels[effect[channels].argsort()]
        anchors, others = ranked[:2], ranked[2:]
        height = REACH * float(spread[group]) * (len(channels) / 2) ** 0.5
        embed.weight[anchors] = -embed.weight[others].sum(dim=0) / 2
        embed.bias[anchors] = torch.tensor([height, -height])
        norm.bias[others] += norm.weight[others] * (
            (embed.bias[channels].mean() - mean[group]) / spread[group]
        )
        norm.weight[anchors], norm.bias[anchors] = 0.0, shown[anchors].mean(dim=1)
    wider = _statistics(_embedded(network, stacks), norm)[1].mean(dim=0)
    norm.weight *= (wider / spread).repeat_interleave(len(effect) // norm.num_groups)


def _embedded(network: UnCRtainTS, stacks: Iterable[Stack]) -> list[Tensor]:
    """What the norm is given, of each stack."""
    found: list[Tensor] = []
    hook = network.embed.register_forward_hook(lambda *call: found.append(call[2]))
    network.eval()
    for stack in stacks:
        network(batch_of([stack]))
    hook.remove()
    return found


def _statistics(images: list[Tensor], norm: nn.GroupNorm) -> tuple[Tensor, Tensor]:
    """Mean and spread of each group (images, groups), as the norm takes them away."""
    rows = torch.cat([image.unflatten(1, (norm.num_groups, -1)).flatten(2) for image in images])
    return rows.mean(dim=2), rows.std(dim=2, correction=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("weights")
    parser.add_argument("--pool", type=Path, required=True)
    parser.add_argument("--real", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="…_anchored.safetensors")
    args = parser.parse_args()
    mix = Mix(args.pool, training_backgrounds(args.real), 64, 5, SAMPLES, SEED)
    model = load_model(args.weights)
    assert isinstance(model.network, UnCRtainTS)
    anchor(model.network, [mix[number].stack for number in range(SAMPLES)])
    model.calibration = None  # fitted to other weights
    save_model(model, args.out)
    print(args.out)


if __name__ == "__main__":
    main()
