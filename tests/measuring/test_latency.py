from ctr_trainer.system.measuring.latency import Latency


def _recorded(*microseconds):
    latency = Latency("PsPushGrad")
    for each in microseconds:
        latency.record(each)
    return latency


def test_what_two_processes_did_between_two_looks_is_added_up():
    first, second = _recorded(10, 10, 500), _recorded(20)
    before = [first.encoded(), second.encoded()]
    for microseconds in (10, 30, 40):
        first.record(microseconds)
    second.record(7_000)
    found = Latency.between("PsPushGrad", "2 shards", before, [first.encoded(), second.encoded()])
    figures = "count: 4  P50: 30  P95: 7003  P99: 7003  Max: 7003"  # The bucket of 7,000 ends at 7,003.
    assert found.status_line() == f"[RunStatus]: PsPushGrad statistics => {figures}, of 2 shards"
    assert Latency.between("PsPushGrad", "", before, before).percentiles()["count"] == 0
    # A shard that was restarted has done less than at the last look: all of it is new.
    assert Latency.between("PsPushGrad", "", [], [_recorded(5).encoded()]).percentiles()["count"] == 1
