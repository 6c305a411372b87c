"""Images of any size for networks that halve them: padded by their edges, cropped afterwards."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def pad_to_multiple(x: Tensor, multiple: int, smallest: int = 0) -> Tensor:
    """(… h w) with its last rows and columns repeated up to a multiple, at least `smallest`.

    >>> import torch
    >>> pad_to_multiple(torch.ones(1, 2, 10, 16), 8).shape
    torch.Size([1, 2, 16, 16])
    """
    height, width = x.shape[-2:]
    bottom = max(-height % multiple, smallest - height)
    right = max(-width % multiple, smallest - width)
    if not bottom and not right:
        return x
    flat = x.reshape(-1, 1, height, width)
    padded = F.pad(flat, (0, right, 0, bottom), mode="replicate")
    return padded.reshape(*x.shape[:-2], height + bottom, width + right)


def crop_like(x: Tensor, image: Tensor) -> Tensor:
    """The top left part of x with the height and width of `image`: undoes `pad_to_multiple`."""
    return x[..., : image.shape[-2], : image.shape[-1]]
