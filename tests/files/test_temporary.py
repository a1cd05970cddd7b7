"""Temporary directories: nobody else reaches them, and those of killed processes go."""

import os
import stat
import subprocess
import sys

import pytest

from ctr_trainer.system.files.staging import local_directory, staged
from ctr_trainer.system.files.temporary import temporary_directory
from ctr_trainer.system.messages.errors import UserError
from tests import object_store
from tests.parallel import launch

URL = f"s3://{object_store.BUCKET}/job"
_HOLDER = """
import os, sys
from ctr_trainer.system.files.temporary import temporary_directory
for _ in range(200):  # Two processes do so at once.
    with temporary_directory():
        pass
with temporary_directory() as directory:
    open(os.path.join(directory, "x"), "w").close()
    print(directory, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_the_directory_of_a_killed_process_goes_and_that_of_a_living_one_stays(temporary):
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    environment = {**launch.environment(), "TMPDIR": str(temporary)}
    killed, living = (subprocess.Popen([sys.executable, "-c", _HOLDER], env=environment, **pipes) for _ in range(2))
    left, used = (process.stdout.readline().strip() for process in (killed, living))
    killed.kill()
    killed.wait(60)
    assert os.path.exists(os.path.join(left, "x"))
    with temporary_directory() as own:
        assert stat.S_IMODE(os.stat(own).st_mode) == 0o700
        assert not os.path.exists(left)
        assert os.path.exists(os.path.join(used, "x"))
    assert os.listdir(temporary) == [os.path.basename(used)]
    living.communicate(timeout=60)
    assert living.returncode == 0 and os.listdir(temporary) == []


def test_a_directory_of_another_user_stays_whatever_its_name(temporary):
    if os.getuid() != 0:
        pytest.skip("only root can give a directory to another user")
    with temporary_directory() as own:
        other = temporary / os.path.basename(own).replace("tmp-", "tmp-of-another-")
    other.mkdir()
    (other / "file").touch()
    os.chown(other, 12345, 12345)
    with temporary_directory():
        assert (other / "file").exists()


@pytest.mark.parametrize("kind", ["link", "file", "open directory", "directory of another user"])
def test_a_planted_directory_of_a_job_is_refused(store, tmp_path, kind):
    planted, victim = local_directory(URL), tmp_path / "victim"
    victim.mkdir()
    if kind == "link":
        os.symlink(victim, planted)
    elif kind == "file":
        open(planted, "w").close()
    else:
        os.mkdir(planted)
        if kind == "open directory":
            os.chmod(planted, 0o777)
        elif os.getuid() == 0:
            os.chown(planted, 12345, 12345)
        else:
            pytest.skip("only root can give a directory to another user")
    (victim / "thesis").write_text("x")
    with pytest.raises(UserError, match="expected a directory of this user that no other user can reach"):
        with staged(URL, fetches=True, owns=True):
            raise AssertionError("it was used")
    assert (victim / "thesis").read_text() == "x"
