"""How good the models are: one JSON object of the figures that the issue on model quality names.

    python benchmarks/model_quality.py --parts=bars,defaults --peer_python=peers/bin/python

Each part is a module with `run(flags) -> dict`, which is imported only if the part is asked for, and has its figures
under the keys that PARTS names. A figure that was not measured is null. The last line is the JSON object.
"""

import argparse
import dataclasses
import importlib
import json
import pathlib
import sys
import tempfile

import accuracy_data


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of the benchmark: the module that measures it, what it compares, and the keys of its figures."""

    module: str
    compares: str
    keys: tuple[str, ...]


PARTS = {
    "bars": Part("quality_bars", "our models by --recipe=bars with FuxiCTR's, the same rows", ("bars_gap_max",)),
    "defaults": Part("quality_defaults", "default settings with logistic regression", ("defaults_minus_lr_min",)),
    "best": Part(
        "quality_best", "our best models with LightGBM and DIN", ("adult_best_auc", "movielens_history_best_auc")
    ),
    "speed": Part(
        "quality_speed",
        "examples per second of sequence models with DeepFM's",
        (
            *("din_over_deepfm_speed", "dien_over_deepfm_speed", "bst_over_deepfm_speed"),
            "din_over_deepfm_speed_50",
            *("sdim_1000_over_din_50_speed", "sdim_1000_over_sdim_50_speed"),
        ),
    ),
    "zoo": Part(
        "quality_zoo",
        "all models of one label on MovieLens, and writes their table into docs/models.md",
        ("zoo_best_auc", "zoo_best_history_auc"),
    ),
    "search": Part("quality_search", "`search` with the settings found by hand", ("search_minus_hand_tuned_min",)),
}


def main(arguments: list[str] | None = None) -> None:
    flags = _flags(arguments)
    flags.work.mkdir(parents=True, exist_ok=True)
    found: dict[str, float | None] = {key: None for part in PARTS.values() for key in part.keys}
    for name in flags.parts:
        part = PARTS[name]
        figures = importlib.import_module(part.module).run(flags)
        if unknown := set(figures) - set(part.keys):
            sys.exit(f"{part.module}.run returned {', '.join(sorted(unknown))}: PARTS names {', '.join(part.keys)}")
        found |= figures
        print(json.dumps({"part": name, **figures}), flush=True)
    print(json.dumps(found))


def _flags(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = "; ".join(f"{name}: {part.compares}" for name, part in PARTS.items())
    parser.add_argument("--parts", type=_names, default=["bars"], help=parts)
    parser.add_argument("--models", type=lambda text: text.split(","), default=[], help="of a part; all by default")
    parser.add_argument("--data", type=lambda text: text.split(","), default=[], help="of a part; all by default")
    parser.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[1, 2, 3])
    parser.add_argument(
        "--real_data", default=accuracy_data.default_directory(), help="where movielens/ and adult/ are"
    )
    parser.add_argument(
        "--work", type=pathlib.Path, default=pathlib.Path(tempfile.gettempdir()) / "ctr_trainer_accuracy"
    )
    parser.add_argument(
        "--sizes",
        type=lambda text: [int(size) for size in text.split(",")],
        default=[],
        help="of the part `zoo`: also measure its models of several sizes at these ones, 1 (the smallest) to 5",
    )
    parser.add_argument("--search_minutes", type=float, default=60, help="of all searches of the part `search`")
    parser.add_argument("--peer_python", default=sys.executable, help="the Python interpreter that has FuxiCTR")
    return parser.parse_args(arguments)


def _names(text: str) -> list[str]:
    if unknown := [name for name in text.split(",") if name not in PARTS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(PARTS)}")
    return text.split(",")


if __name__ == "__main__":
    main()
