"""The model of `bench simulate`, by numbers worked out by hand."""

import dataclasses
import json

import pytest

from ctr_trainer.bench.capacity import Setup, predict
from ctr_trainer.bench.costs import Costs, read_costs
from ctr_trainer.system.messages.errors import UserError

# Only the compute costs anything; tests set what they are about. D(n) = 1000 sqrt(n).
BASE = Costs(
    batch_size=1000,
    step_seconds=0.006,
    host_seconds=0.004,
    deviation_seconds=0.0,
    lock_seconds=0.0,
    crowding=1.0,
    sharing=1.0,
    cores=2,
    rows=1000,
    growth=0.5,
    row_bytes=88,
    push_seconds=0.0,
    request_seconds=0.0,
    shard_push_seconds=0.0,
    shard_pull_seconds=0.0,
    shard_request_seconds=0.0,
    dense_bytes=1_000_000,
    state_bytes=2_000_000,
    hop_seconds=0.0,
    crowded_hop_seconds=0.0,
    link_bytes_per_sec=1e12,
    exchange_seconds=0.0,
    meeting_seconds=0.0,
    crowded_meeting_seconds=0.0,
    memory_bytes_per_sec=1e30,
)


def rate(setup, **costs):
    return predict(dataclasses.replace(BASE, **costs), setup).examples_per_sec


def test_a_lone_worker_takes_its_step_and_its_host_work_and_no_service():
    found = predict(dataclasses.replace(BASE, push_seconds=1.0, hop_seconds=1.0, shard_request_seconds=1.0), Setup(1))
    assert found.examples_per_sec == pytest.approx(1000 / 0.010)
    assert found.bottleneck == "worker"


def test_workers_beyond_the_cores_share_them():
    far = 0.05
    assert rate(Setup(2, cores=2)) == pytest.approx(200_000, rel=far)
    assert rate(Setup(4, cores=2)) == pytest.approx(200_000, rel=far)
    assert predict(BASE, Setup(4, cores=2)).bottleneck == "cores"


def test_busy_cores_slow_each_other_down_in_proportion():
    # Two of three cores: half way from 1 to 1.5.
    assert rate(Setup(2, cores=3, rows="shared"), crowding=1.5, cores=3) == pytest.approx(2 * 1000 / 0.0125, rel=1e-3)


def test_taking_turns_on_a_core_costs_in_proportion_up_to_two_workers_a_core():
    # Three workers on two cores: half of what sharing costs two a core, so 1.1 times 3 * 10 ms on 2 cores.
    for workers, factor in ((2, 1.0), (3, 1.1), (4, 1.2), (8, 1.2)):
        found = predict(dataclasses.replace(BASE, sharing=1.2), Setup(workers, cores=2, sync_steps=10**9))
        assert found.step_seconds == pytest.approx(factor * max(workers / 2, 1) * 0.010, rel=1e-3)


def test_where_workers_meet_a_step_ends_with_the_slowest():
    # The larger of two normal values is 0.59 deviations above their mean by Blom's formula, the largest of four 1.05.
    for setup, lateness in (
        (Setup(1, cores=4), 0.0),
        (Setup(2, cores=4, rows="shared"), 0.589),
        (Setup(4, cores=4, rows="shared"), 1.049),
        (Setup(4, cores=4, rows="shared", dense_sync_steps=100), 0.1049),
        (Setup(4, cores=2, rows="shared"), 0.589 * 2**0.5),
    ):
        found = predict(dataclasses.replace(BASE, deviation_seconds=0.001), setup)
        assert found.parts["slowest worker"] == pytest.approx(0.001 * lateness, rel=1e-3)
        assert found.step_seconds > found.parts["worker"] or lateness == 0


def test_an_allreduce_costs_its_hops_and_its_bytes_after_the_compute():
    # Four workers: 6 hops of 0.5 ms, and 1.5 MB by a link of 1 GB/s: 3 + 1.5 ms after 10 ms.
    setup = Setup(4, cores=4, rows="shared", in_memory=False)
    found = predict(dataclasses.replace(BASE, hop_seconds=0.0005, link_bytes_per_sec=1e9, cores=4), setup)
    assert found.step_seconds == pytest.approx(0.0145, rel=1e-3)
    # Averaging 2 MB every 10 steps instead: (3 + 3) / 10 ms a step.
    rare = dataclasses.replace(setup, dense_sync_steps=10)
    found = predict(dataclasses.replace(BASE, hop_seconds=0.0005, link_bytes_per_sec=1e9, cores=4), rare)
    assert found.step_seconds == pytest.approx(0.0106, rel=1e-3)


