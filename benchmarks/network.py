"""Measures a job on several machines with a slow network: network namespaces on this machine, reached by SSH.

Each machine has one worker, a core of this machine and a token bucket (`tc tbf`) in each direction; the embedding
service runs on the first one. It needs root and, in a container, CAP_SYS_ADMIN and CAP_NET_ADMIN. A column is a job:
one worker alone, one machine with as many workers, and each way to exchange the gradients at each speed. The last line
is JSON.

Examples: python benchmarks/network.py --machines=4 --gbit=2.5,5 --dense_params=resnet50,vgg16 --scale=100
          python benchmarks/network.py --gbit=0.0625 --dense_params=vgg16 --scale=40 --ways=plain,fp16 --steps=12 \
              -- --batch_size=32
"""

import argparse
import dataclasses
import itertools
import math
import os
import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any

import figures
import jobs
import sides
from figures import Figure, figure
from jobs import Job, Ranks, Rounds, rate
from workers import MEMORY, PHASES, table

from ctr_trainer.embedding.service.local_service import LocalService
from tests.hosts import machines
from tests.hosts.machines import Machine

ALONE, ONE_MACHINE = "one worker", "one machine"
# The flags of the names of --ways.
WAYS = {
    "plain": (),
    "fp16": ("--fp16_allreduce", "--dense_exchange=horovod"),
    "accumulation": ("--accumulation_steps=5",),
    "sync": ("--dense_sync_steps=30", "--sync_steps=30"),
}
PARAMS = {"resnet50": 25_600_000, "vgg16": 138_000_000}
_ENDS = 64  # Width of the first and of the last layer.
# The phases that update the variables of all workers with the gradients of a step.
_UPDATE = ("exchange", "dense_sync", "dense_update")
_ROWS = (
    ("total time, s", "total_seconds", ".2f", 1),
    ("percent of one worker's", "percent", ".0f", 1),
    ("time a batch, ms", "batch_ms", ".2f", 1),
    *PHASES,
    ("accounted", "accounted", ".1%", 1),
    ("update gradients (exchange and update), ms", "update_gradients_ms", ".2f", 1),
    ("receiving, Mbit/s", "received_gbit", ",.2f", 1e-3),
    ("sending, Mbit/s", "sent_gbit", ",.2f", 1e-3),
    ("used share of the link", "link_share", ".0%", 1),
    *MEMORY,
    ("start to end of the job, s", "job_seconds", ".1f", 1),
)


class MachineService(LocalService):
    """A `LocalService` that runs on a machine and listens on its address; `directory` has `token_file` and its log."""

    def __init__(self, machine: Machine, directory: pathlib.Path, data_dir: pathlib.Path) -> None:
        self._machine, self.token_file = machine, directory / "token"
        self.token_file.touch(mode=0o600)
        super().__init__(data_dir, directory / "service.log", 120.0)
        self.token_file.write_text(self.token)

    def _command(self, data_dir: str | os.PathLike, port_file: pathlib.Path) -> list[str]:
        command = super()._command(data_dir, port_file)
        return self._machine.command([*command, f"--bind={self._machine.address}:0"])


@dataclasses.dataclass(frozen=True, kw_only=True)
class NetworkJob(Job):
    """A `Job` with one worker per machine, a limited network, and its own embedding service on the first machine.

    `gbit` is the limit of the network in Gbit/s, 0 for none; `programs` has the `ssh` that reaches the machines.
    """

    on: Sequence[Machine]
    gbit: float
    programs: pathlib.Path

    def launcher(self) -> tuple[object, ...]:
        """Returns the command that runs horovodrun on the first machine."""
        hosts = ",".join(f"{each.address}:1" for each in self.on)
        run = ["horovodrun", "-np", self.workers, "-H", hosts, "--gloo"]
        return tuple(self.on[0].command([*run, "--network-interface", machines.INTERFACE]))

    def run_in(self, directory: pathlib.Path, *more: str) -> Ranks:
        """Limits the network, starts the service, and runs the job to its end."""
        machines.limit(self.on, self.gbit)
        path = os.pathsep.join([str(self.programs), sides.environment()["PATH"]])
        service: Any  # A `MachineService`.
        with tempfile.TemporaryDirectory() as own, MachineService(self.on[0], pathlib.Path(own), directory) as service:
            flags = (*self.flags, f"--embedding_service={service.address}", f"--token_file={service.token_file}")
            # sshd does not set a command's PATH from the user's profile, and each machine has one core.
            variables = (("PATH", path), ("CTR_TRAINER_THREADS", "1"), ("OMP_NUM_THREADS", "1"))
            job = dataclasses.replace(self, flags=flags, environment=(*self.environment, *variables))
            return Job.run_in(job, directory, *more)


def networks(names: Sequence[str], scale: float) -> dict[str, tuple[str, ...]]:
    """Returns the flags of `train` for each name in --dense_params; no names select the model's own layers.

    The hidden layers have the widths 64, h, h, 64, with h^2 + 128 h parameters: about as many as the network that is
    named, or as the number, divided by `scale`.
    """
    found = dict[str, tuple[str, ...]]()
    for name in names:
        if name not in PARAMS and not name.isdecimal():
            raise SystemExit(f"--dense_params={name}: expected {', '.join(PARAMS)} or a number of parameters")
        params = PARAMS.get(name) or int(name)
        h = round(math.sqrt(_ENDS**2 + params / scale) - _ENDS)
        if h < 1:
            raise SystemExit(f"--dense_params={name}: {params / scale:g} parameters are too few; reduce --scale")
        found[name] = (f"--hidden_units={_ENDS},{h},{h},{_ENDS}",)
    return found or {"model": ()}


