"""Asks brokers that a majority of their followers misses for an answer, on behalf of the active controller.

Owns these probes. Never decides: a broker that does not answer is submitted to the controller as `FenceSilentBroker`,
and `controller.brokers` decides, by the reports of the followers (`controller.silence`) and by its heartbeats.

How it works: heartbeats of followers name the leaders that do not answer their fetches. If a majority of a leader's
in-sync followers misses it, this controller opens a connection to it and asks for its API versions. Any answer, also a
refused or closed connection, shows that its host and process can still act: a process that has ended is for
`presence`, one that answers is not silent. If nothing arrives for `fenceline.silence.timeout.ms`, or the host cannot be
reached, the broker is fenced. The time during which this process was not running itself does not count. What the quorum
already waits for counts: a leader of the quorum that froze is missed by its successor since then.

Rules: controller.md C15, C17; KIP-320 and epochs.md E2 make a wrong decision harmless, see `controller.silence`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from fenceline.controller.brokers import is_missed_by_followers
from fenceline.controller.requests import FenceSilentBroker, SilentBroker
from fenceline.node.controller.probe_tasks import ProbeTasks, submit_finding
from fenceline.node.logs import Logger

if TYPE_CHECKING:
    from fenceline.controller.state import ControllerState
    from fenceline.metadata.image import BrokerImage
    from fenceline.node.clock import Clock
    from fenceline.node.controller.ports import Decider

log = Logger("controller")

_STEP_S: Final = 0.05
"""Between checks whether this process runs while it waits for an answer."""
_AGAIN_S: Final = 0.25
"""Between two probes of a broker that its followers still miss."""
_PROBES_AT_ONCE: Final = 64


class SilenceWatch:
    """See the module. Event loop only."""

    def __init__(
        self,
        controller: Decider,
        state: ControllerState,
        clock: Clock,
        *,
        silence_ms: int,
        answers: Callable[[BrokerImage], Awaitable[bool]],
        silent_for_s: Callable[[int], float] = lambda node_id: 0.0,
    ) -> None:
        """`answers` asks a broker once: whether there was any sign of its process. It does not raise, and may take
        longer than `silence_ms`. `silent_for_s` returns for how long a controller has not answered, by its id."""
        self._controller = controller
        self._state = state
        self._clock = clock
        self._silence_s = silence_ms / 1000
        self._answers = answers
        self._silent_for_s = silent_for_s
        self._probes: ProbeTasks[SilentBroker] = ProbeTasks()

    def end(self) -> None:
        """This controller is not active any more."""
        self._probes.cancel_all()

    def check(self) -> None:
        """A follower has reported silent leaders: probe those that a majority misses."""
        now_ms = self._clock.monotonic_ms()
        for silent in sorted(self._state.silence.reported(now_ms)):
            has_room = len(self._probes) < _PROBES_AT_ONCE
            if has_room and silent not in self._probes and self._missed(silent) is not None:
                self._probes.begin(silent, silent.broker_id, self._probe(silent))

    def _missed(self, silent: SilentBroker) -> BrokerImage | None:
        """The broker's registration, if its followers miss it and it may be fenced for that."""
        known = self._state.image.brokers.get(silent.broker_id)
        is_own = silent == (self._controller.node_id, self._controller.own_broker_epoch)
        if known is None or is_own or not is_missed_by_followers(self._state, silent, self._clock.monotonic_ms()):
            return None
        return known

    async def _probe(self, silent: SilentBroker) -> None:
        while (known := self._missed(silent)) is not None:
            since_ms = self._clock.monotonic_ms()
            if await self._is_silent(known):
                await self._report(known, since_ms)
            await asyncio.sleep(_AGAIN_S)

    async def _is_silent(self, broker: BrokerImage) -> bool:
        """Whether nothing arrives from the broker for as long as this process waits for it."""
        loop = asyncio.get_running_loop()
        left_s = max(_STEP_S, self._silence_s - self._silent_for_s(broker.id))
        asking = asyncio.ensure_future(self._answers(broker))
        try:
            while left_s > 0:
                began_s = loop.time()
                await asyncio.wait((asking,), timeout=min(left_s, _STEP_S))
                if asking.done() and asking.result():
                    return False
                waited_s = loop.time() - began_s
                # A longer step shows that this process was not running: the answer gets its time again.
                left_s = self._silence_s if waited_s > 2 * _STEP_S else left_s - waited_s
                if asking.done():
                    # The host is unreachable. It may be a moment's trouble: ask again while there is time.
                    await asyncio.sleep(_STEP_S)
                    left_s -= _STEP_S
                    asking = asyncio.ensure_future(self._answers(broker))
            return True
        finally:
            asking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asking

    async def _report(self, broker: BrokerImage, since_ms: int) -> None:
        log.warning(
            "fencing a broker that does not answer, before its session expires",
            broker=broker.id,
            epoch=broker.epoch,
            advice="Neither its followers nor this controller get an answer from it. It returns by itself when it"
            " answers again; look for a stopped process, a host that swaps, a hung disk or a cut network. Set"
            " fenceline.silence.timeout.ms=-1 to always wait for the session to expire.",
        )
        await submit_finding(self._controller, FenceSilentBroker(broker.id, broker.epoch, since_ms))
