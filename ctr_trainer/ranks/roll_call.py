"""Finds the ranks of a job that have ended without a word."""

import contextlib
import os
import socket
import time

import psutil

_ANSWER_SECONDS = 1.5
_POLL_SECONDS = 0.1
_WITHOUT_A_WORD = "without a word: it was killed, as the system does when memory runs out, or it crashed"


class RollCall:
    """Tells a rank that was killed from those that end because of it.

    Each rank writes its process and its host into the job's notices. A rank that notices the end of the job writes that
    too, and names the ranks of its own host whose process has gone without having done so. One that is stopped cannot
    end by itself, so it is killed.

    Args:
      notices: `Notices` of the job.
      placement: `Placement` of this process.
    """

    def __init__(self, notices, placement):
        self._notices, self._placement = notices, placement
        self.introduce()

    def introduce(self) -> None:
        """Writes which process this rank is."""
        if self._placement.size > 1:
            self._notices.put(f"process.{self._placement.rank}", f"{os.getpid()} {socket.gethostname()}")

    def end(self):
        """Writes that this rank ends, and which processes of its host have gone."""
        self._notices.put(f"ends.{self._placement.rank}", "")
        self._name_those_gone(_kill_if_stopped)

    def is_one_lost(self):
        """-> whether a rank is known to have ended without a word, while none may end in order."""
        self._name_those_gone()
        return bool(self._ranks_of("lost"))

    def lost(self):
        """-> a sentence that names the ranks that ended without a word; "" if none is known. Call it after `end`."""
        deadline = time.monotonic() + _ANSWER_SECONDS
        while not (lost := self._ranks_of("lost")):
            if time.monotonic() > deadline or len(self._ranks_of("ends")) == self._placement.size:
                return ""
            time.sleep(_POLL_SECONDS)
        hosts = {}
        for rank in lost:
            hosts.setdefault(self._process(rank)[1], []).append(str(rank))
        named = [f"rank{'s' * (len(ranks) > 1)} {', '.join(ranks)} on {host}" for host, ranks in hosts.items()]
        return f"{' and '.join(named)} ha{'ve' if len(lost) > 1 else 's'} ended {_WITHOUT_A_WORD}"

    def unheard(self):
        """-> which ranks have never written anything, as a sentence; "" where all have."""
        known = self._ranks_of("process")
        unheard = [str(rank) for rank in range(self._placement.size) if rank not in known]
        if not known or not unheard:
            return ""
        ranks = f"rank{'s' * (len(unheard) > 1)} {', '.join(unheard)}"
        return f"nothing was heard of {ranks}, whose host may not reach horovodrun at {self._notices.address}"

    def _name_those_gone(self, has_gone_too=lambda process, rank: False):
        """Writes which processes of this host have gone without a word, or are counted so."""
        for rank in self._placement.host_ranks:
            process, host = self._process(rank)
            if host != socket.gethostname():
                continue
            is_gone = not _runs(int(process)) or has_gone_too(int(process), rank)
            if is_gone and self._notices.get(f"ends.{rank}") is None:
                self._notices.put(f"lost.{rank}", "")

    def _ranks_of(self, kind):
        """-> the ranks that have such a notice."""
        return [rank for rank in range(self._placement.size) if self._notices.get(f"{kind}.{rank}") is not None]

    def _process(self, rank):
        """-> (a rank's process id as text, its host); "" for what is not known."""
        process, _, host = (self._notices.get(f"process.{rank}") or "").partition(" ")
        return process, host


def _kill_if_stopped(process, rank):
    """-> whether the process of a rank was stopped, as by SIGSTOP: then it is killed."""
    with contextlib.suppress(psutil.Error):
        found = psutil.Process(process)
        if found.status() == psutil.STATUS_STOPPED and found.environ().get("HOROVOD_RANK") == str(rank):
            found.kill()
            return True
    return False


def _runs(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
