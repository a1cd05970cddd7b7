"""The part `search` of `model_quality.py`: `ctr_trainer search` from DeepFM's defaults, and the settings found by hand.

The search sees the training and the validation rows alone. Then its flagfile and the one in configs/ train with each
seed, and are tested once. The searches stay below --work, and a second start continues them for as long again.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

import accuracy_data
import sides

# The Criteo sample has 10,000 rows, of which 1,000 test: an AUC there has a standard error of 0.02.
DATA = ("movielens-random", "adult")
MODEL = "deepfm"
# What a run has of its own.
_OF_A_RUN = ("train_data", "eval_data", "model_dir", "seed")


def run(flags: argparse.Namespace) -> dict[str, float]:
    """Returns the smallest difference of the mean test AUCs; prints a line for each data set."""
    results = accuracy_data.Results(flags.work / "search.jsonl")
    data_sets = flags.data or DATA
    gains = []
    for data in data_sets:
        parts = accuracy_data.prepare(data, flags.real_data, flags.work)
        found = search(data, parts, flags.work, flags.search_minutes / len(data_sets))
        chosen = flags_found(pathlib.Path(found["flagfile"]))
        tested = {side: _tested(results, data, parts, side, flags.seeds, chosen) for side in ("found", "by_hand")}
        means = {side: statistics.mean(each["auc"] for each in runs) for side, runs in tested.items()}
        gains.append(means["found"] - means["by_hand"])
        print(json.dumps({"data": data, "search": found, "gain": round(gains[-1], 6), **tested}), flush=True)
    return {"search_minus_hand_tuned_min": round(min(gains), 6)}


def search(data: str, parts: accuracy_data.Parts, work: pathlib.Path, minutes: float) -> dict[str, object]:
    """Searches by validation AUC, or continues a search for as long again; returns its last line."""
    work.mkdir(parents=True, exist_ok=True)
    flagfile = work / f"{data}.search.flags"
    lines = [f"--train_data={parts.train}", f"--eval_data={parts.valid}", f"--model_dir={work / f'{data}.model'}"]
    flagfile.write_text("\n".join([*lines, f"--model={MODEL}", "--best_metric=auc", "--seed=1"]) + "\n")
    command = [*sides.COMMAND, "search", f"--flagfile={flagfile}", f"--minutes={minutes}"]
    done = subprocess.run([*command, f"--output={work / f'{data}.search'}"], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def flags_found(flagfile: pathlib.Path) -> list[str]:
    """Returns the flags of a flagfile that a search wrote, without those that each run has of its own."""
    lines = [line for line in flagfile.read_text().splitlines() if line.startswith("--")]
    return [line for line in lines if line[2:].partition("=")[0] not in _OF_A_RUN]


def _tested(
    results: accuracy_data.Results,
    data: str,
    parts: accuracy_data.Parts,
    side: str,
    seeds: list[int],
    chosen: list[str],
) -> list[dict[str, float]]:
    """Returns the figures of a side by seed."""
    import accuracy_ours  # It imports TensorFlow.

    is_by_hand, found = side == "by_hand", []
    flags, own = ([accuracy_ours.fingerprint(data, MODEL)], []) if is_by_hand else (chosen, chosen)
    for seed in seeds:
        key = dict(side=side, data=data, seed=seed, flags=flags)
        line = results.once(key, accuracy_ours.run, data, parts, MODEL, seed, own, is_flagfile=is_by_hand)
        found.append({name: round(line[name], 6) for name in ("seed", "auc", "logloss", "copc", "valid")})
    return found
