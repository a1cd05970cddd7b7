"""The table of `accuracy.py`, and its JSON."""

import statistics

BELOW_PEER, BELOW_TREES, APART = 0.001, 0.005, 0.001
_HISTORIES = ("history", "din"), ("time", "deepfm")


def summary(lines):
    """-> by data and model, what there is of: `auc`, `spread`, `seeds`, `peer`, `peer_spread`, `library`, `met`.

    A spread is of several seeds. `met` says whether ours is within the target. LightGBM has `peer` only, and on Adult
    our `best` model and whether that is within its target. `workers` is the mean AUC by job and number of workers,
    `workers_met` whether all are within their target of one's.

    Args:
      lines: those of `accuracy.Results`.
    """
    found = {}
    for side in ("ours", "peer"):
        for line in lines:
            if line["side"] == side:
                found.setdefault(line["data"], {}).setdefault(line["model"], {}).setdefault(side, []).append(line)
    result = {data: {model: _entry(sides) for model, sides in models.items()} for data, models in found.items()}
    for (data, model, job, workers), aucs in _jobs(lines).items():
        entry = result.setdefault(data, {}).setdefault(model, {})
        entry.setdefault("workers", {}).setdefault(job, {})[workers] = round(statistics.mean(aucs), 5)
    for entry in [entry for models in result.values() for entry in models.values() if "workers" in entry]:
        several = [auc for job, aucs in entry["workers"].items() if job != "one" for auc in aucs.values()]
        if "one" in entry["workers"] and several:
            entry["workers_met"] = all(abs(auc - entry["workers"]["one"]["1"]) <= APART for auc in several)
    _add_trees_target(result.get("adult", {}))
    _add_histories_target(result)
    return result


def _jobs(lines):
    """-> by (data, model, job, number of workers as text) the AUCs of the seeds."""
    found = {}
    for line in lines:
        if line["side"] == "workers":
            key = line["data"], line["model"], line["job"], str(line["workers"])
            found.setdefault(key, []).append(line["auc"])
    return found


def _entry(sides):
    entry = {}
    for side, name, spread in (("ours", "auc", "spread"), ("peer", "peer", "peer_spread")):
        if side in sides:
            values = [line["auc"] for line in sides[side]]
            entry[name] = round(statistics.mean(values), 5)
            if len(values) > 1:
                entry[spread] = round(max(values) - min(values), 5)
    if "peer" in sides:
        entry["library"] = sides["peer"][0]["library"]
    if len(sides) == 2:
        entry["met"] = entry["auc"] >= entry["peer"] - BELOW_PEER
    if "ours" in sides:
        entry["seeds"] = len(sides["ours"])
    return entry


def _add_trees_target(adult):
    ours = {model: entry["auc"] for model, entry in adult.items() if "auc" in entry}
    if ours and "peer" in adult.get("lightgbm", {}):
        best = max(ours, key=ours.get)
        adult["lightgbm"] |= {"best": best, "met": ours[best] >= adult["lightgbm"]["peer"] - BELOW_TREES}


def _add_histories_target(result):
    din, deepfm = (result.get(f"movielens-{data}", {}).get(model, {}) for data, model in _HISTORIES)
    if "auc" in din and "auc" in deepfm:
        din |= {"peer": deepfm["auc"], "library": "our DeepFM without", "met": din["auc"] > deepfm["auc"]}


def table(lines):
    """-> Markdown."""
    rows = ["| data | model | ours | spread | peer | its AUC | spread | ours - peer | |", f"|{'---|' * 9}"]
    for data, models in summary(lines).items():
        for model, entry in models.items():
            auc, peer = entry.get("auc"), entry.get("peer")
            if model == "lightgbm" and "best" in entry:
                model, auc = f"best: {entry['best']}", models[entry["best"]]["auc"]
            difference = "" if None in (auc, peer) or "met" not in entry else f"{auc - peer:+.4f}"
            verdict = {True: "met", False: "missed", None: ""}[entry.get("met")]
            texts = [data, model, _number(auc), _number(entry.get("spread")), entry.get("library", "")]
            texts += [_number(peer), _number(entry.get("peer_spread")), difference, verdict]
            rows.append(f"| {' | '.join(texts)} |")
    if jobs := _jobs(lines):
        rows += ["", "| job | workers | test AUC | spread |", "|---|---|---|---|"]
        for (_, _, job, workers), aucs in jobs.items():
            rows.append(f"| {job} | {workers} | {_number(statistics.mean(aucs))} | {_number(max(aucs) - min(aucs))} |")
    return "\n".join(rows)


def _number(value):
    return "" if value is None else f"{value:.4f}"
