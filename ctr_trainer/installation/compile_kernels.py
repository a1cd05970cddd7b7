"""Compiles the package's Numba kernels into their cache, so that the first training does not wait for the compiler.

Usage: python -m ctr_trainer.installation.compile_kernels

Numba keeps a kernel for the processor and for the version of the file that it was compiled from, next to that file or
below NUMBA_CACHE_DIR. The kernels that have a signature are compiled when their module is imported; the few others are
compiled at their first call.
"""

import importlib
import pathlib

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_MARK = "@numba.njit("


def modules() -> list[str]:
    """Returns the names of the modules that have kernels."""
    files = sorted((_ROOT / "ctr_trainer").rglob("*.py"))
    names = [".".join(file.relative_to(_ROOT).with_suffix("").parts) for file in files if _MARK in file.read_text()]
    return [name for name in names if name != __spec__.name]


def main() -> None:
    """Imports all of them, which compiles them."""
    for name in modules():
        importlib.import_module(name)


if __name__ == "__main__":
    main()
