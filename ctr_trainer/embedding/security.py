"""Who may talk to a service, and how the two know each other."""

import dataclasses
import hmac
import ipaddress
import pathlib

from pyarrow import flight

from ctr_trainer.embedding import wire
from ctr_trainer.errors import UserError


@dataclasses.dataclass(frozen=True)
class ServerSecurity:
    """What a service asks of its clients.

    Attributes:
      token: what each call has to bring in its `authorization` header, or None.
      cert, key: PEM of the service's certificate and key; None for no TLS.
      client_ca: PEM of the authority whose certificates clients must show (mutual TLS), or None.
    """

    token: str | None = None
    cert: bytes | None = None
    key: bytes | None = None
    client_ca: bytes | None = None

    @staticmethod
    def read(token_file="", cert_file="", key_file="", client_ca_file=""):
        """Reads the files that are named.

        Raises:
          UserError: one is missing or empty, or they do not go together.
        """
        if bool(cert_file) != bool(key_file):
            raise UserError("--tls_cert and --tls_key go together: give both or neither")
        if client_ca_file and not cert_file:
            raise UserError("--tls_client_ca is part of TLS: give --tls_cert and --tls_key as well")
        token, *pem = _read_all(token_file, cert_file, key_file, client_ca_file)
        return ServerSecurity(token, *pem)

    def refuse_open_door(self, host):
        """Raises UserError where other machines could connect without a token."""
        if self.token is None and not _is_loopback(host):
            raise UserError(f"--bind={host} lets other machines in: give the service and its clients a --token_file")

    def location(self, host, port):
        """-> where the Flight server listens."""
        return f"grpc{'+tls' if self.cert else ''}://{host}:{port}"

    def server_options(self):
        """-> the keyword arguments of `FlightServerBase` that TLS needs."""
        if not self.cert:
            return {}
        options = {"tls_certificates": [(self.cert, self.key)]}
        if self.client_ca:
            options.update(verify_client=True, root_certificates=self.client_ca)
        return options


@dataclasses.dataclass(frozen=True)
class ClientSecurity:
    """What a client shows a service, and what it expects of it.

    Attributes:
      token: of the service, or None.
      ca: PEM of the authority that signed the service's certificate; None for no TLS.
      cert, key: PEM of this client's certificate and key, where the service asks for one.
    """

    token: str | None = None
    ca: bytes | None = None
    cert: bytes | None = None
    key: bytes | None = None

    @staticmethod
    def read(token_file="", ca_file="", cert_file="", key_file=""):
        """Reads the files that are named.

        Raises:
          UserError: one is missing or empty, or they do not go together.
        """
        if bool(cert_file) != bool(key_file):
            raise UserError("--service_cert and --service_key go together: give both or neither")
        if cert_file and not ca_file:
            raise UserError("--service_cert is part of TLS: give the --service_ca that the service is known by as well")
        token, *pem = _read_all(token_file, ca_file, cert_file, key_file)
        return ClientSecurity(token, *pem)

    @property
    def headers(self):
        """-> the headers of each call."""
        return [] if self.token is None else [(wire.TOKEN.encode(), f"Bearer {self.token}".encode())]

    def connect(self, address, channel_options):
        """-> a `FlightClient`; it connects at its first call."""
        if self.ca is None:
            return flight.FlightClient(f"grpc://{address}", generic_options=channel_options)
        return flight.FlightClient(
            f"grpc+tls://{address}",
            tls_root_certs=self.ca,
            cert_chain=self.cert,
            private_key=self.key,
            generic_options=channel_options,
        )


class Gate(flight.ServerMiddlewareFactory):
    """Refuses calls without the token; puts the service's incarnation into every answer."""

    def __init__(self, token, incarnation):
        super().__init__()
        self._expected = None if token is None else f"Bearer {token}".encode()
        self._incarnation = incarnation

    def start_call(self, info, headers):
        if self._expected is not None:
            given = (headers.get(wire.TOKEN) or [""])[0]
            if not hmac.compare_digest(given.encode(errors="replace"), self._expected):
                raise flight.FlightUnauthenticatedError("this service needs a token: see --token_file")
        return _Answer({wire.INCARNATION: str(self._incarnation)})


class _Answer(flight.ServerMiddleware):
    def __init__(self, headers):
        super().__init__()
        self._headers = headers

    def sending_headers(self):
        return self._headers


def _read_all(token_file, *pem_files):
    token = _read(token_file).decode().strip() if token_file else None
    return [token, *(_read(path) if path else None for path in pem_files)]


def _read(path):
    """-> the bytes of a file that must hold something."""
    try:
        content = pathlib.Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    if not content.strip():
        raise UserError(f"{path} is empty")
    return content


def _is_loopback(host):
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
