"""Why an address of another host cannot be reached from this one."""

import ipaddress
import socket

_CONNECT_SECONDS = 2.0


def why_not(address):
    """Tries to connect. -> why that fails and what to do; "" where it does not.

    Args:
      address: `host:port`.
    """
    here, port = socket.gethostname(), address.rpartition(":")[2]
    found = _resolved(address)
    if not found:
        return f"{here} knows no host of this name: give an address, or put the name into /etc/hosts of {here}"
    try:
        with socket.create_connection((found[0], int(port)), _CONNECT_SECONDS):
            return ""
    except ConnectionRefusedError:
        return (
            f"{here} reaches {found[0]}, but nothing listens at port {port} there: does it run, and is its --bind an "
            f"address that other hosts reach, as 0.0.0.0:{port}?"
        )
    except TimeoutError:
        return (
            f"{found[0]} sends no answer to {here}, as where a firewall drops what comes: open its port {port} (TCP) "
            f"for {here}"
        )
    except (OSError, ValueError) as error:
        return f"{here} cannot reach {found[0]}: {getattr(error, 'strerror', None) or error}"


def loopback_of(address):
    """-> the address of this host itself that a `host:port` leads to; "" where it leads to none."""
    return next((found for found in _resolved(address) if ipaddress.ip_address(found).is_loopback), "")


def _resolved(address):
    """-> the IP addresses that the host of a `host:port` has by what this host knows; [] where it knows none."""
    try:
        found = socket.getaddrinfo(address.rpartition(":")[0].strip("[]"), None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return [str(each[4][0]).partition("%")[0] for each in found]
