"""Imports TensorFlow without its log lines, and in half of the time."""

import contextlib
import gc
import importlib
import os
import sys
import tempfile
from collections.abc import Iterator

from ctr_trainer.system.processes import hardware

# Keras imports these packages if they are installed, for image galleries, wrappers and data frames, and works without
# them. With scikit-learn installed, they take as long as TensorFlow itself, at the start of each worker.
_NOT_NEEDED = ("matplotlib", "pandas", "scipy", "sklearn")
# On processors with these instructions, the import writes these lines, which no environment variable leaves out.
_FLAGS = ("avx512_vnni", "avx_vnni", "avx512_bf16", "amx_tile")
_NOTICES = b"oneDNN custom operations are on", b"All log messages before absl::InitializeLog()"


def load() -> None:
    """Imports TensorFlow.

    The import creates a million objects that remain. Python's garbage collector would scan them repeatedly, which takes
    a third of the time, and again in each full collection of the training.
    """
    if "tensorflow" in sys.modules:
        return
    hidden = {name for name in _NOT_NEEDED if name not in sys.modules}
    sys.modules |= dict.fromkeys(hidden)  # type: ignore[arg-type]  # Python finds no module where None is.
    enabled = gc.isenabled()
    gc.disable()
    try:
        with _without_notices():
            importlib.import_module("tensorflow")
        gc.freeze()
    finally:
        if enabled:
            gc.enable()
        for name in hidden:
            sys.modules.pop(name, None)


@contextlib.contextmanager
def _without_notices() -> Iterator[None]:
    """Leaves TensorFlow's notices out of what is written to stderr; the rest is written at the end.

    On an older processor everything is written at once, such as why the import ends the process.
    """
    kept = None
    if hardware.has_any(_FLAGS):
        with contextlib.suppress(OSError):  # A daemon may have closed stderr.
            kept = os.dup(2)
    if kept is None:
        yield
        return
    with tempfile.TemporaryFile() as written:
        os.dup2(written.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            written.seek(0)
            for line in written:
                if not any(notice in line for notice in _NOTICES):
                    os.write(2, line)
