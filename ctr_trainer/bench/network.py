"""The same job over several machines with a limited network, made of namespaces on this one."""

import dataclasses
import math
import os
import pathlib
import tempfile

from ctr_trainer.bench import chart, machine, namespaces, ssh
from ctr_trainer.bench.jobs import Job, environment, require_horovodrun, run_rounds
from ctr_trainer.bench.machine_service import MachineService
from ctr_trainer.bench.report import write_report
from ctr_trainer.bench.table import cell, figure, format_table
from ctr_trainer.errors import UserError

SUMMARY = "one job over --machines=4 with --gbit=2.5,5 between them, built on this machine (root)"
WAYS = {
    "plain": (),
    "fp16": ("--fp16_allreduce",),
    "accumulation": ("--accumulation_steps=5",),
    "sync": ("--dense_sync_steps=30", "--sync_steps=30"),
}
PARAMS = {"resnet50": 25_600_000, "vgg16": 138_000_000}
_DEFAULT_GBIT = ("2.5", "5")
_SERVICE_SECONDS = 120.0
_ENDS = 64

# Time in percent of one GPU's for equal data: (tower, machines, Gbit/s, way), and of four GPUs in one machine.
REFERENCE = {
    ("resnet50", 4, 2.5, "plain"): 99,
    ("resnet50", 4, 5.0, "plain"): 49,
    ("vgg16", 4, 2.5, "plain"): 345,
    ("vgg16", 4, 5.0, "plain"): 173,
    ("vgg16", 4, 5.0, "fp16"): 87,
}
REFERENCE_ONE_MACHINE = {("resnet50", 4): 29, ("vgg16", 4): 28}
_REFERENCE_TEXT = (
    "Reference: 4 machines with a GPU each (or 4 GPUs in one), convolutional networks. Ours has the parameters, over "
    "--scale, as layers of an MLP behind embeddings, on CPU cores; a convolution computes 50 to 160 times more with "
    "each parameter, so these towers meet the limit sooner, and it moves with what a machine computes.",
    "Horovod's autotune, which took the first at 5 Gbit/s from 49% to 61%: see `bench settings --axes=autotune`.",
)


@dataclasses.dataclass(frozen=True)
class NetworkJob:
    """A `Job` over machines, at a speed of their network, with a service of its own on the first one.

    Attributes:
      job: the Job, but for what its machines add.
      machines: of `namespaces.machines`.
      gbit: for `namespaces.limit`.
      programs: directory with the `ssh` that reaches the machines.
    """

    job: Job
    machines: list
    gbit: float
    programs: pathlib.Path

    @property
    def name(self):
        return self.job.name

    @property
    def workers(self):
        return self.job.workers

    @property
    def launcher(self):
        """-> horovodrun on the first machine."""
        hosts = ",".join(f"{each.address}:1" for each in self.machines)
        run = ["horovodrun", "-np", self.workers, "-H", hosts, "--gloo"]
        return tuple(self.machines[0].command([*run, "--network-interface", namespaces.INTERFACE]))

    def run(self, directory, timeout):
        """As `Job.run`."""
        namespaces.limit(self.machines, self.gbit)
        path = os.pathsep.join([str(self.programs), environment(1)["PATH"]])
        runs = pathlib.Path(directory).resolve().parent
        runs.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as own:
            with MachineService(self.machines[0], pathlib.Path(own), runs, _SERVICE_SECONDS) as service:
                rows = (f"--embedding_service={service.address}", f"--token_file={service.token_file}")
                # sshd reads no profile's PATH for a command, and each machine has one core.
                variables = (("PATH", path), ("CTR_TRAINER_THREADS", "1"), ("OMP_NUM_THREADS", "1"))
                job = dataclasses.replace(
                    self.job, flags=(*self.job.flags, *rows), environment=variables, launcher=self.launcher
                )
                return job.run(directory, timeout)


def run(bench, experiment, flags):
    """Measures and reports.

    Args:
      bench: BenchFlags.
      experiment: `Experiment`.
      flags: NetworkFlags.
    """
    speeds, ways, towers = _speeds(flags.gbit), _ways(flags.ways), _towers(flags)
    if experiment.value("embedding_service") != "auto":
        raise UserError(
            "`bench network` starts a service of its own on the first machine: leave out --embedding_service"
        )
    namespaces.require_privileges({**namespaces.PACKAGES, **ssh.PACKAGES})
    require_horovodrun()
    host, cores = machine.describe(), sorted(os.sched_getaffinity(0))
    shares = dict(core_shares=max(flags.machines, len(cores)))
    with namespaces.machines(flags.machines, cores) as machines, tempfile.TemporaryDirectory() as directory:
        with ssh.daemons(machines, directory) as programs:
            jobs = []
            for tower, tower_flags in towers.items():

                def make(name, workers, more=(), tower=tower, tower_flags=tower_flags, **settings):
                    every = (*experiment.flags(), *tower_flags, *more)
                    return Job(f"{tower} {name}", workers, every, bench.steps, bench.trace_steps, **settings)

                jobs += [make("alone", 1, **shares), make("one machine", flags.machines)]
                jobs += [
                    NetworkJob(make(f"{gbit:g} Gbit {way}", flags.machines, WAYS[way]), machines, gbit, programs)
                    for gbit in speeds
                    for way in ways
                ]
            runs, failed = run_rounds(jobs, bench.rounds, bench.output, bench.job_timeout)
    found = {tower: summarize(tower, runs, speeds, ways) for tower in towers}
    lines = _lines(found, failed, bench, experiment, flags, host)
    results = {
        "experiment": experiment.describe(),
        "machines": flags.machines,
        "towers": {tower: list(each) for tower, each in towers.items()},
        "scale": flags.scale,
        "rounds": bench.rounds,
        "steps": bench.steps,
        "time_percent": {
            tower: {
                place: {way: value and value.to_dict() for way, value in row.items()} for place, row in rows.items()
            }
            for tower, rows in found.items()
        },
        "exchange_ms": _exchange_ms(runs),
        "failed": failed,
    }
    charts = {f"network_{tower}.png": lambda path, tower=tower: _draw(path, tower, found[tower]) for tower in towers}
    write_report(bench.output, "network", host, lines, results, charts)


