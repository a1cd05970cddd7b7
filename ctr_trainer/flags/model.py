"""Flags of the model."""

import dataclasses
import typing

from ctr_trainer.flags.define import flag
from ctr_trainer.models.params import Activation


@dataclasses.dataclass(frozen=True)
class ModelFlags:
    """Model"""

    model_dir: str = flag("", "directory of the checkpoints, summaries and feature spec of one model", "path")
    model: str = flag(
        "deepfm",
        "one of the models listed below, or your own function as my.module:model_fn; if --model_dir has checkpoints, "
        "this and all that makes the model's graph is as they have it",
    )
    model_params: tuple[str, ...] = flag(
        (), "what a model has of its own, as cross_layers=3,cross_rank=64; --model=NAME --help lists it", "name=value"
    )
    label: str = flag("", "the label that a model of one label predicts, where the data has several", "name")
    hidden_units: tuple[int, ...] = flag((256, 128, 64), "widths of the hidden layers, comma separated", "units")
    dropout: float = flag(0.0, "share of activations dropped while training", "share", minimum=0.0)
    activation: str = flag("relu", "of the hidden layers", choices=typing.get_args(Activation))
    batch_norm: bool = flag(False, "normalise the hidden layers' inputs to their activation over the batch")
    embedding_dim: int = flag(0, "width of every feature's embedding; 0 takes the feature spec's", "floats", minimum=0)
