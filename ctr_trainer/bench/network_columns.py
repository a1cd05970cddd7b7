"""The columns of the table of `bench network`: the time, phases, network and memory of each job."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ctr_trainer.bench import scaling
from ctr_trainer.bench.jobs import Ranks, Rounds, Runs
from ctr_trainer.bench.report import Figure, cell, figure, format_table
from ctr_trainer.bench.scaling import megabytes
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
      total_seconds: time in which all workers together train on the examples of one worker's job.
      percent: `total_seconds` in percent of one worker's time in the same round; None if one worker's job failed.
      job_seconds: time from the start of the job's processes to their end.
      batch_ms: time of a worker's step divided by the batches of a step.
      phases_ms: dict of phase -> its time in a step, the mean of the workers.
      update_gradients_ms: time of a step in which gradients are exchanged and variables are updated; None for neither.
      accounted: share of the step that the phases add up to; the least of the workers.
      received_gbit: Gbit/s that the job's network interface receives, the mean of the workers' machines.
      sent_gbit: Gbit/s that the job's network interface sends, the mean of the workers' machines.
      link_share: the greater of these two divided by the speed of the machines' links; None if they have no limit.
      resident_bytes: memory of each worker, by rank.
      service_resident_bytes: memory of the embedding service; None without one.
      gpu_bytes: the most memory in use on one GPU; None without GPUs that NVML reports on.
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

    def to_dict(self) -> dict[str, Any]:
        """Returns the attributes, for JSON."""
        found = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        phases = {name: value.to_dict() for name, value in found.pop("phases_ms").items()}
        memory = [value.to_dict() for value in found.pop("resident_bytes")]
        figures = {name: value and value.to_dict() for name, value in found.items()}
        return {**figures, "phases_ms": phases, "resident_bytes": memory}


def measure(
    rounds: Rounds,
    alone: Rounds | None,
    examples: int,
    interface: str,
    batches: int = 1,
    gbit: float = 0.0,
) -> Column:
    """Returns the figures of a job.

    Args:
      rounds: results of the ranks in each round.
      alone: results of one worker in each round; None if its job failed.
      examples: number of examples that `total_seconds` refers to.
      interface: network interface that the job uses, such as `lo`.
      batches: number of batches of a step.
      gbit: speed of the machines' links, in each direction; 0 for no limit.
    """
    size = scaling.summarize(rounds, None, batches)
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
        link_share=figure(max(each) / gbit for each in zip(received.values, sent.values, strict=True))
        if gbit
        else None,
        resident_bytes=tuple(
            map(figure, zip(*(ranks[0]["held"]["resident_bytes"]["ranks"] for ranks in rounds), strict=True))
        ),
        service_resident_bytes=size.service_resident_bytes,
        gpu_bytes=size.gpu_bytes,
    )


def time_percent(rounds: Rounds | None, alone: Rounds | None) -> Figure | None:
    """Returns the time for equal data in percent of one worker's time in the same round; None if a job failed."""
    if not rounds or not alone:
        return None
    return figure(100 * rate(one) / rate(ranks) for ranks, one in zip(rounds, alone, strict=True))


def rate(ranks: Ranks) -> float:
    """Returns the examples/s of all ranks together."""
    return sum(rank["examples_per_sec"] for rank in ranks)


def exchange_ms(runs: Runs) -> dict[str, dict[str, Any]]:
    """Returns the milliseconds of rank 0's step, of its `exchange` and of its `dense_sync`, by job, for JSON."""
    found = {}
    for name, rounds in runs.items():
        phases = [ranks[0]["phases"] for ranks in rounds]
        found[name] = {
            "step": figure(1000 * each["step_seconds"] for each in phases).to_dict(),
            **{
                phase: figure(1000 * each["seconds"].get(phase, 0.0) for each in phases).to_dict()
                for phase in ("exchange", "dense_sync")
            },
        }
    return found


def table(columns: Mapping[tuple[str, str], Column]) -> list[str]:
    """Returns the lines of a table with a row for the medians of each figure.

    Args:
      columns: dict of (place, way), such as ("5 Gbit", "fp16"), -> figures of the job.
    """

    def row(title: str, get: Callable[[Column], Figure | None], form: str) -> list[str]:
        return [title, *(_median(get(column), form) for column in columns.values())]

    rows = [
        ["", *(way for _, way in columns)],
        row("total time, s", lambda column: column.total_seconds, ".2f"),
        row("percent of one worker's", lambda column: column.percent, ".0f"),
        row("time a batch, ms", lambda column: column.batch_ms, ".2f"),
        ["phases of a step, ms"] + [""] * len(columns),
    ]
    rows += [
        [f"  {title}", *(_median(column.phases_ms.get(name), ".2f") for column in columns.values())]
        for name, title in _TITLES.items()
        if any(name in column.phases_ms for column in columns.values())
    ]
    rows += [
        row("  accounted", lambda column: column.accounted, ".1%"),
        row("update gradients (exchange and update), ms", lambda column: column.update_gradients_ms, ".2f"),
        ["receiving", *(_speed(column.received_gbit) for column in columns.values())],
        ["sending", *(_speed(column.sent_gbit) for column in columns.values())],
        row("used share of the link", lambda column: column.link_share, ".0%"),
        ["memory of each worker, MB", *(_range(column.resident_bytes) for column in columns.values())],
        row("memory of the service, MB", lambda column: megabytes(column.service_resident_bytes), ",.0f"),
    ]
    if any(column.gpu_bytes for column in columns.values()):
        rows.append(row("memory of a GPU, MB", lambda column: megabytes(column.gpu_bytes), ",.0f"))
    rows.append(row("start to end of the job, s", lambda column: column.job_seconds, ".1f"))
    return format_table(["", *(place for place, _ in columns)], rows)


def _median(value: Figure | None, form: str) -> str:
    return cell(value and value.median, form)


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
