"""Runs one shard of the embedding lookup service until SIGTERM; rows are spread over the shards by key."""

import sys

from ctr_trainer.settings.by_flag import require
from ctr_trainer.settings.command_flags import ServeFlags

GROUPS = (ServeFlags,)
EXAMPLES = (
    "python -m ctr_trainer serve --bind=127.0.0.1:7700 --data_dir=models/ctr",
    "python -m ctr_trainer serve --bind=0.0.0.0:7700 --data_dir=/shared/models/ctr --token_file=token",
    "python -m ctr_trainer serve --bind=0.0.0.0:7700 --data_dir=/shared/models/ctr --token_file=token "
    "--tls_cert=cert.pem --tls_key=key.pem --metrics_port=9100",
)


def run(flags: ServeFlags) -> None:
    """Serves."""
    from ctr_trainer.embedding.service.security import ServerSecurity
    from ctr_trainer.embedding.service.serving import serve
    from ctr_trainer.embedding.table.cold_rows import disk_of
    from ctr_trainer.system.processes import child

    require(flags, "data_dir")
    told = child.told_by_parent()
    parent = told or {}
    serve(
        flags.bind,
        flags.data_dir,
        ServerSecurity.read(
            flags.token_file,
            flags.tls_cert,
            flags.tls_key,
            flags.tls_client_ca,
            token_fd=sys.stdin.fileno() if parent.get("sends_token") else -1,
        ),
        port_file=flags.port_file or None,
        exit_with_stdin=told is not None,
        metrics_port=flags.metrics_port if flags.metrics_port >= 0 else None,
        file_cores=set(parent.get("file_cores", ())) or None,
        disk=disk_of(flags.disk, flags.data_dir),
    )
