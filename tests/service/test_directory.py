"""One directory, one service of a place; and what a service leaves there when it is told to end."""

import json
import signal

import numpy as np
import pytest

from ctr_trainer.embedding.service.client import ServiceClient
from ctr_trainer.embedding.service.local_service import LocalService
from ctr_trainer.embedding.service.security import ClientSecurity
from ctr_trainer.system.messages.errors import UserError
from tests.service.conftest import CONFIG, TIMEOUT, TOKEN, ones

pytestmark = pytest.mark.integration


class _Saving(LocalService):
    """A LocalService that saves at its exit, as `serve` does by itself."""

    more = ()

    def _command(self, *given):
        command = [part for part in super()._command(*given) if part != "--nosave_at_exit"]
        return [*command, *self.more]


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


def test_sigterm_saves_all_rows_and_restore_refuses_a_damaged_file(tmp_path, connect):
    with _Saving(tmp_path, tmp_path / "log", TIMEOUT, TOKEN) as service:
        client = connect([service.address])
        client.create_table(CONFIG)
        client.push("t", np.arange(1, 2000), ones(1999), "w", 1)
        expected = client.pull("t", np.arange(1, 2000))
        service._process.send_signal(signal.SIGTERM)
        assert service._process.wait(TIMEOUT) == 0
    path = tmp_path / "at-exit" / "shard-00000-of-00001"
    assert str(path) in (tmp_path / "log").read_text()
    assert [file["rows"] for file in json.loads((path / "manifest.json").read_text())["files"]] == [1999]

    _Saving.more = (f"--restore={path}",)
    try:
        with _Saving(tmp_path, tmp_path / "log", TIMEOUT, TOKEN) as service:
            client = connect([service.address])
            client.create_table(CONFIG)
            np.testing.assert_array_equal(client.pull("t", np.arange(1, 2000), missing="zeros"), expected)
        (path / "t-00000-of-00001.arrow").write_bytes(b"")
        with pytest.raises(UserError, match="ended with status 1(?s:.*)t-00000-of-00001.arrow: 0 bytes"):
            _Saving(tmp_path, tmp_path / "log", TIMEOUT, TOKEN)
    finally:
        _Saving.more = ()


def test_a_row_that_is_not_finite_is_not_saved_by_a_shard_either(start, connect, data_dir):
    client = connect([service.address for service in start(2)])
    client.create_table(CONFIG)
    for sequence in (1, 2):  # Each change is finite, their sum is not.
        client.push("t", np.arange(1, 9), np.full((8, 3), [0, 3e38, 0], np.float32), "w", sequence)
    with pytest.raises(UserError, match=r"table t, step 7: \d rows? (is|are) not finite, such as the row of key \d"):
        client.save(data_dir / "not_finite", 7)
    assert list((data_dir / "not_finite").iterdir()) == []
