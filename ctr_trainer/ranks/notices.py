"""What the ranks of a job let each other know where no collective can: one of them may never come to it."""

import contextlib
import http.client
import os
import socket
import urllib.parse

_SCOPE = "ctr_trainer"
# A shorter one would leave a busy server with a broken connection, of which it prints a traceback.
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
        """-> those of the job that `horovodrun` has started this process for."""
        address, port = (os.environ.get(f"HOROVOD_GLOO_RENDEZVOUS_{what}", "") for what in ("ADDR", "PORT"))
        return cls(f"{address}:{port}" if address and port else "")

    def is_here(self):
        """-> whether that server runs on this host."""
        try:
            socket.create_server(
                (self.address.rpartition(":")[0], 0)
            ).close()  # Only an address of this host can be listened on.
        except OSError:
            return False
        return True

    def put(self, key, text):
        """Keeps a text, in place of the one before."""
        self._ask("PUT", key, text.encode())

    def get(self, key):
        """-> the text, None where there is none."""
        found = self._ask("GET", key)
        return None if found is None else found.decode(errors="replace")

    def _ask(self, method, key, body=None):
        if not self.address or self._is_silent:
            return None
        try:
            with contextlib.closing(http.client.HTTPConnection(self.address, timeout=_SECONDS)) as connection:
                connection.request(method, f"/{_SCOPE}/{urllib.parse.quote(key)}", body)
                answer = connection.getresponse()
                return answer.read() if answer.status == http.client.OK else None
        except TimeoutError:
            self._is_silent = True  # Whoever asks again would wait as long again.
        except (OSError, http.client.HTTPException):
            pass
        return None
