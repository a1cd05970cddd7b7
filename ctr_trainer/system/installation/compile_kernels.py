"""Compiles the package's Numba kernels into Numba's cache, so that the first training does not wait for the compiler.

Usage: python -m ctr_trainer.system.installation.compile_kernels

The cache is next to each source file, or below NUMBA_CACHE_DIR. A cache entry is valid for one type of processor and
one version of the source file. Kernels with a signature are compiled when their module is imported; the few other
kernels are compiled at their first call.
"""

import importlib
import pathlib

_ROOT = pathlib.Path(__file__).resolve().parents[3]
_MARKS = "@numba.njit(", "@kernel("


def modules() -> list[str]:
    """Returns the names of the modules that have kernels."""
    files = sorted((_ROOT / "ctr_trainer").rglob("*.py"))
    marked = [file for file in files if any(mark in file.read_text() for mark in _MARKS)]
    names = [".".join(file.relative_to(_ROOT).with_suffix("").parts) for file in marked]
    return [name for name in names if name != __spec__.name]


def main() -> None:
    """Compiles the kernels by importing all modules that have kernels."""
    for name in modules():
        importlib.import_module(name)


if __name__ == "__main__":
    main()
