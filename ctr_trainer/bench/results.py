"""What a benchmark leaves: a table for people, JSON, pictures."""

from collections.abc import Callable
from typing import Any

from ctr_trainer.bench.machine import format_machine
from ctr_trainer.files import durable_file, outputs


def write_report(
    output: str,
    name: str,
    machine: dict[str, Any],
    lines: list[str],
    results: dict[str, Any],
    charts: dict[str, Callable[[str], None]],
) -> None:
    """Prints the table, and writes NAME.txt with it, NAME.json and the charts.

    The title says so if the machine was busy with other work before the measurement began.

    Args:
      output: directory.
      name: of the benchmark.
      machine: of `machine.describe`, before the measurement.
      lines: of the table.
      results: JSON-able dict.
      charts: dict of file name -> f(path) that draws it.

    Raises:
      UserError: a file of such a name is there, and is no earlier report.
    """
    busy = machine["load"] > machine["cores"]
    title = [f"Measured at a load of {machine['load']:g} on {machine['cores']} cores, so the times say little:"] * busy
    text = "\n".join([*title, *lines, "", *format_machine(machine)])
    print(text, flush=True)
    paths = outputs.claim(output, [f"{name}.txt", f"{name}.json", *charts])
    durable_file.write_text(paths[f"{name}.txt"], text + "\n")
    durable_file.write_json(paths[f"{name}.json"], {"bench": name, "machine": machine, "overloaded": busy, **results})
    for file_name, draw in charts.items():
        draw(paths[file_name])
    for path in paths.values():
        print(path, flush=True)
