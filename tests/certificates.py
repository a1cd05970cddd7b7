"""Certificates of an authority of the tests' own, made with the openssl command."""

import subprocess


def make(path):
    """Makes ca.pem and other-ca.pem, and the certificates of server and client that the first has signed. -> `path`"""

    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=path, check=True, capture_output=True, timeout=60)

    for name in ("ca", "other-ca"):
        subject = ["-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem", "-days", "2"]
        openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", *subject)
    (path / "san").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost")
    for name in ("server", "client"):
        request = ["-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr"]
        openssl("req", "-newkey", "rsa:2048", "-nodes", *request)
        signing = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "san"]
        openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signing)
    return path
