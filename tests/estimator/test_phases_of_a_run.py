"""The phases of a lone worker's run, which come out under their names and add up, and the advice that they give."""

import json
import logging
import math
import re

import pytest

from ctr_trainer.commands.reports.comparison import format_phases
from ctr_trainer.data.reader import BatchReader
from ctr_trainer.estimator import EmbeddingConfig, EvalSpec, RunConfig
from ctr_trainer.estimator.advice import about_quality, advise
from ctr_trainer.estimator.optimize import TrainOp
from ctr_trainer.system.measuring.clock import PHASES, TRAINING, Clock
from ctr_trainer.system.processes import hardware
from tests.constant import CONSTANT
from tests.estimator import deepfm

STEPS = 24


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    """The (result, log messages, trace events, entered phases) of a run."""
    directory, said, entered, enter = tmp_path_factory.mktemp("run"), [], set(), Clock.enter
    config = dict(log_steps=8, profile_steps=(6, 9), save_checkpoints_steps=12)
    estimator = deepfm.estimator(directory / "model", TrainOp("adagrad", 0.1, 0.3, **CONSTANT), **config)
    spec = EvalSpec(lambda: BatchReader(data, 32, shuffle=False, epochs=1), every_n_steps=8)
    handler, root = logging.Handler(), logging.getLogger()
    handler.emit, level = lambda record: said.append(record.getMessage()), root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Clock, "enter", lambda clock, phase: (entered.add(phase), enter(clock, phase))[1])
            result = estimator.train(deepfm.batches(data, 16), max_steps=STEPS, evaluation=spec).last_training
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
    (trace,) = (directory / "model" / "profile").glob("rank0/trace.json")
    return result, said, json.loads(trace.read_text())["traceEvents"], entered


def test_the_summary_has_each_phase_that_the_thread_enters(run):
    result, _, _, entered = run
    seconds = {name: figures["mean"] for name, figures in result["phase_seconds"].items()}
    assert set(seconds) == {*PHASES, "exchange", "syncing"}
    assert entered == set(PHASES) - {"dense_sync"}  # A lone worker averages with nobody.
    # The other phases of 24 small steps may be too short for the three digits of the summary.
    assert all(seconds[name] > 0 for name in ("start", "session", "checkpoint"))
    assert result["evaluation_seconds"] == seconds["evaluation"]
    assert result["input_wait_seconds"] == seconds["read"]
    # `seconds` ends with the last step's run; what follows it is of phases too.
    assert result["seconds"] <= sum(seconds[name] for name in TRAINING) + 1e-3 * len(TRAINING)


def test_the_log_has_the_percentiles_of_each_phase_with_a_log_name(run):
    _, said, _, _ = run
    counts = {}
    for message in said:
        if match := re.match(r"\[RunStatus\]: (\w+) statistics => count: (\d+) ", message):
            counts[match[1]] = counts.get(match[1], 0) + int(match[2])
    assert {phase.log_name for phase in PHASES.values() if phase.log_name} <= set(counts)
    assert counts["StepReadWait"] == counts["StepLookup"] == counts["StepRowUpdate"] == STEPS
    # A lone worker's tables have nothing to sync; the operations of the other phases are done in it.
    assert {phase.operation for phase in PHASES.values() if phase.operation} - set(counts) == {"OpsParameterSync"}


def test_the_trace_has_a_row_for_each_phase(run):
    _, _, events, _ = run
    rows = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert [rows[number] for number in range(len(PHASES))] == list(PHASES)
    spans = [event for event in events if event.get("cat") == "Phase"]
    assert all(span["name"] == rows[span["tid"]] for span in spans)
    for phase in ("read", "lookup", "session", "update"):
        assert sum(span["name"] == phase for span in spans) == 4, phase  # of the steps 6 to 9


