"""What a job of `bench network` takes and where its time goes: a column of the table."""

import dataclasses
from typing import Any

from ctr_trainer.bench import scaling
from ctr_trainer.bench.report import Figure, cell, figure, format_table
from ctr_trainer.measuring.phases import STEP_TITLES

_BITS, _GIGA, _MEGA = 8, 1e9, 1e6
# The phases that together bring a step's gradients into the variables of all workers.
_UPDATE = ("exchange", "dense_sync", "dense_update")
_UNITS = ((1e9, "Gb/s"), (1e6, "Mb/s"), (1e3, "Kb/s"))
_TITLES = {**STEP_TITLES, "input_to_device": "to device"}


@dataclasses.dataclass(frozen=True)
class Column:
    """What was measured of one job, each a `figures.Figure` over the rounds or None.

    Attributes:
      total_seconds: in which the workers together train on as many examples as the column of one worker has.
      percent: `total_seconds` in percent of one worker's of the same round.
      job_seconds: from the start of the job's processes to their end.
      batch_ms: of a worker, one step's time over its batches.
      phases_ms: dict by phase, of a step, the mean of the workers.
      update_gradients_ms: of a step, the exchange of the gradients and the update of the variables together.
      accounted: share of the step that the phases make up; of the worker where it is least.
      received_gbit, sent_gbit: Gbit/s by the job's network interface, the mean of the workers' machines.
      link_share: the greater of these two over the speed of the machines' links; None if that has no limit.
      resident_bytes: tuple of each worker's memory, by rank.
      service_resident_bytes: memory of the lookup service; None without one.
      gpu_bytes: memory of the GPU in which most was in use, where NVML tells.
    """

    total_seconds: object
    percent: object
    job_seconds: object
    batch_ms: object
    phases_ms: dict
    update_gradients_ms: object
    accounted: object
    received_gbit: object
    sent_gbit: object
    link_share: object
    resident_bytes: tuple[Figure, ...]
    service_resident_bytes: object
    gpu_bytes: object

    def to_dict(self):
        """-> the attributes, JSON-able."""
        found = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        phases = {name: value.to_dict() for name, value in found.pop("phases_ms").items()}
        memory = [value.to_dict() for value in found.pop("resident_bytes")]
        figures = {name: value and value.to_dict() for name, value in found.items()}
        return {**figures, "phases_ms": phases, "resident_bytes": memory}


def measure(
    rounds: list[list[dict[str, Any]]],
    alone: list[list[dict[str, Any]]] | None,
    examples: int,
    interface: str,
    batches: int = 1,
    gbit: float = 0.0,
) -> Column:
    """Returns the `Column` of a job.

    Args:
      rounds: a list of the ranks' results, a round.
      alone: the same of one worker; None where that failed.
      examples: that `total_seconds` are for.
      interface: of the network that the job uses, as `lo`.
      batches: of a step.
      gbit: speed of the machines' links, each way; 0 for no limit.
    """
    size = scaling.summarize(rounds, None, batches)
    received, sent = (figure(_gbit(ranks, interface, way) for ranks in rounds) for way in ("received", "sent"))
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


def time_percent(rounds, alone):
    """-> Figure of the time for equal data, in percent of one worker's in the same round; None for what failed."""
    if not rounds or not alone:
        return None
    return figure(100 * rate(one) / rate(ranks) for ranks, one in zip(rounds, alone, strict=True))


def rate(ranks):
    """-> examples/s of all ranks together."""
    return sum(rank["examples_per_sec"] for rank in ranks)


def table(columns):
    """-> lines: a row for each figure, the medians.

    Args:
      columns: dict of (place, way) -> Column, as ("5 Gbit", "fp16").
    """

    def row(title, get, form):
        return [title, *(cell(value and value.median, form) for value in map(get, columns.values()))]

    rows = [
        ["", *(way for _, way in columns)],
        row("total time, s", lambda column: column.total_seconds, ".2f"),
        row("percent of one worker's", lambda column: column.percent, ".0f"),
        row("time a batch, ms", lambda column: column.batch_ms, ".2f"),
        ["phases of a step, ms"] + [""] * len(columns),
    ]
    rows += [
        row(f"  {title}", lambda column, name=name: column.phases_ms.get(name), ".2f")
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
        row("memory of the service, MB", lambda column: _megabytes(column.service_resident_bytes), ",.0f"),
    ]
    if any(column.gpu_bytes for column in columns.values()):
        rows.append(row("memory of a GPU, MB", lambda column: _megabytes(column.gpu_bytes), ",.0f"))
    rows.append(row("start to end of the job, s", lambda column: column.job_seconds, ".1f"))
    return format_table(["", *(place for place, _ in columns)], rows)


def _sum(figures: list[Figure]) -> Figure | None:
    """Returns the sums by round; None of no figures."""
    return figure(map(sum, zip(*(each.values for each in figures), strict=True)))


def _speed(gbit: Figure) -> str:
    """Returns the median in the largest unit of which it is at least one, such as `2.61 Gb/s`."""
    bits = gbit.median * _GIGA
    scale, unit = next((each for each in _UNITS if bits >= each[0]), _UNITS[-1])
    value = bits / scale
    return f"{value:.{2 - (value >= 10) - (value >= 100)}f} {unit}"


def _megabytes(bytes_):
    return bytes_ and figure(value / _MEGA for value in bytes_.values)


def _range(workers):
    """-> megabytes of the worker that holds least and of the one that holds most, as `702-715`."""
    medians = [_megabytes(each).median for each in workers]
    return "-".join(dict.fromkeys(f"{each:,.0f}" for each in (min(medians), max(medians))))


def _gbit(ranks, interface, way):
    bytes_ = [rank["load"]["network"].get(interface, {}).get(way, 0.0) for rank in ranks]
    return _BITS * sum(bytes_) / len(bytes_) / _GIGA
