"""One worker on one core against in-graph variables: workload W1, the two sides in turn. The last line is JSON.

Example: python benchmarks/single_worker.py --rounds 5
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).parent


def measure(script, flags):
    """-> examples/s of one run of a script."""
    command = [sys.executable, str(HERE / script), f"--steps={flags.steps}", f"--core={flags.core}"]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])["examples_per_sec"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="of both sides, in turn")
    parser.add_argument("--steps", type=int, default=300, help="measured in each run, after a warm-up of 20")
    parser.add_argument("--core", type=int, default=0, help="the core both sides run on")
    flags = parser.parse_args()
    measure("ours.py", flags)  # compiles the kernels and warms the file cache
    ours, in_graph = [], []
    print(f"{'round':>5} {'ours':>12} {'in graph':>12} {'ratio':>6}   (examples/s)")
    for number in range(1, flags.rounds + 1):
        ours.append(measure("ours.py", flags))
        in_graph.append(measure("in_graph.py", flags))
        print(f"{number:>5} {ours[-1]:>12,.0f} {in_graph[-1]:>12,.0f} {ours[-1] / in_graph[-1]:>6.2f}", flush=True)
    print(
        json.dumps(
            {
                "ours_examples_per_sec": round(statistics.median(ours)),
                "in_graph_examples_per_sec": round(statistics.median(in_graph)),
                "ratio": round(statistics.median(a / b for a, b in zip(ours, in_graph, strict=True)), 3),
                "rounds": flags.rounds,
            }
        )
    )


if __name__ == "__main__":
    main()
