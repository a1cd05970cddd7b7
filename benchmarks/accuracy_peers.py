"""Trains the peers of `accuracy.py` on the arrays of `accuracy_data.export_arrays`; prints a JSON line for each seed.

lr        scikit-learn's LogisticRegression (lbfgs) on one-hot columns, a value of a bag of n as 1 / n; C by validation
lightgbm  native categorical columns, a column of 0 and 1 for each value of a bag, numbers without buckets; rounds by
          early stopping on the validation AUC
deepfm, dcn_v2, wide_deep   `accuracy_torch`, and the first two `accuracy_fuxictr`

SETTINGS has the settings of TUNED with the best validation AUC of the first seed. With --tune, and for a model without
an entry there, they are tried again.

It needs no package of this project: --peer_python of `accuracy.py` runs it. A seed makes it deterministic; lr has none.
"""

import argparse
import importlib
import json

import numpy as np

# By library: its module, its packages for pip, and its models.
LIBRARIES = {
    "scikit-learn": ("sklearn", "scikit-learn", ("lr",)),
    "LightGBM": ("lightgbm", "lightgbm scikit-learn", ("lightgbm",)),
    "PyTorch": ("torch", "torch scikit-learn", ("wide_deep", "deepfm", "dcn_v2")),
    "FuxiCTR": ("fuxictr.pytorch", "fuxictr torch scikit-learn", ("deepfm", "dcn_v2")),  # More in `quality_bars`.
}
LEAVES = ((31, 10, 100), (63, 10, 100), (127, 30, 100), (63, 100, 300), (31, 100, 300))
L2 = (0.0, 1e-6, 1e-5, 1e-4)
TUNED = {"lr": (0.01, 0.03, 0.1, 0.3, 1.0, 3.0), "lightgbm": LEAVES, "wide_deep": L2, "deepfm": L2, "dcn_v2": L2}
SETTINGS = {
    "movielens-random": {
        "scikit-learn": {"lr": 1.0},
        "LightGBM": {"lightgbm": (127, 30, 100)},
        "PyTorch": {"wide_deep": 1e-4, "deepfm": 1e-4, "dcn_v2": 1e-4},
        "FuxiCTR": {"deepfm": 1e-4, "dcn_v2": 1e-4},
    },
    "movielens-time": {
        "scikit-learn": {"lr": 1.0},
        "LightGBM": {"lightgbm": (63, 10, 100)},
        "PyTorch": {"wide_deep": 1e-4, "deepfm": 1e-4, "dcn_v2": 0.0},
        "FuxiCTR": {"deepfm": 1e-4, "dcn_v2": 0.0},
    },
    "adult": {
        "scikit-learn": {"lr": 3.0},
        "LightGBM": {"lightgbm": (31, 100, 300)},
        "PyTorch": {"wide_deep": 1e-4, "deepfm": 1e-6, "dcn_v2": 1e-6},
        "FuxiCTR": {"deepfm": 1e-5, "dcn_v2": 1e-6},
    },
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help=f"name of the data, as in SETTINGS: {', '.join(SETTINGS)}")
    parser.add_argument("--arrays", required=True, help="file of `accuracy_data.export_arrays`")
    parser.add_argument("--library", choices=LIBRARIES, required=True)
    parser.add_argument("--model", required=True, help="model of the library")
    parser.add_argument("--seeds", type=lambda text: [int(part) for part in text.split(",")], default=(1, 2, 3))
    parser.add_argument("--tune", action="store_true", help="choose the setting by the first seed")
    parser.add_argument("--setting", type=float, help="the setting, in place of the one in SETTINGS")
    flags = parser.parse_args()
    with np.load(flags.arrays) as archive:
        arrays = dict(archive)
    chosen = SETTINGS.get(flags.data, {}).get(flags.library, {})
    if flags.setting is not None:
        chosen = {flags.model: flags.setting}
    settings = [chosen[flags.model]] if flags.model in chosen and not flags.tune else TUNED[flags.model]
    first, *others = flags.seeds[:1] if flags.model == "lr" else flags.seeds
    tried = [(train(flags.library, flags.model, arrays, setting, first), setting) for setting in settings]
    found, setting = max(tried, key=lambda each: each[0]["valid"])
    print(json.dumps({"seed": first, "setting": setting, **found}), flush=True)
    for seed in others:
        found = train(flags.library, flags.model, arrays, setting, seed)
        print(json.dumps({"seed": seed, "setting": setting, **found}), flush=True)


