"""The process that delivers a spool: killed, restarted, ended with its parent."""

import os
import signal

import numpy as np
import pytest

from ctr_trainer.live.publication.delivery import start_delivery
from ctr_trainer.live.publication.places import open_reader
from ctr_trainer.live.publication.spool import DeliveryStatus, read_status
from ctr_trainer.settings.training_configs import RedisFiles
from tests.parallel.launch import wait_until
from tests.publication.published import Published

pytestmark = pytest.mark.integration
_SECONDS = 60


def await_delivery(is_delivered, what, process):
    wait_until(lambda: is_delivered() or process.ended(), what, _SECONDS)
    assert process.ended() is None, process.ended()


def test_a_killed_delivery_reports_how_it_ended_and_the_next_one_continues(tmp_path):
    spool, to, log = tmp_path / "spool", tmp_path / "to", tmp_path / "delivery.log"
    published = Published(spool)
    with start_delivery(spool, str(to), RedisFiles(), log) as process:
        # The delivery logs the base after it has recorded it.
        await_delivery(lambda: "delivered base 0" in log.read_text(), "the log line of base 0", process)
        os.kill(process.pid, signal.SIGKILL)
        wait_until(process.ended, "the end of the killed process", _SECONDS)
        assert "ended with status -9" in process.ended() and "delivered base 0" in process.ended()
    published.epoch([2, 30], [3])
    with start_delivery(spool, str(to), RedisFiles(), log) as process:
        await_delivery(lambda: (read_status(spool) or DeliveryStatus("")).epoch >= 1, "epoch 1", process)
    assert process.ended().startswith("its process ended with status 0")
    reader, keys = open_reader(to), np.arange(40)
    np.testing.assert_array_equal(reader.read("dim3", keys)[0], published.weights(keys))
    assert reader.record.generation == 1
    reader.close()
