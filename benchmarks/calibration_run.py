"""The runs of `calibration.py` on a number of workers: one process each, all runs in it. Start it by that.

Rank 0 appends a JSON line per run to --results.
"""

import argparse
import json
import pathlib
import tempfile
import time

from ctr_trainer import flags
from ctr_trainer.commands.train import GROUPS
from ctr_trainer.experiment import build
from ctr_trainer.ranks import distributed


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", required=True, help="JSON lines")
    parser.add_argument("--runs", required=True, help="JSON file: a list of `key` and `flags`")
    parser.add_argument("--work", required=True, help="where models are kept while they train")
    arguments = parser.parse_args()
    distributed.init(pin_cores=False)
    for each in json.loads(pathlib.Path(arguments.runs).read_text()):
        start = time.perf_counter()
        found = run(each["flags"], each["test"], arguments.work)
        if distributed.is_chief():
            line = {**each["key"], **found, "seconds": round(time.perf_counter() - start, 1)}
            with open(arguments.results, "a") as file:
                print(json.dumps(line), file=file)
            print(json.dumps(line), flush=True)


def run(texts, test_data, work):
    """Trains by flags, evaluates the last checkpoint, and the best one if there is one. A collective.

    Returns:
      dict of `steps`, `auc`, `logloss`, `copc` and `copc_error` (its standard error by the size of the test data) of
      the last checkpoint, and of the best one by validation as `best_auc` and so on.
    """
    values = flags.define(GROUPS)
    with tempfile.TemporaryDirectory(prefix="calibration_", dir=work) as directory:
        directory = distributed.broadcast_object(directory, "model_dir")
        own = [f"--model_dir={directory}", "--summary_steps=0", "--save_checkpoints_steps=0", "--log_steps=1000000"]
        values(["calibration", *texts, *own])
        experiment, evaluation, metrics, _ = (flags.read(group, values) for group in GROUPS)
        estimator = build.make_estimator(experiment)

        def reader(path):
            return build.reader(experiment, path, once=True)

        spec = build.make_eval_spec(evaluation, metrics, lambda: reader(experiment.data.eval_data))
        estimator.train(
            lambda position: build.training_reader(experiment, position),
            max_steps=experiment.data.max_steps or None,
            evaluation=spec,
        )
        result = {}
        for which, prefix in (("latest", ""), ("best", "best_")):
            if which == "best" and not evaluation.best_metric:
                continue
            checkpoint = estimator.find_checkpoint(which)
            found = estimator.evaluate(lambda: reader(test_data), checkpoint=checkpoint)
            result |= {f"{prefix}{name}": round(found[name], 5) for name in ("auc", "logloss", "copc")}
            result[f"{prefix}steps"] = checkpoint.step
        # Of a mean of n labels of mean p, relative to it: sqrt((1 - p) / (n p)).
        result["copc_error"] = round(((1 - found["real_mean"]) / (found["examples"] * found["real_mean"])) ** 0.5, 4)
        distributed.barrier("run_over")
    return result


if __name__ == "__main__":
    main()
