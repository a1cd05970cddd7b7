"""What the start of the ranks leaves in the environment, which a notebook passes to the jobs that it starts."""

import os

from ctr_trainer.ranks import distributed


def test_the_start_of_one_worker_leaves_no_variable_of_horovod(monkeypatch):
    for name in [each for each in os.environ if each.startswith("HOROVOD_")]:
        monkeypatch.delenv(name)
    distributed.init(steps_exchange=False)
    assert [each for each in os.environ if each.startswith("HOROVOD_")] == []