def summarize(tower, runs, speeds, ways):
    """-> by `one machine` and by speed, as `5 Gbit`, dict of way -> Figure of the time for equal data, in percent of
    one worker's in the same round; None for what failed.
    """

    def percent(name):
        alone, together = runs.get(f"{tower} alone"), runs.get(f"{tower} {name}")
        if not alone or not together:
            return None
        return figure(100 * _rate(a) / _rate(b) for a, b in zip(alone, together, strict=False))

    rows = {"one machine": {"plain": percent("one machine")}}
    return rows | {f"{gbit:g} Gbit": {way: percent(f"{gbit:g} Gbit {way}") for way in ways} for gbit in speeds}


def hidden_units(params):
    """-> widths 64, h, h, 64 of layers with about so many parameters in all but the first, h^2 + 128 h of them.

    The first layer has the model's input to it, so its size is the model's own.
    """
    h = round(math.sqrt(_ENDS**2 + params) - _ENDS)
    if h < 1:
        raise UserError(f"--dense_params: {params:g} parameters are too few for a tower; lower --scale")
    return (_ENDS, h, h, _ENDS)


def _rate(ranks):
    return sum(rank["examples_per_sec"] for rank in ranks)


def _exchange_ms(runs):
    """-> dict of job -> dict of the step and of its exchange, milliseconds, of the rounds' first ranks."""
    found = {}
    for name, rounds in runs.items():
        phases = [ranks[0]["phases"] for ranks in rounds]
        found[name] = {
            "step": figure(1000 * each["step_seconds"] for each in phases).to_dict(),
            "exchange": figure(1000 * each["seconds"].get("exchange", 0.0) for each in phases).to_dict(),
        }
    return found


def _lines(found, failed, bench, experiment, flags, host):
    lines = [
        f"{experiment.describe()}; {flags.machines} machines with a core each; {bench.steps} steps a run; "
        f"{bench.rounds} rounds, all jobs in turn",
        "Time for equal data, percent of one worker's; median (range).",
    ]
    for tower, rows in found.items():
        ways = list(dict.fromkeys(way for row in rows.values() for way in row))
        table = []
        for place, row in rows.items():
            table.append(
                [place, *(cell(row.get(way), ".0f") for way in ways), _reference(tower, place, flags.machines)]
            )
        lines += ["", f"{tower}:", *format_table(["", *ways, "reference"], table)]
    lines += ["", *(f"  {way}: {' '.join(each) or 'an allreduce each step'}" for way, each in WAYS.items())]
    if any(tower in PARAMS for tower in found):
        lines += [*_REFERENCE_TEXT, f"Parameters are over --scale={flags.scale:g}."]
    if flags.machines > host["cores"]:
        lines.append(
            f"{flags.machines} machines share {host['cores']} cores here, so the compute does not grow with them."
        )
    return lines + [f"{name} failed: {error}" for name, error in failed.items()]


def _reference(tower, place, machines):
    if place == "one machine":
        known = {"plain": REFERENCE_ONE_MACHINE.get((tower, machines))}
    else:
        gbit = float(place.split()[0])
        known = {way: REFERENCE.get((tower, machines, gbit, way)) for way in WAYS}
    return ", ".join(f"{way} {percent}" for way, percent in known.items() if percent is not None) or "-"


def _draw(path, tower, rows):
    bars = {f"{place}, {way}": value for place, row in rows.items() for way, value in row.items() if value}
    chart.draw_bars(path, f"Time for equal data, {tower}", "percent of one worker's", bars)


def _speeds(texts):
    speeds = []
    for text in texts or _DEFAULT_GBIT:
        try:
            speeds.append(float(text))
        except ValueError:
            speeds.append(-1.0)
        if not 0 <= speeds[-1] < math.inf:
            raise UserError(f"--gbit={text}: expected Gbit/s, comma separated, as 2.5,5; 0 for no limit")
    return speeds


def _ways(names):
    wrong = [name for name in names if name not in WAYS]
    if wrong:
        raise UserError(f"--ways={','.join(names)}: there is no {', '.join(wrong)}, only {', '.join(WAYS)}")
    return list(names or WAYS)


def _towers(flags):
    """-> dict of name -> flags of `train`."""
    towers = {}
    for text in flags.dense_params:
        params = PARAMS.get(text)
        if params is None:
            if not text.isdecimal():
                raise UserError(f"--dense_params={text}: expected {', '.join(PARAMS)} or a number of parameters")
            params = int(text)
        units = ",".join(map(str, hidden_units(params / flags.scale)))
        towers[text] = (f"--hidden_units={units}",)
    return towers or {"model": ()}
