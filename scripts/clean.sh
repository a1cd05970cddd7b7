#!/usr/bin/env bash
# Removes .venv, the demo and all build outputs, but not the wheels in the user's cache. `make clean` calls it.
#
# It keeps and lists what `make` did not make: your own .venv, and files that were added to demo/, build/ or dist/.
set -euo pipefail
shopt -s nullglob dotglob
cd "$(dirname "${BASH_SOURCE[0]}")/.."
status=0

leave() {
    printf 'clean: left %s\n' "$1" >&2
    status=1
}

# Removes a directory if it holds only the given names or patterns.
remove_if_only() {
    local directory=$1 path pattern known
    shift
    [[ -e $directory ]] || return 0
    for path in "$directory"/*; do
        known=
        for pattern in "$@"; do
            # shellcheck disable=SC2053
            [[ ${path##*/} != $pattern ]] || known=yes
        done
        if [[ -z $known ]]; then
            leave "$directory: it holds ${path##*/}, which no build makes; move it away"
            return
        fi
    done
    rm -rf "$directory"
}

python=.venv/bin/python
[[ -x $python ]] || python=python3
if [[ -e demo ]]; then
    PYTHONPATH=$PWD "$python" scripts/demo.py --remove || status=1
fi
if [[ -L .venv ]]; then
    leave ".venv: it is a link, which scripts/install.sh did not make; remove it yourself"
elif [[ -f .venv/tensorflow ]]; then
    rm -rf .venv
elif [[ -e .venv ]]; then
    leave ".venv: scripts/install.sh did not make it; remove it yourself"
fi
remove_if_only build 'lib*' 'bdist.*' 'temp.*' 'scripts-*' 'python-*' __editable__*
remove_if_only dist '*.whl' '*.tar.gz'
remove_if_only site '*.html' '*.svg' '*.png' '*.jsonl' 'sitemap.xml*' objects.inv api assets search
rm -rf ./*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
find . -name .git -prune -o -name .venv -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +
exit $status
