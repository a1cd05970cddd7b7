"""Imports TensorFlow in half of the time, for processes that only run this package."""

import gc
import importlib
import sys

# Keras imports these packages if they are installed, for image galleries, wrappers and data frames, and works without
# them. With scikit-learn installed, they take as long as TensorFlow itself, at the start of each worker.
_NOT_NEEDED = ("matplotlib", "pandas", "scipy", "sklearn")


def load() -> None:
    """Imports TensorFlow. For commands and workers: in a notebook, Keras would lack these packages for good.

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
        importlib.import_module("tensorflow")
        gc.freeze()
    finally:
        if enabled:
            gc.enable()
        for name in hidden:
            sys.modules.pop(name, None)