def test_in_the_memory_of_one_machine_an_exchange_costs_a_meeting_and_the_copies():
    # 0.2 ms and 1 MB at 2 GB/s after 10 ms; with four workers on two cores 0.6 ms and the copies of two a core.
    costs = dataclasses.replace(
        BASE, meeting_seconds=0.0002, crowded_meeting_seconds=0.0006, memory_bytes_per_sec=2e9, hop_seconds=1.0
    )
    assert predict(costs, Setup(2, cores=2, rows="shared")).step_seconds == pytest.approx(0.0107, rel=1e-3)
    assert predict(costs, Setup(4, cores=2, rows="shared")).step_seconds == pytest.approx(0.0216, rel=1e-3)
    rare = Setup(2, cores=2, rows="shared", dense_sync_steps=10)  # 0.02 ms, and 2 MB: 0.1 ms.
    assert predict(costs, rare).step_seconds == pytest.approx(0.01012, rel=1e-3)


def test_a_slow_network_between_machines_takes_over():
    # Two machines at 0.8 Gbit/s = 1e8 bytes/s: the ring sends 2 * 1/2 * 1e6 bytes in 10 ms.
    found = predict(BASE, Setup(2, machines=2, cores=1, rows="a:1", gbit=0.8))
    assert found.parts["exchange bytes"] == pytest.approx(0.010)
    assert found.step_seconds == pytest.approx(0.020)


def test_rows_of_a_window_are_sent_once_and_those_that_others_changed_come_back():
    # Two workers, N = 4: D(4) = 2000, D(8) = 2828.43. A step sends 500, checks 207.11, gets
    # back (4000 - 2828.43) / 4 = 292.89.
    # Up 500 * (12 + 88) + 207.11 * 12 = 52485.3; down 292.89 * 96 + 500 * 4 + 207.11 * 100 = 50828.4.
    found = predict(BASE, Setup(2, machines=2, cores=1, rows="a:1", sync_steps=4, gbit=8e-3))  # 1e6 bytes/s
    assert found.parts["worker network"] == pytest.approx(0.0524853, rel=1e-5)
    assert found.parts["service network"] == pytest.approx(2 * 0.0524853, rel=1e-5)


def test_the_service_is_the_limit_of_many_workers_and_shards_move_it():
    # 500 rows a step and worker at 2 us: 1 ms of a shard; 100 workers keep one busy for 100 ms, four for 25 ms.
    costs = dataclasses.replace(BASE, shard_push_seconds=2e-6)
    one = predict(costs, Setup(100, machines=100, rows="a:1", sync_steps=4))
    assert one.bottleneck == "service"
    assert one.step_seconds == pytest.approx(0.100)
    four = predict(costs, Setup(100, machines=100, rows="a:1", shards=4, sync_steps=4))
    assert four.step_seconds == pytest.approx(0.025)


def test_each_request_to_each_shard_costs_the_worker_and_the_shard():
    # N = 4, p = 2: 3/4 requests a step to each of 2 shards; of 1 ms each: 1.5 ms of a worker, 0.75 ms of a shard.
    costs = dataclasses.replace(BASE, request_seconds=0.001, shard_request_seconds=0.001)
    found = predict(costs, Setup(2, machines=2, rows="a:1,b:1", shards=2, sync_steps=4, prefetch_batches=2))
    assert found.parts["worker"] == pytest.approx(0.0115)
    assert found.parts["service"] == pytest.approx(2 * 0.00075)


def test_a_service_on_the_machine_takes_of_its_cores():
    # 500 rows at 4 us: 2 ms a worker's step. Two workers on two cores: (2 * 10 + 2 * 2) / 2 ms.
    costs, own = dataclasses.replace(BASE, shard_push_seconds=4e-6), Setup(2, cores=2, sync_steps=4, host_copies=False)
    found = predict(costs, own)
    assert found.step_seconds == pytest.approx(0.012, rel=1e-3)
    assert found.bottleneck == "cores"
    # One copy: D(8) = 2828.43 rows in 8 steps, 353.55 a step, 1.414 ms.
    found = predict(costs, dataclasses.replace(own, host_copies=True))
    assert found.step_seconds == pytest.approx(0.0114142, rel=1e-4)


