"""Exchanges the records of the ranks that end, and notices ranks that were killed."""

import dataclasses
import os
import socket
import time
from collections.abc import Iterator

import psutil

from ctr_trainer.ranks.endings.records import ERRORS, EndRecord, RecordKind
from ctr_trainer.ranks.notices import Notices, Placement

# Ranks that fail at the same time write their records within the first time, and further ranks within the second.
SETTLE_SECONDS = 0.5
_ANSWER_SECONDS = 1.5
_POLL_SECONDS = 0.1
# The maximum number of requests per second that all ranks together send to the server of the notices.
_ASKED_A_SECOND = 200


class RecordExchange:
    """The records of the ranks of a job. The notices share them among all hosts, and a directory with the launcher."""

    def __init__(self, notices: Notices, placement: Placement) -> None:
        self._notices, self._placement, self._size = notices, placement, placement.size
        self.poll_seconds = max(_POLL_SECONDS, self._size / _ASKED_A_SECOND)

    def introduce(self) -> None:
        """Writes the process id and the host of this rank."""
        self._notices.put(f"process.{self._placement.rank}", f"{os.getpid()} {socket.gethostname()}")

    def put(self, record: EndRecord) -> None:
        """Writes a record for the other ranks and for the launcher."""
        if self._size > 1:
            self._notices.put(f"end.{record.rank}", dataclasses.replace(record, traceback=()).to_json())
        self.pass_on(record)

    def pass_on(self, record: EndRecord) -> None:
        """Writes a record, also of a rank of another host, for the launcher if it runs on this host."""
        if directory := os.environ.get(ERRORS):
            record.write(directory)

    def all(self, own: EndRecord) -> list[EndRecord]:
        """Returns the records of all ranks, as soon as the cause is known, or they have had the time to be written."""
        if self._size == 1:
            return [own]
        time.sleep(SETTLE_SECONDS)
        deadline = time.monotonic() + (0.0 if own.kind is RecordKind.CAUSE else _ANSWER_SECONDS)
        while True:
            self.put_killed(own)
            found = [EndRecord.parse(self._notices.get(f"end.{rank}")) for rank in range(self._size)]
            records = {record.rank: record for record in found if record is not None} | {own.rank: own}
            if len(records) == self._size or self._is_known(list(records.values())) or time.monotonic() > deadline:
                return list(records.values())
            time.sleep(self.poll_seconds)

    def _is_known(self, records: list[EndRecord]) -> bool:
        """Whether the records contain a cause, and the record of the rank that reports it."""
        causes = [record for record in records if record.kind is RecordKind.CAUSE]
        # A rank that was killed is reported by a rank on the host of horovodrun.
        has_reporter = any(record.is_here and not record.is_of_killed for record in records)
        return any(has_reporter or not cause.is_of_killed for cause in causes)

    def has_cause(self) -> bool:
        """Returns whether any rank of the job has the record of a cause."""
        records = (EndRecord.parse(self._notices.get(f"end.{rank}")) for rank in range(self._size))
        return any(record is not None and record.kind is RecordKind.CAUSE for record in records)

    def put_killed(self, own: EndRecord) -> None:
        """Writes records of the ranks of this host that were killed; `own` is a record of this rank."""
        for rank, pid in self._killed():
            self.put(own.of_killed(rank, pid))

    def _killed(self) -> Iterator[tuple[int, int]]:
        """Yields (rank, process id) of the ranks of this host whose processes have ended without a record."""
        for rank in self._placement.host_ranks:
            process, _, host = (self._notices.get(f"process.{rank}") or "").partition(" ")
            if rank == self._placement.rank or not process.isdecimal() or host != socket.gethostname():
                continue
            if not psutil.pid_exists(int(process)) and self._notices.get(f"end.{rank}") is None:
                yield rank, int(process)

    def unheard(self) -> str:
        """Returns a sentence that names the ranks that have never written a notice; "" if there are none."""
        heard = [self._notices.get(f"process.{rank}") is not None for rank in range(self._size)]
        unheard = [str(rank) for rank, is_heard in enumerate(heard) if not is_heard]
        if not unheard or not heard[self._placement.rank]:  # Without its own notice, the server does not answer.
            return ""
        ranks = f"rank{'s' * (len(unheard) > 1)} {', '.join(unheard)}"
        return f"nothing was heard of {ranks}, whose host may not reach horovodrun at {self._notices.address}"
