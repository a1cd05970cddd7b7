"""What the tasks of a conversion report; results of consecutive tasks are merged."""

import copy
import dataclasses

from ctr_trainer.data.distinct_sketch import DistinctSketch
from ctr_trainer.data.observations import Observations
from ctr_trainer.data.statistics import Statistics


@dataclasses.dataclass
class PartResult:
    """What tasks wrote of a part of the data set.

    Attributes:
      files: list of a dict per Parquet file, as in `DatasetInfo.files`, in the order of the tasks.
      statistics: Statistics of the rows. Distinct keys are estimated, so that they fit into any number of tasks.
    """

    files: list
    statistics: Statistics


@dataclasses.dataclass
class TaskResult:
    """What consecutive tasks did.

    Attributes:
      number: number of the first of these tasks.
      parts: dict of part -> PartResult.
      observed: Observations of all rows.
      bad_rows: the arguments of `BadRows.add` for each row that was left out; the rows after the budget are not listed.
      error: message of the first task that failed; "" if none did.
    """

    number: int
    parts: dict[str, PartResult]
    observed: Observations
    bad_rows: list
    error: str = ""

    def merge(self, other):
        """Adds the result of the tasks that follow."""
        for name, part in other.parts.items():
            self.parts[name].files += part.files
            self.parts[name].statistics.merge(part.statistics)
        self.observed.merge(other.observed)
        self.bad_rows += other.bad_rows
        self.error = self.error or other.error


def condensed(statistics):
    """-> the Statistics, with sketches in place of the sets of distinct keys."""
    small = copy.copy(statistics)
    small.distinct = {name: DistinctSketch(distinct.keys()) for name, distinct in statistics.distinct.items()}
    return small
