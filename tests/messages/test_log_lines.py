"""The log of real processes, since this one's belongs to pytest."""

import contextlib
import io
import json
import logging
import os
import re
import subprocess
import sys
import warnings

import pytest

from ctr_trainer import cli
from ctr_trainer.system.messages import log_lines
from ctr_trainer.system.messages.log_lines import format_seconds
from ctr_trainer.system.processes import child

PLAIN = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} - (\w+) \[(\w+\.py):(\d+) - (\w+)\] - (.*)")


def _lines(tmp_path, install, then):
    """Returns the lines that a program writes to standard error after installing the log."""
    program = tmp_path / "program.py"
    program.write_text(
        f"import logging, warnings\nfrom ctr_trainer.system.messages import log_lines\n"
        f"{install}\ndef work():\n    {then}\nwork()\n"
    )
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()


WORK = """logging.getLogger('a').info('step %d of "a"\\nc é', 7)
    warnings.warn('w')
    try: raise ValueError('redis://ctr:secret@host:1/x')
    except ValueError as error: logging.exception('no answer from %s', error)"""


def test_a_plain_line_has_milliseconds_level_and_place_and_no_password(tmp_path):
    line, *more = _lines(tmp_path, "log_lines.install()", WORK)
    assert PLAIN.fullmatch(line).groups() == ("INFO", "program.py", "5", "work", 'step 7 of "a"')
    assert more[0] == "c é" and "UserWarning: w" in more[1]
    (error,) = (found for found in map(PLAIN.fullmatch, more) if found and found[1] == "ERROR")
    assert error[5] == "no answer from redis://***@host:1/x"
    assert more[-1] == "ValueError: redis://***@host:1/x"


def test_a_json_line_is_one_object_whatever_the_message_holds(tmp_path):
    install = "log_lines.install('plain'); log_lines.install('json', rank=1)"
    info, warning, error = map(json.loads, _lines(tmp_path, install, WORK))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d", info.pop("time"))
    assert info == {
        "level": "INFO",
        "file": "program.py",
        "line": 5,
        "function": "work",
        "rank": 1,
        "message": 'step 7 of "a"\nc é',
    }
    assert warning["level"] == "WARNING" and "UserWarning: w" in warning["message"]
    assert (error["level"], error["message"]) == ("ERROR", "no answer from redis://***@host:1/x")
    assert error["exception"].startswith("Traceback") and error["exception"].endswith("redis://***@host:1/x")


def test_a_program_that_logs_in_its_own_way_keeps_it(tmp_path):
    install = "logging.basicConfig(format='mine %(message)s')\nlog_lines.install('json')"
    assert _lines(tmp_path, install, "logging.warning('w')") == ["mine w"]


def test_a_line_of_tensorflow_comes_once_though_it_was_imported_before(tmp_path):
    install = "import tensorflow as tf\nlog_lines.install()"
    lines = _lines(tmp_path, install, "tf.compat.v1.logging.warning('of a graph')")
    (line,) = [line for line in lines if "of a graph" in line]
    assert PLAIN.fullmatch(line).groups() == ("WARNING", "program.py", "6", "work", "of a graph")


@pytest.mark.parametrize("form", ["plain", "json"])
def test_what_a_command_says_at_its_end_has_the_form_of_the_log(tmp_path, form):
    command = [sys.executable, "-m", "ctr_trainer", "train", f"--train_data={tmp_path / 'x'}", "--model_dir=m"]
    done = subprocess.run([*command, f"--log_format={form}"], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    said = f"data set {tmp_path / 'x'}: no such directory"
    if form == "plain":
        assert line.startswith(f"error: {said}")
    else:
        values = json.loads(line)
        assert values["message"].startswith(said)
        assert (values["level"], values["file"], values["rank"]) == ("ERROR", "report.py", 0)


def test_a_service_logs_in_the_form_that_it_is_told(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "ctr_trainer", "serve", f"--data_dir={tmp_path}", "--log_format=json"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, child.CHILD: "{}"},
    )
    assert done.returncode == 0, done.stderr
    values = json.loads(done.stderr.splitlines()[0])
    assert [values[name] for name in ("level", "file", "function")] == ["INFO", "serving.py", "serve"]
    assert " answers on 127.0.0.1:" in values["message"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.6, "1 min 0 s"), (130, "2 min 10 s"), (3900, "1 h 5 min"), (273_600, "3 d 4 h")],
)
def test_seconds_for_people(seconds, text):
    assert format_seconds(seconds) == text


def _state():
    """Returns what belongs to the program that calls the package."""
    loggers = logging.getLogger(), logging.getLogger("tensorflow")
    forms = [(each.level, each.formatter) for each in logging.getLogger().handlers]
    return [(each.level, each.handlers[:], each.filters[:]) for each in loggers], forms, warnings.showwarning


@pytest.mark.parametrize("form", ["", "json"])
def test_a_command_in_a_program_leaves_its_log_as_it_was(monkeypatch, form):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(logging.getLogger(), "level", logging.INFO)
    monkeypatch.setattr(logging.getLogger("tensorflow"), "handlers", [logging.NullHandler()])
    with log_lines.restored(), contextlib.redirect_stdout(io.StringIO()):
        if form:
            log_lines.install(form)
        before = _state()
        assert cli.main(["--version"]) == 0
        assert _state() == before


def test_standard_output_is_wrapped_once(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "__stdout__", stream)
    cli.main(["--version"])
    write = stream.write
    cli.main(["--version"])
    assert stream.write is write
