# `make help` lists the targets. Settings, as `make demo TF='tensorflow[and-cuda]' HOROVOD_GPU_OPERATIONS=NCCL`:
#   PYTHON                  the interpreter that .venv is made with; default: python3, else python3.13 down to python3.10
#   TF                      the TensorFlow requirement; another one than last time makes .venv anew
#   HOROVOD_GPU_OPERATIONS  NCCL builds Horovod for GPUs
#   WORKERS                 how many workers the demo trains with
#   ARGS                    what else pytest is given, as ARGS='tests/install -x'

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
.PHONY: help install demo test test-fast docs lint format lock clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' Makefile

install:  ## make .venv: the package, TensorFlow, and Horovod built for it; instant when nothing changed
	@scripts/install.sh

demo: install  ## generate a data set, train two workers on it, evaluate and export; the last line is JSON
	@.venv/bin/python scripts/demo.py

test: install  ## the whole test suite, in three processes, and what was skipped and why
	@$(PYTEST) $(ARGS)

test-fast: install  ## the tests of all but models, commands and what starts jobs and services, in three processes
	@$(PYTEST) -m 'not integration and not slow' $(addprefix tests/,$(FAST)) $(ARGS)

docs: install  ## build the documentation site into site/; a link that leads nowhere is an error
	@NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs build --quiet --strict
	@echo site/index.html

lint: install  ## what ruff says, and import-linter of who imports whom
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/lint-imports --no-logo --no-cache

format: install  ## let ruff mend imports and layout
	@.venv/bin/ruff check --fix .
	@.venv/bin/ruff format .

lock:  ## pin the newest versions of all requirements, with hashes, in constraints.txt; needs uv (pip install uv)
	@uv pip compile --quiet --upgrade --universal --python-version 3.10 --generate-hashes --no-annotate \
		--custom-compile-command 'make lock' --extra cpu --extra gpu --extra install --extra dev --extra docs \
		--output-file constraints.txt setup.py

clean:  ## remove .venv, the demo and all build outputs, but nothing of yours and no wheels in the user's cache
	@scripts/clean.sh
