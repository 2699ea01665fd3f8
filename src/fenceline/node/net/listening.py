"""Which of TLS and SASL the listeners that a node opens need.

Owns that decision only. A node loads neither the libraries nor the modules of what none of its listeners uses: the TLS
library alone would be a quarter of its memory.
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
