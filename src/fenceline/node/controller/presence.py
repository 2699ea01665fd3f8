"""Brokers connected to this controller, and detection of broker processes that have ended.

Owns the state of the brokers' connections, and probes of brokers without one. Never decides: a finding is submitted to
the controller as `FenceEndedBroker`, and `Sessions` decides whether it is accepted.

How it works: a process that dies closes its connections, and its port refuses new ones. While this controller is active
it probes each broker that has lost its connection here, or has none when the term begins: it opens and closes a
connection to the broker's inter-broker address. If that is refused, and refused again after
`fenceline.broker.fencing.grace.ms` without a connection from the broker, its process has ended. If the process is also
a controller, the grace period starts when its controller listener refused this one: most of it is over before a leader
that died has a successor. Any other result proves nothing: a stopped process (SIGSTOP) accepts connections, a
partitioned network gives no answer, and both keep their session. So the probe is repeated until the broker is back or
its session has expired.

A new process on the same port is not yet a broker of the cluster, and Fenceline accepts connections only once unfenced;
in any case its registration proves that the previous process has ended (`controller.registrations`).

Rules: controller.md C11, C15, C17; since_4_0.md K24.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from fenceline.controller.requests import FenceEndedBroker
from fenceline.node.controller.probe_tasks import ProbeTasks, submit_finding
from fenceline.node.logs import Logger

if TYPE_CHECKING:
    from fenceline.controller.state import ControllerState
    from fenceline.metadata.image import BrokerImage
    from fenceline.node.clock import Clock
    from fenceline.node.controller.ports import Decider

log = Logger("controller")

Key = tuple[str, str]
"""A connection: the listener and the remote address."""

_SOON_S: Final = 0.02
"""Time to the second probe, doubled with each one: a process that ends may close its connections before its port."""
_AGAIN_S: Final = 0.5
_LOOKS_AT_ONCE: Final = 64


class BrokerPresence:
    """See the module. Event loop only."""

    def __init__(
        self,
        controller: Decider,
        state: ControllerState,
        clock: Clock,
        *,
        grace_ms: int,
        is_refused: Callable[[BrokerImage], Awaitable[bool]],
        refused_for_s: Callable[[int], float] = lambda node_id: 0.0,
        mark_alive: Callable[[int], None] = lambda node_id: None,
    ) -> None:
        """`is_refused` probes once, and does not raise. `refused_for_s` returns for how long a controller has refused
        connections, by its id; `mark_alive` is called with a broker whose process is alive."""
        self._controller = controller
        self._state = state
        self._clock = clock
        self._grace_s = grace_ms / 1000
        self._is_refused = is_refused
        self._refused_for_s = refused_for_s
        self._mark_alive = mark_alive
        self._connections: dict[Key, tuple[int, int] | None] = {}
        """Open connections, with the last broker id and epoch identified on each."""
        self._counts: Counter[tuple[int, int]] = Counter()
        self._looks: ProbeTasks[tuple[int, int]] = ProbeTasks()
        self._room = asyncio.Semaphore(_LOOKS_AT_ONCE)
        self._is_active = False

    # -- connections ---------------------------------------------------------------------------------------------------

    def opened(self, key: Key) -> None:
        self._connections.setdefault(key, None)

    def closed(self, key: Key) -> None:
        self._leave(self._connections.pop(key, None))

    def broker_identified(self, key: Key, broker_id: int, broker_epoch: int) -> None:
        """A broker identified itself on an open connection."""
        broker = (broker_id, broker_epoch)
        before = self._connections.get(key, broker)
        if before == broker:
            return  # nothing new, or the connection is closed already
        self._connections[key] = broker
        self._counts[broker] += 1
        self._state.sessions.set_connected(*broker, connected=True)
        self._mark_alive(broker_id)
        # The probe may be in a long pause, and the next probe of this broker must start with a short one.
        if (look := self._looks.pop(broker, None)) is not None:
            look.cancel()
        self._leave(before)

    def _leave(self, broker: tuple[int, int] | None) -> None:
        if broker is None:
            return
        self._counts[broker] -= 1
        if not self._counts[broker]:
            del self._counts[broker]
            self._state.sessions.set_connected(*broker, connected=False)
            self._start_probing(broker)

    # -- probing -------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """This controller became active: probe every broker that has no connection."""
        self._is_active = True
        for broker in self._state.image.brokers.values():
            self._start_probing((broker.id, broker.epoch))

    def end(self) -> None:
        self._is_active = False
        self._looks.cancel_all()

    def _start_probing(self, broker: tuple[int, int]) -> None:
        if broker not in self._looks and self._missing(broker) is not None:
            self._looks.begin(broker, broker[0], self._probe(broker))

    def _missing(self, broker: tuple[int, int]) -> BrokerImage | None:
        """The broker's registration, if its process may have ended and fencing it would change anything."""
        state, sessions = self._state, self._state.sessions
        known = state.image.brokers.get(broker[0])
        if not self._is_active or known is None or known.epoch != broker[1]:
            return None
        if known.id == self._controller.node_id and known.epoch == self._controller.own_broker_epoch:
            return None  # the broker of this very process
        now_ms = self._clock.monotonic_ms()
        if known.fenced and not sessions.is_alive(*broker, now_ms):
            return None
        return known if sessions.may_have_ended(*broker, now_ms) else None

    async def _probe(self, broker: tuple[int, int]) -> None:
        pause_s = _SOON_S
        while (known := self._missing(broker)) is not None:
            since_ms = self._clock.monotonic_ms()
            if await self._refuses(known):
                await asyncio.sleep(max(0.0, self._grace_s - self._refused_for_s(known.id)))
                is_gone = self._missing(broker) is not None and await self._refuses(known)
                if is_gone and self._state.sessions.may_have_ended(*broker, since_ms):
                    await self._report_ended(known, since_ms)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _AGAIN_S)

    async def _refuses(self, broker: BrokerImage) -> bool:
        async with self._room:
            return await self._is_refused(broker)

    async def _report_ended(self, broker: BrokerImage, since_ms: int) -> None:
        if not broker.fenced:
            log.warning(
                "fencing a broker whose process has ended, before its session expires",
                broker=broker.id,
                epoch=broker.epoch,
                advice="Its port refuses connections and it has no connection to this controller. If it is alive it"
                " will"
                " return by itself; set fenceline.broker.fencing.grace.ms=-1 to always wait for the session to expire.",
            )
        await submit_finding(self._controller, FenceEndedBroker(broker.id, broker.epoch, since_ms))
