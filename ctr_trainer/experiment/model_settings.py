"""Which model is trained, and where it lies."""

import dataclasses

from ctr_trainer.settings.setting import Settings, setting


@dataclasses.dataclass(frozen=True)
class ModelSettings(Settings, title="Model"):
    """Which model is trained, and where its checkpoints lie."""

    model_dir: str = setting(
        "", "directory, or its URL, of the checkpoints, summaries and feature spec of one model", "path"
    )
    model: str = setting(
        "deepfm",
        "one of the models listed below, or your own function as my.module:model_fn; if --model_dir has checkpoints, "
        "this and all that makes the model's graph is as they have it",
    )
    model_params: tuple[str, ...] = setting(
        (),
        "params that a model has of its own; --model=NAME --help lists them",
        "name=value",
        example=("cross_layers=3", "cross_rank=64"),
    )
    embedding_dim: int = setting(
        0, "width of every feature's embedding; 0 takes the feature spec's", "floats", minimum=0
    )
    resume_from: int = setting(
        0,
        "step of the checkpoint that `train` goes on from; later ones are renamed to set-aside-...; 0 for the newest",
        "step",
        minimum=0,
    )
