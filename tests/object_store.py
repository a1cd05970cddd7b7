"""An object store for tests: moto's server, in a process of its own, which speaks S3 on a loopback address."""

import contextlib
import dataclasses
import importlib.util
import os
import pathlib
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

import pytest

from tests import ports
from tests.parallel import launch

BUCKET = "tests"
_SECONDS = 60
# Ends with the process of the tests, however that ends.
_SERVER = """
import os, sys, threading
from moto.server import main
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
main(sys.argv[1:])
"""


@dataclasses.dataclass(frozen=True)
class ObjectStore:
    """A running store.

    Attributes:
      address: `host:port`.
      environment: what a process needs in its environment to use the store.
      pid: process id of its server.
    """

    address: str
    environment: dict
    pid: int

    @property
    def host_port(self):
        """(host, port)."""
        host, port = self.address.split(":")
        return host, int(port)

    @contextlib.contextmanager
    def standing_still(self) -> Iterator[None]:
        """Has the store answer nothing within the block."""
        launch.stand_still(self.pid)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def keys(self, below=""):
        """Returns the names of all objects with a prefix, sorted."""
        from pyarrow import fs

        found = self._filesystem().get_file_info(fs.FileSelector(f"{BUCKET}/{below}", True, recursive=True))
        return sorted(info.path.removeprefix(f"{BUCKET}/") for info in found if info.is_file)

    def put(self, name, content):
        """Makes an object of bytes, or of a local file."""
        content = content.read_bytes() if isinstance(content, pathlib.Path) else content
        with self._filesystem().open_output_stream(f"{BUCKET}/{name}", compression=None) as file:
            file.write(content)
        return f"s3://{BUCKET}/{name}"

    def get(self, name):
        """Returns the bytes of an object."""
        with self._filesystem().open_input_stream(f"{BUCKET}/{name}", compression=None) as file:
            return file.read()

    def _filesystem(self):
        from pyarrow import fs

        host = {"endpoint_override": self.address, "scheme": "http", "region": "us-east-1"}
        keys = {"access_key": "test", "secret_key": "test"}
        return fs.S3FileSystem(allow_bucket_creation=True, **host, **keys)


@contextlib.contextmanager
def running(directory):
    """Gives an `ObjectStore` with an empty bucket. Its log is in `directory`."""
    if importlib.util.find_spec("moto") is None or importlib.util.find_spec("flask") is None:
        pytest.skip("no moto's server, which stands for S3: pip install 'moto[server]', or make install")
    port = ports.free_port()
    address = f"127.0.0.1:{port}"
    environment = {
        "AWS_ENDPOINT_URL": f"http://{address}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    log_file = pathlib.Path(directory) / "moto.log"
    with open(log_file, "w") as log:
        command = [sys.executable, "-c", _SERVER, "-H", "127.0.0.1", "-p", str(port)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)
    try:
        _await_answer(address, process, log_file)
        store = ObjectStore(address, environment, process.pid)
        store._filesystem().create_dir(BUCKET)
        yield store
    finally:
        process.stdin.close()
        process.wait(_SECONDS)


@contextlib.contextmanager
def environment(store):
    """Has this process use the store within the block."""
    before = {name: os.environ.get(name) for name in store.environment}
    os.environ.update(store.environment)
    try:
        yield store
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _await_answer(address, process, log_file):
    deadline = time.monotonic() + _SECONDS
    while True:
        assert process.poll() is None, f"moto's server ended: {log_file.read_text()}"
        try:
            urllib.request.urlopen(f"http://{address}/moto-api/", timeout=5).close()
            return
        except OSError:
            assert time.monotonic() < deadline, f"moto's server does not answer: {log_file.read_text()}"
            time.sleep(0.05)
