"""What the tests of all models share: small settings for each, and data that each can take."""

import numpy as np

from ctr_trainer.data.reader import BatchReader
from ctr_trainer.estimator import EmbeddingConfig, Estimator, RunConfig
from ctr_trainer.estimator.optimize import TrainOp
from ctr_trainer.models.registry import MODELS, find_model
from ctr_trainer.settings.optimizers import RowAdagrad
from tests.constant import CONSTANT

# Rates low enough that rounding, which differs between machines, does not grow within a golden run of 50 steps.
LEARNING_RATE, ROW_LEARNING_RATE, ROW_STDDEV = 0.02, 0.1, 0.3
HIDDEN_UNITS = (16, 8)

# By name: (labels of the data, model, its settings). Every kind of feature is in the data.
CASES = {
    "din": (1, "din", {"attention_units": (6, 4), "wide": "linear"}),
    "dien": (1, "dien", {}),
    "bst": (1, "bst", {"blocks": 2}),
    "onetrans": (1, "onetrans", {"blocks": 2}),
    "sdim": (1, "sdim", {"signatures": 4, "bits": 2}),
    "din-of-two-labels": (2, "din", {"label": "bought"}),
    "shared_bottom": (2, "shared_bottom", {"tower_units": (4,)}),
    "mmoe": (2, "mmoe", {"experts": 2, "tower_units": ()}),
    "ple": (2, "ple", {"task_experts": 1, "shared_experts": 1, "tower_units": (4,)}),
    "esmm": (2, "esmm", {}),
}
# Of other models with params of their own: the name and the settings of each variant to test.
_OWN = {
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
    "masknet": {"masknet-serial": dict(structure="serial"), "masknet-parallel": dict(blocks=2, block_units=16)},
    "final_mlp": {
        "final_mlp": dict(gate_units=6),
        "final_mlp-context": dict(first_context=("user",), second_context=("item",), second_units=(6, 4), heads=2),
    },
    "dlrm": {"dlrm": dict(bottom_units=(6,))},
    "gdcn": {"gdcn": dict(cross_layers=2), "gdcn-stacked": dict(structure="stacked", cross_layers=1)},
    "final_net": {"final_net": {}, "final_net-sum": dict(blocks=1, residual="sum")},
    "qnn": {"qnn": dict(cross_layers=2), "qnn-norm": dict(cross_layers=1, batch_norm=True, dropout=0.2)},
    "fcn": {
        "fcn": dict(exponential_layers=2, linear_layers=3),
        "fcn-norm": dict(exponential_layers=1, linear_layers=2, layer_norm=False, batch_norm=True, dropout=0.1),
    },
    "wukong": {
        "wukong": dict(products=4, combinations=3, rank=2, product_units=(6,)),
        "wukong-norm": dict(products=4, combinations=3, rank=2, product_units=(6,), layer_norm=True),
    },
    "rank_mixer": {"rank_mixer": dict(tokens=4, token_dim=8)},
    "tabm": {"tabm": dict(members=3)},
    "pepnet": {"pepnet": dict(gate_units=6, domain=("user",), personal=("user", "item"))},
}


def variants(model):
    """Returns a dict of name -> settings for the tested variants of a model; by default one with the model's name."""
    others = {name: settings for name, (_, of, settings) in CASES.items() if of == model}
    return _OWN.get(model) or others or {model: {}}


VARIANTS = [name for model in MODELS for name in variants(model)]


def labels(name):
    """Returns the number of labels in the data of a variant."""
    return CASES[name][0] if name in CASES else 1


def reader(name, data, **settings):
    """Returns a BatchReader of the data for a variant, with 32 examples per batch."""
    batches = BatchReader(data, 32, **settings)
    if name != "ffm":
        return batches
    fields = sum(feature.combiner != "none" for feature in batches.spec.sparse)
    return BatchReader(data, 32, dim=2 * fields, **settings)


def once(name, data, **settings):
    """Returns the batches of one pass, in order."""
    return reader(name, data, shuffle=False, epochs=1, **settings)


def estimator(name, model_dir, embedding=None, **config):
    """Returns a repeatable Estimator of a variant: one thread, no prefetching, and by default a sync after each step.

    Args:
      embedding: dict of what replaces settings of its EmbeddingConfig.
      config: of what replaces settings of its RunConfig.
    """
    model = name.partition("-")[0]
    found = find_model(model)
    train_op = TrainOp("adagrad", LEARNING_RATE, ROW_LEARNING_RATE, **CONSTANT)
    params = found.params_class(train_op, hidden_units=HIDDEN_UNITS, **variants(model)[name])
    rows = dict(
        learning_rate=ROW_LEARNING_RATE, optimizer=RowAdagrad(initial_accumulator=0.1), stddev=ROW_STDDEV, sync_steps=1
    )
    run = dict(threads=1, prefetch_batches=0, save_checkpoints_steps=0, summary_steps=0)
    embedding = EmbeddingConfig(**{**rows, **(embedding or {})})
    return Estimator(found.model_fn, model_dir, params, RunConfig(embedding=embedding, **{**run, **config}))


def probabilities(values):
    """Returns a dict of name -> float32[n], the probabilities in results of `predict` or of an exported graph."""
    if isinstance(values, list):
        values = {name: np.array([example[name] for example in values]) for name in values[0]}
    return {name: np.asarray(value) for name, value in values.items() if name.startswith("probabilities")}
