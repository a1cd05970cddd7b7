"""What every client of the embedding service is told."""

import dataclasses

from ctr_trainer.flags.define import flag


@dataclasses.dataclass(frozen=True)
class ClientFlags:
    """What a client of the service shows it, and expects of it"""

    token_file: str = flag("", "file with the token of a service that asks for one", "path")
    service_ca: str = flag("", "PEM of the authority that signed the service's certificate; turns on TLS", "path")
    service_cert: str = flag("", "PEM of this client's certificate, where the service asks for one", "path")
    service_key: str = flag("", "PEM of its key", "path")

    @property
    def security_files(self):
        """-> the arguments of `security.ClientSecurity.read`."""
        return self.token_file, self.service_ca, self.service_cert, self.service_key
