"""Certificates, and the arguments that a server needs for TLS."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.servers import Server, free_port

CERTIFICATE = (
    *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=relock test"),
    *("-addext", "subjectAltName=IP:127.0.0.1"),
)


def certificate(folder: Path) -> Path:
    """Make a self-signed certificate for 127.0.0.1; its key is beside it, as ``key.pem``."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl on the PATH to make a certificate with")
    folder.mkdir()
    made, key = folder / "certificate.pem", folder / "key.pem"
    subprocess.run([*CERTIFICATE, "-keyout", key, "-out", made], check=True, capture_output=True)
    return made


class Tls:
    """A certificate, and a port for TLS; a server that is started with these `arguments` speaks TLS there."""

    def __init__(self, folder: Path, port: int | None = None) -> None:
        self.certificate = certificate(folder)
        self.port = port or free_port()
        self.server: Server  # set by the test that starts it
        self.arguments = (
            *("--tls-port", str(self.port), "--tls-auth-clients", "no", "--tls-cert-file", str(self.certificate)),
            *("--tls-key-file", str(folder / "key.pem"), "--tls-ca-cert-file", str(self.certificate)),
        )

    def url(self, trusted: Path | None = None, host: str = "127.0.0.1", scheme: str = "rediss") -> str:
        """Return the URL of the server, with the certificate to trust: `trusted`, or the server's own."""
        return f"{scheme}://{host}:{self.port}/0?ssl_ca_certs={trusted or self.certificate}"


@contextmanager
def skipped_without_tls() -> Iterator[None]:
    """Skip the test if the server that starts within the block is built without TLS."""
    try:
        yield
    except AssertionError as error:
        if re.search("tls support|connection type tls|tls-port", str(error), re.IGNORECASE):
            pytest.skip("this server is built without TLS")
        raise
