"""Contexts of both sides, and a handshake in memory."""

from __future__ import annotations

import contextlib
import ssl
from pathlib import Path

import trustme
from OpenSSL import SSL

from fenceline.tls.server_contexts import server_context
from fenceline.tls.settings import read_material, read_settings

CA = trustme.CA()
IDENTITY = CA.issue_cert("a.test", common_name="node")


def context(**changes: str) -> SSL.Context:
    settings = {
        "ssl.enabled.protocols": "TLSv1.2,TLSv1.3",
        "ssl.client.auth": "required",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": IDENTITY.private_key_pem.bytes().decode(),
        "ssl.keystore.certificate.chain": b"".join(each.bytes() for each in IDENTITY.cert_chain_pems).decode(),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": CA.cert_pem.bytes().decode(),
        **{key.replace("_", "."): value for key, value in changes.items()},
    }
    material = read_material(settings.get, "here", lambda location: Path(location).read_bytes())
    return server_context(read_settings(settings.get, "here"), material, "here")


def client(identity: trustme.LeafCert | None = IDENTITY, version: ssl.TLSVersion | None = None) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    CA.configure_trust(made)
    if identity is not None:
        identity.configure_cert(made)
    if version is not None:
        made.minimum_version = made.maximum_version = version
    return made


class Exchange:
    """A complete handshake, and what each side has found then."""

    def __init__(self, server_side: SSL.Context, client_side: ssl.SSLContext, session: object = None) -> None:
        self.server = SSL.Connection(server_side, None)
        self.server.set_accept_state()
        self._to_client, self._from_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client = client_side.wrap_bio(self._to_client, self._from_client)
        if session is not None:
            self.client.session = session  # type: ignore[assignment]
        for _ in range(4):
            with contextlib.suppress(ssl.SSLWantReadError):
                self.client.do_handshake()
            if self._from_client.pending:
                self.server.bio_write(self._from_client.read())
            with contextlib.suppress(SSL.WantReadError):
                self.server.do_handshake()
            self._to_the_client()

    def _to_the_client(self) -> None:
        with contextlib.suppress(SSL.WantReadError):
            self._to_client.write(self.server.bio_read(1 << 20))

    def send_from_the_client(self, *contents: bytes) -> None:
        """Each in a record of its own; the server's side has them all, and has decrypted none."""
        for content in contents:
            self.client.write(content)
        self.server.bio_write(self._from_client.read())

    def close_the_client(self) -> None:
        with contextlib.suppress(ssl.SSLWantReadError):
            self.client.unwrap()
        self.server.bio_write(self._from_client.read())

    def read_by_the_client(self, content: bytes) -> bytes:
        self.server.send(content)
        self._to_the_client()
        return self.client.read(1 << 20)
