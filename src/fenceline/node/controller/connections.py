"""Creates a node's connections to the quorum's other nodes, and their monitoring.

Owns only the construction of `quorum.peers`, `quorum.watch`, `controller.presence` and `controller.silence_watch`.
Imported only if there are other nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fenceline.config.broker import FENCING_GRACE, SILENCE_TIMEOUT
from fenceline.node.controller.presence import BrokerPresence
from fenceline.node.controller.probe import BrokerProbe
from fenceline.node.controller.silence_watch import SilenceWatch
from fenceline.node.net.dialing import dial_plain
from fenceline.node.quorum.peers import QuorumPeers
from fenceline.node.quorum.watch import QuorumWatch

if TYPE_CHECKING:
    from uuid import UUID

    from fenceline.config.node import NodeConfig
    from fenceline.controller.state import ControllerState
    from fenceline.node.clock import Clock
    from fenceline.node.controller.ports import Decider
    from fenceline.node.net.peer_connection import Dial
    from fenceline.node.quorum.log import QuorumLog
    from fenceline.quorum.messages import ResponseMessage
    from fenceline.quorum.quorum import Quorum


def create_watch(
    config: NodeConfig, quorum: Quorum, view: QuorumLog, clock: Clock, *, directory_id: UUID
) -> QuorumWatch:
    """Creates the watch; the caller starts it."""
    return QuorumWatch(
        quorum,
        view,
        clock,
        node_id=config.node_id,
        directory_id=directory_id,
        is_controller=config.is_controller,
        joins=config.get_bool("controller.quorum.auto.join.enable"),
    )


def create_peers(
    config: NodeConfig, watch: QuorumWatch, connect: Dial | None
) -> Callable[[Callable[[int, ResponseMessage], None], Callable[[int, bool], None]], QuorumPeers]:
    """The factory for `QuorumDriver`. `connect` None: TCP."""

    def make(answered: Callable[[int, ResponseMessage], None], unanswered: Callable[[int, bool], None]) -> QuorumPeers:
        return QuorumPeers(
            node_id=config.node_id,
            request_timeout_ms=config.get_int("controller.quorum.request.timeout.ms"),
            answered=answered,
            unanswered=unanswered,
            connect=connect or dial_plain(config),
            watch=watch,
        )

    return make


def create_presence(
    config: NodeConfig,
    connect: Dial | None,
    controller: Decider,
    state: ControllerState,
    clock: Clock,
    peers: QuorumPeers | None,
) -> BrokerPresence:
    """Probes brokers with `connect`; None: TCP. `peers`: the other controllers, if any."""
    probe = BrokerProbe(connect or dial_plain(config), config.inter_broker_listener)
    return BrokerPresence(
        controller,
        state,
        clock,
        grace_ms=config.get_int(FENCING_GRACE),
        is_refused=probe.is_refused,
        refused_for_s=(lambda node_id: 0.0) if peers is None else peers.refused_for_s,
        mark_alive=(lambda node_id: None) if peers is None else peers.mark_alive,
    )


def create_silence_watch(
    config: NodeConfig,
    connect: Dial | None,
    controller: Decider,
    state: ControllerState,
    clock: Clock,
    peers: QuorumPeers | None,
) -> SilenceWatch:
    """As `create_presence`."""
    probe = BrokerProbe(connect or dial_plain(config), config.inter_broker_listener)
    return SilenceWatch(
        controller,
        state,
        clock,
        silence_ms=config.get_int(SILENCE_TIMEOUT),
        answers=probe.answers,
        silent_for_s=(lambda node_id: 0.0) if peers is None else peers.silent_for_s,
    )
