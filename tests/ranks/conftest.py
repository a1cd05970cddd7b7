"""A server of notices, as horovodrun runs one."""

import http.server
import threading

import pytest


class _Server(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_PUT(self):
        self.server.texts[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200, b"")

    def do_GET(self):
        text = self.server.texts.get(self.path)
        self._answer(404 if text is None else 200, text or b"")

    def _answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def port():
    """The port of a server that stores a text for each path."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Server) as server:
        server.texts = {}
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.fixture
def address(port):
    return f"127.0.0.1:{port}"
