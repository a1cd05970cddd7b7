"""Tokens and TLS between a service and its clients."""

from __future__ import annotations

import dataclasses
import hmac
import ipaddress
import logging
import os
import pathlib
import socket
import ssl
import time
from typing import Any

from pyarrow import flight

from ctr_trainer.embedding.service import wire
from ctr_trainer.system.messages.errors import UserError

_log = logging.getLogger(__name__)
_LOOK_SECONDS = 1.0
# OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED.
_OF_TIME = (9, 10)


@dataclasses.dataclass(frozen=True)
class ServerSecurity:
    """The credentials that a service requires from its clients, and its own certificate.

    Attributes:
      token: the token that each call must have in its `authorization` header, or None.
      cert, key: PEM of the service's certificate and key; None for no TLS.
      client_ca: PEM of the authority that must have signed the clients' certificates (mutual TLS), or None.
    """

    token: str | None = None
    cert: bytes | None = None
    key: bytes | None = None
    client_ca: bytes | None = None

    @staticmethod
    def read(
        token_file: str = "", cert_file: str = "", key_file: str = "", client_ca_file: str = "", token_fd: int = -1
    ) -> ServerSecurity:
        """Reads the named files, and the token from the first line of `token_fd` unless it is -1. Raises UserError."""
        if token_file and token_fd >= 0:
            raise UserError("token_file and token_fd both name the token: give one")
        if bool(cert_file) != bool(key_file):
            raise UserError("tls_cert and tls_key go together: give both or neither")
        if client_ca_file and not cert_file:
            raise UserError("tls_client_ca is part of TLS: give tls_cert and tls_key as well")
        token, *pem = _read_all(token_file, cert_file, key_file, client_ca_file)
        return ServerSecurity(_first_line(token_fd) if token_fd >= 0 else token, *pem)

    def refuse_open_door(self, host: str) -> None:
        """Raises UserError if other machines could connect without a token; warns if they would send it unencrypted."""
        if is_loopback(host):
            return
        if self.token is None:
            raise UserError(f"bind={host} lets other machines connect: give the service and its clients a token_file")
        if self.cert is None:
            _log.warning(
                "bind=%s without TLS: the token and all rows travel in the clear, and whoever sees the network's "
                "traffic can change the rows. Give tls_cert and tls_key, and the clients service_ca",
                host,
            )

    def location(self, host: str, port: int) -> str:
        return f"grpc{'+tls' if self.cert else ''}://{host}:{port}"

    def server_options(self) -> dict[str, Any]:
        """Returns the keyword arguments of `FlightServerBase` that TLS needs."""
        if not self.cert:
            return {}
        options: dict[str, Any] = {"tls_certificates": [(self.cert, self.key)]}
        if self.client_ca:
            options.update(verify_client=True, root_certificates=self.client_ca)
        return options


