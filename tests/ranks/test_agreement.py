import dataclasses
import threading

import numpy as np
import pytest

from ctr_trainer.commands.experiment.experiment import Experiment
from ctr_trainer.ranks import agreement, distributed
from ctr_trainer.ranks.agreement import Introduction
from ctr_trainer.ranks.notices import Notices, Placement
from ctr_trainer.settings.by_flag import alike
from ctr_trainer.system.messages.errors import UserError

RANKS = [
    Introduction(rank, f"host-{1 + rank // 2}", f"host-{1 + rank // 2}", f"machine {rank // 2}", "1.0", {})
    for rank in range(4)
]


def _changed(ranks, **values):
    """Returns `RANKS` with other values for some ranks."""
    return [dataclasses.replace(each, **values) if each.rank in ranks else each for each in RANKS]


def test_ranks_that_agree_are_one_job():
    assert agreement.fault(RANKS) == ""
    # Two names of one machine that cannot mean another one, as for a trial.
    one = [dataclasses.replace(each, host="a", machine="m") for each in RANKS]
    names = ["localhost", "localhost", "127.0.0.1", "127.0.0.1"]
    assert agreement.fault([dataclasses.replace(e, started_as=n) for e, n in zip(one, names, strict=True)]) == ""


@pytest.mark.parametrize(
    ("ranks", "values", "told"),
    [
        ((2, 3), {"package": "1.1"}, "versions of ctr_trainer: 1.0 on host-1 (ranks 0, 1), 1.1 on host-2 (ranks 2, 3)"),
        ((2, 3), {"host": "host-1", "machine": "machine 0"}, "the workers of host-1 and of host-2 all on host-1"),
    ],
)
def test_what_keeps_ranks_from_being_one_job_names_the_hosts(ranks, values, told):
    assert told in agreement.fault(_changed(ranks, **values))


def test_flags_that_differ_are_named_and_those_of_a_host_may_differ():
    ranks = [dataclasses.replace(each, flags={"seed": "1", "sync_steps": "30"}) for each in RANKS]
    ranks[3] = dataclasses.replace(ranks[3], flags={"seed": "1", "sync_steps": "10"})
    told = "sync_steps is 30 on host-1 (ranks 0, 1), 30 on host-2 (rank 2), 10 on host-2 (rank 3). Use"
    assert told in agreement.fault(ranks)
    found = alike(Experiment())
    assert found["sync_steps"] == "30"
    assert not {"threads", "log_format", "token_file", "service_ca"} & set(found)


def test_a_rank_of_another_version_is_told_whatever_it_says_of_itself():
    other = Introduction.parse('{"rank": 3, "host": "host-2", "package": "2.0", "colour": "blue"}')
    assert "2.0 on host-2 (rank 3)" in agreement.fault([*RANKS[:3], other])


def test_a_changed_source_is_another_version(tmp_path, monkeypatch):
    (tmp_path / "a.py").write_text("1")
    monkeypatch.setattr(agreement, "__file__", str(tmp_path / "ranks" / "agreement.py"))
    before = agreement.package_version()
    assert agreement.package_version() == before
    (tmp_path / "a.py").write_text("2")
    assert agreement.package_version() != before


def test_ranks_meet_and_all_are_told_what_is_wrong_at_each_meeting_anew(address):
    found, notices = {}, [Notices(address) for _ in range(3)]

    def meet(rank, flags):
        try:
            with agreement.meeting(notices[rank], Placement(rank, 3, range(3)), None, 60.0, flags) as first_ranks:
                found[rank] = first_ranks
        except UserError as error:
            found[rank] = str(error).partition(" on ")[0]

    told = "the ranks of this job have different settings: sync_steps is 30"
    # The processes meet again at each `init`, and must not read the settings of the one before.
    for steps, expected in (("30", [0]), ("10", told), ("30", [0])):
        ranks = [
            threading.Thread(target=meet, args=(rank, {"sync_steps": steps if rank else "30"})) for rank in (0, 1, 2)
        ]
        for thread in ranks:
            thread.start()
        for thread in ranks:
            thread.join(60)
        assert [found.pop(rank) for rank in range(3)] == 3 * [expected]


def test_hosts_whose_machines_are_unknown_are_not_one_machine(monkeypatch):
    told = []

    def all_gather(own, name):
        told.append(own)
        return np.concatenate(told)

    monkeypatch.setattr(distributed, "all_gather", all_gather)
    monkeypatch.setattr(distributed.hardware, "machine_id", lambda: "")
    for host, expected in (("a", True), ("a", True), ("b", False)):
        monkeypatch.setattr(distributed.socket, "gethostname", lambda host=host: host)
        assert distributed.is_one_machine() == expected
