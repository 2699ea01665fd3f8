"""The TLS of a node's listeners, and of its own connections to other nodes.

Owns which context a connection gets, and whose it is. Opens no socket. Not loaded by a node without
TLS (`listening`).

Rules: security.md A2, A3, A5 to A10.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from fenceline.node.net.listening import WITH_TLS
from fenceline.security.name_rules import NameRule, parse_name_rules, user_of_name
from fenceline.tls.client_contexts import client_context
from fenceline.tls.server_contexts import server_context
from fenceline.wire.principal import ANONYMOUS, Principal

if TYPE_CHECKING:
    from OpenSSL import SSL

    from fenceline.config.node import NodeConfig
    from fenceline.node.net.certificates import NodeCertificates
    from fenceline.node.net.watched_context import WatchedContext


class _Listener(NamedTuple):
    watched: WatchedContext[SSL.Context]
    rules: tuple[NameRule, ...]


class ListenersTls:
    """Of the listeners that one node opens."""

    def __init__(self, config: NodeConfig, certificates: NodeCertificates, listeners: Iterable[str]) -> None:
        """Reads their certificates. Raises OperatorError if one of them cannot be served."""
        self._config = config
        self._listeners: dict[str, _Listener] = {}
        for name in listeners:
            rules = parse_name_rules(config.for_listener(name)("ssl.principal.mapping.rules") or "")
            self._listeners[name] = _Listener(certificates.watch(name, server_context, is_own=True), rules)

    def context(self, listener: str) -> SSL.Context | None:
        """For new connections; None without TLS."""
        found = self._listeners.get(listener)
        return found.watched.for_connection() if found is not None else None

    def expiries(self) -> dict[str, datetime]:
        """When the certificates of the listeners expire, in UTC."""
        found = {name: each.watched.expires for name, each in self._listeners.items()}
        return {name: expires for name, expires in found.items() if expires is not None}

    def principal(self, listener: str, certificate: bytes | None) -> Principal | None:
        """Of a peer that showed this certificate (DER); None if no rule knows its name: it must not be served."""
        found = self._listeners.get(listener)
        if found is None or certificate is None or self._config.security_protocol(listener) != "SSL":
            return ANONYMOUS
        from cryptography.x509 import load_der_x509_certificate

        from fenceline.tls.certificates import distinguished_name

        user = user_of_name(distinguished_name(load_der_x509_certificate(certificate)), found.rules)
        return None if user is None else Principal(name=user)


def outgoing_context(
    config: NodeConfig, certificates: NodeCertificates, listener: str
) -> Callable[[], ssl.SSLContext] | None:
    """For each new connection to the listeners of this name of other nodes; None without TLS. Raises OperatorError for
    unusable certificates."""
    if config.security_protocol(listener) not in WITH_TLS:
        return None
    return certificates.watch(listener, client_context, is_own=False).for_connection
