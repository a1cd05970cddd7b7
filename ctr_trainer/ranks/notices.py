"""Notices between the ranks of a job, for when a collective cannot serve, as some rank may never reach it."""

import contextlib
import functools
import hmac
import http.client
import os
import socket
import urllib.parse

_SCOPE = "ctr_trainer"
# With a shorter timeout, a busy server would meet a broken connection and print a traceback.
_SECONDS = 10.0
_SIGNED = "hmac-sha256:"


class Notices:
    """Texts by key, the same for all ranks on all hosts.

    They are kept by the server that `horovodrun` runs for its ranks to find each other, as long as it lives; one takes
    about a millisecond. Where it does not answer, or did not in time once, or another launcher was used, nothing is
    kept and nothing found.

    That server takes what any program sends. So texts are signed once the ranks share a secret, and from then on a text
    without the signature of its key counts as none.

    Caveat: whoever reaches the server can still remove or replace a text, which is then missing.

    Args:
      address: `host:port` of the server; "" for none.

    Attributes:
      address: likewise.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._is_silent, self._secret = False, b""

    @classmethod
    def of_this_job(cls) -> "Notices":
        """Returns the Notices of the job for which `horovodrun` has started this process, one for the whole process."""
        address, port = (os.environ.get(f"HOROVOD_GLOO_RENDEZVOUS_{what}", "") for what in ("ADDR", "PORT"))
        return _of(f"{address}:{port}" if address and port else "")

    def sign(self, secret: str) -> None:
        """Signs all further texts with a secret that all ranks have, and believes no others."""
        self._secret = secret.encode()

    def is_here(self):
        """-> whether the server runs on this host."""
        try:
            socket.create_server(
                (self.address.rpartition(":")[0], 0)
            ).close()  # Only an address of this host can be listened on.
        except OSError:
            return False
        return True

    def put(self, key: str, text: str) -> None:
        """Keeps a text under `key`, in place of an earlier one."""
        signed = f"{_SIGNED}{self._signature(key, text)} {text}" if self._secret else text
        self._ask("PUT", key, signed.encode())

    def get(self, key: str) -> str | None:
        """Returns the text under `key`; None if there is none, or none that is signed."""
        found = self._ask("GET", key)
        if found is None:
            return None
        text = found.decode(errors="replace")
        is_signed = text.startswith(_SIGNED)
        signature, _, signed = text.removeprefix(_SIGNED).partition(" ")
        if not self._secret:  # Another rank may have the secret a moment earlier.
            return signed if is_signed else text
        if not is_signed or not hmac.compare_digest(signature.encode(), self._signature(key, signed).encode()):
            return None
        return signed

    def _signature(self, key: str, text: str) -> str:
        return hmac.digest(self._secret, f"{key}\0{text}".encode(), "sha256").hex()

    def _ask(self, method, key, body=None):
        if not self.address or self._is_silent:
            return None
        try:
            with contextlib.closing(http.client.HTTPConnection(self.address, timeout=_SECONDS)) as connection:
                path = "/".join(["", _SCOPE, urllib.parse.quote(key, safe="")])  # The server takes two parts, no more.
                connection.request(method, path, body)
                answer = connection.getresponse()
                return answer.read() if answer.status == http.client.OK else None
        except TimeoutError:
            self._is_silent = True  # Whoever asks again would wait as long again.
        except (OSError, http.client.HTTPException):
            pass
        return None


@functools.cache
def _of(address: str) -> Notices:
    return Notices(address)
