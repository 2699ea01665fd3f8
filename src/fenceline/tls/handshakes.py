"""Whether a node could connect to another one that has its certificates, or those that it had before.

Owns a handshake in memory. Opens no socket, and checks no host names: nodes have different ones.

Rules: security.md A9.
"""

from __future__ import annotations

import ssl
from dataclasses import replace
from typing import Final

from fenceline.errors import OperatorError
from fenceline.tls.contexts import client_context, server_context
from fenceline.tls.settings import TlsMaterial, TlsSettings

_STEPS: Final = 10
"""More than any handshake has."""


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
    except (ssl.SSLError, ssl.CertificateError) as error:
        reason = getattr(error, "verify_message", None) or getattr(error, "reason", None) or error
        raise OperatorError(
            f"{failure}: {reason}",
            "Every node must trust the certificates of all (ssl.truststore.*). Add a new authority to the trust stores"
            " of all nodes before the first certificate of it is used.",
        ) from None


def shake_hands(server_side: ssl.SSLContext, client_side: ssl.SSLContext) -> None:
    """A complete handshake in memory. Raises ssl.SSLError of the side that refuses."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_side.wrap_bio(to_server, to_client, server_side=True)
    client = client_side.wrap_bio(to_client, to_server)
    unfinished = [client, server]
    for _ in range(_STEPS):
        for side in tuple(unfinished):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            unfinished.remove(side)
        if not unfinished:
            return
    raise ssl.SSLError("the handshake does not end")
