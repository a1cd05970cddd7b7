"""The records that the ranks of two hosts exchange when they end, on a real server of notices."""

import dataclasses
import socket
import subprocess
import sys
import threading

import pytest

from ctr_trainer.ranks.endings.records import EndRecord, RecordExchange, RecordKind
from ctr_trainer.ranks.notices import Notices, Placement


@pytest.fixture
def other_host(address):
    """The `RecordExchange` of rank 1 on another host than horovodrun, whose neighbour, rank 2, was killed."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    Notices(address).put("process.2", f"{ended.pid} {socket.gethostname()}")
    return RecordExchange(Notices(address), Placement(1, 3, range(1, 3)))


def _lost(rank, is_here):
    """Returns the record of a rank that has lost the connection to another one."""
    return dataclasses.replace(EndRecord.new("lost", RecordKind.OTHER_RANK, 75, rank, is_here), writer=rank)


def test_a_killed_rank_is_reported_at_horovodrun_even_if_the_rank_there_is_late(address, other_host):
    first = RecordExchange(Notices(address), Placement(0, 3, range(1)))
    late = threading.Timer(1.0, first.put, [_lost(0, is_here=True)])
    late.start()
    records = {record.rank: record for record in other_host.all(_lost(1, is_here=False))}
    late.join()
    assert set(records) == {0, 1, 2}
    assert records[2].is_of_killed and records[2].kind is RecordKind.CAUSE


def test_a_killed_rank_is_known_to_the_others_without_a_rank_at_horovodrun(other_host):
    records = {record.rank: record for record in other_host.all(_lost(1, is_here=False))}
    assert set(records) == {1, 2} and records[2].is_of_killed
