"""Every benchmark imports what it uses: its `--help`, and those of its modules that have none, load."""

import pathlib
import subprocess
import sys

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"


def test_every_module_of_the_benchmarks_imports():
    # In one process, since TensorFlow takes seconds to start; peers need libraries that the package does not.
    names = sorted(path.stem for path in BENCHMARKS.glob("*.py"))
    program = f"import sys; sys.path.insert(0, {str(BENCHMARKS)!r})\n" + "\n".join(
        f"try:\n    import {name}\nexcept ModuleNotFoundError as error:\n"
        f"    assert error.name in ('torch', 'lightgbm'), ({name!r}, str(error))"
        for name in names
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
