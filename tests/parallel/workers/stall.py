"""Rank 1 waits for a collective that rank 0 does not reach."""

import sys
import time

from ctr_trainer.ranks import distributed

distributed.init(stall_timeout=3)
distributed.barrier("all_are_here")
if distributed.rank() == 1:
    distributed.barrier("never_met")
    sys.exit(0)  # must not be reached
time.sleep(600)
