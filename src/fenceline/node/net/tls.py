"""The TLS of a node's listeners, and of its own connections to other nodes.

Owns the files of certificates, the contexts made of them, and their exchange. Opens no socket.

Rules: security.md A2, A3, A5 to A10.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fenceline.node.net.tls_contexts import client_context, server_context
from fenceline.security.name_rules import NameRule, parse_name_rules, user_of_name
from fenceline.security.tls import (
    TlsMaterial,
    TlsSettings,
    read_material,
    read_settings,
)
from fenceline.wire.principal import ANONYMOUS, Principal

if TYPE_CHECKING:
    from fenceline.config.listeners import ListenerConfig
    from fenceline.config.node import NodeConfig

WITH_TLS: Final = ("SSL", "SASL_SSL")


@dataclass(slots=True)
class _Listener:
    settings: TlsSettings
    material: TlsMaterial
    context: ssl.SSLContext
    rules: tuple[NameRule, ...]


class ListenersTls:
    """Of the listeners that one node opens."""

    def __init__(self, config: NodeConfig, listeners: Iterable[str]) -> None:
        """Reads their certificates. Raises OperatorError if one of them cannot be served."""
        self._config = config
        self._listeners: dict[str, _Listener] = {}
        for name in listeners:
            lookup = config.for_listener(name)
            settings, material = read_settings(lookup, name), read_material(lookup, name, _read_file)
            rules = parse_name_rules(lookup("ssl.principal.mapping.rules") or "")
            self._listeners[name] = _Listener(settings, material, server_context(settings, material, name), rules)

    @classmethod
    def of(cls, config: NodeConfig, listeners: Iterable[ListenerConfig]) -> ListenersTls | None:
        """None if none of these listeners has TLS. Raises OperatorError."""
        names = [each.name for each in listeners if each.security_protocol in WITH_TLS]
        return cls(config, names) if names else None

    def context(self, listener: str) -> ssl.SSLContext | None:
        """For new connections; None without TLS."""
        found = self._listeners.get(listener)
        return found.context if found is not None else None

    def principal(self, listener: str, certificate: bytes | None) -> Principal | None:
        """Of a peer that showed this certificate (DER); None if no rule knows its name: it must not be served."""
        found = self._listeners.get(listener)
        if found is None or certificate is None or self._config.security_protocol(listener) != "SSL":
            return ANONYMOUS
        from cryptography.x509 import load_der_x509_certificate

        from fenceline.security.certificates import distinguished_name

        user = user_of_name(distinguished_name(load_der_x509_certificate(certificate)), found.rules)
        return None if user is None else Principal(name=user)


def outgoing_context(config: NodeConfig, listener: str) -> ssl.SSLContext | None:
    """For connections to the listeners of this name of other nodes; None without TLS. Raises OperatorError for unusable
    certificates."""
    if config.security_protocol(listener) not in WITH_TLS:
        return None
    lookup = config.for_listener(listener)
    return client_context(read_settings(lookup, listener), read_material(lookup, listener, _read_file), listener)


def _read_file(location: str) -> bytes:
    return Path(location).read_bytes()
