"""What the tests of all models share: small settings for each, and data that each can take."""

import numpy as np

from ctr_trainer.data.reader import BatchReader
from ctr_trainer.estimator import EmbeddingConfig, Estimator, RunConfig
from ctr_trainer.estimator.optimize import TrainOp
from ctr_trainer.models.registry import MODELS, find_model

HIDDEN_UNITS = (8, 4)

# By name, then the name and the settings of each variant of a model that has several.
VARIANTS = {
    "dcn_v2": {
        "dcn_v2-stacked": dict(structure="stacked", cross_layers=2),
        "dcn_v2-low_rank": dict(cross_layers=2, cross_rank=3),
        "dcn_v2-experts": dict(cross_layers=2, cross_rank=3, experts=2),
    },
    "xdeepfm": {"xdeepfm": dict(cin_units=(6, 4))},
    "autoint": {"autoint": dict(head_dim=4), "autoint-shallow": dict(head_dim=4, attention_layers=2, deep=False)},
    "fibinet": {
        "fibinet-all": dict(bilinear="all"),
        "fibinet-each": dict(bilinear="each"),
        "fibinet-interaction": dict(bilinear="interaction"),
    },
    "masknet": {"masknet-serial": dict(structure="serial"), "masknet-parallel": dict(blocks=2, block_units=6)},
    "final_mlp": {
        "final_mlp": dict(gate_units=6),
        "final_mlp-context": dict(first_context=("user",), second_context=("item",), second_units=(6, 4), heads=2),
    },
    "dlrm": {"dlrm": dict(bottom_units=(6,))},
}
VARIANT_NAMES = [name for model in MODELS for name in VARIANTS.get(model, [model])]


def variant(name, train_op):
    """-> (model_fn, params) of a model or of a variant of one."""
    model = name.partition("-")[0]
    found = find_model(model)
    settings = VARIANTS.get(model, {model: {}})[name]
    return found.model_fn, found.params_class(train_op, hidden_units=HIDDEN_UNITS, **settings)


def reader(name, data, **settings):
    """-> a BatchReader of the data as a model takes it, 32 examples a batch."""
    batches = BatchReader(data, 32, **settings)
    if not name.startswith("ffm"):
        return batches
    count = sum(feature.combiner != "none" for feature in batches.spec.sparse)  # a sequence is no field
    return BatchReader(data, 32, dim=2 * count, **settings)


def estimator(name, model_dir, train_op=None, **config):
    """-> an Estimator of a model or a variant, repeatable: one thread, nothing read ahead, a sync each step."""
    train_op = train_op or TrainOp("adagrad", 0.1, 0.3)
    model_fn, params = variant(name, train_op)
    rate = train_op.embedding_learning_rate
    embedding = EmbeddingConfig(learning_rate=rate, initial_accumulator=0.1, init_stddev=0.1, sync_steps=1)
    settings = dict(threads=1, prefetch_batches=0, save_checkpoints_steps=0, save_summary_steps=0)
    return Estimator(model_fn, model_dir, params, RunConfig(embedding=embedding, **{**settings, **config}))


def probabilities(predictions):
    """-> float32[n] of what `predict` yields; of several labels, one after another."""
    names = sorted(name for name in predictions[0] if name.startswith("probabilities"))
    return np.concatenate([[example[name] for example in predictions] for name in names])
