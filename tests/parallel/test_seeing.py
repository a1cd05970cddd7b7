"""What two workers say of themselves: profiles, timelines, the summary at the end, and who is missing."""

import json
import re
import signal

import pytest

from ctr_trainer.estimator.hooks.log_hooks import FILE
from ctr_trainer.system.measuring.clock import PHASES, TRAINING
from tests import small
from tests.parallel import launch

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return small.make(tmp_path_factory.mktemp("seeing"), rows=1003)


def test_two_workers_leave_profiles_of_both_and_one_summary(data, tmp_path):
    model = tmp_path / "model"
    flags = f"--train_data={data} --model_dir={model} --hidden_units=8 --batch_size=16 --epochs=0 --max_steps=120"
    seeing = (
        "--recipe=none --profile_steps=30,35 --dense_exchange=horovod --log_steps=50 --sync_steps=5 --log_format=json"
    )
    done = launch.run(2, "-m", "ctr_trainer", "train", *flags.split(), *seeing.split())
    for rank in range(2):
        profile = model / "profile" / f"rank{rank}"
        events = json.loads((profile / "trace.json").read_text())["traceEvents"]
        rows = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
        spans = [event for event in events if event.get("cat") == "Phase"]
        assert [rows[number] for number in range(len(PHASES))] == list(PHASES)
        assert {rows[span["tid"]] for span in spans} >= {"read", "lookup", "session", "update", "sync"}
        assert sum(span["name"] == "lookup" for span in spans) == 6  # of the steps 30 to 35
        operations = [event for event in events if event.get("cat") == "Op"]
        assert any("Horovod" in event["name"] for event in operations)
        # Both clocks are the same: the operations ran within the first step's session phase.
        runs = sorted((span["ts"], span["ts"] + span["dur"]) for span in spans if span["name"] == "session")
        assert runs[0][0] - 1000 <= min(event["ts"] for event in operations)
        assert max(event["ts"] + event["dur"] for event in operations) <= runs[-1][1] + 1000

    summary = json.loads((model / "train_summary.json").read_text())
    assert (summary["workers"], summary["steps"]) == (2, 120)
    assert 0 < summary["auc"] < 1
    assert set(summary["phase_seconds"]) == {*PHASES, "exchange", "syncing"}
    times = {phase: figures["mean"] for phase, figures in summary["phase_seconds"].items()}
    assert all(figures["mean"] <= figures["max"] for figures in summary["phase_seconds"].values())
    assert 0 < times["exchange"] < times["session"]
    assert times["syncing"] > 0
    # No rank's phases are shorter than its steps. What they are longer by is the last checkpoint, on a loaded machine a
    # matter of seconds; tests/estimator/test_phases_of_a_run.py has the exact sum.
    longest = sum(summary["phase_seconds"][phase]["max"] for phase in TRAINING)
    assert longest >= summary["seconds"] - 0.001 * len(TRAINING)
    assert summary["bytes_per_sync"] > 0
    assert 0 < summary["cache_hit_rate"] <= 1
    assert summary["copies_of"] == "host"
    assert times[summary["slowest_phase"]] == max(times[phase] for phase in PHASES if phase != "start")
    output = done.stdout + done.stderr
    logged = {match[1] for match in re.finditer(r"\[RunStatus\]: (\w+) statistics", output)}
    of_phases = {name for phase in PHASES.values() for name in (phase.log_name, phase.operation) if name}
    assert logged == {*of_phases, "OpsLocalLookup", "PsEmbeddingLookup", "PsPushGrad"}
    assert output.count("trained 120 steps on 2 workers") == 1
    assert output.count("slowest phase: ") == 1
    _check_lines([_said(done.stderr, rank) for rank in range(2)], model, summary)
    assert not (model / ".ranks").exists()


def _counts(lines):
    """Returns the number of operations in all percentile lines, by name; names without operations have the count 0."""
    counts = {}
    for line in lines:
        if match := re.match(r"\[RunStatus\]: (\w+) statistics => count: (\d+)", line["message"]):
            counts[match[1]] = counts.get(match[1], 0) + int(match[2])
    return counts


def _said(output, rank):
    """Returns the JSON objects that a rank has logged."""
    prefix = f"[{rank}]<stderr>:{{"
    return [json.loads("{" + line.removeprefix(prefix)) for line in output.splitlines() if line.startswith(prefix)]


