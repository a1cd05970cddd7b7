"""The progress of a training: its lines without a terminal, and at a terminal, which is a pseudo-terminal here."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading

import pytest

from ctr_trainer.estimator.hooks.log_hooks import TrainingProgress
from ctr_trainer.models.metrics.click_metrics import Line
from ctr_trainer.system.measuring.clock import Clock
from tests import small
from tests.parallel import launch


def _screen(text):
    """Returns the lines that an infinitely high terminal shows for text, carriage returns, line feeds, cursor ups."""
    rows, row, column = [[]], 0, 0
    for part in re.findall(r"\x1b\[A|\r|\n|[^\x1b\r\n]+", text):
        if part == "\x1b[A":
            row -= 1
        elif part == "\r":
            column = 0
        elif part == "\n":
            row += 1
            rows += [[] for _ in range(row + 1 - len(rows))]
        else:
            line = rows[row]
            line += " " * (column - len(line))
            line[column : column + len(part)] = part
            column += len(part)
    return ["".join(line).rstrip() for line in rows]


@pytest.mark.integration
@pytest.mark.slow
def test_the_progress_line_is_redrawn_in_place_and_tears_no_line_of_the_log(tmp_path):
    data = small.make(tmp_path, rows=600)
    arguments = f"--train_data={data} --eval_data={data} --model_dir={tmp_path / 'model'} --hidden_units=8"
    arguments += " --batch_size=16 --epochs=2 --log_steps=10 --eval_steps=40"
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    command = [sys.executable, "-m", "ctr_trainer", "train", *arguments.split()]
    job = subprocess.Popen(command, env=launch.environment(), stderr=theirs, stdout=subprocess.DEVNULL, cwd=tmp_path)
    os.close(theirs)
    received = []

    def read():
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # The other end is closed.
                return
            if not part:
                return
            received.append(part)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    status = job.wait(180)
    reader.join(30)
    text = b"".join(received).decode()
    os.close(ours)
    assert status == 0, text

    drawn = re.findall(r"step (\d+) of 76 \|.{20}\| \d+ examples/s, (\S+) left(?:, auc 0\.\d{4})?", text)
    assert drawn
    assert ", auc 0." in text
    lines = _screen(text)
    logged = [line.partition("] - ")[2] for line in lines if re.match(r"\d{4}-\d\d-\d\d .* - INFO \[", line)]
    metrics = [line for line in logged if re.match(r"step \d+, ", line)]
    assert len(metrics) == 5 * 8  # five figures at steps 10 to 70 and at 76
    figures = r"((auc|accuracy) = \d\.\d{4}|(xentropy|prob|real)_mean = \d\.\d{8})"
    for line in metrics:
        assert re.fullmatch(rf"step \d+, {figures} \(\d+\.\d it/sec; \d+\.\d examples/sec\)", line)
    assert sum(line.startswith("current lr: 0.0") for line in logged) == 8
    assert sum(line.startswith("step 76 of 76 |") for line in lines) == 1  # what stays at the end
    # That of the evaluation at step 40 has gone; that of the last one, after the training, stays.
    assert [line.split("|")[0] for line in lines if line.startswith("evaluating")] == ["evaluating: 100%"]


def test_reader_knows_how_many_steps_are_left_of_it(tmp_path):
    from ctr_trainer.data.reader import BatchReader

    data = small.make(tmp_path, rows=100)
    settings = dict(rank=0, size=3, seed=1)
    assert BatchReader(data, 16, **settings).steps is None
    reader = BatchReader(data, 16, epochs=2, **settings)
    assert reader.steps == 2 * 3 == len(list(reader))  # shares of 34, 33 and 33 rows: 3 batches
    resumed = BatchReader(data, 16, epochs=2, position=reader.position_after(4), **settings)
    assert resumed.steps == 2 == len(list(resumed))
    assert BatchReader(data, 16, epochs=2, position=reader.position_after(6), **settings).steps == 0


@pytest.mark.parametrize(
    ("last_step", "steps", "epochs", "expected"),
    [
        (10_000, None, None, "step 2800 of 10000 (28%), 2 min 0 s left"),
        (10_000, 5000, 5, "step 2800 of 5000 (56%), epoch 1.4 of 5, 37 s left"),
        (None, None, None, "step 2800"),
    ],
)
def test_a_line_says_how_far_the_training_is_and_how_long_it_will_take(caplog, last_step, steps, epochs, expected):
    """Without a terminal, which pytest's standard error is not; 1,600 steps took 20 s, 1,200 more 26.67 s."""
    epoch = (lambda done: done / 2000) if epochs else (lambda done: None)
    progress = TrainingProgress(Clock(), True, 1024, last_step, steps, epoch, epochs)
    with caplog.at_level("INFO"):
        progress.start(0)
        progress.take(Line(1600, "", {}, 80.0, None))
        progress.take(Line(2800, "", {}, 45.0, None))
    said = [record.getMessage() for record in caplog.records if record.name.endswith("log_hooks")]
    assert said[1] == expected
