"""Flags of the model."""

import dataclasses

from ctr_trainer.flags.define import flag


@dataclasses.dataclass(frozen=True)
class ModelFlags:
    """Model"""

    model_dir: str = flag("", "directory of the checkpoints, summaries and feature spec of one model", "path")
    model: str = flag("deepfm", "lr, deepfm, or your own function as my.module:model_fn")
    hidden_units: tuple[int, ...] = flag((256, 128, 64), "widths of the hidden layers, comma separated", "units")
    dropout: float = flag(0.0, "share of activations dropped while training", "share", minimum=0.0)
    batch_norm: bool = flag(False, "normalise the hidden layers' inputs to their activation over the batch")
    embedding_dim: int = flag(0, "width of every feature's embedding; 0 takes the feature spec's", "floats", minimum=0)
