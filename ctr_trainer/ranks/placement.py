"""Which rank this process is, by what `horovodrun` says of it."""

import dataclasses
import os

# Each process that `launch` has started has it in its environment, as JOB.START.
ATTEMPT = "CTR_TRAINER_ATTEMPT"


@dataclasses.dataclass(frozen=True)
class Placement:
    """A rank among all, and among those of its host.

    Attributes:
      rank, size: which, and how many there are.
      host_ranks: range of the ranks of its host.
    """

    rank: int
    size: int
    host_ranks: range

    @classmethod
    def of_this_process(cls):
        """-> that of this process; rank 0 of 1 without `horovodrun`."""
        rank, size, host_rank, host_size = (
            int(os.environ.get(f"HOROVOD_{what}", default))
            for what, default in (("RANK", 0), ("SIZE", 1), ("LOCAL_RANK", 0), ("LOCAL_SIZE", 1))
        )
        first = rank - host_rank  # horovodrun numbers the ranks host by host.
        return cls(rank, size, range(first, first + host_size))

    @property
    def job(self):
        """Name of the job that `launch` has started this process for; "" without it."""
        return os.environ.get(ATTEMPT, "").partition(".")[0]

    @property
    def is_first_of_host(self):
        """Whether it is the first rank of its host."""
        return self.rank == self.host_ranks[0]

    @property
    def is_on_one_host(self):
        """Whether all ranks are on its host."""
        return len(self.host_ranks) == self.size
