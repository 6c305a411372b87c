"""Pools of threads that share torch's cores: each thread computes with a number of its own."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import torch

from undercast.errors import ConfigError


def start_pool(count: int, threads: int, name: str = "undercast") -> ThreadPoolExecutor:
    """A pool of `count` threads, each of which computes with `threads` of torch's own.

    They are running when this returns, and the caller's number is what it was.
    """
    if min(count, threads) < 1:  # in a thread of the pool it would leave the others waiting
        raise ConfigError(f"got {count} × {threads} threads, expected at least one each")
    before, ready = torch.get_num_threads(), threading.Barrier(count + 1)

    def begin() -> None:
        torch.get_num_threads()  # a thread takes over the global number when it first asks
        torch.set_num_threads(threads)
        ready.wait()

    pool = ThreadPoolExecutor(count, name, initializer=begin)
    for _ in range(count):
        pool.submit(int)
    ready.wait()
    torch.set_num_threads(before)  # threads of others that are born later inherit this
    return pool
