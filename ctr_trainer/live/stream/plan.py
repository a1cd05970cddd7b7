"""Windows of a stream, the share of each worker in a window, and the position after each batch."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from ctr_trainer.live.stream.source import Range, StreamSource

Cut = tuple[int, int, int, int]  # (index of a range, offset, row of the record, number of bad rows before it).


@dataclasses.dataclass(frozen=True)
class StreamPosition:
    """The position of a training in a stream: the records before `next` are trained, except those in `left`.

    Attributes:
      since: value of `stream_from`. A run with this value, or `checkpoint`, resumes; a run with another value begins
        at that value.
      next: for each partition, the offset after the last planned record.
      left: parts of the planned records that are not trained yet.
      bad_rows: number of rows so far that could not be trained on.
      records: number of examples so far that were trained on.
      identity: ID of the stream, see `StreamSource.identity`; "" if unknown.
      marks: for each partition, as a text, the `Message.mark` of the last record that was read.
    """

    stream: str
    since: str
    next: dict[int, int]
    left: tuple[Range, ...] = ()
    bad_rows: int = 0
    records: int = 0
    identity: str = ""
    marks: Mapping[str, list[int]] = dataclasses.field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Returns the position as a dict. In JSON, its partitions become texts, and its ranges become lists."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Any) -> "StreamPosition | None":
        """Makes a position from the result of `to_dict`; in the stream `files` from a position in files."""
        if values is None:
            return None
        if not isinstance(values, dict) or not {"stream", "next", "left"} <= values.keys():
            return cls("files", "", {})
        following = {int(partition): offset for partition, offset in values["next"].items()}
        return cls(**{**values, "next": following, "left": tuple(Range(*each) for each in values["left"])})

    def trained(self) -> dict[int, int]:
        """Returns, for each partition, the offset before which all records are trained."""
        offsets = dict(self.next)
        for each in self.left:
            offsets[each.partition] = min(offsets.get(each.partition, each.start), each.start)
        return offsets


@dataclasses.dataclass(frozen=True)
class Report:
    """The report of a worker after reading its share of a window.

    Attributes:
      cuts: for each number of batches, from 0 on, the place of the next row.
      seconds: the newest event time; 0 without a record.
      watermarks: for each partition, the offset after its last record, if this worker has seen it.
      marks: for each partition, as a text, the `Message.mark` of the last record that was read.
      messages: number of records that were read.
      rest: what the worker has not read of its share, because the records are too large together.
    """

    rows: int
    cuts: list[Cut]
    bad: list[dict[str, Any]]
    seconds: float
    watermarks: dict[int, int]
    marks: dict[str, list[int]] = dataclasses.field(default_factory=dict)
    messages: int = 0
    rest: list[Range] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Window:
    """Records that are planned together.

    Attributes:
      shares: the ranges of each worker.
      next: for each partition, the offset after the window.
      reports: rank -> report, for the workers that have read their shares.
      again: the ranges of the window, if they were planned before.
    """

    shares: list[list[Range]]
    next: dict[int, int]
    messages: int
    reports: dict[int, Report] = dataclasses.field(default_factory=dict)
    again: tuple[Range, ...] = ()

    @property
    def rows(self) -> int:
        """Number of rows over all workers."""
        return sum(report.rows for report in self.reports.values())

    @property
    def bad_rows(self) -> int:
        """Number of rows that cannot be trained on."""
        return sum(len(report.bad) for report in self.reports.values())

    def marks(self, before: Mapping[str, list[int]]) -> dict[str, list[int]]:
        """Returns, for each partition, the mark of the last record that was read, also in earlier windows."""
        found = [*before.items(), *(each for report in self.reports.values() for each in report.marks.items())]
        return dict(sorted(found))  # The last mark of a partition has the highest offset.

    def steps(self, batch_size: int) -> int:
        """Returns the number of batches that every worker makes from the window."""
        return max(-(-report.rows // batch_size) for report in self.reports.values())

    def left_after(self, batches: int) -> list[Range]:
        """Returns the ranges that remain after this number of batches per worker."""
        left = []
        for rank, share in enumerate(self.shares):
            report = self.reports[rank]
            if batches < len(report.cuts):
                number, offset, row, _ = report.cuts[batches]
                left.append(share[number]._replace(start=offset, row=row))
                left += share[number + 1 :]
            else:
                left += report.rest
        return left

    def bad_before(self, batches: int) -> int:
        """Returns the number of bad rows that are not in the ranges of `left_after(batches)`."""
        found = 0
        for report in self.reports.values():
            found += report.cuts[batches][3] if batches < len(report.cuts) else len(report.bad)
        return found


@dataclasses.dataclass(frozen=True)
class Directive:
    """The next action of all workers.

    `kind`: `window` to train on a window, `rest` to make `steps` batches of padding, `end` to stop.
    """

    kind: str
    window: int = 0
    steps: int = 0


def share_out(source: StreamSource, pieces: Sequence[tuple[Range, int]], workers: int) -> list[list[Range]]:
    """Divides (range, number of its records) pairs into one share per worker, in order.

    Shares differ by at most one record.
    """
    total = sum(count for _, count in pieces)
    cuts = [worker * total // workers for worker in range(workers + 1)]
    shares = []
    for first, last in itertools.pairwise(cuts):
        share, at = [], 0
        for piece, count in pieces:
            low, high = max(first - at, 0), min(last - at, count)
            if low < high:
                start, stop = (_place(source, piece, at_record, count) for at_record in (low, high))
                share.append(Range(piece.partition, start, stop, piece.row if low == 0 else 0))
            at += count
        shares.append(share)
    return shares


def _place(source: StreamSource, piece: Range, records: int, count: int) -> int:
    if records in (0, count):
        return piece.stop if records else piece.start
    return source.after(piece.partition, piece.start, piece.stop, records)


def evenly(counts: Mapping[int, int], total: int) -> dict[int, int]:
    """Divides `total` records among the partitions, as evenly as their counts allow."""
    taken = dict.fromkeys(counts, 0)
    for number, partition in enumerate(sorted(counts, key=lambda p: counts[p])):
        taken[partition] = min(counts[partition], total // (len(counts) - number))
        total -= taken[partition]
    return taken
