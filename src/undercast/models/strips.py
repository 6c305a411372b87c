"""Row strips of an image, shared among threads: each thread walks down its own part.

Threads meet once for each pass over the image, not once for each operation, so a core that is busy
with something else holds up little, and each part stays in the cache of its own core. Strips and
the order of their sums depend on the image alone: the number of threads changes results by a
rounding at most, and most of them not at all.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from itertools import chain, pairwise
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from undercast.threads import start_pool

STRIP_PIXELS = 8192  # a strip of 256 channels is 8 MiB

Result = TypeVar("Result")
Bounds = list[tuple[int, int]]  # first and end row of strips, from top to bottom
Update = Callable[[int, int], None]  # brings rows a to b of an image up to date
Work = Callable[[int, int], Tensor | None]  # on rows a to b; tensors are summed over strips
WorkOnRows = Callable[[int, int, Tensor], Tensor | None]

gelu_into = torch.ops.aten.gelu.out  # exact (erf) GELU; both arrays must be contiguous

_kept = threading.local()  # arrays that outlive a call: fresh memory costs a tenth of the time
_FUSED = hasattr(torch.ops.mkldnn, "_linear_pointwise") and torch.backends.mkldnn.is_available()


class Strips:
    """Strips of images (h w+2 c) whose first and last column repeat the reflected ones."""

    def __init__(self, height: int, width: int, pixels: int = STRIP_PIXELS) -> None:
        self.height, self.width, self.pixels = height, width, height * width
        rows = max(2, pixels // width)
        self.bounds = [(a, min(a + rows, height)) for a in range(0, height, rows)]
        threads = min(torch.get_num_threads(), len(self.bounds))
        edges = [len(self.bounds) * i // threads for i in range(threads + 1)]
        self._parts = [self.bounds[a:b] for a, b in pairwise(edges)]
        self._scratch: dict[str, Tensor] = _kept.__dict__  # of the thread that asks
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> Strips:
        """Starts the other threads; each computes alone, and so does the caller in the block.

        A pool that outlived the call would be lost in a forked process.
        """
        self._before = torch.get_num_threads()
        if len(self._parts) > 1:
            self._pool = start_pool(len(self._parts) - 1, 1)
            torch.set_num_threads(1)
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
            torch.set_num_threads(self._before)

    @property
    def threads(self) -> int:
        """How many share the image."""
        return len(self._parts)

    def alone(self) -> Strips:
        """The same strips for one thread, with the same scratch arrays."""
        same = copy.copy(self)
        same._parts, same._pool = [self.bounds], None
        return same

    def together(self, tasks: Sequence[Callable[[], Result]]) -> list[Result]:
        """The results of as many tasks as there are threads, or fewer: the first one here."""
        inference = torch.is_inference_mode_enabled()

        def isolated(task: Callable[[], Result]) -> Result:  # modes belong to threads
            with torch.inference_mode(inference), torch.no_grad():
                return task()

        others = []
        if self._pool is not None:
            others = [self._pool.submit(isolated, task) for task in tasks[1:]]
        try:
            first = tasks[0]()
        finally:
            wait(others)
        return [first, *(other.result() for other in others)]

    def image(self, channels: int) -> Tensor:
        """An array for an image, not initialised."""
        return torch.empty(self.height, self.width + 2, channels)

    def scratch(self, name: str, channels: int) -> Tensor:
        """An array that all blocks and all later images use in turn, not initialised."""
        shape = (self.height, self.width + 2, channels)
        found = self._scratch.get(name)
        if found is None or found.shape != shape:
            found = self._scratch[name] = self.image(channels)
        return found

    def each(self, work: Work) -> Tensor:
        """Work on every strip; gives the float64 sum of what it returns."""

        return self._share(lambda part: [work(a, b) for a, b in part])

    def each_expanded(
        self, x: Tensor, weight: Tensor, bias: Tensor, update: Update, work: WorkOnRows
    ) -> Tensor:
        """Work on every strip of gelu(x·weight + bias), x brought up to date by `update` before.

        `work(a, b, rows)` gets rows a−1 to b, reflected above the image's first and below its last.
        """
        for part in self._parts[1:]:  # two threads need the rows on either side of an edge
            update(part[0][0] - 1, part[0][0] + 1)
        turned = weight.T.contiguous()

        def walk(part: Bounds) -> list[Tensor | None]:
            return [work(*strip) for strip in self._expanded(part, x, (turned, bias), update)]

        return self._share(walk)

    def _expanded(
        self, part: Bounds, x: Tensor, affine: tuple[Tensor, Tensor], update: Update
    ) -> Iterator[tuple[int, int, Tensor]]:
        """The strips of one part. Two rows of each are computed again: a copy would cost more."""
        start, stop = part[0][0], part[-1][1]
        fresh = (start + 1 if start else 0, stop - 1 if stop < self.height else stop)
        done = max(start - 1, 0)
        for a, b in part:
            first, until = max(a - 1, 0), min(b + 1, self.height)
            if (low := max(done, fresh[0])) < (high := min(until, fresh[1])):
                update(low, high)
            done = until
            above, below = [x[1:2]] if a == 0 else [], [x[b - 2 : b - 1]] if b == until else []
            rows = x[first:until]
            rows = torch.cat((*above, rows, *below)) if above or below else rows
            yield a, b, linear_gelu(flat(rows), *affine).view(len(rows), self.width + 2, -1)

    def _share(self, walk: Callable[[Bounds], list[Tensor | None]]) -> Tensor:
        found = self.together([partial(walk, part) for part in self._parts])
        return _total(chain.from_iterable(found))


class StripImage:
    """An image in pieces, one for each strip, so that what makes a strip need not be copied."""

    def __init__(self, strips: Strips) -> None:
        self._bounds = strips.bounds
        self._pieces: dict[int, Tensor] = {}

    def put(self, a: int, rows: Tensor) -> Tensor:
        """The strip (r w+2 c) that begins at row a, in place of what was there."""
        self._pieces[a] = rows
        return rows

    def strip(self, a: int) -> Tensor:
        """The strip that begins at row a."""
        return self._pieces[a]

    def rows(self, a: int, b: int) -> Iterator[tuple[int, int, Tensor]]:
        """Rows a to b, strip by strip: (first, end, pixels)."""
        for start, stop in self._bounds:
            low, high = max(a, start), min(b, stop)
            if low < high:
                yield low, high, self._pieces[start][low - start : high - start]


def _total(parts: Iterable[Tensor | None]) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for part in parts:
        if part is not None:
            total = total + part.double()
    return total


def flat(image: Tensor) -> Tensor:
    """(h w c) as (h·w c)."""
    return image.view(-1, image.shape[-1])


def linear(x: Tensor, weight: Tensor, bias: Tensor, then: str = "none") -> Tensor:
    """x·weightᵀ + bias of (n c), in one kernel where oneDNN has it: no copy of the bias before."""
    if not _FUSED or x.dtype != torch.float32:
        y = F.linear(x, weight, bias)
        return F.gelu(y) if then == "gelu" else y
    fused: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, then, [], "none")
    return fused


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """gelu(x·weightᵀ + bias) of (n c)."""
    return linear(x, weight, bias, "gelu")


def depthwise(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """3×3 depthwise convolution of (r+2 w+2 c) to (r w+2 c); its outer columns mean nothing."""
    out = F.conv2d(nchw(rows), weight, bias, padding=(0, 1), groups=rows.shape[-1])
    return out[0].permute(1, 2, 0)


def depthwise_gelu(rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The same, then GELU."""
    if not _FUSED:
        return F.gelu(depthwise(rows, weight, bias))
    out: Tensor = torch.ops.mkldnn._convolution_pointwise(
        nchw(rows), weight, bias, [0, 1], [1, 1], [1, 1], rows.shape[-1], "gelu", [], "none"
    )
    return out[0].permute(1, 2, 0)


def pixel_sum(image: Tensor) -> Tensor:
    """The sum over pixels of (r w+2 c), without the two repeated columns."""
    return flat(image).sum(0) - image[:, 0].sum(0) - image[:, -1].sum(0)


def pixel_sums(image: Tensor) -> Tensor:
    """(2 c): the sums of values and of squares."""
    return torch.stack((pixel_sum(image), pixel_sum(image.square())))


def reflect_columns(image: Tensor) -> None:
    """Fills the first and the last column of (r w+2 c)."""
    image[:, 0], image[:, -1] = image[:, 2], image[:, -3]


def nchw(image: Tensor) -> Tensor:
    """(1 c h w) in channels-last memory; the strides must say so for the fast kernels."""
    return image[None].permute(0, 3, 1, 2)