def train(library, model, arrays, setting, seed):
    """Returns `auc` and `logloss` of the test part, and the AUC `valid`."""
    if library == "scikit-learn":
        return _logistic_regression(arrays, setting)
    if library == "LightGBM":
        return _lightgbm(arrays, setting, seed)
    module = importlib.import_module({"PyTorch": "accuracy_torch", "FuxiCTR": "accuracy_fuxictr"}[library])
    return _scores(arrays, *module.train(model, arrays, setting, seed))


def _logistic_regression(arrays, c):
    from sklearn.linear_model import LogisticRegression

    columns = {part: one_hot(arrays, part) for part in ("train", "valid", "test")}
    model = LogisticRegression(C=c, max_iter=300).fit(columns["train"], arrays["train/labels"])
    return _scores(arrays, *(model.predict_proba(columns[part])[:, 1] for part in ("valid", "test")))


def one_hot(arrays, part):
    """Returns sparse float32[n, columns]; id 0 has no column."""
    import scipy.sparse

    ids, blocks = arrays[f"{part}/ids"], []
    for values, size in [*zip(ids.T[:, :, None], arrays["sizes"], strict=True), *bags(arrays, part)]:
        counts = np.maximum((values > 0).sum(1, keepdims=True), 1)
        shares = np.broadcast_to(1 / counts, values.shape).astype(np.float32).ravel()
        rows = np.repeat(np.arange(len(values)), values.shape[1])
        blocks.append(scipy.sparse.csr_matrix((shares, (rows, values.ravel())), (len(values), size))[:, 1:])
    return scipy.sparse.hstack([*blocks, scipy.sparse.csr_matrix(arrays[f"{part}/dense"])]).tocsr()


def bags(arrays, part):
    """Returns (int32[n, most values], number of ids with 0) for each bag."""
    names = [name.removeprefix("sizes/") for name in arrays if name.startswith("sizes/")]
    return [(arrays[f"{part}/bag/{name}"], int(arrays[f"sizes/{name}"])) for name in names]


def _lightgbm(arrays, setting, seed):
    import lightgbm

    leaves, smooth, per_group = setting
    category = ~arrays["bucketised"]

    def columns(part):
        many = [(values == k).any(1)[:, None] for values, size in bags(arrays, part) for k in range(1, size)]
        return np.hstack([arrays[f"{part}/ids"][:, category], *many, arrays[f"{part}/dense"]]).astype(np.float32)

    categories = list(range(int(category.sum())))
    train = lightgbm.Dataset(columns("train"), arrays["train/labels"], categorical_feature=categories)
    valid = lightgbm.Dataset(columns("valid"), arrays["valid/labels"], reference=train)
    settings = dict(
        objective="binary",
        metric="auc",
        learning_rate=0.05,
        num_leaves=leaves,
        cat_smooth=smooth,
        min_data_per_group=per_group,
        cat_l2=10,
        feature_fraction=0.8,
        bagging_fraction=0.8,
        bagging_freq=1,
        num_threads=1,
        verbose=-1,
        seed=seed,
    )
    stop = lightgbm.early_stopping(50, verbose=False)
    model = lightgbm.train(settings, train, 1500, valid_sets=[valid], callbacks=[stop])
    return _scores(arrays, model.predict(columns("valid")), model.predict(columns("test")))


def _scores(arrays, valid, test):
    from sklearn.metrics import log_loss, roc_auc_score

    clipped = np.clip(test.astype(np.float64), 1e-7, 1 - 1e-7)
    return {
        "auc": float(roc_auc_score(arrays["test/labels"], test)),
        "logloss": float(log_loss(arrays["test/labels"], clipped)),
        "valid": float(roc_auc_score(arrays["valid/labels"], valid)),
    }


if __name__ == "__main__":
    main()