def test_workers_of_a_machine_that_train_one_copy_send_a_row_that_several_stepped_once():
    # Two machines of two workers, N = 4: a window of 8 steps, D(8) = 2828.43, D(16) = 4000. A step sends 353.55, checks
    # 146.45, gets back (5656.85 - 4000) / 8 = 207.11. Up 353.55 * 100 + 146.45 * 12 = 37112.7; of a machine twice that.
    costs = dataclasses.replace(BASE, lock_seconds=0.002)
    found = predict(costs, Setup(4, machines=2, cores=2, rows="a:1", sync_steps=4, gbit=8e-3))  # 1e6 bytes/s
    assert found.parts["worker network"] == pytest.approx(2 * 0.0371127, rel=1e-5)
    assert found.parts["row lock"] == pytest.approx(2 * 0.002)


def test_a_lone_machine_that_trains_one_copy_checks_nothing_and_gets_nothing_back():
    # 353.55 * 100 bytes up and 353.55 * 4 down; a request in 8 steps, of 1 ms.
    costs = dataclasses.replace(BASE, request_seconds=0.001)
    found = predict(costs, Setup(2, cores=2, rows="a:1", sync_steps=4, gbit=8e-3))
    assert found.parts["worker network"] == pytest.approx(2 * 0.0353553, rel=1e-5)
    assert found.parts["worker"] == pytest.approx(0.010 + 0.001 / 8)


def test_workers_that_share_a_table_take_turns_at_its_update():
    found = predict(dataclasses.replace(BASE, lock_seconds=0.002), Setup(8, cores=8, rows="shared"))
    assert found.bottleneck == "row lock"
    # The 7 others hold it for 14 of 16 ms, so a worker waits 2 * 0.875 / (2 * 0.125) = 7 ms: 10 + 7 ms.
    assert found.step_seconds == pytest.approx(0.017)
    assert found.row_lock_share == pytest.approx(9 / 17)


def test_a_worker_waits_for_the_row_lock_as_in_a_queue():
    # The other worker holds it for 2 of 10 ms: 2 * 0.2 / (2 * 0.8) = 0.25 ms.
    costs = dataclasses.replace(BASE, lock_seconds=0.002)
    found = predict(costs, Setup(2, cores=2, rows="shared"))
    assert found.step_seconds == pytest.approx(0.01025)
    assert found.row_lock_share == pytest.approx(2.25 / 10.25)
    assert predict(costs, Setup(1, rows="shared")).row_lock_share == 0


def test_rows_of_one_machine_are_refused_for_several():
    with pytest.raises(UserError, match="--embedding_service=shared keeps the rows on one machine, and the job has 2"):
        Setup(4, machines=2, rows="shared")


def test_costs_survive_their_file(tmp_path):
    path = tmp_path / "costs.json"
    for written in (BASE.to_dict(), {"machine": {}, "costs": BASE.to_dict()}):
        path.write_text(json.dumps(written))
        assert read_costs(path) == BASE


@pytest.mark.parametrize(
    "change, message",
    [
        ({"step_seconds": None}, "step_seconds is None, expected a number above 0"),
        ({"cores": 0}, "cores is 0, expected a number above 0"),
        ({"crowding": 0.5}, "crowding is 0.5, expected a number at least 1"),
        ({"host_seconds": float("nan")}, "host_seconds is nan"),
        ({"growth": 1.5}, "growth is 1.5, expected at most 1"),
        ({"step_second": 1.0}, "has the unknown step_second"),
    ],
)
def test_a_wrong_cost_is_named(tmp_path, change, message):
    path = tmp_path / "costs.json"
    path.write_text(json.dumps({**BASE.to_dict(), **change}))
    with pytest.raises(UserError, match=message):
        read_costs(path)


def test_missing_costs_are_named(tmp_path):
    path = tmp_path / "costs.json"
    path.write_text("{}")
    with pytest.raises(UserError, match="lacks batch_size, step_seconds"):
        read_costs(path)
    with pytest.raises(UserError, match="No such file"):
        read_costs(tmp_path / "none.json")
