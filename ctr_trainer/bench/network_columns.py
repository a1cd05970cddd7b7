"""The columns of the table of `bench network`: the time, phases, network and memory of each job."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from ctr_trainer.bench import scaling
from ctr_trainer.bench.jobs import Ranks, Rounds, Runs, rate
from ctr_trainer.bench.report import Figure, cell, figure
from ctr_trainer.commands.reports.comparison import format_table
from ctr_trainer.system.measuring.clock import STEP_TITLES

_BITS, _GIGA = 8, 1e9
# The phases that update the variables of all workers with the gradients of a step.
_UPDATE = ("exchange", "dense_sync", "dense_update")
_UNITS = ((1e9, "Gb/s"), (1e6, "Mb/s"), (1e3, "Kb/s"))
_TITLES = {**STEP_TITLES, "input_to_device": "to device"}


@dataclasses.dataclass(frozen=True)
class Column:
    """The figures of one job.

    Attributes:
      total_seconds: time that all workers together take for the examples of one worker's job.
      percent: `total_seconds` in percent of one worker's time in the same round; None if one worker's job failed.
      job_seconds, batch_ms, phases_ms, accounted, service_resident_bytes, gpu_bytes: see `scaling.Size`.
      update_gradients_ms: time per step for exchanging gradients and updating variables; None without these phases.
      received_gbit: Gbit/s that the job's network interface receives; mean over the workers' machines.
      sent_gbit: Gbit/s that the job's network interface sends; mean over the workers' machines.
      link_share: the greater of these two divided by the speed of the machines' links; None if they have no limit.
      resident_bytes: memory of each worker, by rank.
    """

    total_seconds: Figure
    percent: Figure | None
    job_seconds: Figure
    batch_ms: Figure
    phases_ms: dict[str, Figure]
    update_gradients_ms: Figure | None
    accounted: Figure
    received_gbit: Figure
    sent_gbit: Figure
    link_share: Figure | None
    resident_bytes: tuple[Figure, ...]
    service_resident_bytes: Figure | None
    gpu_bytes: Figure | None


def measure(
    rounds: Rounds, alone: Rounds | None, examples: int, interface: str, batches: int = 1, gbit: float = 0.0
) -> Column:
    """Returns the figures of a job.

    Args:
      rounds: results of the ranks in each round.
      alone: results of one worker in each round; None if its job failed.
      examples: number of examples that `total_seconds` refers to.
      interface: network interface that the job uses, such as `lo`.
      batches: number of batches per step.
      gbit: speed of the machines' links, in each direction; 0 for no limit.
    """
    size = scaling.summarize(rounds, None, batches)
    memory = [ranks[0]["held"]["resident_bytes"]["ranks"] for ranks in rounds]
    received = figure([_gbit(ranks, interface, "received") for ranks in rounds])
    sent = figure([_gbit(ranks, interface, "sent") for ranks in rounds])
    return Column(
        total_seconds=figure(examples / rate(ranks) for ranks in rounds),
        percent=time_percent(rounds, alone),
        job_seconds=size.job_seconds,
        batch_ms=size.batch_ms,
        phases_ms=size.phases_ms,
        update_gradients_ms=_sum([size.phases_ms[name] for name in _UPDATE if name in size.phases_ms]),
        accounted=size.accounted,
        received_gbit=received,
        sent_gbit=sent,
        link_share=figure(max(each) / gbit for each in zip(received.values, sent.values, strict=True) if gbit),
        resident_bytes=tuple(map(figure, zip(*memory, strict=True))),
        service_resident_bytes=size.service_resident_bytes,
        gpu_bytes=size.gpu_bytes,
    )


def time_percent(rounds: Rounds | None, alone: Rounds | None) -> Figure | None:
    """Returns the time for equal data in percent of one worker's time in the same round; None if a job failed."""
    if not rounds or not alone:
        return None
    return figure(100 * rate(one) / rate(ranks) for ranks, one in zip(rounds, alone, strict=True))


def exchange_ms(runs: Runs) -> dict[str, dict[str, Figure]]:
    """Returns the milliseconds of rank 0's step, of its `exchange` and of its `dense_sync`, by job."""
    found = {}
    for name, rounds in runs.items():
        phases = [ranks[0]["phases"] for ranks in rounds]
        found[name] = {"step": figure(1000 * each["step_seconds"] for each in phases)}
        for phase in ("exchange", "dense_sync"):
            found[name][phase] = figure(1000 * each["seconds"].get(phase, 0.0) for each in phases)
    return found


def table(columns: Mapping[tuple[str, str], Column]) -> list[str]:
    """Returns the lines of a table with a column for each (place, way), and a row for the medians of each figure."""
    jobs = columns.values()

    def row(title: str, figures: Iterable[Figure | None], form: str, unit: float = 1.0) -> list[str]:
        return [title, *(cell(each and each.median / unit, form) for each in figures)]

    rows = [
        ["", *(way for _, way in columns)],
        row("total time, s", (job.total_seconds for job in jobs), ".2f"),
        row("percent of one worker's", (job.percent for job in jobs), ".0f"),
        row("time a batch, ms", (job.batch_ms for job in jobs), ".2f"),
        ["phases of a step, ms"] + [""] * len(columns),
    ]
    for name, title in _TITLES.items():
        if any(name in job.phases_ms for job in jobs):
            rows.append(row(f"  {title}", (job.phases_ms.get(name) for job in jobs), ".2f"))
    rows += [
        row("  accounted", (job.accounted for job in jobs), ".1%"),
        row("update gradients (exchange and update), ms", (job.update_gradients_ms for job in jobs), ".2f"),
        ["receiving", *(_speed(job.received_gbit) for job in jobs)],
        ["sending", *(_speed(job.sent_gbit) for job in jobs)],
        row("used share of the link", (job.link_share for job in jobs), ".0%"),
        ["memory of each worker, MB", *(_range(job.resident_bytes) for job in jobs)],
        row("memory of the service, MB", (job.service_resident_bytes for job in jobs), ",.0f", 1e6),
    ]
    if any(job.gpu_bytes for job in jobs):
        rows.append(row("memory of a GPU, MB", (job.gpu_bytes for job in jobs), ",.0f", 1e6))
    rows.append(row("start to end of the job, s", (job.job_seconds for job in jobs), ".1f"))
    return format_table(["", *(place for place, _ in columns)], rows)


def _sum(figures: list[Figure]) -> Figure | None:
    """Returns the sums by round; None if there are no figures."""
    return figure([sum(values) for values in zip(*(each.values for each in figures), strict=True)])


def _speed(gbit: Figure) -> str:
    """Returns the median in the largest unit in which it is at least 1, such as `2.61 Gb/s`."""
    bits = gbit.median * _GIGA
    scale, unit = next((each for each in _UNITS if bits >= each[0]), _UNITS[-1])
    value = bits / scale
    return f"{value:.{2 - (value >= 10) - (value >= 100)}f} {unit}"


def _range(workers: Sequence[Figure]) -> str:
    """Returns the smallest and the largest number of megabytes of a worker, such as `702-715`."""
    medians = [each.median / 1e6 for each in workers]
    return "-".join(dict.fromkeys(f"{each:,.0f}" for each in (min(medians), max(medians))))


def _gbit(ranks: Ranks, interface: str, way: str) -> float:
    bytes_ = [rank["load"]["network"].get(interface, {}).get(way, 0.0) for rank in ranks]
    return _BITS * sum(bytes_) / len(bytes_) / _GIGA
