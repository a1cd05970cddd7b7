#!/usr/bin/env bash
# One worker:  ./run.sh --flagfile=configs/demo.flags --max_steps=100
# Two:         horovodrun -np 2 ./run.sh --flagfile=configs/demo.flags
# With no arguments it trains the demo's experiment. Paths in flags are relative to where it is called from.
# Each variable below that the caller has set stays as it is.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

if [[ $# -eq 0 ]]; then
    cd "$here"
    set -- --flagfile=configs/demo.flags
fi

# The cores this process may use: its affinity, or a container's CPU quota where that is less.
cores=$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
if read -r quota period 2>/dev/null </sys/fs/cgroup/cpu.max && [[ $quota != max && $((quota / period)) -lt $cores ]]; then
    cores=$((quota / period))
fi
# The workers of one machine share its cores; more threads than cores only make them wait for each other.
threads=$((cores / ${HOROVOD_LOCAL_SIZE:-1}))
threads=$((threads > 0 ? threads : 1))
export CTR_TRAINER_THREADS=${CTR_TRAINER_THREADS:-$threads}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$threads}
export NUMBA_NUM_THREADS=${NUMBA_NUM_THREADS:-$threads}

export PYTHONUNBUFFERED=${PYTHONUNBUFFERED:-1}

python=$here/.venv/bin/python
[[ -x $python ]] || python=python3
export PYTHONPATH=$here${PYTHONPATH:+:$PYTHONPATH}
exec "$python" -m ctr_trainer train "$@"