def column(job: Job, rounds: Rounds, alone: Rounds | None, examples: int) -> dict[str, Any]:
    """Returns the figures of a job; None for what was not measured.

    `alone` has the results of one worker in each round; None if its job failed.

    Returns:
      dict of some of the figures of `jobs.figures_of`, and of
        `total_seconds`: time that all workers together take for `examples`;
        `percent`: this time in percent of one worker's in the same round;
        `update_gradients_ms`: time per step for exchanging gradients and updating variables;
        `received_gbit`, `sent_gbit`: Gbit/s at the job's network interface; mean over the workers' machines;
        `link_share`: the greater of these two divided by the speed of the machines' links.
    """
    interface, gbit = (machines.INTERFACE, job.gbit) if isinstance(job, NetworkJob) else ("lo", 0.0)
    found = jobs.figures_of(rounds, None, jobs.experiment_of(job.flags).train.accumulation_steps)

    def gbits(way: str) -> Figure:
        rates = [[rank["load"]["network"].get(interface, {}).get(way, 0.0) for rank in ranks] for ranks in rounds]
        return Figure(tuple(8e-9 * sum(of) / len(of) for of in rates))

    received, sent = gbits("received"), gbits("sent")
    update = [found["phases_ms"][name].values for name in _UPDATE if name in found["phases_ms"]]
    kept = ("job_seconds", "batch_ms", "phases_ms", "accounted", *(key for _, key, _, _ in MEMORY))
    return {
        "total_seconds": figure(examples / rate(ranks) for ranks in rounds),
        "percent": figure(100 * rate(one) / rate(ranks) for ranks, one in zip(rounds, alone or (), strict=bool(alone))),
        **{name: found[name] for name in kept},
        "update_gradients_ms": figure(sum(values) for values in zip(*update, strict=True)),
        "received_gbit": received,
        "sent_gbit": sent,
        "link_share": figure(max(both) / gbit for both in zip(received.values, sent.values, strict=True) if gbit),
    }


def main(arguments: list[str] | None = None) -> None:
    parser = jobs.parser(__doc__, rounds=1, steps=100)
    parser.add_argument("--machines", type=int, default=4, help="number of machines, each with a worker; default 4")
    about = "Gbit/s of a machine to measure, in each direction, 0 for no limit; default 2.5,5"
    parser.add_argument("--gbit", type=_numbers, default=[2.5, 5.0], help=about)
    about = "layers to measure in turn: resnet50, vgg16 or a number of parameters; default: the model's own"
    parser.add_argument("--dense_params", type=sides.words, default=[], help=about)
    parser.add_argument("--scale", type=float, default=1.0, help="divisor of the parameters; default 1")
    about = f"ways to exchange the gradients: {', '.join(WAYS)}; default plain,fp16"
    parser.add_argument("--ways", type=sides.words_of("way", WAYS), default=["plain", "fp16"], help=about)
    flags = parser.parse_args(arguments)
    on, setup, cores = figures.machine(), jobs.setup(flags), sorted(os.sched_getaffinity(0))
    towers, count = networks(flags.dense_params, flags.scale), flags.machines
    every = dict[tuple[str, str, str], Job]()
    with machines.machines(count, cores) as hosts, tempfile.TemporaryDirectory() as directory:
        with machines.ssh_daemons(hosts, directory) as programs:
            for tower, own in towers.items():
                shares = max(count, len(cores))  # One worker alone has a core, as on the machines.
                every[tower, ALONE, ""] = setup.job(f"{tower} {ALONE}", 1, own, core_shares=shares)
                every[tower, ONE_MACHINE, ""] = setup.job(f"{tower} {ONE_MACHINE}", count, own)
                for gbit, way in itertools.product(flags.gbit, flags.ways):
                    place = f"{gbit:g} Gbit"
                    job = setup.job(f"{tower} {place} {way}", count, (*own, *WAYS[way]))
                    every[tower, place, way] = NetworkJob(**vars(job), on=hosts, gbit=gbit, programs=programs)
            runs, failed = setup.measure([*every.values()], with_seeds=False)
    examples = setup.total_steps * setup.experiment.train.accumulation_steps * setup.experiment.data.batch_size
    columns: dict[str, dict[str, Any]] = {tower: {} for tower in towers}
    for (tower, place, way), job in every.items():
        if job.name in runs:
            of_alone = runs.get(f"{tower} {ALONE}")
            columns[tower][f"{place} {way}".strip()] = column(job, runs[job.name], of_alone, examples)
    text = [f"{setup.title(count)}; {count} machines with one core each"]
    for tower in towers:
        text += ["", f"{tower}:", "", *table(columns[tower], _ROWS)]
    results = {
        "experiment": setup.title(count),
        "machines": count,
        "towers": towers,
        "scale": flags.scale,
        "rounds": setup.rounds,
        "steps": setup.steps,
        "columns": columns,
    }
    figures.report("network", on, [*text, *[figures.ONE_ROUND] * (setup.rounds == 1)], results, failed)


def _numbers(text: str) -> list[float]:
    found = [float(word) for word in text.split(",")]
    if not all(0 <= each < math.inf for each in found):
        raise argparse.ArgumentTypeError("expected Gbit/s, comma separated, such as 2.5,5; 0 for no limit")
    return found


if __name__ == "__main__":
    main()
