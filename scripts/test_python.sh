#!/usr/bin/env bash
# Runs the test suite in a copy of the checkout with a virtual environment of its own: on another Python
# (`make test-python PYTHON=3.13`), or with the newest release or pre-release of TensorFlow (`make test-next`).
#
# Usage: test_python.sh [next]. Environment: PYTHON (a version; for `next` by default 3), TF, ARGS, as the Makefile says.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tensorflow=${TF:-tensorflow-cpu}
if [[ ${1:-} == next ]]; then
    PYTHON=${PYTHON:-3}
    tensorflow+=">=0.dev0" # This version makes pip admit pre-releases, but of no other package.
    export PIP_UPGRADE=1
elif [[ ! ${PYTHON:-} =~ ^3\.[0-9]+$ ]]; then
    printf 'test-python: PYTHON=%s: expected a version, as in: make test-python PYTHON=3.13\n' "${PYTHON:-}" >&2
    exit 1
fi
copy=build/python-$PYTHON${1:+-$1}
data=$(cd .. && pwd)/shared/data
mkdir -p "$copy"
find "$copy" -mindepth 1 -maxdepth 1 ! -name .venv -exec rm -rf {} +
[[ -z ${1:-} ]] || rm -f "$copy/.venv/installed" # A newer version may have been released since.
git ls-files -z --cached --others --exclude-standard | tar --null --ignore-failed-read -T - -c 2>/dev/null | tar -x -C "$copy"
export CTR_TRAINER_TEST_DATA=${CTR_TRAINER_TEST_DATA:-$data}
exec make -C "$copy" test PYTHON="python$PYTHON" TF="$tensorflow" ARGS="${ARGS:-}"
