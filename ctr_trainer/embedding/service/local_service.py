"""A service that a training starts for itself."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import pathlib
import secrets
import select
import sys
import time
from collections.abc import Iterator

import psutil

from ctr_trainer.settings.embedding_config import EmbeddingConfig
from ctr_trainer.system.files.staging import make_local_directory
from ctr_trainer.system.files.temporary import temporary_directory
from ctr_trainer.system.messages import errors, log_lines
from ctr_trainer.system.messages.errors import Lost, UserError
from ctr_trainer.system.processes.child import Child, log_tail

_POLL_SECONDS = 0.02
# A start on a busy machine, with kernels to compile, takes minutes without a failure. So the limit counts the time in
# which the service uses less than this share of a core; and a start that only turns in a circle ends after this many
# times the limit in CPU time.
_LEAST_SHARE, _MOST_CPU = 0.01, 10
# glibc reads these when a process starts. One heap of huge pages for all threads, in place of one for each: then a
# request's arrays lie where the arrays of the last one lay, in pages that the process has already.
_TUNABLES, _ONE_HEAP = "GLIBC_TUNABLES", "glibc.malloc.arena_max=1:glibc.malloc.hugetlb=1"


class LocalServices:
    """Starts the shards of one training, all at the same time, and restarts them for each block that needs them.

    A service takes a second to start. `start` begins with it while this process does something else, such as importing
    TensorFlow; `running` waits for the rest of that second.

    Example:
        services = LocalServices(1, "models/ctr", timeout=60)
        services.start()
        import tensorflow
        with services.running() as (service,):
            print(service.address)

    Args:
      data_dir: directory of their snapshots, or its URL. Their logs lie there, or for a URL in its `local_directory`:
        `service.log`, `service-1.log`, ...
      timeout: seconds in which each may do nothing while it starts, see `LocalService`.
    """

    def __init__(self, count: int, data_dir: str | os.PathLike, timeout: float) -> None:
        self._count, self._data_dir, self._timeout = count, data_dir, timeout
        self._starting: list[concurrent.futures.Future[LocalService]] = []

    @classmethod
    def of(cls, config: EmbeddingConfig, model_dir: str | os.PathLike) -> LocalServices:
        return cls(config.service_shards, model_dir, config.service_timeout)

    def start(self, file_cores: set[int] | None = None) -> None:
        """Begins to start them, unless that has begun; returns at once.

        `file_cores` are those on which they write files of rows; None for all that this process may use.
        """
        if self._starting:
            return
        token = secrets.token_hex()
        threads = concurrent.futures.ThreadPoolExecutor(self._count)
        self._starting = [threads.submit(self._start, number, token, file_cores) for number in range(self._count)]
        threads.shutdown(wait=False)

    def _start(self, number: int, token: str, file_cores: set[int] | None) -> LocalService:
        log = os.path.join(make_local_directory(self._data_dir), f"service-{number}.log" if number else "service.log")
        return LocalService(self._data_dir, log, self._timeout, token=token, file_cores=file_cores)

    @contextlib.contextmanager
    def running(
        self, cores: set[int] | None = None, file_cores: set[int] | None = None
    ) -> Iterator[list[LocalService]]:
        """Gives the list of `LocalService`, which answer; they are stopped at the end of the block.

        They may use `cores`; None for all that this process could use when they started. For `file_cores`, see `start`,
        if that was not called. Raises UserError if one did not start.
        """
        self.start(file_cores)
        with contextlib.ExitStack() as stack:
            services = [each.result() for each in self._taken(stack)]
            for service in services:
                service.keep_on(cores)
            yield services

    def close(self) -> None:
        """Stops those that `start` has started and no block has taken."""
        with contextlib.ExitStack() as stack:
            self._taken(stack)

    def _taken(self, stack: contextlib.ExitStack) -> list[concurrent.futures.Future[LocalService]]:
        """Returns the futures of those that were started, each done; `stack` stops those that answer."""
        starting, self._starting = self._starting, []
        concurrent.futures.wait(starting)
        for each in starting:
            if each.exception() is None:
                stack.enter_context(each.result())
        return starting


class Watch:
    """Tells that a service of this host has ended, to processes that did not start it.

    Caveat: on a kernel without handles of processes (before Linux 5.3), it never tells.
    """

    def __init__(self, pid: int, log_file: str | os.PathLike) -> None:
        self._pid, self._log_file = pid, log_file
        self._handle = None
        with contextlib.suppress(AttributeError, OSError):
            self._handle = os.pidfd_open(pid)

    def ended(self) -> str | None:
        """Returns how the process ended, with the end of its log; None while it runs."""
        if self._handle is None or not select.select([self._handle], [], [], 0)[0]:
            return None
        return f"its process {self._pid} has ended; {log_tail(self._log_file)}"

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


class LocalService(Child):
    """An embedding service in a child process on this machine, which ends when this process ends, however it ends.

    A context manager: leaving it stops the service. No other user of this machine can use it: its clients need the
    token, which the child gets through its standard input, so it stands in no file, environment or command line.

    Attributes:
      address: `host:port`.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike,
        log_file: str | os.PathLike,
        timeout: float,
        cores: set[int] | None = None,
        token: str | None = None,
        file_cores: set[int] | None = None,
    ) -> None:
        """Starts the service and waits until it answers.

        Args:
          data_dir: the directory that its snapshots lie under, or its URL.
          log_file: where its output goes, appended.
          timeout: seconds in which the starting service may do nothing. Time in which it works, such as compiling
            kernels on a busy machine, does not count, up to ten times as many seconds of its CPU time.
          cores: that the service may use; None for all that this process may use.
          token: token of its clients; None for a random one.
          file_cores: on which it writes files of rows; None for `cores`.

        Raises:
          Lost: it was killed or did not answer in time; shows the end of its log.
          UserError: it ended by itself; shows the end of its log.
        """
        self.token = token or secrets.token_hex()
        with temporary_directory() as directory:
            port_file = pathlib.Path(directory) / "address"
            told = {"sends_token": True, "file_cores": sorted(file_cores or ())}
            super().__init__(self._command(data_dir, port_file), log_file, cores, {_TUNABLES: _ONE_HEAP}, told)
            assert self._process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # It ended at once: its log says why.
                self._process.stdin.write(f"{self.token}\n".encode())
                self._process.stdin.flush()
            try:
                self.address = self._wait_for(port_file, timeout)
            except BaseException:
                self.stop()
                raise

    def stop(self) -> None:
        self._process.terminate()  # For one that does not serve yet.
        super().stop()

    def _command(self, data_dir: str | os.PathLike, port_file: pathlib.Path) -> list[str]:
        arguments = ["--bind=127.0.0.1:0", f"--data_dir={data_dir}", f"--port_file={port_file}"]
        arguments += [f"--log_format={log_lines.installed_form()}"]
        arguments += ["--nosave_at_exit"]  # Its trainer has its own checkpoints.
        return [sys.executable, "-m", "ctr_trainer", "serve", *arguments]

    def _wait_for(self, port_file: pathlib.Path, timeout: float) -> str:
        """Returns the address once the service has written it."""
        process = psutil.Process(self.pid)
        idle_from, cpu_then = time.monotonic(), 0.0
        while not port_file.exists():
            if self.ended():
                status = self.status or 0
                kind = Lost if status < 0 or status == errors.LOST else UserError
                raise kind(f"the embedding service did not start: {self.ended()}")
            with contextlib.suppress(psutil.Error):  # It has ended meanwhile, which the next round of the loop tells.
                cpu = sum(process.cpu_times()[:2])
                if cpu > cpu_then + _LEAST_SHARE * timeout:
                    idle_from, cpu_then = time.monotonic(), cpu
                if cpu > _MOST_CPU * timeout:
                    raise Lost(self._unanswered(f"though it has used {cpu:.0f} s of CPU time"))
            if time.monotonic() > idle_from + timeout:
                raise Lost(self._unanswered(f"and has done nothing for {timeout:g} s"))
            time.sleep(_POLL_SECONDS)
        return port_file.read_text()

    def _unanswered(self, why: str) -> str:
        return f"the embedding service does not answer, {why}; {log_tail(self.log_file)}"
