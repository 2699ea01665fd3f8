"""Which of TLS and SASL the listeners that a node opens need, and how many connections wait to be accepted.

Owns these decisions only. A node loads neither the libraries nor the modules of what none of its listeners uses: the
TLS library alone would be a quarter of its memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fenceline.config.listeners import ListenerConfig
    from fenceline.config.node import NodeConfig
    from fenceline.metadata.image import MetadataImage
    from fenceline.node.clock import Clock
    from fenceline.node.net.certificates import NodeCertificates
    from fenceline.node.net.sasl import ListenersSasl
    from fenceline.node.net.tls import ListenersTls

WITH_TLS: Final = ("SSL", "SASL_SSL")
WITH_SASL: Final = ("SASL_PLAINTEXT", "SASL_SSL")
_ALL_THAT_THE_SYSTEM_ALLOWS: Final = 65_535


def backlog_of(config: NodeConfig) -> int:
    """How many connections may wait to be accepted. Kafka's default of 50 is overrun by every burst of clients, and the
    system repeats their attempts after a second, then after two."""
    key = "socket.listen.backlog.size"
    return config.get_int(key) if config.is_set(key) else _ALL_THAT_THE_SYSTEM_ALLOWS


def tls_of(
    config: NodeConfig, certificates: NodeCertificates, listeners: Iterable[ListenerConfig]
) -> ListenersTls | None:
    """None if none of these listeners has TLS. Raises OperatorError for unusable certificates."""
    names = [each.name for each in listeners if each.security_protocol in WITH_TLS]
    if not names:
        return None
    from fenceline.node.net.tls import ListenersTls

    return ListenersTls(config, certificates, names)


def sasl_of(
    config: NodeConfig, listeners: Iterable[ListenerConfig], image: Callable[[], MetadataImage], clock: Clock
) -> ListenersSasl | None:
    """None if none of these listeners has SASL. Raises OperatorError for mechanisms without support or credentials."""
    names = [each.name for each in listeners if each.security_protocol in WITH_SASL]
    if not names:
        return None
    from fenceline.node.net.sasl import ListenersSasl

    return ListenersSasl(config, names, image, clock)