@dataclasses.dataclass(frozen=True)
class ClientSecurity:
    """The credentials of a client, and the authority that it trusts.

    Attributes:
      token: token of the service, or None.
      ca: PEM of the authority that signed the service's certificate; None for no TLS.
      cert: PEM of this client's certificate and key, if the service requires one.
    """

    token: str | None = None
    ca: bytes | None = None
    cert: bytes | None = None

    @staticmethod
    def read(token_file: str = "", ca_file: str = "", cert_file: str = "") -> ClientSecurity:
        """Reads the named files, of which `cert_file` has a certificate and its key. Raises UserError."""
        if cert_file and not ca_file:
            raise UserError("service_cert is part of TLS: give the service_ca that the service is known by as well")
        token, ca, cert = _read_all(token_file, ca_file, cert_file)
        return ClientSecurity(token, ca, cert)

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return [] if self.token is None else [(wire.TOKEN.encode(), f"Bearer {self.token}".encode())]

    def connect(self, address: str, channel_options: list[tuple[str, int]]) -> flight.FlightClient:
        """Returns a `FlightClient`, which connects at its first call."""
        if self.ca is None:
            return flight.FlightClient(f"grpc://{address}", generic_options=channel_options)
        return flight.FlightClient(
            f"grpc+tls://{address}",
            tls_root_certs=self.ca,
            cert_chain=self.cert,
            private_key=self.cert,
            generic_options=channel_options,
        )

    def what_is_wrong(self, address: str) -> str | None:
        """Returns why TLS keeps a service from answering, and what to do; None if TLS is not the reason."""
        try:
            if self.ca is None:
                speaks = _speaks_tls(address)
                return "it speaks TLS: name the authority of its certificate, service_ca" if speaks else None
            if not _speaks_tls(address):
                return "it does not speak TLS: leave out service_ca, or start it with tls_cert and tls_key"
            context = ssl.create_default_context(cadata=self.ca.decode())
            if not _shake_hands(address, context) and self.cert is None:
                return "it asks for this client's certificate: give service_cert"
        except ssl.SSLCertVerificationError as error:
            by = f"; it is {time.strftime('%Y-%m-%d %H:%M:%S %Z')} on {socket.gethostname()}"
            why = f"{error.verify_message}{by if error.verify_code in _OF_TIME else ''}"
            return f"its certificate cannot be verified with service_ca: {why}"
        except (OSError, ValueError):
            pass  # The address is invalid or unreachable, which the connection itself reports.
        return None


def _speaks_tls(address: str) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        _shake_hands(address, context)
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")  # Only a TLS server sends an alert.
    return True


def _shake_hands(address: str, context: ssl.SSLContext) -> bool:
    """Makes a TLS handshake with a service. Returns whether the service then accepts the connection."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    context.set_alpn_protocols(["h2"])
    with socket.create_connection((host, int(port)), _LOOK_SECONDS) as connection:
        with context.wrap_socket(connection, server_hostname=host) as channel:
            try:
                return channel.recv(1) != b""
            except TimeoutError:
                return True
            except OSError:
                return False  # An alert: a missing client certificate is reported after the handshake.


def token_refusal(header: str, token: str | None, cure: str = "give token_file") -> str:
    """Returns why to refuse a call with this header, or ""; `cure` is the advice for a call without one."""
    if token is None:
        return ""
    if not header:
        return f"this service requires a token, and the request has none: {cure}"
    if not hmac.compare_digest(header.encode(errors="replace"), f"Bearer {token}".encode()):
        return "the token is wrong: the token_file of the service has another one"
    return ""


class Gate(flight.ServerMiddlewareFactory):
    """Refuses calls without the token."""

    def __init__(self, token: str | None) -> None:
        super().__init__()
        self._token = token

    def start_call(self, info: flight.CallInfo, headers: dict[str, list[str]]) -> None:
        refusal = token_refusal((headers.get(wire.TOKEN) or [""])[0], self._token)
        if refusal:
            raise flight.FlightUnauthenticatedError(refusal)


def _read_all(token_file: str, *pem_files: str) -> list[Any]:
    token = _read(token_file).decode().strip() if token_file else None
    return [token, *(_read(path) if path else None for path in pem_files)]


def _first_line(descriptor: int) -> str:
    """Returns the first line of an open descriptor without reading beyond it."""
    line = b""
    try:
        while (byte := os.read(descriptor, 1)) not in (b"", b"\n"):
            line += byte
    except OSError as error:
        raise UserError(f"token_fd={descriptor}: {error.strerror}") from None
    if not line.strip():
        raise UserError(f"token_fd={descriptor}: received no token")
    return line.decode().strip()


def _read(path: str) -> bytes:
    """Returns the bytes of a file, which must not be empty."""
    try:
        content = pathlib.Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    if not content.strip():
        raise UserError(f"{path} is empty")
    return content


def is_loopback(host: str) -> bool:
    """Returns whether only this machine can reach `host`."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def split_address(bind: str) -> tuple[str, int]:
    """Returns (host, port) of an address to listen on."""
    host, colon, port = bind.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise UserError(f"bind={bind}: expected host:port, as 127.0.0.1:0")
    return host, int(port)
