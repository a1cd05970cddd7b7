"""Rank 0 works in a step for longer than the stall timeout, and says so; then rank 1 waits for it in vain."""

import sys
import time

from ctr_trainer.ranks import distributed

distributed.init(stall_timeout=5.0)


def work(advanced):
    for number in range(15):
        time.sleep(0.4)
        advanced(f"{number} parts")
    return {"found": 15}


with distributed.watchdog().waiting("a step"):
    found = distributed.from_chief(work, "long_work")["found"]
print(f"rank {distributed.rank()} got {found}", flush=True)
distributed.barrier("all_are_here")
if distributed.rank() == 1:
    distributed.barrier("never_met")
    sys.exit(0)  # must not be reached
time.sleep(600)
