"""The part `bars` of `model_quality.py`: our models by `--recipe=bars` and FuxiCTR's, trained on the same rows.

L2 is the one of a grid that FuxiCTR's validation AUC chose, and all else is what the recipe and FuxiCTR's
configurations set: no dropout, batches of 2048. Adult has its numbers as categories only, since FuxiCTR embeds numbers
and we do not. Results stay in bars.jsonl below --work.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

import accuracy_data

from ctr_trainer.experiment import recipes

L2 = {"movielens-random": 1e-4, "adult-categories": 1e-5}
MODELS = ("deepfm", "dcn_v2", "xdeepfm", "autoint", "fibinet", "masknet", "final_mlp", "pnn")
# Where our defaults are another variant of a model than the one that FuxiCTR has.
PARAMS = {
    "fibinet": ("bilinear=interaction",),
}
PEER_SECONDS = 6 * 3600


def run(flags: argparse.Namespace) -> dict[str, float]:
    """Returns `bars_gap_max`, the largest shortfall of our mean test AUC; prints a line for each model and data set."""
    results = accuracy_data.Results(flags.work / "bars.jsonl")
    gaps = []
    for data in flags.data or L2:
        parts = accuracy_data.prepare(data, flags.real_data, flags.work)
        for model in flags.models or MODELS:
            for seed in flags.seeds:
                _ours(results, data, parts, model, seed)
            _theirs(results, data, parts, model, flags)
            gaps.append(_gap(results, data, model, flags.seeds))
    return {"bars_gap_max": round(max(gaps), 6)}


def flags_of_ours(data: str, model: str) -> list[str]:
    """Returns the flags of our run, but for its paths and its seed."""
    preset = [f"--{name}={value}" for name, value in recipes.flags_of("bars", ()).items()]
    own = [f"--model={model}", f"--embedding_l2={L2[data]}", "--batch_size=2048", "--hidden_units=256,128,64"]
    return [*preset, *own, *(f"--model_params={param}" for param in PARAMS.get(model, ()))]


def _ours(results: accuracy_data.Results, data: str, parts: accuracy_data.Parts, model: str, seed: int) -> None:
    import accuracy_ours  # It imports TensorFlow.

    chosen = flags_of_ours(data, model)
    key = dict(side="ours", data=data, model=model, seed=seed, flags=chosen)
    results.once(key, accuracy_ours.run, data, parts, model, seed, chosen, is_flagfile=False)


def _theirs(
    results: accuracy_data.Results, data: str, parts: accuracy_data.Parts, model: str, flags: argparse.Namespace
) -> None:
    key = dict(side="peer", data=data, model=model, library="FuxiCTR", setting=L2[data])
    missing = [seed for seed in flags.seeds if not results.has(**key, seed=seed)]
    if not missing:
        return
    arrays = flags.work / f"{data}.npz"
    accuracy_data.export_arrays(parts, arrays)
    script = pathlib.Path(__file__).with_name("accuracy_fuxictr.py")
    command = list(map(str, [flags.peer_python, script, arrays, model, L2[data], *missing]))
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=PEER_SECONDS)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}")
    for line in done.stdout.splitlines():
        results.add(**key | json.loads(line))


def _gap(results: accuracy_data.Results, data: str, model: str, seeds: list[int]) -> float:
    """Returns FuxiCTR's mean test AUC less ours, and prints both."""
    sides = []
    for side in ("peer", "ours"):
        lines = [each for each in results.lines if (each["side"], each["data"], each["model"]) == (side, data, model)]
        sides.append({each["seed"]: each["auc"] for each in lines if each["seed"] in seeds})
    theirs, ours = (statistics.mean(aucs.values()) for aucs in sides)
    print(
        json.dumps(dict(data=data, model=model, peer=sides[0], ours=sides[1], gap=round(theirs - ours, 6))), flush=True
    )
    return theirs - ours
