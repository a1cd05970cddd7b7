"""Why an address cannot be reached."""

import socket

from ctr_trainer.system.processes import reach
from tests.ports import free_port


def test_a_closed_port_and_an_unknown_name_are_told_from_an_open_port():
    address = f"127.0.0.1:{free_port()}"
    with socket.create_server(("127.0.0.1", int(address[10:]))):
        assert reach.why_not(address) == ""
    assert f"nothing listens at port {address[10:]} there" in reach.why_not(address)
    assert f"{socket.gethostname()} cannot resolve this host name" in reach.why_not("no-such-host.invalid:7700")
    assert reach.loopback_of("10.0.0.1:7700") == ""
    assert reach.loopback_of("localhost:7700") in ("127.0.0.1", "::1")


def test_a_port_that_does_not_answer_is_told(monkeypatch):
    monkeypatch.setattr(reach, "_CONNECT_SECONDS", 0.2)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        address = server.getsockname()
        waiting = [socket.socket() for _ in range(4)]  # They fill the queue: the kernel then drops what comes.
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(address)
        told = reach.why_not(f"127.0.0.1:{address[1]}")
        for each in waiting:
            each.close()
    assert f"sends no answer to {socket.gethostname()}, as if a firewall drops" in told
