"""Measures the loop from a click to the next request's score: broker, two workers, service, publisher and server.

    python benchmarks/click_to_score.py                        # all parts
    python benchmarks/click_to_score.py --parts=kills --kills=10 --kill_records=100000

The last line is JSON. The values of a part that did not run or that failed are null; `failed` lists the failed parts.
"""

import sides
import stream_faults
import stream_kills
import stream_loop
import switches
from sides import Part

PARTS = {
    "loop": Part(
        "seconds from the append of a record with a new key until an answer shows that it was trained",
        ("click_to_score_p50_secs", "click_to_score_p99_secs", "marked_records", "records_per_sec"),
        lambda flags: stream_loop.measure(flags),
    ),
    "switches": Part(
        "the 99th percentile of answers while towers and rows arrive, over that without, see switches.py",
        (
            *("p99_during_switches_over_steady", "errors_during_switches", "p99_steady_ms", "p99_switches_ms"),
            *("memory_during_switches_over_before", "switches"),
        ),
        lambda flags: switches.measure(flags.epochs),
    ),
    "kills": Part(
        "records of a stream that random kills of its parts have cost or repeated, see stream_kills.py",
        (
            *("records", "kill_runs", "records_not_trained", "records_trained_twice", "auc_minus_undisturbed"),
            *("log_loss_minus_undisturbed", "restarts", "restart_secs"),
            *("requests_during_kills", "requests_failed_during_kills"),
        ),
        lambda flags: stream_kills.measure(flags.kills, flags.kill_secs, flags.kill_records),
    ),
    "faults": Part(
        "records lost and answers wrong after damaged records, stopped processes and hostile clients, see "
        "stream_faults.py",
        ("lost", "wrong", "faults", "fault_records"),
        lambda flags: stream_faults.measure(flags.times),
    ),
}


def main(arguments: list[str] | None = None) -> None:
    parser = sides.parser(__doc__)
    sides.add_parts(parser, PARTS, default=[*PARTS])
    parser.add_argument("--rate", type=float, default=2000.0, help="records per second of the part loop")
    parser.add_argument("--seconds", type=float, default=120.0, help="time of the part loop with marked records")
    parser.add_argument("--publish_secs", type=float, default=0.05, help="least publication period of the loop")
    parser.add_argument("--epochs", type=int, default=100, help="towers and epochs of rows of the part switches")
    parser.add_argument("--kills", type=int, default=100, help="kills of the part kills")
    parser.add_argument("--kill_secs", type=float, default=8.0, help="mean time between two kills of the part kills")
    parser.add_argument("--kill_records", type=int, default=1_000_000, help="records of the part kills")
    parser.add_argument("--times", type=int, default=5, help="how often each fault of the part faults happens")
    sides.run_parts(PARTS, parser.parse_args(arguments))


if __name__ == "__main__":
    main()
