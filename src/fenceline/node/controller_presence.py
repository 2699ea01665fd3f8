"""Which brokers are connected to this controller, and whether the process of one that is not has ended.

Owns what connections say and the looks at brokers without one. Never decides: what it finds goes to the controller as
`FenceEndedBroker`, and `Sessions` says whether that is believed.

How it works: a process that dies closes its connections, and its port refuses new ones. While this controller is active
it looks at each broker that has lost its connection here, or has not come yet when the term begins: a connection to the
address on which brokers reach each other is opened and closed. Where it is refused, and refused again after
`fenceline.broker.fencing.grace.ms` without the broker having come back, its process has ended. Where the process is a
controller as well, the grace begins when its controllers' listener refused this one: before a leader that died has a
successor, most of it is over. Any other outcome says nothing: a stopped process (SIGSTOP) takes connections, a network
that is cut gives no answer, and both keep their session. So the look is taken again until the broker is back or its
session has ended.

A new process on the same port is no broker of the cluster yet, and Fenceline's takes connections only once it is
unfenced; whatever it answers, its registration says that the one before has ended (`controller.registrations`).

Rules: controller.md C11, C15, C17; since_4_0.md K24.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from fenceline.controller.requests import FenceEndedBroker
from fenceline.node.logs import Logger

if TYPE_CHECKING:
    from fenceline.controller.state import ControllerState
    from fenceline.metadata.image import BrokerImage
    from fenceline.node.active_controller import ActiveController
    from fenceline.node.clock import Clock

log = Logger("controller")

Key = tuple[str, str]
"""A connection: the listener and the address of its other end."""

_SOON_S: Final = 0.02
"""Until the second look, and twice as long with each: a process that ends may close its connections before its port."""
_AGAIN_S: Final = 0.5
_LOOKS_AT_ONCE: Final = 64


class BrokerPresence:
    """See the module. All methods belong to the loop."""

    def __init__(
        self,
        controller: ActiveController,
        state: ControllerState,
        clock: Clock,
        *,
        grace_ms: int,
        is_refused: Callable[[BrokerImage], Awaitable[bool]],
        refused_for_s: Callable[[int], float] = lambda node_id: 0.0,
        came: Callable[[int], None] = lambda node_id: None,
    ) -> None:
        """`is_refused` looks once, and does not raise. `refused_for_s`: for how long a controller has refused
        connections, by its id; `came` hears whose process lives, whatever it refused before."""
        self._controller = controller
        self._state = state
        self._clock = clock
        self._grace_s = grace_ms / 1000
        self._is_refused = is_refused
        self._refused_for_s = refused_for_s
        self._came = came
        self._connections: dict[Key, tuple[int, int] | None] = {}
        """Open ones, with the broker id and epoch that was heard last on each."""
        self._counts: Counter[tuple[int, int]] = Counter()
        self._looks: dict[tuple[int, int], asyncio.Task[None]] = {}
        self._room = asyncio.Semaphore(_LOOKS_AT_ONCE)
        self._is_active = False

    # -- connections ---------------------------------------------------------------------------------------------------

    def opened(self, key: Key) -> None:
        self._connections.setdefault(key, None)

    def closed(self, key: Key) -> None:
        self._leave(self._connections.pop(key, None))

    def heard(self, key: Key, broker_id: int, broker_epoch: int) -> None:
        """A broker has named itself on an open connection."""
        broker = (broker_id, broker_epoch)
        before = self._connections.get(key, broker)
        if before == broker:
            return  # nothing new, or the connection is closed already
        self._connections[key] = broker
        self._counts[broker] += 1
        self._state.sessions.set_connected(*broker, connected=True)
        self._came(broker_id)
        # It may be in a long pause, and the next one that looks at this broker begins with a short one.
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
            self._look_at(broker)

    # -- looking -------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """This controller is active now: look at everybody who has not come."""
        self._is_active = True
        for broker in self._state.image.brokers.values():
            self._look_at((broker.id, broker.epoch))

    def end(self) -> None:
        self._is_active = False
        for look in self._looks.values():
            look.cancel()
        self._looks.clear()

    def _look_at(self, broker: tuple[int, int]) -> None:
        if broker in self._looks or self._missing(broker) is None:
            return
        look = self._looks[broker] = asyncio.get_running_loop().create_task(self._look(broker))

        def ended(done: asyncio.Task[None]) -> None:
            if self._looks.get(broker) is done:
                del self._looks[broker]
            if not done.cancelled() and (error := done.exception()) is not None:
                log.error("a broker is not looked at any more", broker=broker[0], reason=repr(error))

        look.add_done_callback(ended)

    def _missing(self, broker: tuple[int, int]) -> BrokerImage | None:
        """Its registration while its process may have ended and that would change something."""
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

    async def _look(self, broker: tuple[int, int]) -> None:
        pause_s = _SOON_S
        while (known := self._missing(broker)) is not None:
            since_ms = self._clock.monotonic_ms()
            if await self._refuses(known):
                await asyncio.sleep(max(0.0, self._grace_s - self._refused_for_s(known.id)))
                is_gone = self._missing(broker) is not None and await self._refuses(known)
                if is_gone and self._state.sessions.may_have_ended(*broker, since_ms):
                    await self._tell(known, since_ms)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _AGAIN_S)

    async def _refuses(self, broker: BrokerImage) -> bool:
        async with self._room:
            return await self._is_refused(broker)

    async def _tell(self, broker: BrokerImage, since_ms: int) -> None:
        if not broker.fenced:
            log.warning(
                "a broker's process has ended, it is fenced before its session ends",
                broker=broker.id,
                epoch=broker.epoch,
                advice="Its port refuses connections and it has none to this controller. A broker that lives comes back"
                " by itself; fenceline.broker.fencing.grace.ms=-1 waits for the session in any case.",
            )
        answer: asyncio.Future[Any] = self._controller.submit(FenceEndedBroker(broker.id, broker.epoch, since_ms))
        # Its failure is nobody's, also where this node leads no longer before it is known: the next leader looks.
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait((answer,))
