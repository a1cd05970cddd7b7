import functools
import logging
import os

import pytest

from ctr_trainer.ranks import distributed
from ctr_trainer.ranks.endings import report
from ctr_trainer.system.processes import waiting as watchdogs
from ctr_trainer.system.processes.waiting import Watchdog


def test_rank_0_may_work_for_as_long_as_it_advances_and_no_longer(monkeypatch, caplog):
    distributed.init()
    caplog.set_level(logging.INFO)
    now, ended = [0.0], []
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr(logging, "shutdown", lambda: None)
    monkeypatch.setattr(watchdogs.time, "monotonic", lambda: now[0])
    dog = Watchdog("rank 0", timeout=100.0, period=86400.0)  # It looks only when it is told to.
    monkeypatch.setattr(distributed, "_watchdog", dog)

    def work(advanced):
        for _ in range(3):
            now[0] += 90.0
            dog._look()
            advanced("a part")
        assert not ended
        now[0] += 110.0
        dog._look()
        return 7

    assert distributed.from_chief(work, "standstill") == 7
    assert ended == [75]
    assert "rank 0 has waited 110 s for its own work in standstill, longer than" in caplog.text
    assert "a part" in caplog.text  # Of each 25 s.


@pytest.mark.parametrize("is_command", [False, True])
def test_a_lone_worker_may_stand_in_a_debugger_unless_it_is_a_command(monkeypatch, caplog, is_command):
    now, ended = [0.0], []
    monkeypatch.setattr(report, "has_run", lambda: is_command)
    monkeypatch.setattr(report, "_of_this_process", functools.cache(report.EndReport))
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr(logging, "shutdown", lambda: None)
    monkeypatch.setattr(watchdogs.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(distributed, "_watchdog", None)
    distributed.init(stall_timeout=100.0, stall_warning=60.0)
    with distributed.watchdog().waiting("step 8"):
        now[0] = 101.0
        distributed.watchdog()._look()
    distributed.watchdog().close()
    if is_command:
        assert set(ended) == {75}
    else:
        assert not ended
        assert set(caplog.messages) == {"rank 0 has waited 101 s for step 8"}  # Of the thread, too.
