"""Temporary directories: nobody else reaches them, and those of killed processes go."""

import os
import stat
import subprocess
import sys

import pytest

from ctr_trainer.system.files.paths import path_of
from ctr_trainer.system.files.staging import local_directory, staged
from ctr_trainer.system.files.temporary import private_path, temporary_directory
from ctr_trainer.system.messages.errors import UserError
from tests import object_store
from tests.parallel import launch

URL = f"s3://{object_store.BUCKET}/job"
_HOLDER = """
import sys
from ctr_trainer.system.files.paths import path_of
with path_of(sys.argv[1]).filled_locally() as directory:
    (directory / "x").write_text("x")
    print(directory, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def _holder(temporary):
    """Returns a process that fills a local directory of a path in a store, and that directory."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, URL],
        env={**launch.environment(), "TMPDIR": str(temporary)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    return process, process.stdout.readline().strip()


def test_the_directory_of_a_killed_process_goes_and_that_of_a_living_one_stays(store, temporary):
    killed, left = _holder(temporary)
    living, used = _holder(temporary)
    killed.kill()
    killed.wait(60)
    assert os.path.exists(os.path.join(left, "x"))
    with temporary_directory() as own:
        assert not os.path.exists(left)
        assert os.path.exists(os.path.join(used, "x")) and os.path.isdir(own)
    living.kill()
    living.wait(60)
    with staged(URL, fetches=False, owns=True):  # A job in a store begins by the same.
        assert not os.path.exists(used)
    assert os.listdir(temporary) == []


def test_nobody_else_reaches_what_is_written(temporary):
    with temporary_directory():
        for path, _, _ in os.walk(private_path()):
            assert stat.S_IMODE(os.stat(path).st_mode) == 0o700, path


def _plant(kind, private, victim):
    if kind == "link":
        os.symlink(victim, private)
    elif kind == "file":
        open(private, "w").close()
    else:
        os.mkdir(private)
        os.chmod(private, 0o777)
        os.symlink(victim, local_directory(URL))


@pytest.mark.parametrize("kind", ["link", "file", "open directory"])
def test_a_planted_link_does_not_lead_to_the_files_of_another_directory(store, tmp_path, temporary, kind):
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "thesis").write_text("x")
    _plant(kind, private_path(), victim)
    for use in (lambda: staged(URL, fetches=True, owns=True), temporary_directory, path_of(URL).filled_locally):
        with pytest.raises(UserError, match="expected a directory of this user that no other user can reach"):
            with use():
                raise AssertionError("it was used")
    assert (victim / "thesis").read_text() == "x"


def test_an_own_directory_that_others_may_only_read_is_made_private(temporary):
    os.makedirs(os.path.join(private_path(), "tmp-late"))
    os.chmod(private_path(), 0o755)
    with temporary_directory():
        assert stat.S_IMODE(os.stat(private_path()).st_mode) == 0o700
    assert os.listdir(temporary) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory to another user")
def test_a_directory_of_another_user_is_refused(store, temporary):
    os.mkdir(private_path(), 0o700)
    os.chown(private_path(), 12345, 12345)
    with pytest.raises(UserError, match="expected a directory of this user"):
        with staged(URL, fetches=False, owns=True):
            raise AssertionError("it was used")


def test_processes_that_make_and_remove_directories_at_once_do_not_meet(temporary):
    program = (
        "from ctr_trainer.system.files.temporary import temporary_directory as t\n"
        "for _ in range(200):\n  with t(): pass\n"
    )
    environment = {**launch.environment(), "TMPDIR": str(temporary)}
    both = [subprocess.Popen([sys.executable, "-c", program], env=environment) for _ in range(2)]
    assert [each.wait(120) for each in both] == [0, 0]
    assert os.listdir(temporary) == []
