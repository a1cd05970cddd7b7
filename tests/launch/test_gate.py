"""Workers that wait until they may begin."""

import subprocess
import sys

from ctr_trainer.launch.worker import StartingGate
from tests.parallel import launch

_WAITING = "import sys; from ctr_trainer.launch.worker import wait_at; wait_at(sys.argv[1]); print('begins')"


def _waiting(gate):
    return subprocess.Popen(
        [sys.executable, "-c", _WAITING, gate.address],
        env=launch.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_workers_begin_when_the_gate_is_opened_also_those_that_come_later():
    gate = StartingGate()
    first = _waiting(gate)
    gate.open()
    assert first.communicate(timeout=60) == ("begins\n", "")
    assert _waiting(gate).communicate(timeout=60) == ("begins\n", "")
    gate.close()


def test_workers_end_with_a_gate_that_is_closed_before_or_while_they_wait():
    gate = StartingGate()
    waiting = _waiting(gate)
    gate._server.accept()[0].close()  # It has come; as when the process of the gate ends.
    assert waiting.communicate(timeout=60) == ("", "the launcher has ended\n")
    gate.close()
    late = _waiting(gate)
    assert late.communicate(timeout=60) == ("", "the launcher has ended\n")
    assert late.returncode == 1
