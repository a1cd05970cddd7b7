"""Flags of `serve`."""

import dataclasses

from ctr_trainer.messages import log_lines
from ctr_trainer.settings.setting import Settings, setting


@dataclasses.dataclass(frozen=True)
class ServeFlags(Settings, title="Serve"):
    """Serve."""

    bind: str = setting("127.0.0.1:0", "host:port to listen on; port 0 picks one", "address")
    data_dir: str = setting("", "the only directory, or its URL, that snapshots are written to and read from", "path")
    token_file: str = setting("", "file with the token that clients must send; needed off loopback", "path")
    token_fd: int = setting(
        -1,
        "open descriptor whose first line is the token, from the process that starts this one; -1 is none",
        minimum=-1,
    )
    tls_cert: str = setting("", "PEM of the service's certificate; turns on TLS", "path")
    tls_key: str = setting("", "PEM of its key", "path")
    tls_client_ca: str = setting("", "PEM of the authority whose certificates clients must show", "path")
    metrics_port: int = setting(-1, "where Prometheus reads /metrics; 0 picks a port, -1 is none", "port", minimum=-1)
    port_file: str = setting("", "file that gets host:port once the service is ready", "path")
    save_at_exit: bool = setting(True, "save all rows below --data_dir at SIGTERM, for --restore")
    file_cores: tuple[int, ...] = setting(
        (),
        "cores on which files of rows are written beside the requests; none: those of the process",
        minimum=0,
        example=(0, 1),
    )
    restore: str = setting("", "directory that such a save left, to start from", "path")
    log_format: str = setting("plain", "json: each line of the log is a JSON object", choices=log_lines.FORMATS)
    exit_with_stdin: bool = setting(False, "end when standard input closes, that is with the process that started it")
