"""Runs one shard of the embedding lookup service until SIGTERM; rows are spread over the shards by key."""

from ctr_trainer.flags import ServeFlags, require

GROUPS = (ServeFlags,)
EXAMPLES = (
    "python -m ctr_trainer serve --bind=127.0.0.1:7700 --data_dir=models/ctr",
    "python -m ctr_trainer serve --bind=0.0.0.0:7700 --data_dir=/shared/models/ctr --token_file=token",
)


def run(flags):
    """Serves."""
    from ctr_trainer.embedding.service import serve

    require(flags, "data_dir")
    serve(
        flags.bind,
        flags.data_dir,
        flags.token_file or None,
        flags.port_file or None,
        flags.exit_with_stdin,
        flags.save_at_exit,
        flags.restore or None,
    )
