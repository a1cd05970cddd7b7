"""Flags of `serve`."""

import dataclasses

from ctr_trainer.flags.define import flag
from ctr_trainer.messages import log_lines


@dataclasses.dataclass(frozen=True)
class ServeFlags:
    """Serve"""

    bind: str = flag("127.0.0.1:0", "host:port to listen on; port 0 picks one", "address")
    data_dir: str = flag("", "the only directory that snapshots are written to and read from", "path")
    token_file: str = flag("", "file with the token that clients must send; needed off loopback", "path")
    token_fd: int = flag(
        -1,
        "open descriptor whose first line is the token, from the process that starts this one; -1 is none",
        minimum=-1,
    )
    tls_cert: str = flag("", "PEM of the service's certificate; turns on TLS", "path")
    tls_key: str = flag("", "PEM of its key", "path")
    tls_client_ca: str = flag("", "PEM of the authority whose certificates clients must show", "path")
    metrics_port: int = flag(-1, "where Prometheus reads /metrics; 0 picks a port, -1 is none", "port", minimum=-1)
    port_file: str = flag("", "file that gets host:port once the service is ready", "path")
    save_at_exit: bool = flag(True, "save all rows below --data_dir at SIGTERM, for --restore")
    restore: str = flag("", "directory that such a save left, to start from", "path")
    log_format: str = flag("plain", "json: each line of the log is a JSON object", choices=log_lines.FORMATS)
    exit_with_stdin: bool = flag(False, "end when standard input closes, that is with the process that started it")
