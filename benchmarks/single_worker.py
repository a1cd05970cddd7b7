"""One worker on one core against in-graph variables: workload W1, the two sides in turn. The last line is JSON.

Example: python benchmarks/single_worker.py --rounds 5
"""

import argparse
import json
import statistics

from sides import Side, compare, ratio


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="of both sides, in turn")
    parser.add_argument("--steps", type=int, default=300, help="measured in each run, after a warm-up of 20")
    parser.add_argument("--core", type=int, default=0, help="the core both sides run on")
    flags = parser.parse_args()
    arguments = (f"--steps={flags.steps}", f"--cores={flags.core}")
    sides = {"ours": Side("ours.py", arguments), "in_graph": Side("in_graph.py", arguments)}
    sides["ours"].run()  # compiles the kernels and warms the file cache
    rates = compare(sides, flags.rounds)
    results = {f"{name}_examples_per_sec": round(statistics.median(values)) for name, values in rates.items()}
    print(json.dumps({**results, "ratio": ratio(rates, "ours", "in_graph"), "rounds": flags.rounds}))


if __name__ == "__main__":
    main()
