"""A simulated network between processes: frames arrive late, twice, or never.

Owns links, connections and what a peer can observe of the other end. Frames are those of the wire protocol without
their size, or immutable messages in their place; they are opaque here. A connection behaves like TCP: frames arrive in
order, both ends are notified when it is cut, a connection to a process that does not run is refused. What is sent into
a partition arrives when it has healed; callers that do not want to wait use a timeout.

`request` is for callers without a connection of their own: each request travels alone and may overtake others, be lost,
or arrive twice, like a retry on a new connection.

Use: a process serves with `serve(node_id, loop, handler)`; peers call `connect` or `request` from their own loop. Code
that uses callbacks instead of coroutines serves with `serve_callbacks` and sends with `open` and `SimulatedConnection.ask`,
which costs half as much.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Final, Protocol

from fenceline.testing.simulation.loop import SimLoop
from fenceline.testing.simulation.scheduler import ENDED, Scheduler, SimHandle
from fenceline.testing.simulation.trace import Trace

Frame = Any
Handler = Callable[[int, Frame], Awaitable[Frame]]
"""(source, request frame) -> response frame. An exception closes the connection."""
Reply = Callable[[Frame | None, ConnectionError | None], None]
CallbackHandler = Callable[[int, Frame, Reply], None]
"""(source, request frame, callback for the response or error)."""

TIMEOUT_S: Final = 30.0
_APART_S: Final = 1e-6
"""Between frames of a connection: timers of the same instant have no order."""


class PeerRefused(ConnectionRefusedError):
    """No process listens at the destination."""


class Lost(ConnectionResetError):
    """The connection was lost; whether the request was handled is unknown."""


class SimulatedTimeout(ConnectionError):
    """No response arrived in time; whether the request was handled is unknown."""


@dataclass(slots=True)
class NetworkConditions:
    """The current network conditions. Delays are in seconds, one way; chances are from 0 to 1."""

    min_delay_s: float = 0.0002
    max_delay_s: float = 0.002
    slow_chance: float = 0.0
    """Chance that a frame takes up to `slow_delay_s`."""
    slow_delay_s: float = 0.2
    loss_chance: float = 0.0
    """Chance that a frame outside of a connection is lost, for each direction."""
    duplicate_chance: float = 0.0
    """Chance that a request outside of a connection is duplicated."""


@dataclass(slots=True)
class _Server:
    loop: SimLoop
    handle: CallbackHandler


class SimulatedLink(Protocol):
    """A connection of any kind, as the network sees it."""

    @property
    def source(self) -> int: ...

    @property
    def destination(self) -> int: ...

    def cut(self, reason: str, ended: int = -1) -> None:
        """The connection is cut; the remaining ends are notified after a delay."""
        ...

    def fall_silent(self, dead: int) -> None:
        """The machine of an end lost power."""
        ...


class Network:
    """See the module. Links are created at their first use."""

    def __init__(
        self, scheduler: Scheduler, rng: Random, trace: Trace, conditions: NetworkConditions | None = None
    ) -> None:
        self.conditions = conditions or NetworkConditions()
        self._scheduler = scheduler
        self._rng = rng
        self._trace = trace
        self._servers: dict[int, _Server] = {}
        self._powered_off: set[int] = set()
        self._cut: set[tuple[int, int]] = set()
        self._held: dict[tuple[int, int], list[Callable[[], None]]] = {}
        self._lags: dict[tuple[int, int, int], float] = {}
        self._connections: dict[int, SimulatedLink] = {}
        self._next_id = 0
        self._loop = SimLoop(scheduler, "network")
        self._context = copy_context()
        self.delivered = 0
        self.dropped = 0

    # -- processes -----------------------------------------------------------------------------------------------------

    def serve(self, node_id: int, loop: SimLoop, handler: Handler) -> None:
        """The process listens from now on."""

        async def handle(source: int, frame: Frame, reply: Reply) -> None:
            try:
                response = await handler(source, frame)
            except ConnectionError as error:
                reply(None, Lost(str(error)))
                return
            reply(response, None)

        def start(source: int, frame: Frame, reply: Reply) -> None:
            loop.create_task(handle(source, frame, reply), name="request")

        self.serve_callbacks(node_id, loop, start)

    def serve_callbacks(self, node_id: int, loop: SimLoop, handler: CallbackHandler) -> None:
        """Like `serve`, without a task for each request."""
        self._servers[node_id] = _Server(loop, handler)
        self._powered_off.discard(node_id)

    def process_ended(self, node_id: int, *, power_lost: bool = False) -> None:
        """The kernel closes the connections of a killed process; those of a machine without power fall silent."""
        self._servers.pop(node_id, None)
        if power_lost:
            self._powered_off.add(node_id)
        for connection in self._of(node_id):
            if power_lost:
                connection.fall_silent(node_id)
            else:
                connection.cut(f"{node_id} has ended", ended=node_id)

    def machine_is_back(self, node_id: int) -> None:
        """A machine that lost power responds again: with a refusal, until its process serves."""
        if node_id in self._powered_off:
            self._powered_off.discard(node_id)
            for connection in self._of(node_id):
                connection.cut(f"{node_id} was restarted", ended=node_id)

    # -- partitions ----------------------------------------------------------------------------------------------------

    def cut(self, source: int, destination: int) -> None:
        """Nothing arrives from `source` at `destination` until `heal`."""
        self._cut.add((source, destination))

    def heal(self, source: int | None = None, destination: int | None = None) -> None:
        """Frames held on healed links arrive, in order and before anything that is sent from now on.

        Without arguments, all links are healed and all lags end."""
        if source is None and destination is None:
            self._lags.clear()
        healed = [link for link in sorted(self._cut) if source in (None, link[0]) and destination in (None, link[1])]
        for link in healed:
            self._cut.discard(link)
            held = self._held.pop(link, [])
            if held:
                self._loop.call_soon(_all_of, held)

    def lag(self, source: int, destination: int, port: int, by_s: float) -> None:
        """Streams from `source` to `destination` on this port take this much longer; 0 ends that."""
        self._lags[source, destination, port] = by_s

    def lag_s(self, source: int, destination: int, port: int) -> float:
        return self._lags.get((source, destination, port), 0.0) if self._lags else 0.0

    def is_cut(self, source: int, destination: int) -> bool:
        return (source, destination) in self._cut

    def drop_connections(self, node_id: int) -> None:
        """Reset every connection of a process (as if a firewall was restarted); both ends are notified."""
        for connection in self._of(node_id):
            connection.cut("reset by the network")

    def _of(self, node_id: int) -> list[SimulatedLink]:
        return [each for each in self._connections.values() if node_id in (each.source, each.destination)]

    # -- carrying ------------------------------------------------------------------------------------------------------

    def delay_s(self) -> float:
        conditions = self.conditions
        if conditions.slow_chance and self._rng.random() < conditions.slow_chance:
            return conditions.max_delay_s + self._rng.random() * conditions.slow_delay_s
        return conditions.min_delay_s + self._rng.random() * (conditions.max_delay_s - conditions.min_delay_s)

    def carry(self, source: int, destination: int, deliver: Callable[[], None], what: str = "frame") -> None:
        """Deliver a frame over a link: after a delay, never, or twice. `deliver` runs in the loop of no process."""
        conditions = self.conditions
        if self.is_cut(source, destination) or (conditions.loss_chance and self._rng.random() < conditions.loss_chance):
            self.dropped += 1
            self.log_event(f"{source}>{destination} {what} lost")
            return
        self.delivered += 1
        self.log_event(f"{source}>{destination} {what}")
        self.deliver_at(self._scheduler.now_s + self.delay_s(), deliver)

    # -- requests without a connection ---------------------------------------------------------------------------------

    async def request(self, source: int, destination: int, frame: Frame, *, timeout_s: float = TIMEOUT_S) -> Frame:
        """The response to one request. Raises PeerRefused, Lost and TimedOut, all of them ConnectionError."""
        answer: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        twice = self.conditions.duplicate_chance and self._rng.random() < self.conditions.duplicate_chance
        what = f"request {_describe(frame)}"
        for copy in range(2 if twice else 1):
            self.carry(
                source,
                destination,
                lambda: self._arrive(source, destination, frame, answer),
                f"{what} again" if copy else what,
            )
        return await _within(answer, destination, timeout_s)

    def _arrive(self, source: int, destination: int, frame: Frame, answer: asyncio.Future[Frame]) -> None:
        def finish(response: Frame | None, error: ConnectionError | None) -> None:
            if not answer.done():
                if error is not None:
                    answer.set_exception(error)
                else:
                    answer.set_result(response)

        def reply(response: Frame | None, error: ConnectionError | None) -> None:
            what = f"response {_describe(response)}" if response is not None else "refusal"
            self.carry(destination, source, lambda: finish(response, error), what)

        if destination in self._powered_off:
            return
        server = self._servers.get(destination)
        if server is None:
            reply(None, PeerRefused(f"{destination} does not run"))
            return
        server.loop.call_soon(server.handle, source, frame, reply)

    # -- connections ---------------------------------------------------------------------------------------------------

    def open(
        self, source: int, destination: int, loop: SimLoop, *, on_lost: Callable[[], None] | None = None
    ) -> SimulatedConnection:
        """A connection that is being opened; requests are sent once it is open. `on_lost` runs in `loop`."""
        self._next_id += 1
        connection = self._connections[self._next_id] = SimulatedConnection(
            self, self._next_id, source, destination, loop, on_lost
        )

        def arrive() -> None:
            if destination in self._powered_off:
                return
            connection.server = self._servers.get(destination)
            refused = connection.server is None
            finish = connection.refused if refused else connection.opened
            connection.send(destination, source, finish, "refused" if refused else "open")

        connection.send(source, destination, arrive, "connect")
        return connection

    async def connect(
        self,
        source: int,
        destination: int,
        *,
        on_lost: Callable[[], None] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> SimulatedConnection:
        """A connection. `on_lost` runs in the caller's loop when it is cut. Raises PeerRefused and TimedOut."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop), "only a simulated process connects"
        opened: asyncio.Future[None] = loop.create_future()
        connection = self.open(source, destination, loop, on_lost=on_lost)
        connection.when_open(opened)
        try:
            await _within(opened, destination, timeout_s)
        except BaseException:
            connection.close()
            raise
        return connection

    # -- for connections -----------------------------------------------------------------------------------------------

    def hold(self, source: int, destination: int, deliver: Callable[[], None]) -> None:
        self._held.setdefault((source, destination), []).append(deliver)

    def adopt(self, stream: SimulatedLink) -> int:
        """Register a connection of another kind; returns its id."""
        self._next_id += 1
        self._connections[self._next_id] = stream
        return self._next_id

    def forget(self, connection_id: int) -> None:
        self._connections.pop(connection_id, None)

    def forget_all(self) -> None:
        """Nothing arrives any more."""
        self._servers.clear()
        self._connections.clear()
        self._held.clear()

    def is_powered_off(self, node_id: int) -> bool:
        return node_id in self._powered_off

    def deliver_at(self, when_s: float, deliver: Callable[[], None]) -> None:
        self._scheduler.at(when_s, SimHandle(self._loop, deliver, (), self._context, when_s))

    @property
    def now_s(self) -> float:
        return self._scheduler.now_s

    def log_event(self, what: str) -> None:
        self._trace.add(self._scheduler.now_s, "net", what)


