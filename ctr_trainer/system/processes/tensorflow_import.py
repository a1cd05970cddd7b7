"""Imports TensorFlow without its log lines, and without libraries that only Keras uses.

TensorFlow 2.21 writes a line to standard error's descriptor that oneDNN is on. No setting suppresses only this line:
TF_CPP_MIN_LOG_LEVEL does not affect it, and TF_ENABLE_ONEDNN_OPTS changes the computations.

TensorFlow imports Keras, which imports matplotlib, scikit-learn and pandas if they are installed, for image galleries,
wrappers and data frames. These imports take half as long as TensorFlow itself, at the start of each worker.

The import creates a million objects that remain. Python's garbage collector scans them repeatedly during the import,
which takes a sixth of its time, and in each full collection during the training.
"""

import contextlib
import gc
import importlib.abc
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

# The filter is a process, not a thread, so that it also forwards the last lines of an import that crashes.
_FILTER = r"""
import re, sys
noise = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR$"
    rb"|.* (port\.cc|tensorflow/core/util/port\.cc):\d+\] oneDNN custom operations are on\."
    rb"|.*cpu_feature_guard\.cc:\d+\] This TensorFlow binary is optimized to use available CPU instructions"
    rb"|To enable the following instructions: .* rebuild TensorFlow with the appropriate compiler flags\.$"
)
for line in sys.stdin.buffer:
    if not noise.match(line):
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
"""
_SECONDS = 10.0
# All parts of TensorFlow that import these packages work without them.
_NOT_NEEDED = ("matplotlib", "pandas", "scipy", "sklearn")


def install() -> None:
    """Makes this process's first import of TensorFlow suppress the lines that `_FILTER` drops and skip `_NOT_NEEDED`.

    The garbage collector does not scan the objects of this import.
    """
    # The warnings of TensorFlow's C++ code do not concern the experiment. Its errors do, and remain visible.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if "tensorflow" not in sys.modules and _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the module `tensorflow` once, by the other finders, and wraps its loader."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "tensorflow":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_lean(module: ModuleType) -> None:
                with filtered_stderr(), absent(_NOT_NEEDED), uncollected():
                    load(module)

            spec.loader.exec_module = load_lean  # type: ignore[method-assign]  # Only of this loader.
        return spec


_FINDER = _Finder()


@contextlib.contextmanager
def absent(names: Iterable[str]) -> Iterator[None]:
    """Makes imports of these packages fail in the block, except for packages that are already imported."""
    hidden = [name for name in names if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]  # Python does not search for a module that is None here.
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Disables the garbage collector in the block, and permanently exempts all objects that exist at its end."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if enabled:
            gc.enable()


@contextlib.contextmanager
def filtered_stderr() -> Iterator[None]:
    """Removes the lines that match `_FILTER` from the output of the block to the descriptor of standard error."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        command = [sys.executable, "-I", "-S", "-c", _FILTER]
        filtering = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=kept)
    except OSError:
        os.close(kept)
        yield  # Without a filter.
        return
    assert filtering.stdin is not None
    os.dup2(filtering.stdin.fileno(), 2)
    filtering.stdin.close()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
        # The filter ends when its input is closed, but a process that was started meanwhile may keep the input open.
        with contextlib.suppress(subprocess.TimeoutExpired):
            filtering.wait(_SECONDS)
