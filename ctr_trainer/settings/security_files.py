"""What a client of the embedding service shows it, and expects of it."""

import dataclasses

from ctr_trainer.settings.setting import Settings, setting


@dataclasses.dataclass(frozen=True)
class SecurityFiles(Settings, title="Security of the embedding service"):
    """The arguments of `security.ClientSecurity.read`, in its order; "" where there is no file."""

    token_file: str = setting("", "file with the token of a service that asks for one", "path", alike=False)
    service_ca: str = setting(
        "", "PEM of the authority that signed the service's certificate; turns on TLS", "path", alike=False
    )
    service_cert: str = setting(
        "", "PEM of this client's certificate, where the service asks for one", "path", alike=False
    )
    service_key: str = setting("", "PEM of the key of this client's certificate", "path", alike=False)
