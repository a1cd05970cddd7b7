"""The table of `accuracy.py`, and its JSON."""

import statistics

BELOW_PEER, BELOW_TREES = 0.001, 0.005
# Of several workers below one: on one host, and on two, whose rows are up to a sync old.
BELOW_ONE, BELOW_ONE_ON_TWO_HOSTS = 0.0005, 0.001
_HISTORIES = "movielens-history", "movielens-liked"


def summary(lines):
    """-> by data and model, what there is of: `auc`, `spread`, `seeds`, `peer`, `peer_spread`, `library`, `met`.

    A spread is of several seeds. `peer` and `library` are of the first library there is, and `others` has, by library,
    the same of the rest. `met` says whether ours is within the target. LightGBM has `peer` only, and on Adult our
    `best` model and whether that is within its target. `workers` is the mean AUC by job and number of workers,
    `workers_met` whether none is further below one's than its target.

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
        several = [(job, auc) for job, aucs in entry["workers"].items() if job != "one" for auc in aucs.values()]
        if "one" in entry["workers"] and several:
            one = entry["workers"]["one"]["1"]
            entry["workers_met"] = all(one - auc <= _most_below_one(job) for job, auc in several)
    _add_trees_target(result.get("adult", {}))
    _add_histories_target(result)
    return result


def _most_below_one(job):
    return BELOW_ONE_ON_TWO_HOSTS if job.startswith("two hosts") else BELOW_ONE


def _jobs(lines):
    """-> by (data, model, job, number of workers as text) the AUCs of the seeds."""
    found = {}
    for line in lines:
        if line["side"] == "workers":
            key = line["data"], line["model"], line["job"], str(line["workers"])
            found.setdefault(key, []).append(line["auc"])
    return found


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
    """-> Markdown."""
    rows = ["| data | model | ours | spread | peer | its AUC | spread | ours - peer | |", f"|{'---|' * 9}"]
    for data, models in summary(lines).items():
        for model, entry in models.items():
            ours = entry
            if model == "lightgbm" and "best" in entry:
                model, ours = f"best: {entry['best']}", {"auc": models[entry["best"]]["auc"]}
            rows.append(_row(data, model, ours, entry))
            for library, other in entry.get("others", {}).items():
                rows.append(_row(data, model, ours, other | {"library": library}))
    if jobs := _jobs(lines):
        rows += ["", "| job | workers | test AUC | spread |", "|---|---|---|---|"]
        for (_, _, job, workers), aucs in jobs.items():
            rows.append(f"| {job} | {workers} | {_number(statistics.mean(aucs))} | {_number(max(aucs) - min(aucs))} |")
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