def test_the_phases_of_a_step_add_up_to_what_is_accounted(run):
    result, _, _, _ = run
    phases = result["phases"]
    assert (phases["steps"], phases["traced_steps"]) == (STEPS - 9, 3)
    assert sum(phases["seconds"].values()) == pytest.approx(phases["accounted"] * phases["step_seconds"])
    assert 0 < phases["accounted"] <= 1
    for key in ("read_sample", "embedding_lookup", "forward", "backward", "push", "evaluation"):
        assert phases["seconds"][key] > 0, key
    lines = format_phases(result)
    assert any(line.startswith("  embedding lookup") for line in lines)


def _advise(shares, waits=False, workers=2, steps=1000, by_rank=None, core_waits=None, service="auto", **config):
    shares, core_waits = {**dict.fromkeys((*PHASES, "exchange"), 0.0), **shares}, core_waits or [0.0] * workers
    run = RunConfig(embedding=EmbeddingConfig(service=service), **config)
    return advise(shares, by_rank or {}, core_waits, steps, run, waits, on_one_host=True, has_gpu=False)


@pytest.mark.parametrize(
    ("losses", "advice"),
    [
        ([], ""),
        ([0.5], "evaluated once"),
        ([math.nan, 0.5], "evaluated once"),
        ([0.6, 0.5, 0.55], "validation log loss was best at step 2 of 3 (0.50000, at the end 0.55000): it overfits"),
        ([0.6, 0.55, 0.5], "still fell at the end (step 3, 0.55000 to 0.50000): train longer"),
        ([0.6, 0.5, 0.5005], ""),  # Within the noise.
        ([0.6, 0.5, 0.4999], ""),
    ],
)
def test_the_losses_of_the_evaluations_tell_what_makes_a_model_better(losses, advice):
    found = about_quality([{"step": i, "logloss": loss} for i, loss in enumerate(losses, 1)], keeps_best=False)
    assert advice in found and bool(advice) == bool(found)


@pytest.mark.parametrize(
    ("circumstances", "flag"),
    [
        (dict(shares={"read": 0.2}, prefetch_batches=0), "--prefetch_batches=4"),
        (dict(shares={"read": 0.2}), "--prefetch_batches=8"),
        (dict(shares={"sync": 0.2}), "--embedding_service=shared"),
        (dict(shares={"sync": 0.2}, service="a:1"), "--sync_steps=60"),
        (dict(shares={"exchange": 0.3}, core_waits=[0.3, 0.8]), "free cores for rank 1"),
        (dict(shares={"read": 0.4}, by_rank={"read": [0.1, 0.1, 0.7], "update": [0.1, 0.0, 0.0]}), "a faster rank 2"),
        (dict(shares={"exchange": 0.3}, waits=True), "--dense_sync_steps=30"),
        (dict(shares={"checkpoint": 0.2}, save_checkpoints_steps=100), "--save_checkpoints_steps=500"),
        (dict(shares={"read": 0.2, "sync": 0.3}), "--embedding_service=shared"),  # the larger share
        (dict(shares={"session": 0.8, "read": 0.09}), "--mixed_precision=bfloat16"),
    ],
)
def test_the_flag_for_where_most_of_the_time_goes(monkeypatch, circumstances, flag):
    monkeypatch.setattr(hardware, "has_bfloat16", lambda: True)
    assert _advise(**circumstances).flag == flag


@pytest.mark.parametrize(
    "circumstances",
    [
        dict(shares={"read": 0.09, "sync": 0.09, "session": 0.8}),
        dict(shares={"exchange": 0.3}),  # Steps do not wait for it.
        dict(shares={"sync": 0.2}, workers=1),
        dict(shares={"checkpoint": 0.3}, save_checkpoints_steps=2000),  # the one at the end
        dict(shares={"read": 0.9}, steps=99),
        dict(shares={"session": 0.8}, core_waits=[0.69, 0.69]),
        dict(shares={"session": 0.8}, by_rank={"read": [0.3, 0.1], "session": [0.3, 0.9]}),
    ],
)
def test_where_no_flag_would_help_none_is_named(monkeypatch, circumstances):
    monkeypatch.setattr(hardware, "has_bfloat16", lambda: False)
    assert _advise(**circumstances) is None
