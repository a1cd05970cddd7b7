"""The batches of dense_exchange.py: in each step three examples, of which rank 0 has two and rank 1 one."""

import numpy as np

STEPS, START = 4, (0.5, -0.25)

_random = np.random.default_rng(7)
ALL = [
    (_random.normal(size=(3, 2)).astype(np.float32), _random.normal(size=3).astype(np.float32)) for _ in range(STEPS)
]


def _batch(x, y, rows):
    """Returns these rows as (x float32[2, 2], y float32[2], weight float32[2]), padded with irrelevant values."""
    missing = 2 - len(rows)
    x = np.concatenate([x[rows], np.full((missing, 2), 9, np.float32)])
    return x, np.concatenate([y[rows], np.full(missing, -9, np.float32)]), np.float32([1] * len(rows) + [0] * missing)


# Of four ranks on two hosts, of which one has no example in any step.
SPLIT_OF_HOSTS = [[_batch(x, y, rows) for x, y in ALL] for rows in ([0], [1], [], [2])]
SPLIT = [[_batch(x, y, rows) for x, y in ALL] for rows in ([0, 1], [2])]
PADDED = [[_batch(x, y, rows) for x, y in ALL] for rows in ([0, 1], [])]
