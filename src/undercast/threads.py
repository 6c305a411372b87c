"""Pools of threads that share torch's cores: each thread computes with a number of its own."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import torch


def start_pool(shares: list[int], name: str = "undercast") -> ThreadPoolExecutor:
    """One thread for each share, which computes with that many of torch's threads.

    They are running when this returns, and the caller's own number is what it was.
    """
    before, left = torch.get_num_threads(), list(shares)
    ready = threading.Barrier(len(shares) + 1)

    def begin() -> None:
        torch.get_num_threads()  # a thread takes over the global number when it first asks
        torch.set_num_threads(left.pop())
        ready.wait()

    pool = ThreadPoolExecutor(len(shares), name, initializer=begin)
    for _ in shares:
        pool.submit(int)
    ready.wait()
    torch.set_num_threads(before)  # threads of others that are born later inherit this
    return pool


def shares(threads: int, count: int) -> list[int]:
    """The threads of each of `count` workers, one at least.

    >>> shares(2, 2), shares(5, 2), shares(1, 2)
    ([1, 1], [2, 3], [1, 1])
    """
    return [max(1, threads * (i + 1) // count - threads * i // count) for i in range(count)]
