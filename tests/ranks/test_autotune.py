"""Horovod's autotuning logs, as Horovod 0.28.1 wrote one in a job of two workers."""

import os

import pytest

from ctr_trainer.ranks import autotune
from ctr_trainer.system.messages.errors import UserError

LOG = """\
hierarchical_allreduce,hierarchical_allgather,torus_allreduce,cache_enabled,cycle_time_ms,tensor_fusion_threshold,score
0,0,0, 0,5,4,0.283008
0,0,0, 0,50,32,0.271294
0,0,0, 0,25,16,0.252956
0,0,0, 0,10,8,0.299223
0,0,0, 0,9.99932,7.99959,0.313688
0,0,0, 0,9.99871,7.99898,0.297112
0,0,0, 0,40.7052,0.720576,0.244348
0,0,0, 0,13.4635,2.66306,0.316827
"""


@pytest.fixture
def log(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("HOROVOD_")]:
        monkeypatch.delenv(name)
    path = tmp_path / "autotune.csv"
    path.write_text(LOG)
    return path


def test_a_later_run_takes_the_row_of_the_highest_score_without_a_search(log, monkeypatch):
    found = autotune.best_row(log)
    assert found == {
        "hierarchical_allreduce": 0,
        "hierarchical_allgather": 0,
        "torus_allreduce": 0,
        "cache_enabled": 0,
        "cycle_time_ms": 13.4635,
        "tensor_fusion_threshold": 2.66306,
        "score": 0.316827,
    }
    assert autotune.format_row(found) == "cycle time 13.4635 ms, fusion 2.66306 MB, cache off"
    environment = {"HOROVOD_CYCLE_TIME": "1"}
    monkeypatch.setattr(os, "environ", environment)
    assert autotune.prepare(False, str(log), "model") is None
    assert environment == {
        "HOROVOD_CYCLE_TIME": "13.4635",
        "HOROVOD_FUSION_THRESHOLD": "2792420",  # 2.66306 * 1024 * 1024, rounded down
        "HOROVOD_CACHE_CAPACITY": "0",
        "HOROVOD_HIERARCHICAL_ALLREDUCE": "0",
        "HOROVOD_HIERARCHICAL_ALLGATHER": "0",
        "HOROVOD_TORUS_ALLREDUCE": "0",
    }


def test_a_cache_that_is_on_keeps_its_capacity(log):
    (row,) = autotune.parse("\n".join([LOG.splitlines()[0], "1,0,0, 1,5,4,0.5"]))
    variables = autotune.environment_of(row)
    assert "HOROVOD_CACHE_CAPACITY" not in variables and variables["HOROVOD_HIERARCHICAL_ALLREDUCE"] == "1"
    assert autotune.format_row(row) == "cycle time 5 ms, fusion 4 MB, cache on, hierarchical allreduce"


def test_a_search_writes_where_it_was_told_but_over_no_other_file(tmp_path, monkeypatch):
    environment = {}
    monkeypatch.setattr(os, "environ", environment)
    assert autotune.prepare(True, "", str(tmp_path / "model")) == str(tmp_path / "model" / "autotune.csv")
    assert autotune.prepare(True, str(tmp_path / "a" / "b.csv"), "model") == str(tmp_path / "a" / "b.csv")
    assert environment == {"HOROVOD_AUTOTUNE": "1", "HOROVOD_AUTOTUNE_LOG": str(tmp_path / "a" / "b.csv")}
    assert (tmp_path / "a").is_dir()
    (tmp_path / "mine.csv").write_text("label,price\n1,2\n")
    with pytest.raises(UserError, match="mine.csv: exists already and was not written by `train`"):
        autotune.prepare(True, str(tmp_path / "mine.csv"), str(tmp_path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "autotune.csv: No such file"),
        (LOG.splitlines()[0], "has no row: the run with autotune had one worker, or was too short"),
        ("", "not a log of Horovod's autotuning"),
        ("a,b\n1,2\n", "its columns are"),
        (LOG.replace("0.299223", "fast"), "could not convert string to float: 'fast'"),
        (LOG.rpartition(",")[0], r"the number of values in line \d+ differs from the number of columns"),
    ],
)
def test_what_is_no_log_of_a_search_is_refused(log, text, message):
    log.unlink() if text is None else log.write_text(text)
    with pytest.raises(UserError, match=message):
        autotune.prepare(False, str(log), "model")
