"""What a job of `bench network` takes and where its time goes: a column of the table."""

import dataclasses

from ctr_trainer.bench import scaling
from ctr_trainer.bench.figures import Figure, cell, figure, format_table
from ctr_trainer.measuring.phases import STEP_TITLES

_BITS, _GIGA, _MEGA = 8, 1e9, 1e6


@dataclasses.dataclass(frozen=True)
class Column:
    """What was measured of one job, each a `figures.Figure` over the rounds or None.

    Attributes:
      total_seconds: in which the workers together train on as many examples as the column of one worker has.
      percent: `total_seconds` in percent of one worker's of the same round.
      job_seconds: from the start of the job's processes to their end.
      batch_ms: of a worker, one step's time over its batches.
      phases_ms: dict by phase, of a step, the mean of the workers.
      accounted: share of the step that the phases make up; of the worker where it is least.
      received_gbit, sent_gbit: Gbit/s by the job's network interface, the mean of the workers' machines.
      resident_bytes: tuple of each worker's memory, by rank.
      service_resident_bytes: memory of the lookup service; None without one.
      gpu_bytes: memory of the GPU in which most was in use, where NVML tells.
    """

    total_seconds: object
    percent: object
    job_seconds: object
    batch_ms: object
    phases_ms: dict
    accounted: object
    received_gbit: object
    sent_gbit: object
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


def measure(rounds, alone, examples, interface, batches=1):
    """-> the `Column` of a job.

    Args:
      rounds: a list of the ranks' results, a round.
      alone: the same of one worker; None where that failed.
      examples: that `total_seconds` are for.
      interface: of the network that the job uses, as `lo`.
      batches: of a step.
    """
    size = scaling.summarize(rounds, None, batches)
    received, sent = (figure(_gbit(ranks, interface, way) for ranks in rounds) for way in ("received", "sent"))
    return Column(
        total_seconds=figure(examples / rate(ranks) for ranks in rounds),
        percent=time_percent(rounds, alone),
        job_seconds=size.job_seconds,
        batch_ms=size.batch_ms,
        phases_ms=size.phases_ms,
        accounted=size.accounted,
        received_gbit=received,
        sent_gbit=sent,
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
    for name, title in STEP_TITLES.items():
        if any(name in column.phases_ms for column in columns.values()):
            rows.append(row(f"  {title}", lambda column, name=name: column.phases_ms.get(name), ".2f"))
    rows += [
        row("  accounted", lambda column: column.accounted, ".1%"),
        row("receiving, Gbit/s", lambda column: column.received_gbit, ".3f"),
        row("sending, Gbit/s", lambda column: column.sent_gbit, ".3f"),
        ["memory of each worker, MB", *(_range(column.resident_bytes) for column in columns.values())],
        row("memory of the service, MB", lambda column: _megabytes(column.service_resident_bytes), ",.0f"),
    ]
    if any(column.gpu_bytes for column in columns.values()):
        rows.append(row("memory of a GPU, MB", lambda column: _megabytes(column.gpu_bytes), ",.0f"))
    rows.append(row("start to end of the job, s", lambda column: column.job_seconds, ".1f"))
    return format_table(["", *(place for place, _ in columns)], rows)


def _megabytes(bytes_):
    return bytes_ and figure(value / _MEGA for value in bytes_.values)


def _range(workers):
    """-> megabytes of the worker that holds least and of the one that holds most, as `702-715`."""
    medians = [_megabytes(each).median for each in workers]
    return "-".join(dict.fromkeys(f"{each:,.0f}" for each in (min(medians), max(medians))))


def _gbit(ranks, interface, way):
    bytes_ = [rank["load"]["network"].get(interface, {}).get(way, 0.0) for rank in ranks]
    return _BITS * sum(bytes_) / len(bytes_) / _GIGA
