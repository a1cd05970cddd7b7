"""Which errors are losses, so that the same command may succeed later."""

import os
import socket
import subprocess
import sys

import pytest

from ctr_trainer.system.files.paths import path_of
from ctr_trainer.system.messages import errors
from ctr_trainer.system.messages.errors import ServiceLost, UserError, is_loss, status_of
from tests.files.failing_proxy import FailingProxy


def _raised(call):
    with pytest.raises((OSError, UserError)) as raised:
        call()
    return raised.value


@pytest.fixture
def one_attempt(monkeypatch):
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")


def test_a_store_that_refuses_connections_is_a_loss(one_attempt):
    error = _raised(lambda: path_of("s3://tests/x?endpoint_override=127.0.0.1:1&scheme=http").read_bytes())
    assert isinstance(error, UserError) and status_of(error) == errors.LOST


def test_a_store_that_answers_503_is_a_loss_and_one_without_the_bucket_is_not(store, one_attempt):
    with FailingProxy(store.host_port, failures=1) as proxy:
        error = _raised(lambda: path_of(f"s3://tests/x?endpoint_override={proxy.address}&scheme=http").write_text("x"))
    assert status_of(error) == errors.LOST, error
    error = _raised(lambda: path_of("s3://no-such-bucket/x").write_text("x"))
    assert status_of(error) == errors.REFUSED, error


def test_a_store_that_stands_still_is_a_loss(one_attempt):
    with socket.create_server(("127.0.0.1", 0)) as silent:  # It accepts connections and never answers.
        url = f"s3://tests/x?endpoint_override=127.0.0.1:{silent.getsockname()[1]}&scheme=http"
        assert status_of(_raised(lambda: path_of(url).exists())) == errors.LOST


def test_the_cause_of_an_error_decides_and_a_mistake_stays_one(tmp_path):
    def wrapped(cause, is_shown):
        try:
            try:
                raise cause
            except Exception as error:
                raise UserError("data x: cannot be read") from (error if is_shown else None)
        except UserError as error:
            return error

    for cause in (ConnectionRefusedError(), TimeoutError(), ServiceLost("gone")):
        assert is_loss(wrapped(cause, True)) and is_loss(wrapped(cause, False))
    for cause in (FileNotFoundError(2, "no such file", "AWS"), PermissionError(), ValueError("HTTP status 404")):
        assert not is_loss(wrapped(cause, True)) and not is_loss(wrapped(cause, False))
    circle = UserError("a")
    circle.__cause__ = ValueError("b")
    circle.__cause__.__context__ = circle
    assert not is_loss(circle)
    assert status_of(OSError("AWS Error SLOW_DOWN during GetObject operation: x")) == errors.LOST
    assert status_of(OSError(28, "No space left on device")) == errors.FAILED


def test_a_process_that_ends_by_an_outage_says_so_by_its_status(tmp_path):
    url = "s3://tests/data?endpoint_override=127.0.0.1:1&scheme=http"
    command = [sys.executable, "-m", "ctr_trainer", "convert", "--format=csv", f"--input={url}"]
    command += [f"--feature_spec={tmp_path / 'spec.toml'}", f"--output={tmp_path / 'out'}"]
    (tmp_path / "spec.toml").write_text('name = "x"\n[label]\ncolumn = "y"\n[[sparse]]\ncolumns = ["a"]\ndim = 4\n')
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}
    environment = {**os.environ, **keys, "AWS_MAX_ATTEMPTS": "1", "AWS_EC2_METADATA_DISABLED": "true"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == errors.LOST, done.stderr
    assert "cannot be" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://ctr:se/cr@et@h:1/x: is down", "redis://***@h:1/x: is down"),
        ("--to='rediss://:secret@h:1': no", "--to='rediss://***@h:1': no"),
        ("s3://key:secret@bucket/day@2", "s3://***@bucket/day@2"),
        ("s3://bucket/day@2 and a@b", "s3://bucket/day@2 and a@b"),
    ],
)
def test_users_and_passwords_of_urls_are_masked(text, shown):
    assert str(UserError(text)) == shown


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("the disk is full.", "the disk is full. Start again"),
        ("the disk is full", "the disk is full. Start again"),
        ("it has ended; its log LOG ends with\n12:00 - count: 63  Max: 830463\n", None),
    ],
)
def test_what_to_do_follows_a_message_and_does_not_continue_a_line_of_a_log(text, whole):
    assert errors.followed(text, "Start again") == (whole or f"{text}Start again")
