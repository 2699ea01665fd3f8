"""This broker as the controller knows it: registered, heard from, let go (Kafka's BrokerLifecycleManager).

Owns the broker epoch and what is told in registration and heartbeats. Never decides whether the broker is fenced: the
controller does, and this room repeats it to the operator.

Rules: controller.md C14-C19.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final
from uuid import UUID, uuid4

from fenceline.config.listeners import SECURITY_PROTOCOLS, Listener
from fenceline.controller.requests import BrokerHeartbeat, RegisterBroker
from fenceline.metadata.features import Levels
from fenceline.metadata.image import Endpoint
from fenceline.node.logs import Logger

if TYPE_CHECKING:
    from fenceline.node.controller_driver import ControllerDriver

log = Logger("broker")

_GOODBYES: Final = 3
"""Heartbeats of a controlled shutdown: the first moves leaders away, a later one sees that nothing is led any more."""


class BrokerLifecycle:
    """One incarnation of a broker. `register` comes first, `say_goodbye` last."""

    def __init__(self, node_id: int, controller: ControllerDriver) -> None:
        self._node_id = node_id
        self._controller = controller
        self._incarnation_id = uuid4()
        self._is_fenced = True
        self.broker_epoch = -1
        """-1 until the controller has registered the broker."""

    async def register(
        self,
        *,
        cluster_id: str,
        endpoints: Iterable[Listener],
        features: Mapping[str, Levels],
        rack: str | None,
        log_dirs: tuple[UUID, ...],
        previous_broker_epoch: int,
    ) -> None:
        """Become a broker of the cluster, and unfenced where the controller lets it. Raises PeerError."""
        answer = await self._controller.submit(
            RegisterBroker(
                broker_id=self._node_id,
                cluster_id=cluster_id,
                incarnation_id=self._incarnation_id,
                endpoints=tuple(
                    Endpoint(each.name, each.host, each.port, SECURITY_PROTOCOLS[each.security_protocol])
                    for each in endpoints
                ),
                features=features,
                rack=rack,
                log_dirs=log_dirs,
                previous_broker_epoch=previous_broker_epoch,
            )
        )
        self.broker_epoch = answer.broker_epoch
        await self.heartbeat()

    async def heartbeat(self) -> None:
        """Tell the controller that this broker lives. Raises PeerError."""
        answer = await self._controller.submit(self._beat(want_shut_down=False))
        if answer.is_fenced and not self._is_fenced:
            log.warning("broker fenced", epoch=self.broker_epoch)
        elif not answer.is_fenced and self._is_fenced:
            log.debug("broker unfenced", epoch=self.broker_epoch)
        self._is_fenced = answer.is_fenced

    async def say_goodbye(self) -> None:
        """Hand over what is led here and be let go (controlled shutdown). Raises PeerError."""
        for _ in range(_GOODBYES):
            answer = await self._controller.submit(self._beat(want_shut_down=True))
            if answer.should_shut_down:
                return
        log.warning("the controller did not let this broker go", epoch=self.broker_epoch)

    def _beat(self, *, want_shut_down: bool) -> BrokerHeartbeat:
        return BrokerHeartbeat(
            self._node_id,
            self.broker_epoch,
            current_metadata_offset=self._controller.image.offset,
            want_shut_down=want_shut_down,
            cordoned_log_dirs=(),
        )
