"""Checks whether this host can reach the addresses of other hosts."""

import ipaddress
import socket

_CONNECT_SECONDS = 2.0


def why_not(address: str) -> str:
    """Tries to connect to a `host:port`. Returns the reason for a failure, with advice; "" if it succeeds."""
    here, port = socket.gethostname(), address.rpartition(":")[2]
    found = _resolved(address)
    if not found:
        return f"{here} cannot resolve this host name: give an address, or put the name into /etc/hosts of {here}"
    try:
        with socket.create_connection((found[0], int(port)), _CONNECT_SECONDS):
            return ""
    except ConnectionRefusedError:
        return (
            f"{here} reaches {found[0]}, but nothing listens at port {port} there: check that it runs, and "
            f"that its bind address is one that other hosts reach, such as 0.0.0.0:{port}"
        )
    except TimeoutError:
        return (
            f"{found[0]} sends no answer to {here}, as if a firewall drops the packets: open its port {port} (TCP) "
            f"for {here}"
        )
    except (OSError, ValueError) as error:
        return f"{here} cannot reach {found[0]}: {getattr(error, 'strerror', None) or error}"


def loopback_of(address: str) -> str:
    """Returns the first loopback address to which a `host:port` resolves; "" if there is none."""
    return next((found for found in _resolved(address) if ipaddress.ip_address(found).is_loopback), "")


def is_silent(address: str) -> bool:
    """Whether the host of a `host:port` sends no answer, not even a refusal."""
    found = _resolved(address)
    try:
        socket.create_connection((found[0], int(address.rpartition(":")[2])), _CONNECT_SECONDS).close()
        return False
    except (OSError, IndexError) as error:
        return not isinstance(error, ConnectionRefusedError)


def is_here(name: str) -> bool:
    """Whether a host name resolves to an address of this host."""
    for address in _resolved(f"{name}:0"):
        try:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            socket.create_server((address, 0), family=family).close()  # Fails for an address of another host.
            return True
        except OSError:
            pass
    return False


def _resolved(address: str) -> list[str]:
    """Returns the IP addresses to which this host resolves the host of a `host:port`; [] if there are none."""
    try:
        found = socket.getaddrinfo(address.rpartition(":")[0].strip("[]"), None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return [str(each[4][0]).partition("%")[0] for each in found]
