#!/usr/bin/env bash
# Makes .venv with the package (editable), its development tools, TensorFlow and Horovod. `make install` calls it.
#
# Environment: PYTHON, TF, HOROVOD_GPU_OPERATIONS, as the Makefile says.
# The stamp is written last, so an interrupted installation continues, and a finished one is not repeated.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
cd "$root"

venv=.venv
stamp=$venv/installed
tensorflow=${TF:-tensorflow-cpu}

say() { printf 'install: %s\n' "$1" >&2; }

fail() {
    printf 'install: %s\n' "$@" >&2
    exit 1
}

# Prints "MINOR EXECUTABLE VERSION" of a Python 3, outside of its virtual environment; nothing if it does not run.
describe() {
    "$1" -c 'import os, platform, sys
if sys.version_info[0] == 3:
    executable = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    print(sys.version_info[1], executable, platform.python_version())' 2>/dev/null || true
}

# Prints where a Python is installed and its build, which are the same for its virtual environments.
build_of() {
    "$1" -c 'import sys; print(sys.base_prefix, sys.version)' 2>/dev/null || true
}

# Sets `described` to the first usable Python. TensorFlow supports a new Python late, so 3.10 to 3.13 are preferred.
find_python() {
    local candidate minor newer=""
    local candidates=(python3 python3.13 python3.12 python3.11 python3.10)
    [[ -z ${PYTHON:-} ]] || candidates=("$PYTHON")
    for candidate in "${candidates[@]}"; do
        described=$(describe "$candidate")
        minor=${described%% *}
        if [[ -n $minor && $minor -ge 10 && $minor -le 13 ]]; then
            return
        elif [[ -n $minor && $minor -gt 13 ]]; then
            newer=${newer:-$described}
        fi
    done
    described=$newer
    [[ -n $described ]] || fail \
        "no Python 3.10 or later: looked for ${candidates[*]} on PATH ($(python_found))." \
        "Install one, then run this again (PYTHON=/path/to/python3 names one that is not on PATH):" \
        "  Debian, Ubuntu:  sudo apt-get install -y python3 python3-venv" \
        "  Fedora, RHEL:    sudo dnf install -y python3.12"
    say "Python ${described##* } is newer than what this was tested with; if it fails, install one of 3.10 to 3.13"
}

python_found() {
    local version
    version=$("${PYTHON:-python3}" --version 2>&1) || version="not found"
    printf '%s is %s' "${PYTHON:-python3}" "${version%%$'\n'*}"
}

# Tests whether .venv can be kept: it was made with this Python, in this directory, for this TensorFlow.
venv_fits() {
    [[ -x $venv/bin/python && $(build_of "$venv/bin/python") == "$(build_of "$python")" ]] &&
        grep -qF "$root/$venv/bin/python" "$venv/bin/pip" 2>/dev/null &&
        [[ $(cat "$venv/tensorflow" 2>/dev/null) == "$tensorflow" ]]
}

# Fails if .venv is a link, or holds something and this script did not make it, because it would be emptied.
refuse_foreign_venv() {
    local left
    left=$(cd "$venv" 2>/dev/null && pwd -P) || true
    [[ ! -L $venv ]] || fail \
        "$root/$venv is a link${left:+ to $left}, which this script would empty. Remove the link, then run this again."
    shopt -s nullglob dotglob
    left=("$venv"/*)
    shopt -u nullglob dotglob
    [[ -f $venv/tensorflow || ${#left[@]} -eq 0 ]] || fail \
        "$root/$venv is there and was not made by this script, which would empty it. Move it away, then run this again."
}

# Writes the part of constraints.txt that belongs to this TensorFlow to a file. Fails for any other TensorFlow, and for
# a Python that constraints.txt does not support.
lock_requirements() {
    local line kept="" others
    case $tensorflow in
        tensorflow-cpu) others='^(tensorflow==|nvidia-)' ;;
        'tensorflow[and-cuda]') others='^tensorflow-cpu==' ;;
        *) return 1 ;;
    esac
    [[ $minor -le 13 && -f constraints.txt ]] || return 1
    while IFS= read -r line; do
        if [[ $line == [a-z]* ]]; then
            kept=yes
            [[ ! $line =~ $others ]] || kept=""
        fi
        [[ -z $kept ]] || printf '%s\n' "$line"
    done <constraints.txt >"$1"
}

pip_install() {
    # setuptools warns about every editable installation.
    PYTHONWARNINGS=ignore "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@" ||
        fail "pip could not install $* (its message is above). Run this again: what is installed is kept."
}

find_python
python=${described#* }
python=${python% *}
key="$described
checkout $root
tensorflow $tensorflow
gpu operations ${HOROVOD_GPU_OPERATIONS:-none}
recipe $(cat pyproject.toml setup.py constraints.txt ctr_trainer/system/installation/*.{py,txt} scripts/install.sh | cksum)"
if [[ -f $stamp && $(cat "$stamp") == "$key" ]]; then
    exit 0
fi

# Checks what the machine must provide before the first download.
minor=${described%% *}
"$python" -c 'import ensurepip, venv' 2>/dev/null || fail \
    "$python cannot make virtual environments: its modules ensurepip and venv are missing. Install them, then run this again:" \
    "  Debian, Ubuntu:  sudo apt-get install -y python3.$minor-venv" \
    "  Fedora, RHEL:    sudo dnf install -y python3-libs python3-pip"
"$python" -m ctr_trainer.system.installation.build_horovod --check_tools || exit 1

refuse_foreign_venv
rm -f "$stamp"
if ! venv_fits; then
    say "making $venv with Python ${described##* } ($python)"
    mkdir -p "$venv"
    printf 'unfinished\n' >"$venv/tensorflow" # Written first, so that an interrupted .venv is recognized.
    for left in "$venv"/* "$venv"/.[!.]*; do
        [[ $left == "$venv/tensorflow" ]] || rm -rf "$left"
    done
    "$python" -m venv "$venv" || fail "$python -m venv $venv failed (its message is above)."
    printf '%s\n' "$tensorflow" >"$venv/tensorflow"
fi

say "installing $tensorflow and the package's requirements; the first time this downloads several hundred MB"
if lock_requirements "$venv/requirements.txt"; then
    pip_install --require-hashes --requirement "$venv/requirements.txt"
    pip_install --no-deps --no-build-isolation --editable .
else
    say "constraints.txt is for Python 3.10 to 3.13 and the TensorFlow it names: taking the newest releases, without hashes"
    pip_install --upgrade pip
    case $tensorflow in
        tensorflow-cpu) pip_install --editable '.[cpu,test,docs]' ;;
        'tensorflow[and-cuda]') pip_install --editable '.[gpu,test,docs]' ;;
        *) pip_install --editable '.[test,docs]' "$tensorflow" ;;
    esac
fi
"$venv/bin/python" -m ctr_trainer.system.installation.build_horovod || fail "correct that, then run this again: what is installed is kept."
say "compiling the package's kernels for this processor, so that the first training does not"
"$venv/bin/python" -m ctr_trainer.system.installation.compile_kernels || fail "the kernels could not be compiled (the message is above)."

printf '%s\n' "$key" >"$stamp.new"
mv "$stamp.new" "$stamp"
say "done: . $venv/bin/activate"
