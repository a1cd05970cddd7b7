"""Limits of what a scoring server takes on."""

import dataclasses

from ctr_trainer.settings.setting import Settings, setting


@dataclasses.dataclass(frozen=True)
class ScoreLimits(Settings, title="Requests"):
    """Limits of what a scoring server takes on, and how it batches.

    Attributes:
      batch_delay_ms: with 0 a batch takes what waits when a thread is free, so batches grow with the load.
      max_queue: a request beyond it is refused by 429, so that those that wait are answered in time.
    """

    max_batch_size: int = setting(
        256, "examples of concurrent requests that are scored together", "examples", minimum=1
    )
    batch_delay_ms: float = setting(
        0.0, "how long a batch waits for further requests; 0: takes those that wait already", "ms", minimum=0.0
    )
    threads: int = setting(1, "batches that are scored at a time, each on one core", "threads", minimum=1)
    max_queue: int = setting(
        4096, "examples that may wait; a request beyond them is refused by status 429", "examples", minimum=1
    )
    timeout_secs: float = setting(
        1.0, "how long a request may wait and be scored before status 504 answers it", "seconds", above=0.0
    )
    max_examples: int = setting(1024, "examples that one request may have", "examples", minimum=1)
    max_list_length: int = setting(1000, "values that a bag or sequence of one example may have", "values", minimum=1)
    max_body_bytes: int = setting(
        4 << 20, "size that the body of a request may have; beyond it status 413 answers", "bytes", minimum=1
    )
    max_values: int = setting(
        1 << 17,
        "values that one request may have, each list counted as long as the longest; beyond it status 413 answers",
        "values",
        minimum=1,
    )
