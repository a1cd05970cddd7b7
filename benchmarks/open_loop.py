"""Sends requests at a fixed rate from a process of its own, and writes how long each took from when it was due.

    python benchmarks/open_loop.py PORT PATH BODIES RATE OUT

BODIES is a file with a JSON list of request bodies. A request that cannot be sent in time, because all connections wait
for answers, counts from the moment at which it was due. The process ends when its standard input does, and then writes
float64[requests, 3] to OUT: due time by the monotonic clock, seconds, and HTTP status, 0 without an answer.
"""

import gc
import http.client
import itertools
import json
import pathlib
import sys
import threading
import time

import numpy as np

CONNECTIONS, TIMEOUT_SECONDS = 16, 60.0


class Sender(threading.Thread):
    """Takes the next request that is due, again and again, and sends it on a connection of its own."""

    def __init__(self, port: int, path: str, bodies: list[bytes], dues: "Schedule") -> None:
        super().__init__(daemon=True)
        self._port, self._path, self._bodies, self._dues = port, path, bodies, dues
        self.found: list[tuple[float, float, int]] = []

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=TIMEOUT_SECONDS)
        while (request := self._dues.next()) is not None:
            number, due = request
            status = 0
            try:
                connection.request("POST", self._path, self._bodies[number % len(self._bodies)])
                answer = connection.getresponse()
                answer.read()
                status = answer.status
            except (OSError, http.client.HTTPException):
                connection.close()  # The next request connects anew.
            self.found.append((due, time.monotonic() - due, status))
        connection.close()


class Schedule:
    """The times at which requests are due."""

    def __init__(self, rate: float) -> None:
        self._rate, self._began, self._numbers = rate, time.monotonic(), itertools.count()
        self._ends = threading.Event()

    def next(self) -> tuple[int, float] | None:
        """Returns the number and the due time of the next request, once it is due; None at the end."""
        number = next(self._numbers)
        due = self._began + number / self._rate
        if self._ends.wait(max(due - time.monotonic(), 0)):
            return None
        return number, due

    def end(self) -> None:
        """Ends the schedule."""
        self._ends.set()


def main() -> None:
    port, path, bodies, rate, out = sys.argv[1:]
    texts = [json.dumps(body).encode() for body in json.loads(pathlib.Path(bodies).read_text())]
    schedule = Schedule(float(rate))
    gc.disable()
    senders = [Sender(int(port), path, texts, schedule) for _ in range(CONNECTIONS)]
    for sender in senders:
        sender.start()
    sys.stdin.read()
    schedule.end()
    for sender in senders:
        sender.join(TIMEOUT_SECONDS)
    np.save(out, np.array([each for sender in senders for each in sender.found], np.float64))


if __name__ == "__main__":
    main()
