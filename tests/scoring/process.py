"""The process of a scoring server, for tests and benchmarks."""

import contextlib
import dataclasses
import pathlib
import re
import subprocess
import sys
import time
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parents[2]
TIMEOUT_SECONDS = 120.0


@dataclasses.dataclass(frozen=True)
class Server:
    """The process of a scoring server, and its port."""

    process: subprocess.Popen
    port: int

    def resident_mb(self) -> float:
        """Returns the memory that the process has resident."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) / 1024


@contextlib.contextmanager
def serving(url: str | pathlib.Path, log: pathlib.Path, *flags: str) -> Iterator[Server]:
    """Yields a server that has loaded a publication; ends it after the block."""
    command = [
        sys.executable,
        "-m",
        "ctr_trainer",
        "score",
        f"--model={url}",
        "--bind=127.0.0.1:0",
        *flags,
    ]
    with open(log, "w") as out:
        process = subprocess.Popen(command, stderr=out, stdin=subprocess.DEVNULL, cwd=ROOT)
    try:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while "global step" not in (text := log.read_text()):
            if process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"{' '.join(command)} does not serve:\n{text[-3000:]}")
            time.sleep(0.1)
        yield Server(process, int(re.search(r"://\S+:(\d+),", text)[1]))
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(60)
