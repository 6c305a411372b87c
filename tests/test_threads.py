"""Threads that share torch's cores keep to their number, whatever they compute."""

from collections.abc import Iterator

import pytest
import torch

from undercast.errors import ConfigError
from undercast.threads import start_pool


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def number_after_work(_: int) -> int:
    x = torch.rand(300_000)
    torch.nn.functional.gelu(x @ x.sin())  # the first operations are where torch asks
    return torch.get_num_threads()


def test_a_thread_of_the_pool_keeps_its_number_and_the_caller_its_own() -> None:
    with start_pool(2, 1) as pool:
        assert list(pool.map(number_after_work, range(8))) == [1] * 8
        assert number_after_work(0) == 2
    with start_pool(1, 3) as pool:
        assert pool.submit(number_after_work, 0).result() == 3
    assert torch.get_num_threads() == 2


def test_no_threads_at_all_is_an_error_and_not_a_wait() -> None:
    with pytest.raises(ConfigError, match="at least one"):
        start_pool(2, 0)
