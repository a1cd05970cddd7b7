"""The demo's job as a user runs it: by its default flags, and with `--embedding_service=shared`."""

import json
import os
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
DEFAULT, SHARED = (), ("--embedding_service=shared",)


def default_vs_shared(directory, rounds):
    """-> (the median over the rounds of the default's examples/s over the shared one's, the rates by name).

    Args:
      directory: for the data, 2 M rows as `make demo` makes them, and the models.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment["PATH"] = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])

    def call(*command):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}")

    data = f"{directory}/demo"
    call(sys.executable, "-m", "ctr_trainer", "convert", "--format=synthetic", f"--output={data}")
    rates = {"demo": [], "demo_shared": []}
    for number in range(rounds):
        for name, flags in zip(rates, (DEFAULT, SHARED), strict=True):
            model = f"{directory}/{name}{number}"
            job = ["horovodrun", "-np", "2", "--gloo", str(ROOT / "run.sh"), f"--flagfile={ROOT}/configs/demo.flags"]
            call(*job, f"--train_data={data}/train", "--eval_data=", f"--model_dir={model}", *flags)
            summary = json.loads(pathlib.Path(model, "train_summary.json").read_text(encoding="utf-8"))
            rates[name].append(summary["examples_per_sec"])
    ratios = [one / other for one, other in zip(*rates.values(), strict=True)]
    return round(statistics.median(ratios), 3), {name: round(statistics.median(each)) for name, each in rates.items()}
