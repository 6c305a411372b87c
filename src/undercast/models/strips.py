"""Row strips of an image, shared among threads: each thread walks down its own part.

Threads meet once for each pass over the image, not once for each operation, so a core that is busy
with something else holds up little, and each part stays in the cache of its own core.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import torch
from torch import Tensor

STRIP_PIXELS = 8192  # a strip of 256 channels is 8 MiB
MIN_ROWS = 8  # of a thread's part

Update = Callable[[int, int], None]  # brings rows a to b of an image up to date
Work = Callable[[int, int], Tensor | None]  # on rows a to b; tensors are summed over strips
WorkOnRows = Callable[[int, int, Tensor], Tensor | None]

gelu_into = torch.ops.aten.gelu.out  # exact (erf) GELU; both arrays must be contiguous


class Strips:
    """Strips of images (h w+2 c) whose first and last column repeat the reflected ones."""

    def __init__(self, height: int, width: int, pixels: int = STRIP_PIXELS) -> None:
        self.height, self.width, self.pixels = height, width, height * width
        self.rows = max(2, pixels // width)
        count = max(1, min(torch.get_num_threads(), height // MIN_ROWS))
        edges = [height * i // count for i in range(count + 1)]
        self.parts = list(pairwise(edges))
        self._scratch: dict[str, Tensor] = {}
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> Strips:
        """Starts the threads, each of which computes alone; they are gone after the block.

        A pool that outlived the call would be lost in a forked process.
        """
        if len(self.parts) > 1:
            threads, ready = torch.get_num_threads(), threading.Barrier(len(self.parts) + 1)

            def alone() -> None:
                torch.set_num_threads(1)
                ready.wait()

            self._pool = ThreadPoolExecutor(len(self.parts), initializer=alone)
            for _ in self.parts:
                self._pool.submit(int)
            ready.wait()
            torch.set_num_threads(threads)  # threads of others that are born later inherit this
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def image(self, channels: int, rows: int | None = None) -> Tensor:
        """An array for an image, not initialised."""
        return torch.empty(rows or self.height, self.width + 2, channels)

    def scratch(self, name: str, channels: int, rows: int | None = None) -> Tensor:
        """An array that all blocks use in turn: fresh memory costs a tenth of the time."""
        if name not in self._scratch:
            self._scratch[name] = self.image(channels, rows)
        return self._scratch[name]

    def each(self, work: Work) -> Tensor:
        """Work on every strip; gives the float64 sum of what it returns."""

        def walk(start: int, stop: int) -> Tensor:
            return _total(work(a, b) for a, b in self._within(start, stop))

        return self._share(walk)

    def each_expanded(
        self, x: Tensor, weight: Tensor, bias: Tensor, update: Update, work: WorkOnRows
    ) -> Tensor:
        """Work on every strip of gelu(x·weight + bias), x brought up to date by `update` before.

        `work(a, b, rows)` gets rows a−1 to b, reflected above the image's first and below its last.
        """
        for start, _ in self.parts[1:]:  # two threads need the rows on either side of an edge
            update(start - 1, start + 1)
        for index, _ in enumerate(self.parts):
            self.scratch(f"ring {index}", weight.shape[1], self.rows + 2)

        def walk(start: int, stop: int) -> Tensor:
            ring = self._scratch[f"ring {self.parts.index((start, stop))}"]
            rows = self._expanded(ring, (start, stop), x, (weight, bias), update)
            return _total(work(*strip) for strip in rows)

        return self._share(walk)

    def _expanded(
        self,
        ring: Tensor,
        part: tuple[int, int],
        x: Tensor,
        affine: tuple[Tensor, Tensor],
        update: Update,
    ) -> Iterator[tuple[int, int, Tensor]]:
        """The strips of one part. Rows a−1 and a come with the strip before, so they are kept."""
        start, stop = part
        weight, bias = affine
        fresh = (start + 1 if start else 0, stop - 1 if stop < self.height else stop)
        done = max(start - 1, 0)
        for a, b in self._within(start, stop):  # row 0 of the ring is row a − 1
            until = min(b + 1, self.height)
            if a > start:
                ring[:2] = ring[self.rows :].clone()
            if done < until:
                if (low := max(done, fresh[0])) < (high := min(until, fresh[1])):
                    update(low, high)
                new = flat(ring[done - a + 1 : until - a + 1])
                torch.addmm(bias, flat(x[done:until]), weight, out=new)
                gelu_into(new, out=new)
            if a == 0:
                ring[0] = ring[2]
            if b == self.height:
                ring[b - a + 1] = ring[b - a - 1]
            yield a, b, ring[: b - a + 2]
            done = until

    def _within(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        for a in range(start, stop, self.rows):
            yield a, min(a + self.rows, stop)

    def _share(self, walk: Callable[[int, int], Tensor]) -> Tensor:
        if self._pool is None:
            return _total(walk(*part) for part in self.parts)
        inference = torch.is_inference_mode_enabled()

        def isolated(part: tuple[int, int]) -> Tensor:  # modes belong to threads
            with torch.inference_mode(inference), torch.no_grad():
                return walk(*part)

        return _total(self._pool.map(isolated, self.parts))


def _total(parts: Iterator[Tensor | None]) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for part in parts:
        if part is not None:
            total = total + part.double()
    return total


def flat(image: Tensor) -> Tensor:
    """(h w c) as (h·w c)."""
    return image.view(-1, image.shape[-1])


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
