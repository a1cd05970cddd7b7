"""Rows a second of the input pipeline alone, by the number of threads that read ahead. The last line is JSON.

The data sets are those of `reader.py`. Nothing trains and no thread is kept on a core, so the rates are what free cores
give. Of each data set and number of threads: the best rate of all rounds, which other programs have disturbed least,
and the median of the ratios to the first number's rate in the same round.

Example: python benchmarks/num_readers.py --rounds 9 --num_readers 1,2,4
"""

import argparse
import json
import pathlib
import statistics
import tempfile
import time

from reader import BATCH_SIZE, write_sources


def rows_per_second(data, num_readers):
    """-> rows of one shuffled epoch by the seconds that they took."""
    from ctr_trainer.data.reader import BatchReader

    start, rows = time.perf_counter(), 0
    for batch in BatchReader(data, BATCH_SIZE, epochs=1, num_readers=num_readers):
        rows += batch.size
    return rows / (time.perf_counter() - start)


def summarize(rounds):
    """-> dict of number of threads -> `best_rows_per_sec` and `ratio`.

    Args:
      rounds: a list of dict of number -> rows/s, a round.
    """
    first = next(iter(rounds[0]))
    return {
        number: {
            "best_rows_per_sec": round(max(rates[number] for rates in rounds)),
            "ratio": round(statistics.median(rates[number] / rates[first] for rates in rounds), 2),
        }
        for number in rounds[0]
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000, help="of each data set, a multiple of 50,000")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--num_readers", default="1,2", help="numbers of threads, comma separated")
    flags = parser.parse_args()
    numbers = [int(number) for number in flags.num_readers.split(",")]
    with tempfile.TemporaryDirectory() as directory:
        sources = write_sources(pathlib.Path(directory), flags.rows)
        for source in sources.values():
            rows_per_second(source, 1)  # Compiles the kernels.
        rounds = {name: [] for name in sources}
        for _ in range(flags.rounds):
            for name, source in sources.items():
                rounds[name].append({number: rows_per_second(source, number) for number in numbers})
    print(json.dumps({name: summarize(rates) for name, rates in rounds.items()}))


if __name__ == "__main__":
    main()
