"""The phases of a step as text."""

from ctr_trainer.report.comparison import format_phases

PHASES = {
    "step_seconds": 0.010,
    "steps": 100,
    "traced_steps": 5,
    "seconds": {"read_sample": 0.001, "forward": 0.008},
    "accounted": 0.9,
}
NO_LOCK = {"row_lock_wait_percent": None, "row_lock_held_percent": None}
MEMORY = {"resident_bytes": {"mean": 1.2e9}, "service_resident_bytes": 4e8, "gpu": None}
RESULT = {"phases": PHASES, **NO_LOCK, **MEMORY}


def test_each_phase_has_its_time_and_its_share_of_the_step():
    lines = [line.split() for line in format_phases(RESULT)]
    assert lines[1] == ["read", "sample", "1.00", "ms", "10.0%"]
    assert lines[2] == ["forward", "8.00", "ms", "80.0%"] and lines[3] == ["accounted", "90.0%"]


def test_memory_follows_where_it_is_known():
    assert [line.split() for line in format_phases(RESULT)[4:]] == [
        ["worker's", "memory", "1,200", "MB"],
        ["service's", "memory", "400", "MB"],
    ]
    gpu = {"busy": {"mean": 0.5}, "bytes": {"mean": 3e9}}
    (_, of_gpu) = format_phases({**RESULT, "service_resident_bytes": None, "gpu": gpu})[4:]
    assert of_gpu.split() == ["GPU's", "memory", "3,000", "MB"]


def test_the_lock_of_the_rows_stands_below_the_phases():
    lines = format_phases({**RESULT, "row_lock_wait_percent": 0.25, "row_lock_held_percent": 12.5})
    assert [line.split() for line in lines[4:6]] == [
        ["row", "lock", "waited", "for", "0.25%"],
        ["row", "lock", "held", "12.50%"],
    ]


def test_a_run_that_is_too_short_says_so():
    (line,) = format_phases({**RESULT, "phases": None})
    assert "too short" in line
