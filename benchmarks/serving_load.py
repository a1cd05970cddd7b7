"""Scoring servers under load, and the check of their answers against the models that they name."""

import collections
import contextlib
import dataclasses
import http.client
import pathlib
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.scoring import trained  # noqa: E402
from tests.scoring.conftest import Client  # noqa: E402

EXAMPLES, CLIENTS, APART, TIMEOUT_SECONDS = 5, 8, 1e-5, 120.0


@dataclasses.dataclass(frozen=True)
class Answer:
    """An answer: the status, the record that the headers name, and the predictions of some examples."""

    status: int
    record: tuple[str, str, str]
    examples: np.ndarray
    found: np.ndarray


class Load:
    """Clients in threads of this process, which send `rate` requests per second in all to servers in turn."""

    def __init__(self, ports: list[int], model: trained.Trained, rate: float):
        self._ports, self._model, self._rate = ports, model, rate
        self._answers: list[Answer] = []
        self.no_answer, self.sent, self._ends = 0, 0, threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(each,)) for each in range(CLIENTS if ports else 0)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Ends the clients."""
        self._ends.set()
        for thread in self._threads:
            thread.join(TIMEOUT_SECONDS)

    def taken(self) -> list[Answer]:
        """Returns the answers since the last call."""
        answers, self._answers = self._answers, []
        return answers

    def _ask(self, number: int) -> None:
        port, draw = self._ports[number % len(self._ports)], np.random.default_rng(number)
        client, due = Client(port), time.monotonic() + number / self._rate
        while not self._ends.wait(max(due - time.monotonic(), 0)):
            due = max(due + CLIENTS / self._rate, time.monotonic() - 1)
            examples = draw.choice(len(self._model.instances), EXAMPLES, replace=False)
            self.sent += 1
            try:
                status, body, headers = client.predict(instances=[self._model.instances[each] for each in examples])
            except (OSError, http.client.HTTPException):
                self.no_answer += 1
                client.close()  # The next request connects anew.
                continue
            record = tuple(headers.get(f"X-Model-{name}", "") for name in ("Generation", "Epoch", "Step"))
            found = [each["probabilities"] for each in body["predictions"]] if status == 200 else []
            self._answers.append(Answer(status, record, examples, np.array(found)))
        client.close()


class Campaign:
    """Servers under load, and the counts of their answers.

    Attributes:
      number_of: the number of the checkpoint that was published, by (generation, epoch).
    """

    def __init__(self, model: trained.Trained, ports: list[int], rate: float):
        self.model, self._load = model, Load(ports, model, rate)
        self._clients = [Client(port) for port in ports]
        self._began, self.number_of = time.monotonic(), {}
        self.found, self.rounds = collections.Counter(), collections.Counter()

    def close(self) -> None:
        self._load.close()
        for client in self._clients:
            client.close()
        self.found["no_answer"] += self._load.no_answer
        self.found["sent"] += self._load.sent
        self.found["seconds"] += time.monotonic() - self._began

    def judge(self, fault: str) -> None:
        """Checks the answers since the last call, and prints the counts of the round."""
        counts = collections.Counter()
        for answer in self._load.taken():
            counts["answers" if answer.status == 200 else "refused"] += 1
            if answer.status == 200 and not self._is_right(answer):
                counts["wrong_answers"] += 1
                if counts["wrong_answers"] <= 3:
                    print(f"wrong after {fault!r}: {answer}; published: {self.number_of}", flush=True)
        self.found.update(counts)
        self.rounds[fault] += 1
        print(f"{fault}, round {self.rounds[fault]}: {dict(counts)}", flush=True)

    def await_all(self, is_so: Callable[[int, dict], bool], what: str, seconds: float = TIMEOUT_SECONDS) -> bool:
        """Waits until is_so(status, body) holds for /healthz of each server. Returns whether it did in time."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if all(is_so(*client.ask("/healthz")[:2]) for client in self._clients):
                    return True
            time.sleep(0.02)
        print(f"waited {seconds:g} s until {what}", flush=True)
        return False

    def await_served(self, generation: int, epoch: int, seconds: float = TIMEOUT_SECONDS) -> bool:
        """Waits until each server is healthy and serves a record, or a later one."""
        wanted = generation, epoch
        return self.await_all(
            lambda status, now: status == 200 and (now["generation"], now["epoch"]) >= wanted,
            f"generation {generation}, epoch {epoch}, is served",
            seconds,
        )

    def _is_right(self, answer: Answer) -> bool:
        generation, epoch, step = answer.record
        number = self.number_of.get((int(generation), int(epoch)))
        if number is None or int(step) != self.model.checkpoints[number].step:
            return False
        return bool(np.abs(answer.found - self.model.expected[number][answer.examples]).max() < APART)


@dataclasses.dataclass(frozen=True)
class Server:
    """The process of a scoring server, and its ports."""

    process: subprocess.Popen
    port: int
    flight_port: int

    def peak_mb(self) -> float:
        """Returns the most memory that the process has had resident since `forget_peak`."""
        return self._memory("VmHWM")

    def resident_mb(self) -> float:
        """Returns the memory that the process has resident."""
        return self._memory("VmRSS")

    def forget_peak(self) -> None:
        """Sets the peak to the memory that is resident now."""
        pathlib.Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def _memory(self, name: str) -> float:
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(rf"{name}:\s+(\d+) kB", status)[1]) / 1024


@contextlib.contextmanager
def serving(url: str | pathlib.Path, log: pathlib.Path, *flags: str) -> Iterator[Server]:
    """Yields a server that has loaded a publication; ends it after the block."""
    command = [sys.executable, "-m", "ctr_trainer", "score", f"--model={url}", "--port=0", "--flight_port=0", *flags]
    with open(log, "w") as out:
        process = subprocess.Popen(command, stderr=out, stdin=subprocess.DEVNULL, cwd=ROOT)
    try:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while "global step" not in (text := log.read_text()):
            if process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"{' '.join(command)} does not serve:\n{text[-3000:]}")
            time.sleep(0.1)
        port, flight_port = re.search(r"://\S+:(\d+),", text)[1], re.search(r"Flight on \S+:(\d+)", text)[1]
        yield Server(process, int(port), int(flight_port))
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(60)


class Faults(Protocol):
    """The faults of a place that servers read; `first` is the first generation and the number of its checkpoint."""

    campaign: Campaign | None
    first: tuple[int, int]

    def run(self, fault: str, waits: bool) -> None:
        """Causes a fault at a random moment, waits for its effect if `waits`, and judges the answers."""


def run_faults(
    faults: Faults,
    url: str,
    names: Sequence[str],
    model: trained.Trained,
    place: pathlib.Path,
    rounds: int,
    rate: float,
) -> Campaign:
    """Runs rounds of faults under load, against a server with a cache of hot rows and one without."""
    with (
        serving(url, place / "hot.log") as hot,
        serving(url, place / "cold.log", "--cache_rows=0") as cold,
        contextlib.closing(Campaign(model, [hot.port, cold.port], rate)) as campaign,
    ):
        generation, checkpoint = faults.first
        campaign.number_of[generation, 0], faults.campaign = checkpoint, campaign
        for number in range(rounds):
            for name in names:
                faults.run(name, waits=number % 2 == 0)
    return campaign
