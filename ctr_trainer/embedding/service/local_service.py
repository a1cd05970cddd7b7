"""Embedding services that a training starts on its own host."""

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

from ctr_trainer.embedding.table.cold_rows import Disk, disk_of
from ctr_trainer.settings.embedding_config import EmbeddingConfig
from ctr_trainer.system.files.staging import make_local_directory
from ctr_trainer.system.files.temporary import temporary_directory
from ctr_trainer.system.messages import errors, log_lines
from ctr_trainer.system.messages.errors import Lost, UserError
from ctr_trainer.system.processes.child import Child, log_tail

_POLL_SECONDS = 0.02
# A start that compiles kernels on a busy machine takes minutes and is no failure. So the limit counts only time in
# which the service uses less than this share of a core.
_LEAST_SHARE = 0.01
# glibc reads these when a process starts. All threads share one heap of huge pages, so that the arrays of a request
# reuse the memory of earlier requests.
_TUNABLES, _ONE_HEAP = "GLIBC_TUNABLES", "glibc.malloc.arena_max=1:glibc.malloc.hugetlb=1"


class LocalServices:
    """Starts the shards of one training in parallel, and starts new ones for each block that needs them.

    A service takes a second to start. `start` begins this in the background, for example while this process imports
    TensorFlow, and `running` waits for the rest. The logs `service.log`, `service-1.log`, ... are in `data_dir`, or, if
    that is a URL, in its `local_directory`.
    """

    def __init__(self, count: int, data_dir: str | os.PathLike, timeout: float, disk: Disk | None = None) -> None:
        """The services share the memory of `disk`."""
        self._count, self._data_dir, self._timeout = count, data_dir, timeout
        self._disk = disk and Disk(disk.directory, disk.memory // count)
        self._starting: list[concurrent.futures.Future[LocalService]] = []

    @classmethod
    def of(cls, config: EmbeddingConfig, model_dir: str | os.PathLike) -> LocalServices:
        return cls(config.service_shards, model_dir, config.service_timeout, disk_of(config.disk, model_dir))

    def start(self, file_cores: set[int] | None = None) -> None:
        """Starts the services in the background if they are not starting; they write files on `file_cores`."""
        if self._starting:
            return
        token = secrets.token_hex()
        threads = concurrent.futures.ThreadPoolExecutor(self._count)
        self._starting = [threads.submit(self._start, number, token, file_cores) for number in range(self._count)]
        threads.shutdown(wait=False)

    def _start(self, number: int, token: str, file_cores: set[int] | None) -> LocalService:
        log = os.path.join(make_local_directory(self._data_dir), f"service-{number}.log" if number else "service.log")
        return LocalService(self._data_dir, log, self._timeout, token, file_cores, self._disk)

    @contextlib.contextmanager
    def running(
        self, cores: set[int] | None = None, file_cores: set[int] | None = None
    ) -> Iterator[list[LocalService]]:
        """Returns a context manager of the list of ready `LocalService`; it stops them at the end of the block.

        The services may use `cores`; None for all cores of this process when they started. Raises UserError if one did
        not start.
        """
        self.start(file_cores)
        with contextlib.ExitStack() as stack:
            services = [each.result() for each in self._taken(stack)]
            for service in services:
                service.keep_on(cores)
            yield services

    def close(self) -> None:
        """Stops the services of `start` that no block has used."""
        with contextlib.ExitStack() as stack:
            self._taken(stack)

    def _taken(self, stack: contextlib.ExitStack) -> list[concurrent.futures.Future[LocalService]]:
        """Returns the completed futures of the started services; `stack` stops the services that run."""
        starting, self._starting = self._starting, []
        concurrent.futures.wait(starting)
        for each in starting:
            if each.exception() is None:
                stack.enter_context(each.result())
        return starting


class Watch:
    """Reports the end of a service on this host to processes that did not start it (Linux 5.3 or later)."""

    def __init__(self, pid: int, log_file: str | os.PathLike) -> None:
        self._pid, self._log_file = pid, log_file
        self._handle = None
        with contextlib.suppress(AttributeError, OSError):
            self._handle = os.pidfd_open(pid)

    def ended(self) -> str | None:
        """Returns a text with the end of the log if the process has ended; None while it runs."""
        if self._handle is None or not select.select([self._handle], [], [], 0)[0]:
            return None
        return f"its process {self._pid} has ended; {log_tail(self._log_file)}"

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


class LocalService(Child):
    """An embedding service in a child process, which ends when this process ends, even if this process is killed.

    As a context manager, it stops the service at the end of the block. No other user of the machine can use it: its
    clients need the token, which the child reads from its standard input. Its clients connect to `address`,
    `host:port`.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike,
        log_file: str | os.PathLike,
        timeout: float,
        token: str | None = None,
        file_cores: set[int] | None = None,
        disk: Disk | None = None,
    ) -> None:
        """Starts the service, which appends its output to `log_file`, and waits until it answers.

        Args:
          data_dir: the directory of its snapshots, or its URL.
          timeout: maximum idle seconds while the service starts. Time in which it works does not count.
          token: token of its clients; None for a random one.
          file_cores: the cores on which it writes files of rows; None for all cores of this process.
          disk: the place of rows that do not fit into its memory.

        Raises Lost if the service was killed or did not answer in time, and UserError if it ended by itself; the
        message shows the end of its log.
        """
        self.token = token or secrets.token_hex()
        with temporary_directory() as directory:
            port_file = pathlib.Path(directory) / "address"
            told = {"sends_token": True, "file_cores": sorted(file_cores or ())}
            command, environment = self._command(data_dir, port_file), {_TUNABLES: _ONE_HEAP}
            command += [f"--table_memory={disk.memory}", f"--table_dir={disk.directory}"] if disk else []
            super().__init__(command, log_file, environment=environment, told=told)
            assert self._process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # The service ended at once; its log shows why.
                self._process.stdin.write(f"{self.token}\n".encode())
                self._process.stdin.flush()
            try:
                self.address = self._wait_for(port_file, timeout)
            except BaseException:
                self.stop()
                raise

    def stop(self) -> None:
        self._process.terminate()  # Stops a service that does not serve yet.
        super().stop()

    def _command(self, data_dir: str | os.PathLike, port_file: pathlib.Path) -> list[str]:
        arguments = ["--bind=127.0.0.1:0", f"--data_dir={data_dir}", f"--port_file={port_file}"]
        arguments += [f"--log_format={log_lines.installed_form()}"]
        return [sys.executable, "-m", "ctr_trainer", "serve", *arguments]

    def _wait_for(self, port_file: pathlib.Path, timeout: float) -> str:
        """Waits until the service has written its address, and returns it."""
        process = psutil.Process(self.pid)
        idle_from, cpu_then = time.monotonic(), 0.0
        while not port_file.exists():
            if self.ended():
                status = self.status or 0
                kind = Lost if status < 0 or status == errors.LOST else UserError
                raise kind(f"the embedding service did not start: {self.ended()}")
            with contextlib.suppress(psutil.Error):  # If it has ended, the next iteration reports it.
                cpu = sum(process.cpu_times()[:2])
                if cpu > cpu_then + _LEAST_SHARE * timeout:
                    idle_from, cpu_then = time.monotonic(), cpu
            if time.monotonic() > idle_from + timeout:
                raise Lost(
                    f"the embedding service does not answer, and has done nothing for {timeout:g} s; "
                    f"{log_tail(self.log_file)}"
                )
            time.sleep(_POLL_SECONDS)
        return port_file.read_text()
