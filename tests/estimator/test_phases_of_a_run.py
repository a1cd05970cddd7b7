"""A lone worker's run: each phase of the table comes out under its names, and they add up."""

import json
import logging
import re

import pytest

from ctr_trainer.data.reader import BatchReader
from ctr_trainer.estimator import EvalSpec
from ctr_trainer.estimator.optimize import TrainOp
from ctr_trainer.report.comparison import format_phases
from ctr_trainer.system.measuring.clock import PHASES, TRAINING
from tests.constant import CONSTANT
from tests.estimator import deepfm

STEPS, SKIPPED = 24, 4


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    """The (result, log messages, trace events) of a run."""
    directory, said = tmp_path_factory.mktemp("run"), []
    config = dict(log_steps=8, phase_steps=SKIPPED, profile_steps=(6, 9), save_checkpoints_steps=12)
    estimator = deepfm.estimator(directory / "model", TrainOp("adagrad", 0.1, 0.3, **CONSTANT), **config)
    spec = EvalSpec(lambda: BatchReader(data, 32, shuffle=False, epochs=1), every_n_steps=8)
    handler, root = logging.Handler(), logging.getLogger()
    handler.emit, level = lambda record: said.append(record.getMessage()), root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        result = estimator.train(deepfm.batches(data, 16), max_steps=STEPS, evaluation=spec)
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
    (trace,) = (directory / "model" / "profile").glob("rank0/trace.json")
    return result, said, json.loads(trace.read_text())["traceEvents"]


def test_the_summary_has_each_phase_that_the_thread_enters(run):
    result, _, _ = run
    seconds = {name: figures["mean"] for name, figures in result["phase_seconds"].items()}
    assert set(seconds) == {*PHASES, "exchange", "syncing"}
    entered = {name for name in PHASES if seconds[name] > 0}
    # A lone worker averages with nobody; its feeds, syncs and updates may be too short for three digits.
    assert entered >= {"start", "read", "lookup", "session", "hooks", "checkpoint", "evaluation", "tracing"}
    assert result["evaluation_seconds"] == seconds["evaluation"]
    assert result["input_wait_seconds"] == seconds["read"]
    # `seconds` ends with the last step's run; what follows it is of phases too.
    assert result["seconds"] <= sum(seconds[name] for name in TRAINING) + 1e-3 * len(TRAINING)


def test_the_log_has_the_percentiles_of_each_phase_with_a_log_name(run):
    _, said, _ = run
    counts = {}
    for message in said:
        if match := re.match(r"\[RunStatus\]: (\w+) statistics => count: (\d+) ", message):
            counts[match[1]] = counts.get(match[1], 0) + int(match[2])
    assert {phase.log_name for phase in PHASES.values() if phase.log_name} <= set(counts)
    assert counts["StepReadWait"] == counts["StepLookup"] == counts["StepRowUpdate"] == STEPS
    # A lone worker's tables have nothing to sync; the operations of the other phases are done in it.
    assert {phase.operation for phase in PHASES.values() if phase.operation} - set(counts) == {"OpsParameterSync"}


def test_the_trace_has_a_row_for_each_phase(run):
    _, _, events = run
    rows = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert [rows[number] for number in range(len(PHASES))] == list(PHASES)
    spans = [event for event in events if event.get("cat") == "Phase"]
    assert all(span["name"] == rows[span["tid"]] for span in spans)
    for phase in ("read", "lookup", "session", "update"):
        assert sum(span["name"] == phase for span in spans) == 4, phase  # of the steps 6 to 9


def test_the_phases_of_a_step_add_up_to_what_is_accounted(run):
    result, _, _ = run
    phases = result["phases"]
    assert (phases["steps"], phases["traced_steps"]) == (STEPS - SKIPPED, 5)
    assert sum(phases["seconds"].values()) == pytest.approx(phases["accounted"] * phases["step_seconds"])
    assert 0 < phases["accounted"] <= 1
    for key in ("read_sample", "embedding_lookup", "forward", "backward", "push", "evaluation"):
        assert phases["seconds"][key] > 0, key
    lines = format_phases(result)
    assert any(line.startswith("  embedding lookup") for line in lines)
