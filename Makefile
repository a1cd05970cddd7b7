# `make help` lists the targets. Settings, such as `make demo TF='tensorflow[and-cuda]' HOROVOD_GPU_OPERATIONS=NCCL`:
#   PYTHON                  the interpreter that .venv is made with; default: python3, else python3.13 down to python3.10;
#                           of test-python and test-next: its version, such as 3.13
#   TF                      the TensorFlow requirement; a different one than last time recreates .venv
#   HOROVOD_GPU_OPERATIONS  NCCL builds Horovod for GPUs
#   WORKERS                 how many workers the demo trains with
#   ARGS                    further arguments of pytest, such as ARGS='tests/install -x'

TF ?= tensorflow-cpu
PYTHON ?=
WORKERS ?= 2
ARGS ?=
# Three processes keep two cores busy, since some tests wait. Bytecode is kept, or each of 250 workers compiles the package.
PYTEST := env -u PYTHONDONTWRITEBYTECODE .venv/bin/python -m pytest -q -rs -n 3 --dist loadfile --no-loadscope-reorder
FAST := data embedding features files hooks layers measuring messages metrics processes ranks report settings
export TF PYTHON WORKERS

MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.PHONY: help install demo test test-fast test-next test-python docs lint format lock clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' Makefile

install:  ## make .venv: the package, TensorFlow, and Horovod built for it; instant when nothing changed
	@scripts/install.sh

demo: install  ## generate a data set, train two workers on it, evaluate and export; the last line is JSON
	@.venv/bin/python scripts/demo.py

test: install  ## the whole test suite, in three processes, and what was skipped and why
	@$(PYTEST) $(ARGS)

test-fast: install  ## the tests of all but models, commands and what starts jobs and services, in three processes
	@$(PYTEST) -m 'not integration and not slow' $(addprefix tests/,$(FAST)) $(ARGS)

test-next:  ## the whole test suite with TensorFlow's newest pre-release, in a copy of the checkout below build/
	@scripts/test_python.sh next

test-python:  ## the whole test suite on another Python (PYTHON=3.13), in a copy of the checkout below build/
	@scripts/test_python.sh

docs: install  ## build the documentation site into site/; a link that leads nowhere is an error
	@NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs build --quiet --strict
	@echo site/index.html

lint: install  ## ruff, import-linter (who imports whom) and mypy
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/lint-imports --no-logo --no-cache
	@.venv/bin/mypy
	@.venv/bin/mypy examples/*.py
	@cd benchmarks && MYPYPATH=.. ../.venv/bin/mypy --config-file ../pyproject.toml --cache-dir ../.mypy_cache *.py

format: install  ## let ruff correct imports and layout
	@.venv/bin/ruff check --fix .
	@.venv/bin/ruff format .

lock:  ## pin the newest versions of all requirements, with hashes, in constraints.txt; needs uv (pip install uv)
	@uv pip compile --quiet --upgrade --universal --python-version 3.10 --generate-hashes --no-annotate \
		--custom-compile-command 'make lock' --extra cpu --extra gpu --extra install --extra test --extra docs \
		--output-file constraints.txt pyproject.toml

clean:  ## remove .venv, the demo and all build outputs, but nothing of yours and no wheels in the user's cache
	@scripts/clean.sh
