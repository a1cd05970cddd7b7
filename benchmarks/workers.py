"""Measures how a job scales: examples/s, efficiency and the phases of a step for several numbers of workers.

Every worker has as many threads and cores at each size: the cores divided by the largest number of workers. One worker
is always measured, for the efficiency. The last line is JSON.

Examples: python benchmarks/workers.py --workers=1,2
          python benchmarks/workers.py --workers=1,2,4 -- --flagfile=configs/demo.flags --dense_sync_steps=30
"""

from collections.abc import Mapping, Sequence
from typing import Any

import figures
import jobs
import sides
from figures import Figure

from ctr_trainer.system.measuring.clock import STEP_TITLES

# The title, the name (as in `flat`), the format and the unit of each row.
PHASES = tuple((f"{title}, ms", f"phases_ms {name}", ".2f", 1) for name, title in STEP_TITLES.items())
MEMORY = (
    ("memory of a worker, MB", "resident_bytes", ",.0f", 1e6),
    ("memory of the service, MB", "service_resident_bytes", ",.0f", 1e6),
    ("memory of a GPU, MB", "gpu_bytes", ",.0f", 1e6),
)
ROWS = (
    ("time a batch, ms", "batch_ms", ".2f", 1),
    ("examples/s, a worker", "each", ",.0f", 1),
    ("examples/s, together", "together", ",.0f", 1),
    ("efficiency", "efficiency", ".0%", 1),
    *PHASES,
    ("accounted", "accounted", ".1%", 1),
    ("CPU, cores, all workers", "cpu", ".2f", 1),
    ("service CPU, cores", "service_cpu", ".2f", 1),
    ("service requests/s", "service_requests", ",.1f", 1),
    *MEMORY,
    ("GPU busy", "gpu_busy", ".0%", 1),
    ("start to end of the job, s", "job_seconds", ".1f", 1),
)


def flat(found: Mapping[str, Any], above: str = "") -> dict[str, Figure]:
    """Returns the figures of nested dicts by their keys joined by spaces, such as `network lo sent`."""
    flattened = dict[str, Figure]()
    for key, value in found.items():
        flattened |= flat(value, f"{above}{key} ") if isinstance(value, Mapping) else {f"{above}{key}": value}
    return flattened


def table(columns: Mapping[str, Mapping[str, Any]], rows: Sequence[tuple[str, str, str, float]]) -> list[str]:
    """Returns the lines of a table with a column for each job and a row for each figure that one of them has."""
    found = {name: flat(column) for name, column in columns.items()}
    cells = []
    for title, key, form, unit in rows:
        values = {name: column[key] / unit for name, column in found.items() if column.get(key) is not None}
        if values:
            cells.append({"": title} | {name: format(value, form) for name, value in values.items()})
    return sides.markdown([(name, name, "") for name in ("", *found)], cells)


def main(arguments: list[str] | None = None) -> None:
    parser = jobs.parser(__doc__)
    parser.add_argument("--workers", type=sides.integers, default=[1, 2], help="numbers of workers; default 1,2")
    flags = parser.parse_args(arguments)
    on, setup, sizes = figures.machine(), jobs.setup(flags), sorted({1, *flags.workers})
    names = {n: f"{n} worker{'s' * (n > 1)}" for n in sizes}
    every = [setup.job(name, n, core_shares=sizes[-1]) for n, name in names.items()]
    runs, failed = setup.measure(every, with_seeds=False)
    batches = setup.experiment.train.accumulation_steps
    found = {n: jobs.figures_of(runs[name], runs.get(names[1]), batches) for n, name in names.items() if name in runs}
    interfaces = sorted({name for each in found.values() for name in each["network"]})
    traffic = [
        (f"{name} {way}, MB/s", f"network {name} {way}", ".2f", 1e6)
        for name in interfaces
        for way in ("received", "sent")
    ]
    lines = [setup.title(sizes[-1]), "", *table({names[n]: each for n, each in found.items()}, [*ROWS, *traffic])]
    lines += [f"{n} workers share {on['cores']} cores here." for n in found if n > on["cores"]]
    results = {"experiment": setup.title(sizes[-1]), "flags": setup.flags, "rounds": setup.rounds}
    figures.report("scaling", on, lines, {**results, "steps": setup.steps, "sizes": found}, failed)


if __name__ == "__main__":
    main()
