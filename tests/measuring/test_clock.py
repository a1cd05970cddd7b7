"""The clock of a training, the table of its phases, percentiles of latencies, and the memory of processes and GPUs."""

import sys
import types

import numpy as np
import pytest
from hdrh.histogram import HdrHistogram

from ctr_trainer.embedding.store.local_store import LocalStore
from ctr_trainer.estimator.hooks.measuring_hooks import MachineHook
from ctr_trainer.system.measuring import clock as clocks
from ctr_trainer.system.measuring.clock import PHASES, STEP_TITLES, TABLE, Clock
from ctr_trainer.system.measuring.latency import Latency, no_gpu, open_gpu, resident_bytes
from tests.hooks.test_hooks import _run


@pytest.fixture
def time(monkeypatch):
    """A time that stands where the test puts it."""
    found = types.SimpleNamespace(now=100.0)
    monkeypatch.setattr(clocks, "time", types.SimpleNamespace(perf_counter=lambda: found.now, time=lambda: 1e9))
    return found


def test_a_phase_within_another_pauses_it_and_all_add_up(time):
    clock = Clock()
    time.now = 103.0
    with clock.within("session"):
        time.now = 104.0
        with clock.within("read"):
            time.now = 106.0
        time.now = 110.0
        assert clock.lasted() == 4.0
    time.now = 111.0
    clock.enter("hooks")
    spent = {phase: seconds for phase, seconds in clock.seconds.items() if seconds}
    assert spent == {"start": 3.0 + 1.0, "session": 1.0 + 4.0, "read": 2.0}
    assert (clock.phase, clock.began) == ("hooks", 111.0)
    assert clock.last["read"] == (104.0, 106.0) and clock.last["session"] == (106.0, 110.0)


def test_the_time_of_training_is_without_the_start_and_evaluations(time):
    clock = Clock()
    time.now = 130.0
    assert clock.training_seconds() == 0.0
    clock.enter("session")
    time.now = 134.0
    assert clock.training_seconds() == 4.0
    with clock.within("evaluation"):
        time.now = 150.0
        assert clock.training_seconds() == 4.0
    time.now = 151.0
    assert clock.training_seconds() == 5.0


def test_spans_see_each_change_also_by_an_error(time):
    clock = Clock()
    clock.spans = []
    time.now = 101.0
    with pytest.raises(KeyError), clock.within("checkpoint"):
        time.now = 103.0
        raise KeyError
    assert clock.spans == [("start", 100.0, 101.0), ("checkpoint", 101.0, 103.0)] and clock.phase == "start"
    assert clocks.since_1970(99.0) == 1e9 - 4.0  # As TensorFlow's traces count.


def test_percentiles_are_of_the_stretches_of_the_phases_that_have_a_log_name(time):
    clock = Clock()
    for _ in range(2):
        for phase in PHASES:
            with clock.within(phase):
                time.now += 0.001
    recorded = {latency.name: latency.count for latency in clock.latencies}
    assert recorded == {phase.log_name: 2 for phase in PHASES.values() if phase.log_name}
    assert all(latency.percentiles()["Max"] == pytest.approx(1000, rel=0.01) for latency in clock.latencies)


def test_the_names_in_logs_tables_and_traces_stay():
    assert [(phase.log_name, phase.operation) for phase in TABLE if phase.log_name] == [
        ("StepReadWait", "OpsReadSample"),
        ("StepLookup", "OpsEmbeddingLookup"),
        ("StepRowUpdate", "OpsPushGrad"),
        ("StepSyncWait", "OpsParameterSync"),
    ]
    assert list(STEP_TITLES) == [
        *("read_sample", "embedding_lookup", "input_to_device", "forward", "loss", "backward", "exchange"),
        *("dense_update", "push", "sync", "dense_sync", "hooks", "checkpoint", "evaluation"),
    ]
    assert all(phase.step_name == phase.name for phase in TABLE if phase.in_graph)


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


def test_percentiles_follow_the_histogram_and_a_reset_forgets_all():
    latency, histogram = Latency("OpsPushGrad"), HdrHistogram(1, 3_600_000_000, 3)
    for each in np.random.default_rng(3).lognormal(8, 3, 200).astype(int):
        latency.record(each)
        histogram.record_value(max(int(each), 1))
        percentiles = {f"P{number}": histogram.get_value_at_percentile(number) for number in (50, 95, 99)}
        expected = dict(count=histogram.get_total_count(), **percentiles, Max=histogram.get_max_value())
        assert latency.percentiles() == expected
    latency.reset()
    assert latency.percentiles() == dict(count=0, P50=0, P95=0, P99=0, Max=0)
    latency.record(7)
    assert latency.percentiles() == dict(count=1, P50=7, P95=7, P99=7, Max=7)
    assert latency.total_count == 201


class NVMLError(Exception):
    pass


@pytest.fixture
def nvml(monkeypatch):
    """Two devices: 0 is busy for 50% and then 100% with 1 and then 3 GB, 1 cannot be asked."""
    answers = [(50, 1e9), (100, 3e9)]

    def of(handle, place):
        if handle != "0":
            raise NVMLError
        return answers[0][place]

    def memory(handle):
        used = of(handle, 1)
        if len(answers) > 1:
            answers.pop(0)
        return types.SimpleNamespace(used=used)

    def by_index(index):
        if index > 1:
            raise NVMLError
        return str(index)

    module = types.SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByIndex=by_index,
        nvmlDeviceGetHandleByUUID=lambda name: {"GPU-a": "0"}[name],
        nvmlDeviceGetUtilizationRates=lambda handle: types.SimpleNamespace(gpu=of(handle, 0)),
        nvmlDeviceGetMemoryInfo=memory,
    )
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return module


@pytest.mark.parametrize(
    ("visible", "local_rank", "known"),
    [
        (None, 0, True),
        (None, 1, False),
        (None, 2, False),
        ("1,0", 1, True),
        ("1,0", 0, False),
        ("0", 1, False),
        ("GPU-a", 0, True),
    ],
)
def test_a_worker_asks_the_gpu_of_its_place_among_those_that_are_visible(nvml, monkeypatch, visible, local_rank, known):
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert open_gpu(local_rank)() == ((0.5, 1e9) if known else None)


def test_without_the_binding_or_the_library_nothing_is_known_of_a_gpu(nvml, monkeypatch):
    def absent():
        raise NVMLError

    monkeypatch.setattr(nvml, "nvmlInit", absent)
    assert open_gpu(0)() is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert open_gpu(0)() is None


def test_a_run_keeps_the_mean_of_how_busy_its_gpu_was_and_the_most_memory(nvml):
    hook = MachineHook(LocalStore(), open_gpu(0), 1)
    _run(lambda: [hook], steps=1)  # After the first step, and at the end.
    assert (hook.gpu_busy, hook.gpu_bytes) == (0.75, 3e9)


def test_the_memory_of_this_process_is_what_it_holds_and_there_need_be_no_gpu():
    hook, block = MachineHook(LocalStore(), no_gpu, 1), []
    before = resident_bytes()

    def grow():
        block.append(np.ones(40_000_000))  # 320 MB
        return [hook]

    _run(grow, steps=2)
    assert hook.resident_bytes >= before + 200e6
    assert np.isnan(hook.gpu_busy) and np.isnan(hook.gpu_bytes)
