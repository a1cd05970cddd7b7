"""What a benchmark leaves: a table for people, JSON, pictures."""

import json
import os

from ctr_trainer.bench.machine import format_machine


def write_report(output, name, machine, lines, results, charts):
    """Prints the table, and writes NAME.txt with it, NAME.json and the charts.

    Args:
      output: directory.
      name: of the benchmark.
      machine: of `machine.describe`, before the measurement.
      lines: of the table.
      results: JSON-able dict.
      charts: dict of file name -> f(path) that draws it.
    """
    os.makedirs(output, exist_ok=True)
    text = "\n".join([*lines, "", *format_machine(machine)])
    with open(os.path.join(output, f"{name}.txt"), "w") as file:
        file.write(text + "\n")
    with open(os.path.join(output, f"{name}.json"), "w") as file:
        json.dump({"bench": name, "machine": machine, **results}, file, indent=1)
    for file_name, draw in charts.items():
        draw(os.path.join(output, file_name))
    print(text)
    for file_name in (f"{name}.txt", f"{name}.json", *charts):
        print(os.path.join(output, file_name), flush=True)
