#!/usr/bin/env bash
# Trains a model on the clicks of one more day, and publishes it; docs/every_day.md explains the steps. From cron:
#
#     15 4 * * *  every_day.sh HOME CLICKS        (the files CLICKS/YYYY-MM-DD.csv; HOME has features.toml, train.flags)
#     every_day.sh HOME CLICKS 2026-11-27         (the same for another day; repeats only what is not done yet)
#
# HOW=warm_start trains each day's model into a directory of its own, HOW=next_data continues one model.
set -euo pipefail
home=$1 clicks=$(realpath "$2") day=${3:-$(date -d yesterday +%F)}
mkdir -p "$home"/{data,before,models} && cd "$home"
exec 9> lock
flock --nonblock 9 || { echo "every_day.sh: another run holds $home/lock" >&2; exit 75; }
ctr() { python -m ctr_trainer "$@"; }

if [[ ${HOW:-next_data} == next_data ]]; then
    model=models/current former=models/current how=--next_data
else
    model=models/$day former=
    for each in models/[0-9]*; do if [[ -d $each/checkpoints && $each < $model ]]; then former=$each; fi; done
    how=${former:+--warm_start=$former}
fi
data=data/$day before=before/$day.json
[[ -e $data/_dataset.json ]] ||
    ctr convert --format=csv --input="$clicks/$day.csv" --feature_spec=features.toml --output="$data"

if [[ ! -d ${former:-none}/checkpoints ]]; then # The first day: a repetition must not evaluate clicks that were trained on.
    [[ -e $before ]] || echo {} > "$before"
elif [[ ! -e $before ]]; then # What the model says of clicks that it has not seen.
    ctr evaluate --model_dir="$former" --eval_data="$data" --checkpoint=latest --output="$before"
fi
# More clicks of a broken day would spoil the model. Its conversion is removed: its file may be repaired.
python - "$day" "${MOST_FALL:-0.02}" <<'PYTHON' || { rm -rf "$data" "$before"; exit 1; }
import json, pathlib, sys
day, most_fall = sys.argv[1:]
def aucs(metrics): # By label; a day of one class has none.
    return {name: auc for name, auc in metrics.items() if name.split("/")[0] == "auc" and auc is not None}
days = {each.stem: aucs(json.loads(each.read_text())) for each in sorted(pathlib.Path("before").glob("*.json"))}
former = {name: (auc, on) for on, found in days.items() if on < day for name, auc in found.items()}
for name in days.get(day, {}).keys() & former.keys():
    auc, (before, on) = days[day][name], former[name]
    if auc < before - float(most_fall):
        sys.exit(f"{day}: {name} {auc:.4f}, on {on} {before:.4f}: look at the data; not trained")
PYTHON

ctr train --flagfile=train.flags --model_dir="$model" --train_data="$data" ${how:+"$how"}
ctr publish --model_dir="$model" --checkpoint=latest --to=publication
find data before models -mindepth 1 -maxdepth 1 -mtime +"${KEEP_DAYS:-14}" -exec rm -r {} +
