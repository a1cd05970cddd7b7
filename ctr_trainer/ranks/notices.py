"""Notices between the ranks of a job, for when a collective cannot serve, as some rank may never reach it."""

import contextlib
import http.client
import os
import socket
import urllib.parse

_SCOPE = "ctr_trainer"
# With a shorter timeout, a busy server would meet a broken connection and print a traceback.
_SECONDS = 10.0


class Notices:
    """Texts by key, the same for all ranks on all hosts.

    They are kept by the server that `horovodrun` runs for its ranks to find each other, as long as it lives; one takes
    about a millisecond. Where it does not answer, or did not in time once, or another launcher was used, nothing is
    kept and nothing found.

    Caveat: that server asks nobody who he is.

    Args:
      address: `host:port` of the server; "" for none.

    Attributes:
      address: likewise.
    """

    def __init__(self, address):
        self.address = address
        self._is_silent = False

    @classmethod
    def of_this_job(cls):
        """-> the Notices of the job for which `horovodrun` has started this process."""
        address, port = (os.environ.get(f"HOROVOD_GLOO_RENDEZVOUS_{what}", "") for what in ("ADDR", "PORT"))
        return cls(f"{address}:{port}" if address and port else "")

    def is_here(self):
        """-> whether the server runs on this host."""
        try:
            socket.create_server(
                (self.address.rpartition(":")[0], 0)
            ).close()  # Only an address of this host can be listened on.
        except OSError:
            return False
        return True

    def put(self, key, text):
        """Keeps a text under `key`, in place of an earlier one."""
        self._ask("PUT", key, text.encode())

    def get(self, key):
        """-> the text under `key`; None if there is none."""
        found = self._ask("GET", key)
        return None if found is None else found.decode(errors="replace")

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
