"""What Python runs first in each worker of a test of several hosts.

With `ROWS_SEEN=DIRECTORY` a worker notes what it trains: a line of `DIRECTORY/RANK`, under `launch` of
`DIRECTORY/START/RANK`, is a batch, the names of its rows (`rows.names`).
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
            _note(module)

        spec.loader.exec_module = load_and_note
        return spec


def _note(module):
    """Has the reader of its module note what it gives."""
    batches = module.BatchReader.__iter__

    def noted(reader):
        from tests.hosts.rows import names

        number = os.environ.get("CTR_TRAINER_ATTEMPT", "").partition(".")[2]  # Of the start, under `launch`.
        directory = os.path.join(os.environ["ROWS_SEEN"], number)
        os.makedirs(directory, exist_ok=True)
        with open(os.path.join(directory, os.environ["HOROVOD_RANK"]), "a") as file:
            for batch in batches(reader):
                print(*names(batch), file=file, flush=True)
                time.sleep(float(os.environ.get("BATCH_SECONDS", "0")))
                yield batch

    module.BatchReader.__iter__ = noted


if "HOROVOD_RANK" in os.environ and "ROWS_SEEN" in os.environ:
    if _READER in sys.modules:  # In a fork of a process that has imported it.
        _note(sys.modules[_READER])
    else:
        sys.meta_path.insert(0, _Finder())
