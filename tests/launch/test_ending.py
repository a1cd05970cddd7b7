"""Why workers ended, and whether they are started again."""

import json
import time
import types

import pytest

from ctr_trainer.launch.attempt import Ending, Kind, Output
from ctr_trainer.launch.progress import Reached, Restart, Saved, add_to_summary, summary_stamp, where_it_resumes
from ctr_trainer.launch.supervisor import Patience
from ctr_trainer.ranks.endings import records
from ctr_trainer.ranks.endings.records import EndRecord
from ctr_trainer.ranks.endings.states import StateFile
from ctr_trainer.ranks.notices import ATTEMPT
from ctr_trainer.system.measuring.clock import Clock

KILLED = "rank 1 on a has ended without an error message: it was killed"


def _record(rank, message, kind=records.RecordKind.CAUSE, status=75, writer=None, time=0.0):
    writer = rank if writer is None else writer
    return EndRecord(message, kind, status, time, rank, writer, "a", 7, True)


def _ending(exits, *written, status=1, more=()):
    output = Output()
    for line in (*(f"Process {rank} exit with status code {code}." for rank, code in exits), *more):
        output.take(line)
    return output.ending(status, written)


SIGNAL, OTHER = records.RecordKind.SIGNAL, records.RecordKind.OTHER_RANK
STOPPED = "stopped by SIGTERM to rank 1 after step 7; the checkpoint x is saved"


@pytest.mark.parametrize(
    ("exits", "written", "ending"),
    [
        # horovodrun stops rank 0 because of rank 1.
        (
            [(1, 137), (0, 143)],
            [_record(0, "stopped by SIGTERM", SIGNAL, 143), _record(1, KILLED, writer=0)],
            Ending(Kind.LOST, KILLED, 1),
        ),
        # No rank has a cause: rank 3 was killed on a host of its own.
        ([(0, 75), (3, 137)], [_record(0, "a connection", OTHER)], Ending(Kind.LOST, "rank 3 ended by SIGKILL", 3)),
        ([(2, 139)], [], Ending(Kind.LOST, "rank 2 ended by SIGSEGV", 2)),
        ([(2, 255)], [], Ending(Kind.LOST, "rank 2 ended with status 255", 2)),
        ([(3, 75)], [_record(3, "the service is gone")], Ending(Kind.LOST, "the service is gone")),
        # The earliest cause counts.
        (
            [(0, 1), (1, 70)],
            [_record(0, "no such file", status=1, time=2.0), _record(1, "KeyError: 'x'", status=70, time=1.0)],
            Ending(Kind.FAILED, "KeyError: 'x'", 1),
        ),
        ([(1, 1), (0, 143)], [_record(1, "no such file", status=1)], Ending(Kind.REFUSED, "no such file", 1)),
        # Preempted: all ranks have stopped because one was asked to.
        (
            [(1, 143), (0, 143)],
            [_record(rank, STOPPED, records.RecordKind.IN_ORDER, 143) for rank in (0, 1)],
            Ending(Kind.LOST, STOPPED),
        ),
        ([(0, 143)], [], Ending(Kind.LOST, "rank 0 ended by SIGTERM", 0)),
        ([], [], Ending(Kind.LOST, "horovodrun ended with status 1: it printed nothing")),
    ],
)
def test_the_reason_is_that_of_the_first_that_ended_by_itself(exits, written, ending):
    assert _ending(exits, *written) == ending


def test_a_finished_training_has_no_reason_and_lines_of_workers_do_not_count():
    assert _ending([], _record(0, "no matter"), status=0).kind is Kind.FINISHED
    more = ("[0]<stdout>:Process 1 exit with status code 1.", "ssh: no route")
    assert _ending([], more=more) == Ending(Kind.LOST, "horovodrun ended with status 1: ssh: no route")


