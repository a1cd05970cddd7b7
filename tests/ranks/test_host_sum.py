"""The ranks are threads here; tests/parallel/test_dense_exchange.py has it between processes."""

import concurrent.futures
import os
import subprocess
import sys
import threading
import uuid

import numpy as np
import pytest

from ctr_trainer.ranks.host_sum import HostPeers, HostSum


def on_each(size, call, length=7, dtype=np.float32):
    """Returns [call(rank, HostSum of the rank)], called on all ranks concurrently."""
    barrier, name = threading.Barrier(size), uuid.uuid4().hex

    def rank(number):
        return call(number, HostSum(HostPeers(number, size, name, lambda: barrier.wait(60)), length, dtype))

    with concurrent.futures.ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(rank, number) for number in range(size)]
        return [future.result(timeout=60) for future in futures]


@pytest.mark.parametrize("size", (2, 3, 4))
def test_every_rank_gets_the_sum_of_all_again_and_again(size):
    def sums(rank, host_sum):
        return [host_sum(np.arange(7, dtype=np.float32) + 100 * rank + 1000 * step) for step in range(50)]

    found = on_each(size, sums)
    expected = [size * (np.arange(7) + 1000 * step) + 100 * sum(range(size)) for step in range(50)]
    for of_rank in found:
        np.testing.assert_array_equal(of_rank, expected)


def test_all_ranks_get_the_same_bits_of_sums_that_depend_on_their_order():
    values = np.random.default_rng(0).standard_normal((4, 1001)).astype(np.float32)
    found = on_each(4, lambda rank, host_sum: host_sum(values[rank]), length=1001)
    assert all(np.array_equal(found[0], of_rank) for of_rank in found)
    np.testing.assert_array_equal(found[0], ((values[0] + values[1]) + values[2]) + values[3])


def test_a_sums_result_stays_and_a_short_vector_is_summed():
    def two(rank, host_sum):
        first = host_sum(np.ones(7, np.float32))
        host_sum(np.zeros(7, np.float32))
        return first

    np.testing.assert_array_equal(on_each(2, two), np.full((2, 7), 2))
    found = on_each(3, lambda rank, host_sum: host_sum(np.full(1, rank + 1, np.float64)), length=1, dtype=np.float64)
    assert found == [[6.0]] * 3


def test_the_first_rank_gets_the_sum_and_all_get_its_result():
    def of_host(rank, host_sum):
        found = []
        for step in range(50):
            total = host_sum.to_first(np.full(7, rank + step + 1, np.float32))
            assert (total == (6 + 3 * step if rank == 0 else rank + step + 1)).all()
            found.append(host_sum.from_first(10 * total))
        return found

    np.testing.assert_array_equal(on_each(3, of_host), [[[60 + 30 * step] * 7 for step in range(50)]] * 3)
    (found,) = on_each(1, lambda rank, host_sum: host_sum.from_first(2 * host_sum.to_first(np.ones(7, np.float32))))
    np.testing.assert_array_equal(found, np.full(7, 2))


def test_a_rank_that_ends_is_named_by_those_that_wait_for_it():
    def end_or_wait(rank, host_sum):
        if rank == 1:
            return  # Its sockets close with it.
        with pytest.raises(ConnectionError, match="rank 1 has ended, and rank 0 waits"):
            while True:
                host_sum(np.zeros(7, np.float32))
        return

    on_each(2, end_or_wait)


STRANGER = """
import os, socket, sys
os.setuid(65534)
with socket.socket(socket.AF_UNIX) as stranger:
    stranger.settimeout(60)
    stranger.connect("\\0" + sys.argv[1])
    assert stranger.recv(1) == b"", "was not hung up on"
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_users_connection_is_not_taken_for_a_rank():
    barrier, name = threading.Barrier(2), uuid.uuid4().hex

    def meet(rank):
        barrier.wait(60)
        if rank == 1:  # Both listen now, and rank 1 has not connected yet: the stranger comes first.
            command = [sys.executable, "-c", STRANGER, f"ctr_trainer.{name}.0"]
            subprocess.run(command, check=True, timeout=60)

    def rank(number):
        made = HostSum(HostPeers(number, 2, name, lambda: meet(number)), 3, np.float32)
        return made(np.full(3, number + 1, np.float32))

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(rank, number) for number in (0, 1)]
        found = [future.result(timeout=60) for future in futures]
    np.testing.assert_array_equal(found, np.full((2, 3), 3))


def test_arrays_of_any_size_arrive_as_they_were_sent():
    sent = [np.arange(3), np.ones((0, 4), np.float32), np.arange(3 << 20, dtype=np.float32).reshape(-1, 4)]

    def first_receives(rank, host_sum):
        peers = host_sum._peers
        if rank:
            for array in sent:
                peers.send(0, rank * array)
            peers.hear([0])
            return []
        shapes = (np.int64,), (np.float32, 4), (np.float32, 4)
        found = [[peers.receive(other, *shape) for shape in shapes] for other in (1, 2)]
        peers.tell()
        return found

    for rank, received in enumerate(on_each(3, first_receives)[0], start=1):
        for array, expected in zip(received, sent, strict=True):
            np.testing.assert_array_equal(array, rank * expected)
            assert array.dtype == expected.dtype


def test_a_worker_that_ends_within_an_array_is_named():
    def end_or_wait(rank, host_sum):
        if rank:
            host_sum._peers._by_rank[0].sendall(np.int64(5).tobytes() + b"\0")
            host_sum._peers._by_rank[0].close()
            return
        with pytest.raises(ConnectionError, match="rank 1 has ended, and rank 0 waits for its part of a step"):
            host_sum._peers.receive(1, np.float32)

    on_each(2, end_or_wait)
