"""Why an address of another host cannot be reached from this one."""

import ipaddress
import socket

_CONNECT_SECONDS = 2.0


def why_not(address: str) -> str:
    """Tries to connect. Returns why that fails and what to do; "" if it succeeds.

    Args:
      address: `host:port`.
    """
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
    """Returns the address of this host itself that a `host:port` leads to; "" if it leads to none."""
    return next((found for found in _resolved(address) if ipaddress.ip_address(found).is_loopback), "")


def is_silent(address: str) -> bool:
    """Returns whether nothing comes back from the host of a `host:port`, not even a refusal."""
    found = _resolved(address)
    try:
        socket.create_connection((found[0], int(address.rpartition(":")[2])), _CONNECT_SECONDS).close()
    except ConnectionRefusedError:
        return False
    except (OSError, IndexError):
        return True
    return False


def is_here(name: str) -> bool:
    """Returns whether a host's name leads to an address of this host."""
    for address in _resolved(f"{name}:0"):
        try:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            socket.create_server((address, 0), family=family).close()  # No other address can be listened on.
            return True
        except OSError:
            pass
    return False


def _resolved(address: str) -> list[str]:
    """Returns the IP addresses that the host of a `host:port` has according to this host; [] if there is none."""
    try:
        found = socket.getaddrinfo(address.rpartition(":")[0].strip("[]"), None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return [str(each[4][0]).partition("%")[0] for each in found]
