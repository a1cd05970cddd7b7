"""Measures the loop from a click to the score of the next request: broker, two workers, service, publisher and server.

    python benchmarks/click_to_score.py                        # all parts
    python benchmarks/click_to_score.py --parts=loop --seconds=60
    python benchmarks/click_to_score.py --parts=file --records=200000 --rounds=3
    python benchmarks/click_to_score.py --parts=kills --kills=10 --kill_records=100000

| part | what it measures |
|---|---|
| loop | seconds from the append of a record with a new key until an answer of the server shows that it was trained |
| file | examples/s that one worker trains from the broker over examples/s from the same rows in Parquet |
| candidates | candidates per second of requests with one context over those of expanded rows, see `candidates.py` |
| delayed | the shares of the gaps of late labels that `--delayed_labels` closes, see `delayed_labels.py` |
| switches | the 99th percentile of answers while towers and rows arrive, over that without, see `switches.py` |
| kills | records of a stream that random kills of its parts have cost or repeated, see `stream_kills.py` |

The last line is JSON. The keys of a part that did not run, or that failed, are null; `failed` names the latter.
"""

import argparse
import importlib
import json
import os
import pathlib
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable
from typing import Any

import sides
from stream_loop import PARTITIONS, TOPIC, Rows, training

from tests.stream import brokers

KEYS = {
    "loop": ("click_to_score_p50_secs", "click_to_score_p99_secs", "marked_records", "records_per_sec"),
    "file": ("stream_over_file", "stream_over_file_json", "stream_over_file_arrow"),
    "delayed": ("delayed_auc_gap_closed", "delayed_nll_gap_closed", "delayed_copc"),
    "candidates": ("candidates_speedup", "candidates_speedup_http", "candidates_speedup_flight"),
    "kills": (
        *("records", "kill_runs", "records_not_trained", "records_trained_twice", "auc_minus_undisturbed"),
        *("log_loss_minus_undisturbed", "restarts", "requests_during_kills", "requests_failed_during_kills"),
    ),
    "switches": (
        *("p99_during_switches_over_steady", "errors_during_switches", "p99_steady_ms", "p99_switches_ms"),
        *("memory_during_switches_over_before", "switches"),
    ),
}


def measure_file(args: argparse.Namespace) -> dict[str, Any]:
    """Trains the same rows from the broker and from Parquet, in turn."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = Rows(seed=2)
    table = pa.Table.from_pylist([rows.next() for _ in range(args.records)])
    messages = {"json": [json.dumps(row).encode() for row in table.to_pylist()], "arrow": []}
    for at in range(0, len(table), 1024):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table.slice(at, 1024))
        messages["arrow"].append(sink.getvalue().to_pybytes())
    ratios: dict[str, list[float]] = {kind: [] for kind in messages}
    with tempfile.TemporaryDirectory() as directory:
        work = pathlib.Path(directory)
        pq.write_table(table, work / "rows.parquet", row_group_size=50_000)
        for number in range(args.rounds):
            for kind, records in messages.items():
                rates = {}
                with brokers.tansu() as broker:  # A broker whose memory has nothing of the other kind.
                    brokers.make_topic(broker.address, TOPIC, PARTITIONS)
                    brokers.produce(broker.address, TOPIC, records, PARTITIONS)
                    for place in ("stream", "file"):
                        model = work / f"{number}-{kind}-{place}"
                        line = training(work, broker.address, f"--model_dir={model}", "--batch_size=1024", workers=1)
                        line += ["--recipe=none", "--stream_from=earliest", "--stream_until=latest"]
                        if place == "file":
                            line = [each for each in line if not str(each).startswith("--stream")]
                            line += [f"--train_data={work / 'rows.parquet'}"]
                        sides.call(line)
                        summary = sides.summary(model)
                        if summary["examples"] != args.records:
                            raise SystemExit(f"{summary['examples']} of {args.records} records were trained")
                        rates[place] = summary["examples_per_sec"]
                ratios[kind].append(rates["stream"] / rates["file"])
                print(f"round {number + 1}, {kind}: {rates}", flush=True)
    medians = {kind: round(statistics.median(of), 3) for kind, of in ratios.items()}
    return {"stream_over_file": max(medians.values())} | {f"stream_over_file_{k}": v for k, v in medians.items()}


def _measure(module: str, *arguments: Any) -> dict[str, Any]:
    """Returns what `measure` of a module returns; only the modules of the chosen parts are imported."""
    return importlib.import_module(module).measure(*arguments)


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "loop": lambda args: _measure("stream_loop", args),
    "file": measure_file,
    "delayed": lambda args: _measure("delayed_labels"),
    "candidates": lambda args: _measure("candidates"),
    "switches": lambda args: _measure("switches", args.epochs),
    "kills": lambda args: _measure("stream_kills", args.kills, args.kill_secs, args.kill_records),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help=f"parts to run, of {','.join(PARTS)}")
    parser.add_argument("--rate", type=float, default=2000.0, help="records per second of the part loop")
    parser.add_argument(
        "--seconds", type=float, default=120.0, help="time in which the part loop appends marked records"
    )
    parser.add_argument(
        "--warm_secs", type=float, default=15.0, help="time that the loop runs before the first of them"
    )
    parser.add_argument("--publish_secs", type=float, default=2.0, help="publication period of the part loop")
    parser.add_argument("--records", type=int, default=400_000, help="rows of the part file")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of the part file")
    parser.add_argument("--epochs", type=int, default=100, help="towers and epochs of rows of the part switches")
    parser.add_argument("--kills", type=int, default=100, help="kills of the part kills")
    parser.add_argument("--kill_secs", type=float, default=8.0, help="mean time between two kills of the part kills")
    parser.add_argument("--kill_records", type=int, default=1_000_000, help="records of the part kills")
    parser.add_argument("--keep_logs", default="", help="directory that keeps the logs of the part loop")
    args = parser.parse_args()
    chosen = args.parts.split(",")
    if unknown := [part for part in chosen if part not in PARTS]:
        parser.error(f"--parts has no part {unknown[0]}: choose from {', '.join(PARTS)}")
    found: dict[str, Any] = {key: None for part in PARTS for key in KEYS[part]}
    seconds, failed = {}, []
    for part in chosen:
        print(f"part {part}", flush=True)
        began = time.monotonic()
        try:
            found |= PARTS[part](args)
        except (Exception, SystemExit):  # The results of the other parts count all the same.
            traceback.print_exc()
            failed.append(part)
        seconds[part] = round(time.monotonic() - began)
    print(json.dumps(found | {"seconds": seconds, "failed": failed, "cores": len(os.sched_getaffinity(0))}))
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}; why stands above, with the name of the part")


if __name__ == "__main__":
    main()
