"""Whether a node could connect to another one that has its certificates, or those that it had before.

Owns a handshake in memory. Opens no socket, and checks no host names: nodes have different ones.

Rules: security.md A9.
"""

from __future__ import annotations

import contextlib
import ssl
from dataclasses import replace
from typing import Final

from OpenSSL import SSL

from fenceline.errors import OperatorError
from fenceline.tls.client_contexts import client_context
from fenceline.tls.server_contexts import reason_of, server_context
from fenceline.tls.settings import TlsMaterial, TlsSettings

_STEPS: Final = 10
"""More than any handshake has."""
_MOST_BYTES: Final = 1 << 20
"""More than a side sends in a step."""


class HandshakeFailed(Exception):
    """With the reason of the side that refuses."""


def check_handshakes(settings: TlsSettings, old: TlsMaterial, new: TlsMaterial, where: str) -> None:
    """Nodes with `old` and nodes with `new` must be able to connect to each other. Raises OperatorError."""
    _check(settings, old, new, f"{where}: a node with the new certificates cannot connect to one with the old")
    _check(settings, new, old, f"{where}: a node with the old certificates cannot connect to one with the new")


def check_own_handshake(settings: TlsSettings, material: TlsMaterial, where: str) -> None:
    """Nodes with certificates like these must be able to connect to each other. Raises OperatorError."""
    _check(settings, material, material, f"{where}: nodes with these certificates cannot connect to each other")


def _check(settings: TlsSettings, server: TlsMaterial, client: TlsMaterial, failure: str) -> None:
    nameless = replace(settings, checks_hostname=False)
    try:
        shake_hands(server_context(settings, server, failure), client_context(nameless, client, failure))
    except HandshakeFailed as error:
        raise OperatorError(
            f"{failure}: {error}",
            "Every node must trust the certificates of all (ssl.truststore.*). Add a new authority to the trust stores"
            " of all nodes before the first certificate of it is used.",
        ) from None


def shake_hands(server_side: SSL.Context, client_side: ssl.SSLContext) -> None:
    """A complete handshake in memory. Raises HandshakeFailed."""
    server = SSL.Connection(server_side, None)
    server.set_accept_state()
    to_client, from_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_side.wrap_bio(to_client, from_client)
    server_is_done = client_is_done = False
    for _ in range(_STEPS):
        try:
            client_is_done = client_is_done or _client_step(client)
            if from_client.pending:
                server.bio_write(from_client.read())
            server_is_done = server_is_done or _server_step(server)
            with contextlib.suppress(SSL.WantReadError):
                to_client.write(server.bio_read(_MOST_BYTES))
        except (ssl.SSLError, ssl.CertificateError) as error:
            reason = getattr(error, "verify_message", None) or getattr(error, "reason", None) or error
            raise HandshakeFailed(str(reason)) from None
        except SSL.Error as error:
            raise HandshakeFailed(reason_of(error, server)) from None
        if server_is_done and client_is_done:
            return
    raise HandshakeFailed("it does not end")


def _client_step(client: ssl.SSLObject) -> bool:
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def _server_step(server: SSL.Connection) -> bool:
    try:
        server.do_handshake()
    except SSL.WantReadError:
        return False
    return True
