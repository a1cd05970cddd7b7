"""Has TensorFlow imported without the lines that it writes then, and without libraries that only its Keras takes along.

TensorFlow 2.21 writes to the descriptor of standard error that oneDNN is on. No setting stops this line:
TF_CPP_MIN_LOG_LEVEL does not affect it, and TF_ENABLE_ONEDNN_OPTS changes what is computed.

It imports Keras, which imports matplotlib, scikit-learn and pandas where it finds them, for its galleries of images,
its wrappers and the data frames that it is given. These are half as much work again as TensorFlow itself, at the start
of each worker.

An import makes a million objects that stay. Python's collector goes through them again and again meanwhile, a sixth of
the work, and in each full collection of the training.
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

# The filter is a process, not a thread, so that it also passes on the last lines of an import that crashes.
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
# Whatever imports these in TensorFlow works without them.
_NOT_NEEDED = ("matplotlib", "pandas", "scipy", "sklearn")


def install() -> None:
    """Has this process's first import of TensorFlow write none of the lines above, import none of `_NOT_NEEDED`, and
    leave the collector nothing to look at.
    """
    # TensorFlow's C++ code writes warnings that are not about the experiment. Its errors are, and stay on.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if "tensorflow" not in sys.modules and _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds TensorFlow once, where the other finders find it."""

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

            spec.loader.exec_module = load_lean  # type: ignore[method-assign]  # Of this one loader.
        return spec


_FINDER = _Finder()


@contextlib.contextmanager
def absent(names: Iterable[str]) -> Iterator[None]:
    """Has imports of these packages fail in the block, as if they were not installed; what is there already stays."""
    hidden = [name for name in names if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]  # Python does not look for what is None here.
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Has the garbage collector rest in the block, and never look at what there is at its end."""
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
    """Filters the lines above from what the block writes to the descriptor of standard error."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        command = [sys.executable, "-I", "-S", "-c", _FILTER]
        filtering = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=kept)
    except OSError:
        os.close(kept)
        yield  # Without the filter.
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
        # The filter ends when its input is closed, and a process that was started meanwhile may still hold the input.
        with contextlib.suppress(subprocess.TimeoutExpired):
            filtering.wait(_SECONDS)
