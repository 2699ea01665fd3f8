"""How a node connects to other nodes: from which address, with which certificate and user.

Owns the composition of these; the parts are `peer_connection`, `tls` and `sasl`. Rules: security.md A3.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from fenceline.node.net.peer_connection import Dial, PeerConnection, dial_from

if TYPE_CHECKING:
    from fenceline.config.node import NodeConfig
    from fenceline.node.net.certificates import NodeCertificates

_PLAINTEXT: Final = "PLAINTEXT"


def dial_brokers(config: NodeConfig, certificates: NodeCertificates) -> Dial:
    """Connections to other brokers. Raises OperatorError for unusable certificates or a missing user."""
    return _dial(config, certificates, config.inter_broker_listener, "sasl.mechanism.inter.broker.protocol")


def dial_controllers(config: NodeConfig, certificates: NodeCertificates) -> Dial:
    """Connections to controllers. Raises OperatorError."""
    return _dial(config, certificates, config.controller_listener_names[0], "sasl.mechanism.controller.protocol")


def dial_plain(config: NodeConfig) -> Dial:
    """A bare TCP connection, to find out whether a port is open."""
    return dial_from(config.get_str("fenceline.outbound.address") or "")


def _dial(config: NodeConfig, certificates: NodeCertificates, listener: str, mechanism_key: str) -> Dial:
    if config.security_protocol(listener) == _PLAINTEXT:
        return dial_plain(config)
    from fenceline.node.net.peer_login import login_for
    from fenceline.node.net.tls import outgoing_context

    context = outgoing_context(config, certificates, listener)
    dial = dial_from(config.get_str("fenceline.outbound.address") or "", context)
    log_in = login_for(config, listener, mechanism_key)
    return dial if log_in is None else _with_login(dial, log_in)


def _with_login(dial: Dial, log_in: Callable[[PeerConnection], Awaitable[None]]) -> Dial:
    async def dial_and_log_in(factory: Callable[[], Any], host: str, port: int) -> tuple[Any, Any]:
        transport, connection = await dial(factory, host, port)
        try:
            await log_in(connection)
        except BaseException:
            connection.close()
            raise
        return transport, connection

    return dial_and_log_in
