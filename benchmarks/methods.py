"""Compares the ways to train on two devices: the time that each saves compared with one worker, and its AUC.

All methods train on as many examples, in batches of the same size per device, and are then evaluated. One process with
two towers computes each half of a batch on its own device, as PyTorch's DataParallel does, with twice the learning
rates of one worker. Without --train_data, synthetic data are made. The last line is JSON.

Examples: python benchmarks/methods.py
          python benchmarks/methods.py -- --embedding_service=shared
"""

import dataclasses
import tempfile
from typing import Any

import figures
import jobs
import sides
from figures import Figure, figure
from jobs import Job, Rounds, Setup, rate

ONE, DEVICES, ACCUMULATION_STEPS = "one worker", 2, 5
_COLUMNS = (
    *(("method", "method", ""), ("batch size", "batch_size", ",d"), ("learning rate", "learning_rate", "g")),
    *(("seconds", "seconds", ",.1f"), ("with evaluation", "seconds_with_evaluation", ",.1f")),
    *(("examples/s", "together", ",.0f"), ("speed-up, percent", "speedup_percent", "+.0f")),
    *(("over the row above, percent", "gain_percent", "+.0f"), ("time saved, percent", "saved_percent", ".0f")),
    *(("accuracy", "accuracy", ".4f"), ("validation AUC", "auc", ".4f")),
)


@dataclasses.dataclass(frozen=True)
class Method:
    """A way to train.

    Attributes:
      workers, towers: number of processes, and of devices that one process drives.
      batches: number of batches of one worker that make up a step of all devices.
      flags: flags of `train` in addition to the setup's.
    """

    name: str
    workers: int
    towers: int
    batches: int
    flags: tuple[str, ...] = ()

    def job(self, setup: Setup) -> Job:
        """Returns the job; a device is half of the machine's cores, and a process that drives two has all of them."""
        flags = (*self.flags, f"--towers={self.towers}") if self.towers > 1 else self.flags
        return setup.job(self.name, self.workers, flags, self.batches, core_shares=DEVICES // self.towers)


def methods(setup: Setup) -> list[Method]:
    """Returns the methods; two towers use the learning rates of two workers."""
    experiment = setup.experiment
    rates = (
        f"--batch_size={DEVICES * experiment.data.batch_size}",
        f"--learning_rate={DEVICES * experiment.train.learning_rate:g}",
        f"--embedding_learning_rate={DEVICES * experiment.run.embedding.learning_rate:g}",
    )
    given = experiment.train.accumulation_steps
    k, plain = given if given > 1 else ACCUMULATION_STEPS, ("--accumulation_steps=1",)
    return [
        Method(ONE, 1, 1, 1, plain),
        Method("one process, two towers", 1, DEVICES, DEVICES, (*plain, *rates)),
        Method("two processes", DEVICES, 1, DEVICES, plain),
        Method(f"two processes, {k} batches a step", DEVICES, 1, DEVICES * k, (f"--accumulation_steps={k}",)),
    ]


def summarize(rounds: Rounds, alone: Rounds | None, examples: int, before: Figure | None = None) -> dict[str, Any]:
    """Returns the figures of a method for `examples` examples.

    `speedup_percent` and `saved_percent` compare with `alone`, one worker in the same round, and are None without it;
    `together` is examples/s, and `gain_percent` compares it with the previous row's, `before`.
    """
    seconds = [examples / rate(ranks) for ranks in rounds]
    pairs = [*zip(seconds, (examples / rate(ranks) for ranks in alone), strict=True)] if alone else []
    firsts = [ranks[0] for ranks in rounds]
    together = Figure(tuple(map(rate, rounds)))
    return {
        "seconds": figure(seconds),
        "seconds_with_evaluation": figure(
            own + first["evaluation_seconds"] for own, first in zip(seconds, firsts, strict=True)
        ),
        "together": together,
        "speedup_percent": figure(100 * (one / own - 1) for own, one in pairs),
        "saved_percent": figure(100 * (1 - own / one) for own, one in pairs),
        **{name: figure(first[name] for first in firsts) for name in ("learning_rate", "accuracy", "auc")},
        "gain_percent": figures.gain_percent(together, before),
    }


def main(arguments: list[str] | None = None) -> None:
    flags, on = jobs.parser(__doc__, rows=200_000).parse_args(arguments), figures.machine()
    with tempfile.TemporaryDirectory() as directory:
        setup = jobs.setup_with_data(flags, directory)
        chosen = methods(setup)
        runs, failed = setup.measure([method.job(setup) for method in chosen])
    batch = setup.experiment.data.batch_size
    examples, found = setup.total_steps * batch, dict[str, dict[str, Any]]()
    for name, rounds in runs.items():
        before = [*found.values()][-1]["together"] if found else None
        found[name] = summarize(rounds, runs.get(ONE), examples, before)
    sizes = {method.name: method.batches * batch for method in chosen}
    rows = [{"method": name, "batch_size": sizes[name], **row} for name, row in found.items()]
    results = {
        "experiment": setup.title(DEVICES),
        "flags": setup.flags,
        "rounds": setup.rounds,
        "examples": examples,
        "methods": found,
        "batch_sizes": sizes,
    }
    lines = [f"{setup.title(DEVICES)}; {examples:,} examples by each method", "", *sides.markdown(_COLUMNS, rows)]
    lines += ["", "Percent compare with one worker of the same round. A batch size counts all devices of a step."]
    figures.report("methods", on, [*lines, *[figures.ONE_ROUND] * (setup.rounds == 1)], results, failed)


if __name__ == "__main__":
    main()
