"""What Python runs first in each worker of a test of several hosts: `ROWS_SEEN` has it note the rows that it trains.

A line of `ROWS_SEEN/RANK` is a batch, in the order of the steps: the names of its rows, see `rows.names`.
"""

import importlib.abc
import importlib.util
import os
import sys
import time

_READER = "ctr_trainer.data.reader"


class _Finder(importlib.abc.MetaPathFinder):
    """Has the reader note what it gives, when it is imported."""

    def find_spec(self, name, path=None, target=None):
        if name != _READER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def load_and_note(module):
            load(module)
            module.BatchReader.__iter__ = _noting(module.BatchReader.__iter__)

        spec.loader.exec_module = load_and_note
        return spec


def _noting(batches):
    from tests.hosts.rows import names

    def noted(reader):
        with open(os.path.join(os.environ["ROWS_SEEN"], os.environ["HOROVOD_RANK"]), "a") as file:
            for batch in batches(reader):
                print(*names(batch), file=file, flush=True)
                time.sleep(float(os.environ.get("BATCH_SECONDS", "0")))
                yield batch

    return noted


if "HOROVOD_RANK" in os.environ and "ROWS_SEEN" in os.environ:
    sys.meta_path.insert(0, _Finder())
