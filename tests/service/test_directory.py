"""One directory, one service of a place; and rows that are not saved there."""

import signal

import numpy as np
import pytest

from ctr_trainer.embedding.service.client import ServiceClient
from ctr_trainer.embedding.service.security import ClientSecurity
from ctr_trainer.system.messages.errors import UserError
from tests.service.conftest import CONFIG, TIMEOUT, TOKEN

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


def test_a_row_that_is_not_finite_is_not_saved_by_a_shard_either(start, connect, data_dir):
    client = connect([service.address for service in start(2)])
    client.create_table(CONFIG)
    for sequence in (1, 2):  # Each change is finite, their sum is not.
        client.push("t", np.arange(1, 9), np.full((8, 3), [0, 3e38, 0], np.float32), "w", sequence)
    with pytest.raises(UserError, match=r"table t, step 7: \d rows? (is|are) not finite, such as the row of key \d"):
        client.save(data_dir / "not_finite", 7)
    assert list((data_dir / "not_finite").iterdir()) == []
