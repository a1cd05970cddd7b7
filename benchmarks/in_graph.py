"""W1 with the embeddings as variables in the graph, see `peer_in_graph.py`. Prints examples/s as JSON.

Under horovodrun this is the naive port, which gathers all workers' sparse gradients.
"""

import argparse
import os
import pathlib
import tempfile


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch_size", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--cores", default="0", help="of each worker, as 0,1")
    flags = parser.parse_args()
    cores = [int(core) for core in flags.cores.split(",")]
    rank, workers = (int(os.environ.get(f"HOROVOD_{name}", default)) for name, default in (("RANK", 0), ("SIZE", 1)))
    os.sched_setaffinity(0, {cores[rank]})

    import peer_in_graph
    import peers

    with tempfile.TemporaryDirectory() as directory:
        peers.write_workload(directory, flags.batch_size, rank)
        settings = dict(data=directory, result_dir=pathlib.Path(directory), steps=flags.steps, warmup=flags.warmup)
        peer_in_graph.train(argparse.Namespace(**settings), rank, workers)
        print((pathlib.Path(directory) / f"rank-{rank}.json").read_text())


if __name__ == "__main__":
    main()
