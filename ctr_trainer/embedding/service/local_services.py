"""The services that a training starts for itself: one for each shard."""

import concurrent.futures
import contextlib
import os
import secrets

from ctr_trainer.embedding.service.local_service import LocalService
from ctr_trainer.files.staging import make_local_directory


class LocalServices:
    """Starts the shards of one training, all at the same time, and again for each block that needs them.

    A service takes a second to start. `start` begins with it while this process does something else, as to import
    TensorFlow; `running` waits for the rest of that second.

    Example:
        services = LocalServices(1, "models/ctr", timeout=60)
        services.start()
        import tensorflow
        with services.running() as (service,):
            print(service.address)

    Args:
      count: of shards.
      data_dir: directory of their snapshots, or its URL. Their logs lie there, or for a URL in its `local_directory`:
        `service.log`, `service-1.log`, ...
      timeout: seconds in which each may do nothing while it starts, see `LocalService`.
    """

    def __init__(self, count, data_dir, timeout):
        self._count, self._data_dir, self._timeout = count, data_dir, timeout
        self._starting = []

    @classmethod
    def of(cls, config, model_dir):
        """-> those that the `EmbeddingConfig` of a training asks for."""
        return cls(config.service_shards, model_dir, config.service_timeout)

    def start(self, file_cores=None):
        """Begins to start them, unless that has begun; returns at once.

        Args:
          file_cores: on which they write files of rows, a set; None for all that this process may use.
        """
        if self._starting:
            return
        token = secrets.token_hex()
        threads = concurrent.futures.ThreadPoolExecutor(self._count)
        self._starting = [threads.submit(self._start, number, token, file_cores) for number in range(self._count)]
        threads.shutdown(wait=False)

    def _start(self, number, token, file_cores):
        """-> the `LocalService` of a shard, which answers."""
        log = os.path.join(make_local_directory(self._data_dir), f"service-{number}.log" if number else "service.log")
        return LocalService(self._data_dir, log, self._timeout, token=token, file_cores=file_cores)

    @contextlib.contextmanager
    def running(self, cores=None, file_cores=None):
        """Gives the list of `LocalService`, which answer; they are stopped at the end of the block.

        Args:
          cores: that they may use, a set; None for those of this process when they were started.
          file_cores: as for `start`, if that was not called.

        Raises:
          UserError: one did not start.
        """
        self.start(file_cores)
        with contextlib.ExitStack() as stack:
            services = [each.result() for each in self._taken(stack)]
            for service in services:
                service.keep_on(cores)
            yield services

    def close(self):
        """Stops those that `start` has started and no block has taken."""
        with contextlib.ExitStack() as stack:
            self._taken(stack)

    def _taken(self, stack):
        """-> the futures of those that were started, each done; `stack` stops those that answer."""
        starting, self._starting = self._starting, []
        concurrent.futures.wait(starting)
        for each in starting:
            if each.exception() is None:
                stack.enter_context(each.result())
        return starting