def _check_lines(said, model, summary):
    """Rank 0's lines are of both workers, rank 1's of its own; the files have what rank 0's lines say."""
    assert [{line["rank"] for line in lines} for lines in said] == [{0}, {1}]
    figures = []
    for lines, whose in zip(said, (r"; ([\d.]+) of 2 workers\)", r"\) of rank 1"), strict=True):
        found = {}
        for line in lines:
            pattern = rf"step (\d+), (\S+) = ([\d.]+) \([\d.]+ it/sec; ([\d.]+) examples/sec{whose}"
            if match := re.fullmatch(pattern, line["message"]):
                step, name, value, own, *rates = match.groups()
                found[int(step), name] = float(value)
                found[int(step), "examples_per_sec"] = float((rates or [own])[0])
                assert not rates or float(own) < float(rates[0])
        names = {"auc", "xentropy_mean", "accuracy", "prob_mean", "real_mean", "examples_per_sec"}
        assert set(found) == {(step, name) for step in (50, 100, 120) for name in names}
        figures.append(found)
    kept = [json.loads(line) for line in (model / FILE).read_text().splitlines()]
    assert [line["step"] for line in kept] == [0, 50, 100, 120]
    for line in kept[1:]:
        for (step, name), value in figures[0].items():
            if step == line["step"]:
                assert line[name] == pytest.approx(value, abs=0.06)
        assert line["examples_per_sec"] > 1.2 * figures[1][line["step"], "examples_per_sec"]
    # That of the summary is of all examples of both ranks, by finer bins.
    assert kept[-1]["auc"] == pytest.approx(summary["auc"], abs=1e-4)
    assert figures[0][120, "auc"] != figures[1][120, "auc"]
    progress = [line["message"] for line in said[0] if re.match(r"step \d+ of 120 ", line["message"])]
    assert [text.rpartition(", ")[0] for text in progress] == [
        "step 50 of 120 (42%), epoch 1.6",
        "step 100 of 120 (83%), epoch 3.1",
        "step 120 of 120 (100%), epoch 3.8",
    ]
    assert all(re.search(r", (\d+ min )?\d+ s left$", text) for text in progress)
    assert not [line for line in said[1] if " left" in line["message"]]
    rates = [[line for line in lines if line["message"].startswith("global_step/sec: ")] for lines in said]
    assert len(rates[0]) == 3 and not rates[1]
    start = "starting from step 0: 1,003 rows an epoch, 120 steps, 2 workers"
    assert [[line["message"] for line in lines].count(start) for lines in said] == [1, 0]
    epochs = [line["message"] for line in said[0] if re.match(r"epoch \d took ", line["message"])]
    assert [text.partition(" took ")[0] for text in epochs] == ["epoch 1", "epoch 2", "epoch 3"]
    assert all(": 32 steps, 1,003 rows, " in text for text in epochs)
    assert sum(line["message"].startswith("[RunStatus]: all in microseconds") for line in said[1]) == 1
    for lines in said:
        counts = _counts(lines)
        assert counts["StepLookup"] == counts["StepRowUpdate"] == 120
        # The host has all rows, since the service began without any: no lookup goes there, and the log says so. Only
        # before rank 0 has told the other that, its first lookups may.
        assert counts["OpsEmbeddingLookup"] <= (0 if lines is said[0] else 8)
        assert counts["OpsLocalLookup"] >= 120
        # Rank 0 syncs for both.
        assert (0 < counts["OpsPushGrad"] <= 120 / 5 + 2) if lines is said[0] else "OpsPushGrad" not in counts
    assert counts["OpsReadSample"] >= 120
    service = [json.loads(line) for line in (model / "service.log").read_text().splitlines()]
    assert [line["rank"] for line in service] == [None] * len(service)
    # Rank 0 shows the service's figures, to the last request: each push of rank 0 is one push at the service.
    at_service, seen = _counts(service), _counts(said[0])
    assert seen["PsPushGrad"] == seen["OpsPushGrad"] == at_service["PsPushGrad"]
    assert seen["PsEmbeddingLookup"] == at_service["PsEmbeddingLookup"] <= 8
    assert "PsPushGrad" not in counts  # of rank 1


def test_a_stopped_rank_is_named_until_it_continues_or_is_killed(data, tmp_path):
    """The others wait in an exchange: only what rank 1 has last said of itself tells that it is the one."""
    model, out = tmp_path / "model", tmp_path / "out"
    flags = [f"--data={data}", f"--model_dir={model}", f"--out={out}", "--epochs=0", "--step_seconds=0.02", "--loose"]
    stalls = ["--stall_warning=2", "--stall_timeout=30"]
    log = tmp_path / "log"
    with open(log, "w") as file:
        job = launch.start(2, launch.WORKERS / "job.py", *flags, *stalls, stdout=file)
        try:
            metrics = model / FILE

            def has_lines(number):
                return lambda: metrics.exists() and len(metrics.read_text().splitlines()) > number

            launch.wait_until(has_lines(2), "steps", 180)
            rank_1 = launch.psutil.Process(int((out / "pid-1").read_text()))
            launch.stand_still(rank_1.pid)
            launch.wait_until(lambda: "without a sign of life" in log.read_text(), "the message", 60)
            rank_1.send_signal(signal.SIGCONT)
            launch.wait_until(has_lines(len(metrics.read_text().splitlines()) + 2), "more steps", 60)
            launch.stand_still(rank_1.pid)
            assert job.wait(180) != 0, log.read_text()
            assert not rank_1.is_running()
        finally:
            if job.poll() is None:
                job.terminate()
                job.wait(30)
    said = re.findall(
        r"rank 0 has waited \d+ s for step (\d+) and its gradient exchange.*"
        r"rank 1 on \S+ is missing: in (\w+) of step (\d+) since \d\d:\d\d:\d\d, for (\d+) s, without a sign of life",
        log.read_text(),
    )
    assert said
    waited_for, phase, step, seconds = said[0]
    assert phase in PHASES
    assert int(waited_for) - 60 <= int(step) <= int(waited_for)  # What it has said last is half a second old.
    assert int(seconds) >= 5
    assert "rank 0 on" not in log.read_text()[log.read_text().index(f"step {waited_for} and its") :]
    _, line = launch.last_line(log.read_text())
    assert re.match(r"error: rank 0 has waited \d+ s for step .* longer than stall_timeout=30", line) or re.match(
        r"error: rank 1 on \S+ has given no sign of life for \d+ s, in ", line
    )
    assert "rank 1 on " in line
    assert line.endswith(": the same command resumes from it")
