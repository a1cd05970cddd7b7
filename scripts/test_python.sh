#!/usr/bin/env bash
# Runs the test suite on another Python, in a copy of the checkout with a virtual environment of its own.
# `make test-python PYTHON=3.13` calls it.
#
# Environment: PYTHON (a version), TF, ARGS, as the Makefile says.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [[ ! ${PYTHON:-} =~ ^3\.[0-9]+$ ]]; then
    printf 'test-python: PYTHON=%s: expected a version, as in: make test-python PYTHON=3.13\n' "${PYTHON:-}" >&2
    exit 1
fi
copy=build/python-$PYTHON
data=$(cd .. && pwd)/shared/data
mkdir -p "$copy"
find "$copy" -mindepth 1 -maxdepth 1 ! -name .venv -exec rm -rf {} +
git ls-files -z --cached --others --exclude-standard | tar --null --ignore-failed-read -T - -c 2>/dev/null | tar -x -C "$copy"
export CTR_TRAINER_TEST_DATA=${CTR_TRAINER_TEST_DATA:-$data}
exec make -C "$copy" test PYTHON="python$PYTHON" ARGS="${ARGS:-}"
