"""Names of rows, by which a test tells which ones were read."""

import collections
import hashlib
import pathlib


def names(batch):
    """Returns a text for each example of a `Batch`, which is different for each row of the demo's data."""
    columns = [*batch.keys.values(), batch.dense]
    return [_name([column[row] for column in columns]) for row in range(batch.size)]


def _name(values):
    return hashlib.blake2b(b"".join(each.tobytes() for each in values), digest_size=8).hexdigest()


def trained(seen, restarts, last_step):
    """Returns a Counter of the names of the rows in the steps of a job under `launch` that were not lost.

    Of each start these are the steps up to the checkpoint that the next one went on from.

    Args:
      seen: `ROWS_SEEN` of the job, see `site/sitecustomize.py`.
      restarts: those of its `train_summary.json`, one at least.
      last_step: of the training.
    """
    steps = [0, *(restart["step"] for restart in restarts), last_step]
    workers = [restarts[0]["workers_before"], *(restart["workers"] for restart in restarts)]
    count = collections.Counter()
    for number, (first, last) in enumerate(zip(steps, steps[1:], strict=False)):
        for rank in range(workers[number] if last > first else 0):  # Else it may have read no row.
            lines = (pathlib.Path(seen) / str(number) / str(rank)).read_text().splitlines()
            assert len(lines) >= last - first
            count.update(name for line in lines[: last - first] for name in line.split())
    return count
