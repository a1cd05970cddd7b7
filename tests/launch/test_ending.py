"""Why workers ended, and whether they are started again."""

import json
import logging
import sys
import time
import types

import pytest

from ctr_trainer.launch.output import Ending, Kind, Output
from ctr_trainer.launch.progress import Reached, Restart, Saved, add_to_summary, summary_stamp, where_it_resumes
from ctr_trainer.launch.supervisor import Patience
from ctr_trainer.ranks.last_words import LastWords
from ctr_trainer.ranks.liveness import Heartbeat
from ctr_trainer.ranks.notices import ATTEMPT, Notices, Placement
from ctr_trainer.system.measuring.clock import Clock
from ctr_trainer.system.messages import log_lines
from ctr_trainer.system.messages.errors import UserError

KILLED = "rank 1 on a has ended without an error message: it was killed"


def _ending(*lines, status=1):
    output = Output()
    for line in lines:
        output.take(line)
    return output.ending(status)


@pytest.mark.parametrize(
    ("lines", "ending"),
    [
        # horovodrun stops rank 0 because of rank 1.
        (
            [
                "Process 1 exit with status code 137.",
                "Terminating remaining workers after failure of Process 1.",
                f"[0]<stderr>:error: {KILLED}",
                "Process 0 exit with status code 143.",
            ],
            Ending(Kind.LOST, KILLED, 1),
        ),
        # Rank 0 notices before horovodrun does.
        (
            [
                f"[0]<stderr>:error: {KILLED}",
                "Process 0 exit with status code 75.",
                "Process 1 exit with status code 137.",
            ],
            Ending(Kind.LOST, KILLED, 1),
        ),
        # Nobody says anything.
        (["Process 2 exit with status code 139."], Ending(Kind.LOST, "rank 2 ended by SIGSEGV", 2)),
        (["Process 2 exit with status code 255."], Ending(Kind.LOST, "rank 2 ended with status 255", 2)),
        (
            [f"[3]<stderr>:{json.dumps({'level': 'ERROR', 'file': 'last_words.py', 'message': 'the service is gone'})}"]
            + ["Process 3 exit with status code 75."],
            Ending(Kind.LOST, "the service is gone"),
        ),
        (
            ["[1]<stderr>:error: data set x: no such directory", "Process 1 exit with status code 1."]
            + ["Process 0 exit with status code 143."],
            Ending(Kind.REFUSED, "data set x: no such directory", 1),
        ),
        (
            ["[0]<stderr>:error: KeyError: 'x'; its traceback is in f", "Process 0 exit with status code 70."],
            Ending(Kind.FAILED, "KeyError: 'x'; its traceback is in f", 0),
        ),
        (["ssh: no route"], Ending(Kind.LOST, "horovodrun ended with status 1: ssh: no route")),
        # Preempted: all ranks have stopped because one was asked to.
        (
            ["[0]<stderr>:stopped by SIGTERM to rank 1 after step 7; the checkpoint x is saved"]
            + ["Process 1 exit with status code 143.", "Process 0 exit with status code 143."],
            Ending(Kind.LOST, "stopped by SIGTERM to rank 1 after step 7; the checkpoint x is saved", 1),
        ),
        (["Process 0 exit with status code 143."], Ending(Kind.LOST, "rank 0 ended by SIGTERM", 0)),
    ],
)
def test_the_reason_is_that_of_the_first_that_ended_by_itself(lines, ending):
    assert _ending(*lines) == ending


def test_in_json_an_error_of_the_log_is_no_reason_and_the_last_words_are(capsys, monkeypatch):
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(log_lines._Json(0))
    monkeypatch.setattr(log_lines, "_installed", lambda: handler)
    handler.handle(
        logging.makeLogRecord({"levelname": "ERROR", "filename": "delivery.py", "msg": "it restarts in 1 s"})
    )
    LastWords(Notices(""), Placement(0, 1, range(1))).of(UserError("the service is gone"))
    logged, said = (f"[0]<stderr>:{line}" for line in capsys.readouterr().err.splitlines())
    killed = "Process 1 exit with status code 137."
    assert _ending(logged, killed) == Ending(Kind.LOST, "rank 1 ended by SIGKILL", 1)
    assert _ending(logged, said, killed) == _ending(said, logged, killed) == Ending(Kind.LOST, "the service is gone", 1)


def test_a_finished_training_has_no_reason_to_restart():
    assert _ending("[0]<stderr>:error: no matter", status=0).kind is Kind.FINISHED
    assert _ending("[0]<stdout>:Process 1 exit with status code 1.", "[0]<stderr>:{not JSON").kind is Kind.LOST
    assert _ending("[0]<stdout>:Process 1 exit with status code 1.").rank is None


def test_what_would_end_the_same_way_is_not_started_again():
    refused = Patience(5).why_not(Ending(Kind.REFUSED, "no such file"))
    assert refused == "Not restarted: the same flags and data would end the same way"
    patience, bug = Patience(5), Ending(Kind.FAILED, "KeyError: 'x'")
    assert not patience.why_not(bug)
    assert "ended with the same error" in patience.why_not(bug)
    patience.new_checkpoint()
    assert not patience.why_not(bug)
    assert not patience.why_not(Ending(Kind.FAILED, "KeyError: 'y'"))


def test_restarts_without_a_checkpoint_are_counted_and_pause_longer():
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


def test_heartbeats_count_by_the_start_of_their_workers_and_not_by_clocks(tmp_path, monkeypatch):
    now = time.time()
    for start, hours, trained in (("job.0", 1, 0), ("job.1", -1, 11)):  # The clock of the workers' host is set back.
        monkeypatch.setenv(ATTEMPT, start)
        monkeypatch.setattr("time.time", lambda hours=hours: now + 3600 * hours)
        clock = Clock()
        clock.step = 12
        clock.enter("session")
        heart = Heartbeat(tmp_path, 0, clock, period=60.0)
        reached = Reached(str(tmp_path), types.SimpleNamespace(name="job.1", workers=1, lost_at=None), Saved())
        reached.look()
        assert (reached.trained, reached.trains_for(-1.0)) == (trained, bool(trained))
        heart.close()
