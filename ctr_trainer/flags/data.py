"""Flags of the data that a model reads."""

import dataclasses

from ctr_trainer.flags.define import flag


@dataclasses.dataclass(frozen=True)
class DataFlags:
    """Data"""

    train_data: str = flag("", "directory to train on, as `convert` wrote it", "path")
    eval_data: str = flag("", "directory to evaluate or predict on, as `convert` wrote it", "path")
    batch_size: int = flag(1024, "of each worker", "examples", minimum=1)
    epochs: int = flag(1, "passes over the training data; 0 goes on until --max_steps", "epochs", minimum=0)
    shuffle: bool = flag(True, "shuffle by row group and within a buffer, anew each epoch")
    prefetch_batches: int = flag(
        4, "batches read and looked up ahead; 0 does both in the training thread", "batches", minimum=0
    )
