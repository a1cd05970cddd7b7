"""The process of a scoring server: its command, TLS, and its end by a signal."""

import contextlib
import http.client
import json
import os
import random
import shutil
import signal
import socket
import ssl
import threading
import time

import pytest

from ctr_trainer import cli
from ctr_trainer.live.scoring.server import _listen
from ctr_trainer.settings.command_flags import ScoreFlags
from tests import certificates
from tests.parallel import launch
from tests.scoring import trained
from tests.scoring.process import serving

_SECONDS = 60
pytestmark = pytest.mark.integration


@pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates need openssl: apt-get install openssl")
def test_serves_over_tls_and_at_sigterm_answers_what_is_under_way(publication, small_model, tmp_path):
    pem, port_file = certificates.make(tmp_path), tmp_path / "port"
    tls = f"--tls_cert={pem / 'server.pem'}", f"--tls_key={pem / 'server.key'}", f"--tls_client_ca={pem / 'ca.pem'}"
    with serving(
        publication, tmp_path / "log", *tls, f"--port_file={port_file}", f"--timeout_secs={_SECONDS}"
    ) as server:
        assert port_file.read_text() == f"127.0.0.1:{server.port}"
        context = ssl.create_default_context(cafile=pem / "ca.pem")
        stranger = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=_SECONDS, context=context)
        with contextlib.closing(stranger), pytest.raises((OSError, http.client.RemoteDisconnected)):
            stranger.request("GET", "/healthz")
            stranger.getresponse()
        context.load_cert_chain(pem / "client.pem", pem / "client.key")
        connection = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=_SECONDS, context=context)
        body = json.dumps({"instances": small_model.instances[:5]}).encode()
        connection.request("POST", f"/v1/models/{trained.NAME}:predict", body)
        answer = json.loads(connection.getresponse().read())
        found = [each["probabilities"] for each in answer["predictions"]]
        assert found == pytest.approx(small_model.expected[0][:5].tolist(), abs=1e-6)
        # The head of a request, then the signal, then its body: the server answers it and only then ends.
        connection.putrequest("POST", f"/v1/models/{trained.NAME}:predict")
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders()
        connection.send(body[:10])
        server.process.send_signal(signal.SIGTERM)
        connection.send(body[10:])
        response = connection.getresponse()
        assert (response.status, json.loads(response.read())) == (200, answer)
        assert server.process.wait(_SECONDS) == 0
    assert "has ended" in (tmp_path / "log").read_text()


class _Sender(threading.Thread):
    """Sends one request after another on one connection, until the server accepts no connection.

    It connects anew after an answer that says `Connection: close`. A request is lost if its connection ends without an
    answer although the previous answer did not say so, or if its status is not 200.
    """

    def __init__(self, port, body, seed):
        super().__init__(daemon=True)
        self._port, self._body, self._draw = port, body, random.Random(seed)
        self.sent, self.lost = 0, []

    def run(self):
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_SECONDS)
            try:
                connection.connect()
            except OSError:
                return
            connection.auto_open = 0
            try:
                while self._is_kept_open(connection):
                    time.sleep(0.1 * self._draw.random())
            except (OSError, http.client.HTTPException) as error:
                self.lost.append(error)
            finally:
                connection.close()

    def _is_kept_open(self, connection):
        self.sent += 1
        connection.request("POST", f"/v1/models/{trained.NAME}:predict", self._body)
        response = connection.getresponse()
        response.read()
        if response.status != 200:
            self.lost.append(response.status)
        return response.headers.get("connection") != "close"


def test_a_killed_servers_files_go_and_no_request_is_lost_at_sigterm_under_load(
    publication, small_model, tmp_path, monkeypatch
):
    temporary = tmp_path / "temporary"
    own, others = f"ctr_trainer-{os.getuid()}-tmp-*", temporary / "ctr_trainer-rows-of-others"
    others.mkdir(parents=True)
    monkeypatch.setenv("TMPDIR", str(temporary))
    with serving(publication, tmp_path / "log") as server:
        server.process.kill()
        server.process.wait(_SECONDS)
    (left,) = temporary.glob(own)
    body = json.dumps({"instances": small_model.instances[:5]}).encode()
    # A loaded machine must not turn an answer into a timeout, which would count as lost.
    with serving(publication, tmp_path / "score.log", "--timeout_secs=60") as server:
        assert not left.exists() and len(list(temporary.glob(own))) == 1
        senders = [_Sender(server.port, body, seed) for seed in range(4)]
        for sender in senders:
            sender.start()
        launch.wait_until(lambda: sum(sender.sent for sender in senders) > 4, "answers", _SECONDS)
        time.sleep(random.random())  # The signal comes at a random moment of the load.
        server.process.send_signal(signal.SIGTERM)
        for sender in senders:
            sender.join(_SECONDS)
        assert server.process.wait(_SECONDS) == 0, (tmp_path / "score.log").read_text()
    assert [sender.lost for sender in senders] == [[]] * 4 and sum(sender.sent for sender in senders) > 4
    assert not any(sender.is_alive() for sender in senders)
    assert list(temporary.rglob("*")) == [others]


def test_an_answer_does_not_wait_for_the_clients_acknowledgement(server):
    """asyncio turns Nagle's algorithm off for sockets of this protocol only; accepted ones have the listener's."""
    assert server._listening.proto == socket.IPPROTO_TCP


def test_a_publication_that_does_not_come_ends_the_command_by_its_name(tmp_path, capsys):
    status = cli.main(["score", f"--model={tmp_path / 'none'}", "--bind=127.0.0.1:0", "--start_timeout=0.1"])
    said = capsys.readouterr().err
    assert status == 1 and "there is no publication" in said and "waited 0.1 s, start_timeout" in said


def test_a_port_that_is_taken_and_an_open_door_are_refused(tmp_path, capsys, server):
    assert cli.main(["score", f"--model={tmp_path}", f"--bind=127.0.0.1:{server.port}"]) == 1
    assert f"--bind=127.0.0.1:{server.port}: Address already in use; name a free port" in capsys.readouterr().err
    with _listen(ScoreFlags(bind="127.0.0.1:0", shared_port=True)) as first:
        address = f"127.0.0.1:{first.getsockname()[1]}"
        _listen(ScoreFlags(bind=address, shared_port=True)).close()
    assert cli.main(["score", f"--model={tmp_path}", "--bind=0.0.0.0:0"]) == 1
    assert "bind=0.0.0.0 lets other machines connect" in capsys.readouterr().err
    assert cli.main(["score", f"--model={tmp_path}", "--bind=127.0.0.1"]) == 1
    assert "bind=127.0.0.1: expected host:port" in capsys.readouterr().err
