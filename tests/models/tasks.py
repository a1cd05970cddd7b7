"""What the tests of the models of histories and of several labels share."""

from ctr_trainer.data.reader import BatchReader
from ctr_trainer.estimator import EmbeddingConfig, Estimator, RunConfig
from ctr_trainer.estimator.optimize import TrainOp
from ctr_trainer.models.registry import find_model

# By name: (labels of the data, model, its settings). Every kind of feature is in the data.
CASES = {
    "din": (1, "din", {"attention_units": (6, 4), "wide": "linear"}),
    "dien": (1, "dien", {}),
    "bst": (1, "bst", {"blocks": 2}),
    "din-of-two-labels": (2, "din", {"label": "bought"}),
    "shared_bottom": (2, "shared_bottom", {"tower_units": (4,)}),
    "mmoe": (2, "mmoe", {"experts": 2, "tower_units": ()}),
    "ple": (2, "ple", {"task_experts": 1, "shared_experts": 1, "tower_units": (4,)}),
    "esmm": (2, "esmm", {}),
}
LABELS = ("clicked", "bought")


def estimator(case, model_dir):
    """-> an Estimator of a case, exact and repeatable: one thread, nothing read ahead, synced each step."""
    _, model, settings = CASES[case]
    found = find_model(model)
    params = found.params_class(TrainOp("adagrad", 0.1, 1.0), hidden_units=(8, 4), **settings)
    embedding = EmbeddingConfig(
        learning_rate=1.0, initial_accumulator=0.1, init_stddev=0.1, sync_steps=1, strict_sync=True
    )
    config = RunConfig(
        threads=1, prefetch_batches=0, save_checkpoints_steps=0, save_summary_steps=0, embedding=embedding
    )
    return Estimator(found.model_fn, model_dir, params, config)


def train(case, model_dir, data, max_steps, rank=0, size=1):
    """Trains to a step, from where an earlier call stopped. -> the Estimator"""
    made = estimator(case, model_dir)
    made.train(lambda position: BatchReader(data, 32, rank, size, seed=1, position=position), max_steps=max_steps)
    return made


def once(data, rank=0, size=1):
    """-> the batches of one pass in order."""
    return BatchReader(data, 32, rank, size, shuffle=False, epochs=1)


def predictions(made, data):
    """-> dict of name -> float32[n] of what a model predicts, without the ids."""
    examples = list(made.predict(lambda: once(data)))
    return {name: [e[name] for e in examples] for name in examples[0] if name != "row"}