def test_what_would_end_the_same_way_is_not_started_again():
    refused = Patience(5).why_not(Ending(Kind.REFUSED, "no such file"))
    assert refused == "Not restarted: the same flags and data would end the same way"
    patience, bug = Patience(5), Ending(Kind.FAILED, "KeyError: 'x'")
    assert not patience.why_not(bug)
    assert "ended with the same error" in patience.why_not(bug)
    patience.new_checkpoint()
    assert not patience.why_not(bug)
    assert not patience.why_not(Ending(Kind.FAILED, "KeyError: 'y'"))


def test_restarts_without_a_checkpoint_are_counted_and_pause_longer_each_time():
    patience, lost = Patience(2), Ending(Kind.LOST, KILLED, 1)
    assert not patience.why_not(lost)
    patience.new_checkpoint()
    assert not patience.why_not(lost)
    assert not patience.why_not(lost)
    assert patience.why_not(lost) == ("Not restarted: --max_restarts=2 restarts in a row produced no new checkpoint")
    patience, pauses = Patience(9), []
    for _ in range(7):
        assert not patience.why_not(lost)
        pauses.append(patience.pause_seconds)
    assert pauses == [0, 5, 10, 20, 40, 60, 60]
    patience.new_checkpoint()
    assert not patience.why_not(lost)
    assert patience.pause_seconds == 0


def test_a_restart_is_one_line_and_an_entry_of_the_summary(tmp_path):
    restart = Restart(KILLED + ".", "2026-01-31 12:00:00", 7.0, 3, 2, "a:2", 400, 37, 4.1)
    assert restart.line() == (
        f"{KILLED}. Lost 37 steps, 4.1 s of training; resuming from the checkpoint of step 400 with 2 workers on a:2, "
        "3 before"
    )
    add_to_summary(tmp_path, [restart], None)
    assert not list(tmp_path.iterdir())
    path = tmp_path / "train_summary.json"
    path.write_text('{"steps": 7}')
    add_to_summary(tmp_path, [restart], summary_stamp(tmp_path))  # It is of an earlier training.
    assert json.loads(path.read_text()) == {"steps": 7}
    add_to_summary(tmp_path, [restart], None)
    found = json.loads(path.read_text())
    assert found["steps"] == 7
    assert [(each["step"], each["steps_lost"], each["workers_before"]) for each in found["restarts"]] == [(400, 37, 3)]


def test_a_store_that_is_gone_ends_no_launcher(monkeypatch, caplog):
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    for name, value in (("ACCESS_KEY_ID", "test"), ("SECRET_ACCESS_KEY", "test"), ("EC2_METADATA_DISABLED", "true")):
        monkeypatch.setenv(f"AWS_{name}", value)
    gone = "s3://tests/model?endpoint_override=127.0.0.1:1&scheme=http"
    assert summary_stamp(gone) is None and Saved.newest(gone) is None
    add_to_summary(gone, [Restart(KILLED, "2026-01-31 12:00:00", 7.0, 3, 2, "a:2", None, 0, 0.0)], None)
    assert "cannot add the restarts to s3://tests/model/train_summary.json" in caplog.text
    assert where_it_resumes(gone).startswith(f"{gone} cannot be read now")


def test_states_count_by_the_start_of_their_workers_and_not_by_clocks(tmp_path, monkeypatch):
    now = time.time()
    for start, hours, trained in (("job.0", 1, 0), ("job.1", -1, 11)):  # The clock of the workers' host is set back.
        monkeypatch.setenv(ATTEMPT, start)
        clock = Clock()
        clock.step = 12
        clock.enter("session")
        with monkeypatch.context() as host:
            host.setattr("time.time", lambda hours=hours: now + 3600 * hours)
            file = StateFile(tmp_path, 0, clock, period=60.0)
        reached = Reached(str(tmp_path), types.SimpleNamespace(name="job.1", workers=1, lost_at=None), Saved())
        reached.look()
        assert (reached.trained, reached.trains_for(-1.0)) == (trained, bool(trained))
        file.close()
