"""What a benchmark leaves: a table for people, JSON, pictures."""

from ctr_trainer.bench.machine import format_machine
from ctr_trainer.files import durable_file, outputs


def write_report(output, name, machine, lines, results, charts):
    """Prints the table, and writes NAME.txt with it, NAME.json and the charts.

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
    text = "\n".join([*lines, "", *format_machine(machine)])
    print(text, flush=True)
    paths = outputs.claim(output, [f"{name}.txt", f"{name}.json", *charts])
    durable_file.write_text(paths[f"{name}.txt"], text + "\n")
    durable_file.write_json(paths[f"{name}.json"], {"bench": name, "machine": machine, **results})
    for file_name, draw in charts.items():
        draw(paths[file_name])
    for path in paths.values():
        print(path, flush=True)
