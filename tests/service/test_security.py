"""TLS, one-sided and mutual, between real processes; certificates are made anew for each run."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from ctr_trainer.embedding.service.client import ServiceClient
from ctr_trainer.embedding.service.security import ClientSecurity, ServerSecurity
from ctr_trainer.embedding.service.service import Service
from ctr_trainer.system.messages.errors import UserError
from ctr_trainer.system.processes import child
from tests import certificates
from tests.rows import pulled
from tests.service.conftest import CONFIG, LEASE

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates need openssl: apt-get install openssl"),
]


@pytest.fixture(scope="module")
def pem(tmp_path_factory):
    return certificates.make(tmp_path_factory.mktemp("pem"))


def _server(pem, **more):
    return ServerSecurity.read(cert_file=pem / "server.pem", key_file=pem / "server.key", **more)


def _round_trip(service, security, timeout=20.0):
    client = ServiceClient([f"127.0.0.1:{service.port}"], timeout, security, LEASE)
    try:
        client.create_table(CONFIG)
        client.sync("t", np.array([4]), np.ones((1, 3), np.float32), "w", 1)
        return pulled(client, "t", np.array([4]), missing="zeros") - pulled(client, "t", np.array([5]), missing="zeros")
    finally:
        client.close()


def test_a_client_that_knows_the_authority_talks_over_tls(pem, tmp_path):
    with Service("127.0.0.1", 0, tmp_path, _server(pem)) as service:
        assert _round_trip(service, ClientSecurity.read(ca_file=pem / "ca.pem")).shape == (1, 3)
        other_ca = ClientSecurity.read(ca_file=pem / "other-ca.pem")
        for stranger, wrong in (
            (ClientSecurity("token"), "it speaks TLS: .*service_ca"),
            (other_ca, "cannot be verified with service_ca"),
        ):
            with pytest.raises(UserError, match=f"127.0.0.1:{service.port}: .*{wrong}"):
                _round_trip(service, stranger)


def test_mutual_tls_asks_for_the_clients_certificate(pem, tmp_path):
    with Service("127.0.0.1", 0, tmp_path, _server(pem, client_ca_file=pem / "ca.pem")) as service:
        for stranger, wrong in (
            (ClientSecurity(), "speaks TLS"),
            (ClientSecurity.read(ca_file=pem / "ca.pem"), "give service_cert"),
        ):
            with pytest.raises(UserError, match=f"127.0.0.1:{service.port}: .*{wrong}"):
                _round_trip(service, stranger)
        both = pem / "client-both.pem"
        both.write_bytes((pem / "client.pem").read_bytes() + (pem / "client.key").read_bytes())
        known = ClientSecurity.read("", pem / "ca.pem", both)
        assert _round_trip(service, known).shape == (1, 3)


def test_a_client_is_told_that_a_service_has_no_tls_or_an_old_certificate(pem, tmp_path, monkeypatch):
    with (
        Service("127.0.0.1", 0, tmp_path) as service,
        pytest.raises(UserError, match="it does not speak TLS: leave out"),
    ):
        _round_trip(service, ClientSecurity.read(ca_file=pem / "ca.pem"))
    signing = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "san", "-days", "-1"]
    command = ["openssl", "x509", "-req", "-in", "server.csr", "-out", "old.pem", *signing]
    subprocess.run(command, cwd=pem, check=True, capture_output=True, timeout=60)
    security = ServerSecurity.read(cert_file=pem / "old.pem", key_file=pem / "server.key")
    with (
        Service("127.0.0.1", 0, tmp_path, security) as service,
        pytest.raises(UserError, match=r"certificate has expired; it is 20\d\d-\d\d-\d\d .* on "),
    ):
        _round_trip(service, ClientSecurity.read(ca_file=pem / "ca.pem"))


def test_files_that_do_not_go_together_are_refused(pem):
    with pytest.raises(UserError, match="tls_cert and tls_key go together"):
        ServerSecurity.read(cert_file=pem / "server.pem")
    with pytest.raises(UserError, match="token_file and token_fd both name the token"):
        ServerSecurity.read(pem / "ca.pem", token_fd=0)
    with pytest.raises(UserError, match="tls_client_ca is part of TLS"):
        ServerSecurity.read(client_ca_file=pem / "ca.pem")
    with pytest.raises(UserError, match="give the service_ca"):
        ClientSecurity.read(cert_file=pem / "client.pem")


def test_the_serve_and_service_commands_take_certificates(pem, tmp_path):
    port_file = tmp_path / "port"
    serve = [
        *(sys.executable, "-m", "ctr_trainer", "serve", f"--data_dir={tmp_path}", f"--port_file={port_file}"),
        *(f"--tls_cert={pem / 'server.pem'}", f"--tls_key={pem / 'server.key'}"),
        "--metrics_port=0",
    ]
    told = {**os.environ, child.CHILD: "{}"}
    process = subprocess.Popen(serve, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=told)
    try:
        lines = []
        while not any("answers on" in line for line in lines):
            lines.append(process.stderr.readline())
            assert lines[-1], lines
        assert any("Prometheus metrics on http://127.0.0.1:" in line for line in lines)
        address = lines[-1].split("answers on ")[1].strip()
        look = [sys.executable, "-m", "ctr_trainer", "service", "tables", f"--embedding_service={address}"]
        done = subprocess.run(
            [*look, f"--service_ca={pem / 'ca.pem'}", "--format=json"], capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
    finally:
        process.stdin.close()
        process.wait(30)
        process.stderr.close()
