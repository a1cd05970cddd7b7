"""Compares the test AUC of our models and of other libraries on equal splits, features and embedding sizes.

The data are MovieLens (label: rated 4 or better), split at random and by time, and Adult. Our models are trained with
their flagfiles in configs/, which were chosen by the validation part alone; all sides choose the epoch by it as well.
The peers are scikit-learn's logistic regression, LightGBM, the PyTorch models in `accuracy_torch.py`, and FuxiCTR's
models; --libraries chooses among them. A table shows means and spreads (highest minus lowest) over the seeds; the last
line is JSON. Targets: our model at most 0.001 below each peer of the same kind, on Adult our best model at most 0.005
below LightGBM, and DIN with histories above our DeepFM without them on the split by time.

Each result is a line of --results. A run whose result is there is not repeated, unless its flagfile or feature spec has
changed; --again repeats all of our runs, --tune_peers all runs of peers.

Example: python benchmarks/accuracy.py --results=accuracy.jsonl --peer_python=peers/bin/python
         python benchmarks/accuracy.py --data=adult --models=deepfm,lr --seeds=1
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import accuracy_data
from accuracy_peers import LIBRARIES

MODELS = ("lr", "wide_deep", "deepfm", "dcn_v2", "din")
# The models of the data sets with histories, which are run on no other data set.
ONLY = {"movielens-history": ("din",), "movielens-liked": ("din",)}
PEER_SECONDS = 7200
BELOW_PEER, BELOW_TREES = 0.001, 0.005
_HISTORIES = "movielens-history", "movielens-liked"


def main():
    flags = _flags()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("CTR_TRAINER_THREADS", "1")
    results = Results(flags.results)
    for side, again in (("ours", flags.again), ("peer", flags.tune_peers)):
        if again:
            results.forget(side=side)
    libraries = _installed(flags)
    for data in flags.data:
        parts = accuracy_data.prepare(data, flags.real_data, flags.work)
        for model in models_of(data, flags.models):
            _run_ours(results, data, parts, model, flags.seeds)
        for library in libraries:
            wanted = [model for model in LIBRARIES[library][2] if model in (*flags.models, "lightgbm")]
            for model in models_of(data, wanted):
                _run_peer(results, data, parts, library, model, flags)
    _show([line for line in results.lines if _is_selected(line, flags)])


def _show(lines):
    print(table(lines))
    print(json.dumps(summary(lines)))


def _is_selected(line, flags):
    models, libraries = (*flags.models, "lightgbm"), (None, *flags.libraries)  # ours have no library
    chosen = line["data"] in flags.data and line["model"] in models and line["seed"] in flags.seeds
    return chosen and line.get("library") in libraries


def models_of(data, models):
    """Returns the models that are run on a data set."""
    elsewhere = {model for only in ONLY.values() for model in only}
    return [model for model in models if (model in ONLY[data] if data in ONLY else model not in elsewhere)]


class Results:
    """A file of JSON lines with `side` (`ours` or `peer`), `data`, `model`, `seed`, `auc` and more."""

    def __init__(self, path):
        self._path = pathlib.Path(path)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self.lines = []
        if self._path.is_file():
            self.lines = [json.loads(line) for line in self._path.read_text().splitlines()]

    def has(self, **key):
        """Returns whether there is a line with these values."""
        return any(_matches(line, key) for line in self.lines)

    def add(self, **line):
        self.lines.append(line)
        with self._path.open("a") as file:
            print(json.dumps(line), file=file)

    def forget(self, **key):
        """Removes the lines with these values, from the file as well."""
        self.lines = [line for line in self.lines if not _matches(line, key)]
        self._path.write_text("".join(json.dumps(line) + "\n" for line in self.lines))


def _matches(line, key):
    return all(line.get(name) == value for name, value in key.items())


def _flags():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--real_data", default=accuracy_data.default_directory(), help="where movielens/ and adult/ are"
    )
    parser.add_argument("--work", default=pathlib.Path(tempfile.gettempdir()) / "ctr_trainer_accuracy")
    parser.add_argument("--results", help="JSON lines; default: results.jsonl below --work")
    parser.add_argument("--again", action="store_true", help="repeat all of our runs")
    parser.add_argument("--peer_python", default=sys.executable, help="the Python interpreter that has the peers")
    parser.add_argument("--tune_peers", action="store_true", help="choose the peers' settings by validation again")
    choices = (("data", accuracy_data.DATA), ("models", MODELS), ("libraries", tuple(LIBRARIES)), ("seeds", (1, 2, 3)))
    for name, values in choices:
        parser.add_argument(f"--{name}", type=_list_of(values), default=values, help=",".join(map(str, values)))
    flags = parser.parse_args()
    flags.results = flags.results or pathlib.Path(flags.work) / "results.jsonl"
    return flags


def _list_of(values):
    """Returns the type of a comma separated flag: integers if `values` are integers, else some of the values."""

    def parse(text):
        if isinstance(values[0], int):
            return [int(part) for part in text.split(",")]
        if wrong := [part for part in text.split(",") if part not in values]:
            raise argparse.ArgumentTypeError(f"{wrong[0]!r} is not one of {', '.join(values)}")
        return text.split(",")

    return parse


def _installed(flags):
    """Returns the --libraries that --peer_python has, and prints how to install the others."""
    there = []
    for library in flags.libraries:
        module, packages, _ = LIBRARIES[library]
        if subprocess.run([flags.peer_python, "-c", f"import sklearn, {module}"], capture_output=True).returncode:
            _say(f"{library} is not installed and left out: {flags.peer_python} -m pip install {packages}")
        else:
            there.append(library)
    return there


def _run_ours(results, data, parts, model, seeds):
    import accuracy_ours  # It imports TensorFlow.

    experiment = accuracy_ours.fingerprint(data, model)
    for seed in seeds:
        key = dict(side="ours", data=data, model=model, seed=seed)
        if not results.has(**key, experiment=experiment):
            _say(f"{data}: {model}, seed {seed}")
            line = accuracy_ours.run(data, parts, model, seed)
            results.forget(**key)
            results.add(**key, experiment=experiment, **line)


def _run_peer(results, data, parts, library, model, flags):
    seeds = flags.seeds[:1] if model == "lr" else flags.seeds
    key = dict(side="peer", data=data, model=model, library=library)
    missing = [seed for seed in seeds if not results.has(**key, seed=seed)]
    if not missing:
        return
    arrays = pathlib.Path(flags.work) / f"{data}.npz"
    accuracy_data.export_arrays(parts, arrays)
    script = pathlib.Path(__file__).with_name("accuracy_peers.py")
    command = [flags.peer_python, script, f"--data={data}", f"--arrays={arrays}"]
    command += [f"--library={library}", f"--model={model}"]
    command += [f"--seeds={','.join(map(str, missing))}", *(["--tune"] if flags.tune_peers else [])]
    _say(f"{data}: {library}'s {model}, seeds {missing}")
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=PEER_SECONDS)
    for line in done.stdout.splitlines():
        results.add(**key, **json.loads(line))
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}")


def _say(text):
    print(text, file=sys.stderr, flush=True)


def summary(lines):
    """Returns, by data and model, the known ones of `auc`, `spread`, `seeds`, `peer`, `peer_spread`, `library`, `met`.

    `peer` and `library` belong to the first library with a result; `others` has the same keys for the other libraries.
    `met` says whether our model is within the target. LightGBM has `peer` only, and on Adult also our `best` model.
    """
    found = {}
    for side in ("ours", "peer"):
        for line in lines:
            if line["side"] == side:
                found.setdefault(line["data"], {}).setdefault(line["model"], {}).setdefault(side, []).append(line)
    result = {data: {model: _entry(sides) for model, sides in models.items()} for data, models in found.items()}
    _add_trees_target(result.get("adult", {}))
    _add_histories_target(result)
    return result


def _entry(sides):
    entry, libraries = {}, {}
    if "ours" in sides:
        entry |= _mean(sides["ours"], "auc", "spread") | {"seeds": len(sides["ours"])}
    for line in sides.get("peer", []):
        libraries.setdefault(line["library"], []).append(line)
    peers = {library: _mean(lines, "peer", "peer_spread") for library, lines in libraries.items()}
    for peer in peers.values() if "ours" in sides else ():
        peer["met"] = entry["auc"] >= peer["peer"] - BELOW_PEER
    for number, (library, peer) in enumerate(peers.items()):
        if number:
            entry.setdefault("others", {})[library] = peer
        else:
            entry |= peer | {"library": library}
    return entry


def _mean(lines, name, spread):
    values = [line["auc"] for line in lines]
    found = {name: round(statistics.mean(values), 5)}
    return found | ({spread: round(max(values) - min(values), 5)} if len(values) > 1 else {})


def _add_trees_target(adult):
    ours = {model: entry["auc"] for model, entry in adult.items() if "auc" in entry}
    if ours and "peer" in adult.get("lightgbm", {}):
        best = max(ours, key=ours.get)
        adult["lightgbm"] |= {"best": best, "met": ours[best] >= adult["lightgbm"]["peer"] - BELOW_TREES}


def _add_histories_target(result):
    deepfm = result.get("movielens-time", {}).get("deepfm", {})
    for din in (result.get(data, {}).get("din", {}) for data in _HISTORIES):
        if "auc" in din and "auc" in deepfm:
            din |= {"peer": deepfm["auc"], "library": "our DeepFM without", "met": din["auc"] > deepfm["auc"]}


def table(lines):
    """Returns a table in Markdown."""
    rows = ["| data | model | ours | spread | peer | its AUC | spread | ours - peer | |", f"|{'---|' * 9}"]
    for data, models in summary(lines).items():
        for model, entry in models.items():
            ours = entry
            if model == "lightgbm" and "best" in entry:
                model, ours = f"best: {entry['best']}", {"auc": models[entry["best"]]["auc"]}
            rows.append(_row(data, model, ours, entry))
            for library, other in entry.get("others", {}).items():
                rows.append(_row(data, model, ours, other | {"library": library}))
    return "\n".join(rows)


def _row(data, model, ours, peer):
    auc = ours.get("auc")
    difference = f"{auc - peer['peer']:+.4f}" if "met" in peer else ""
    verdict = {True: "met", False: "missed", None: ""}[peer.get("met")]
    texts = [data, model, _number(auc), _number(ours.get("spread")), peer.get("library", "")]
    texts += [_number(peer.get("peer")), _number(peer.get("peer_spread")), difference, verdict]
    return f"| {' | '.join(texts)} |"


def _number(value):
    return "" if value is None else f"{value:.4f}"


if __name__ == "__main__":
    main()