def _describe(frame: Frame) -> str:
    """For the trace: the size of bytes, the name of a message."""
    return str(len(frame)) if isinstance(frame, bytes | bytearray | memoryview) else type(frame).__name__


async def _within(answer: asyncio.Future[Any], destination: int, timeout_s: float) -> Any:
    """The result of `answer`. Raises TimedOut."""

    def give_up() -> None:
        if not answer.done():
            answer.set_exception(SimulatedTimeout(f"{destination} did not answer within {timeout_s} s"))

    timer = answer.get_loop().call_later(timeout_s, give_up)
    try:
        return await answer
    finally:
        timer.cancel()


def _resolve(answer: asyncio.Future[Any], outcome: Frame | ConnectionError) -> None:
    if not answer.done():
        if isinstance(outcome, ConnectionError):
            answer.set_exception(outcome)
        else:
            answer.set_result(outcome)


def _all_of(held: list[Callable[[], None]]) -> None:
    for deliver in held:
        deliver()


class SimulatedConnection:
    """One TCP connection from `source` to `destination`. Frames and responses keep their order in each direction."""

    def __init__(
        self,
        network: Network,
        connection_id: int,
        source: int,
        destination: int,
        loop: SimLoop,
        on_lost: Callable[[], None] | None,
    ) -> None:
        self.source = source
        self.destination = destination
        self.server: _Server | None = None
        self.is_open = True
        self._network = network
        self._id = connection_id
        self._loop = loop
        self._on_lost = on_lost
        self._is_opened = False
        self._opened: asyncio.Future[None] | None = None
        self._waiting: list[tuple[int, Frame]] = []
        """Requests made before the connection was open."""
        self._answers: dict[int, Callable[[Frame | ConnectionError], None]] = {}
        self._next_answer = 0
        self._free_at_s = {source: 0.0, destination: 0.0}
        """By receiver: no frame arrives before an earlier one."""

    def send(self, source: int, destination: int, deliver: Callable[[], None], what: str) -> None:
        """Deliver a frame to the other end, in order. Into a partition: when it has healed."""
        network = self._network
        at_s = max(self._free_at_s[destination] + _APART_S, network.now_s + network.delay_s())
        self._free_at_s[destination] = at_s
        network.log_event(f"{source}>{destination} #{self._id} {what}")
        network.deliver_at(at_s, partial(self._arrive, source, destination, deliver))

    def _arrive(self, source: int, destination: int, deliver: Callable[[], None]) -> None:
        network = self._network
        if not self.is_open:
            return
        if network.is_cut(source, destination):
            network.hold(source, destination, partial(self._arrive, source, destination, deliver))
        elif not network.is_powered_off(destination):
            deliver()

    # -- opening -------------------------------------------------------------------------------------------------------

    @property
    def is_opened(self) -> bool:
        """Whether the other end has accepted it."""
        return self._is_opened

    def when_open(self, opened: asyncio.Future[None]) -> None:
        self._opened = opened

    def opened(self) -> None:
        self._is_opened = True
        if self._opened is not None:
            _resolve(self._opened, None)
        waiting, self._waiting = self._waiting, []
        for number, frame in waiting:
            self._ask(number, frame)

    def refused(self) -> None:
        error = PeerRefused(f"{self.destination} does not run")
        self.is_open = False
        self._network.forget(self._id)
        self._break(error)

    # -- requests ------------------------------------------------------------------------------------------------------

    def ask(self, frame: Frame, answered: Callable[[Frame | ConnectionError], None]) -> None:
        """Send a request; `answered` runs in the caller's loop, with the response or the ConnectionError."""
        if not self.is_open:
            self._loop.call_soon(answered, Lost(f"the connection to {self.destination} is closed"))
            return
        self._begin(frame, partial(self._loop.call_soon, answered))

    async def request(self, frame: Frame, *, timeout_s: float = TIMEOUT_S) -> Frame:
        """The response to one request. Raises Lost, and TimedOut with the connection still open."""
        if not self.is_open:
            raise Lost(f"the connection to {self.destination} is closed")
        answer: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        number = self._begin(frame, partial(_resolve, answer))
        try:
            return await _within(answer, self.destination, timeout_s)
        finally:
            self._answers.pop(number, None)

    def _begin(self, frame: Frame, answered: Callable[[Frame | ConnectionError], object]) -> int:
        number = self._next_answer
        self._next_answer += 1
        self._answers[number] = answered  # type: ignore[assignment]
        if self._is_opened:
            self._ask(number, frame)
        else:
            self._waiting.append((number, frame))
        return number

    def _ask(self, number: int, frame: Frame) -> None:
        def reply(response: Frame | None, error: ConnectionError | None) -> None:
            if error is not None:
                self.cut("closed by the other end")
                return
            self.send(self.destination, self.source, lambda: finish(response), f"response {_describe(response)}")

        def finish(response: Frame) -> None:
            answered = self._answers.pop(number, None)
            if answered is not None:
                answered(response)

        def arrive() -> None:
            server = self.server
            if server is not None and server.loop.state != ENDED:
                server.loop.call_soon(server.handle, self.source, frame, reply)

        self.send(self.source, self.destination, arrive, f"request {_describe(frame)}")

    def close(self) -> None:
        """Closed by its owner; the other end is not notified."""
        self.is_open = False
        self._network.forget(self._id)
        self._break(Lost(f"the connection to {self.destination} was closed"))

    def cut(self, reason: str, ended: int = -1) -> None:
        """The connection is cut. Its source is notified after a delay, unless it is the end that ended."""
        if not self.is_open:
            return
        self.is_open = False
        network = self._network
        network.forget(self._id)
        network.log_event(f"{self.source}>{self.destination} #{self._id} cut: {reason}")
        if ended != self.source:
            network.deliver_at(network.now_s + network.delay_s(), partial(self._receive_cut, reason))

    def _receive_cut(self, reason: str) -> None:
        network = self._network
        if network.is_cut(self.destination, self.source):
            network.hold(self.destination, self.source, partial(self._receive_cut, reason))
            return
        if self._on_lost is not None:
            self._loop.call_soon(self._on_lost)
        self._break(Lost(f"the connection to {self.destination} was lost: {reason}"))

    def fall_silent(self, dead: int) -> None:
        """One machine lost power: the other end is not notified."""
        if dead == self.source:
            self.is_open = False
            self._network.forget(self._id)

    def _break(self, error: ConnectionError) -> None:
        if self._opened is not None:
            _resolve(self._opened, error)
        answers, self._answers = self._answers, {}
        self._waiting.clear()
        for answered in answers.values():
            answered(error)
