"""The process that delivers a spool: killed, restarted, ended with its parent."""

import contextlib
import os
import signal

import pytest

from ctr_trainer.live.publication.delivery import DeliverySupervisor, start_delivery
from ctr_trainer.live.publication.spool import read_status
from ctr_trainer.settings.training_configs import RedisFiles
from tests.parallel.launch import wait_until
from tests.publication.published import Published, assert_there

pytestmark = pytest.mark.integration
_SECONDS = 60


def test_a_killed_delivery_is_reported_and_restarted_and_continues(tmp_path, caplog):
    spool, to, log, now = tmp_path / "spool", tmp_path / "to", tmp_path / "delivery.log", [0.0]
    published, started = Published(spool), []

    def start():
        started.append(start_delivery(spool, str(to), RedisFiles(), log))
        return started[-1]

    with contextlib.closing(DeliverySupervisor(start, lambda: now[0])) as keeper:
        keeper.keep()
        # The delivery logs the base after it has recorded it.
        wait_until(lambda: started[0].ended() or "delivered base 0" in log.read_text(), "the base", _SECONDS)
        os.kill(started[0].pid, signal.SIGKILL)
        wait_until(started[0].ended, "the end of the killed process", _SECONDS)
        keeper.keep()
        said = caplog.text
        assert "has ended and is restarted: its process ended with status -9" in said and "delivered base 0" in said
        assert len(started) == 1
        published.epoch([2, 30], [3])
        now[0] = 11.0
        keeper.keep()
        wait_until(lambda: started[1].ended() or read_status(spool).epoch == 1, "the epoch", _SECONDS)
    assert started[1].ended().startswith("its process ended with status 0")
    assert_there(to, published, generation=1)
