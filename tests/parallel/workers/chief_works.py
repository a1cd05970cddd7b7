"""Rank 0 works for longer than the stall timeout: first it says that it goes on, then it does not."""

import time

from ctr_trainer.ranks import distributed

distributed.init(stall_timeout=2.0)


def work(advanced):
    for number in range(25):
        time.sleep(0.2)
        advanced(f"{number} parts")
    return {"found": 25}


print(f"rank {distributed.rank()} got {distributed.from_chief(work, 'long_work')['found']}", flush=True)
distributed.from_chief(lambda advanced: time.sleep(600), "standstill")
