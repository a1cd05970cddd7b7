"""One directory, one service of a place; and rows that are not saved there."""

import concurrent.futures
import contextlib
import os
import signal
import threading

import numpy as np
import pytest

from ctr_trainer.embedding.service import service as services
from ctr_trainer.embedding.service.client import ServiceClient
from ctr_trainer.embedding.service.security import ClientSecurity
from ctr_trainer.embedding.service.service import Service
from ctr_trainer.system.files.local_path import LocalPath
from ctr_trainer.system.messages.errors import UserError
from tests.parallel import launch
from tests.service.conftest import CONFIG, LEASE, TIMEOUT, TOKEN

pytestmark = pytest.mark.integration


def test_a_second_service_of_a_shard_on_one_directory_is_refused(start, connect):
    first, second = start(2, is_warm=False)
    connect([first.address])
    with pytest.raises(
        UserError, match=rf"another service \(process {first.pid} on host .*\) saves in .* as shard 0 of 1"
    ):
        connect([second.address])
    ServiceClient([second.address], TIMEOUT, ClientSecurity(TOKEN)).close()
    first._process.send_signal(signal.SIGKILL)
    first._process.wait(TIMEOUT)
    connect([second.address])


def test_a_client_waits_for_the_lock_of_a_killed_service(tmp_path, monkeypatch, caplog):
    free, hold = threading.Event(), LocalPath.hold
    monkeypatch.setattr(services, "_LOCK_ANSWER_SECONDS", 0.1)
    monkeypatch.setattr(LocalPath, "hold", lambda *given: free.wait(TIMEOUT) and hold(*given))
    with Service("127.0.0.1", 0, tmp_path) as service, concurrent.futures.ThreadPoolExecutor() as threads:
        client = threads.submit(ServiceClient, [f"127.0.0.1:{service.port}"], TIMEOUT, lease=LEASE)
        try:
            asked = f"was used by a service that saved in {tmp_path}: taking it over in"
            launch.wait_until(lambda: asked in caplog.text or client.done(), "the first answer", TIMEOUT)
        finally:
            free.set()
        with contextlib.closing(client.result(TIMEOUT)) as client:
            client.create_table(CONFIG)
        assert len(os.listdir(tmp_path)) == 1
        service.leave_directory()
        assert os.listdir(tmp_path) == []


def test_a_row_that_is_not_finite_is_not_saved_by_a_shard_either(start, connect, data_dir):
    client = connect([service.address for service in start(2)])
    client.create_table(CONFIG)
    for sequence in (1, 2):  # Each change is finite, their sum is not.
        client.sync("t", np.arange(1, 9), np.full((8, 3), [0, 3e38, 0], np.float32), "w", sequence)
    with pytest.raises(UserError, match=r"table t, step 7: the row of key \d is not finite"):
        client.save(data_dir / "not_finite", 7)
    assert list((data_dir / "not_finite").iterdir()) == []
