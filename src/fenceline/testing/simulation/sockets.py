"""Simulated TCP for code that opens connections with its loop: byte streams over the simulated network.

Owns listeners and the two ends of each stream. The host name of a node is the name of its machine (`n3`), a client has
a negative number. A peer observes what TCP gives: bytes in order, a refusal if no process listens, a notification at
both ends when a process ends or the network resets, silence when a machine loses power. Bytes sent into a partition
arrive when it has healed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextvars import copy_context
from functools import partial
from typing import Any, Final, Self

from fenceline.testing.simulation.loop import SimLoop
from fenceline.testing.simulation.network import Network
from fenceline.testing.simulation.scheduler import ENDED, SimHandle
from fenceline.testing.simulation.world import Process, World

Factory = Callable[[], asyncio.BaseProtocol]

_APART_S: Final = 1e-6
"""Between pieces of a stream: timers of the same instant have no order."""


def machine_of(node_id: int) -> str:
    return f"n{node_id}"


def address_of(number: int) -> tuple[str, int]:
    """What a peer sees of a node, or of a client, whose number is negative."""
    return f"10.0.{int(number < 0)}.{abs(number)}", 50000 + abs(number)


class Sockets:
    """All listeners and streams of a world."""

    def __init__(self, world: World) -> None:
        self.network: Network = world.network
        self.listeners: dict[tuple[int, int], SimulatedListener] = {}
        """By node and port."""
        self.context = copy_context()
        self.scheduler = world.scheduler
        self._world = world
        world.on_end.append(self._process_ended)

    def of(self, node_id: int) -> NodeSockets:
        """The sockets of one process; for `SimLoop.sockets`."""
        return NodeSockets(self, node_id)

    def at(self, when_s: float, loop: SimLoop, callback: Callable[..., object], *args: Any) -> None:
        """Run a callback in a process, unless it has ended by then."""
        self.scheduler.at(when_s, SimHandle(loop, callback, args, self.context, -1.0))

    def forget(self) -> None:
        """Nothing arrives any more."""
        self.listeners.clear()

    @property
    def now_s(self) -> float:
        return self._world.scheduler.now_s

    @property
    def world_loop(self) -> SimLoop:
        return self._world.loop

    def _process_ended(self, process: Process) -> None:
        for address in [each for each in self.listeners if each[0] == process.node_id]:
            del self.listeners[address]


class NodeSockets:
    """Implements `create_server` and `create_connection` of one process."""

    def __init__(self, sockets: Sockets, node_id: int) -> None:
        self._sockets = sockets
        self.node_id = node_id

    async def listen(self, loop: SimLoop, factory: Factory, port: int) -> SimulatedListener:
        return SimulatedListener(self._sockets, self.node_id, port, loop, factory)

    async def connect(self, loop: SimLoop, factory: Factory, host: str, port: int) -> tuple[Any, Any]:
        """Raises ConnectionRefusedError; never returns if the peer does not respond."""
        opened: asyncio.Future[tuple[Any, Any]] = loop.create_future()
        stream = self._stream(loop, int(host[1:]), port)
        stream.open(factory, opened)
        try:
            return await opened
        except BaseException:
            stream.give_up()
            raise

    def _stream(self, loop: SimLoop, node_id: int, port: int) -> Stream:
        """A connection to a port of a node, which is not open yet."""
        return Stream(self._sockets, self.node_id, node_id, loop, port)


class _FakeSocket:
    """The socket methods that a node uses on a listening socket."""

    def __init__(self, port: int, listen: Callable[[], None]) -> None:
        self._port = port
        self._listen = listen

    def dup(self) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """There is nothing to close."""

    def listen(self, backlog: int) -> None:
        self._listen()

    def setsockopt(self, *_: object) -> None:
        """There is nothing to set."""

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", self._port


class SimulatedListener:
    """Represents `asyncio.Server`, and the kernel's queue of connections that are not accepted yet."""

    def __init__(self, sockets: Sockets, node_id: int, port: int, loop: SimLoop, factory: Factory) -> None:
        self.sockets = (_FakeSocket(port, self._listen),)
        self._waiting: list[StreamTransport] | None = []
        """None: connections are accepted."""
        self.loop = loop
        self._factory = factory
        self._all = sockets
        self._address = (node_id, port)

    def _listen(self) -> None:
        self._all.listeners[self._address] = self

    async def start_serving(self) -> None:
        self._listen()
        waiting, self._waiting = self._waiting or [], None
        for end in waiting:
            self.accept(end)

    def accept(self, end: StreamTransport) -> None:
        """A peer has connected."""
        if self._waiting is None:
            self.loop.call_soon(end.begin, self._factory)
        else:
            self._waiting.append(end)

    def close(self) -> None:
        self._all.listeners.pop(self._address, None)
        for end in self._waiting or ():
            end.close()


class Stream:
    """One connection. `source` opened it; the network knows it as one of its own."""

    def __init__(self, sockets: Sockets, source: int, destination: int, loop: SimLoop, port: int) -> None:
        self.source = source
        self.destination = destination
        self._sockets = sockets
        self._network = sockets.network
        self._id = self._network.adopt(self)
        self._port = port
        self._is_over = False
        self._ends: dict[int, StreamTransport] = {}
        self._loop = loop
        self._opened: asyncio.Future[tuple[Any, Any]] | None = None
        self._free_at_s = {source: 0.0, destination: 0.0}
        """By receiver: nothing arrives before what was sent earlier."""

    def open(self, factory: Factory, opened: asyncio.Future[tuple[Any, Any]]) -> None:
        self._opened = opened
        self._network.log_event(f"{self.source}>{self.destination} #{self._id} connect {self._port}")
        self._carry(self.source, self.destination, self._sockets.world_loop, partial(self._connect, factory))

    def _carry(self, source: int, destination: int, loop: SimLoop, deliver: Callable[[], None]) -> None:
        """`deliver` runs in the receiver's loop, in order."""
        network, scheduler = self._network, self._sockets.scheduler
        takes_s = network.delay_s() + network.lag_s(source, destination, self._port)
        at_s, free_s = scheduler.now_s + takes_s, self._free_at_s[destination] + _APART_S
        if free_s > at_s:
            at_s = free_s
        self._free_at_s[destination] = at_s
        arrival = source, destination, loop, deliver
        scheduler.at(at_s, SimHandle(loop, self._arrive, arrival, self._sockets.context, -1.0))

    def _arrive(self, source: int, destination: int, loop: SimLoop, deliver: Callable[[], None]) -> None:
        network = self._network
        if self._is_over:
            return
        if network.is_cut(source, destination):
            again = partial(self._sockets.at, 0.0, loop, self._arrive, source, destination, loop, deliver)
            network.hold(source, destination, again)
        elif not network.is_powered_off(destination):
            deliver()

    # -- opening -------------------------------------------------------------------------------------------------------

    def _connect(self, factory: Factory) -> None:
        """The kernel of the destination responds, even if its process is paused."""
        listener = self._sockets.listeners.get((self.destination, self._port))
        if listener is None or listener.loop.state == ENDED:
            self._carry(self.destination, self.source, self._loop, self._refuse)
            return
        near = StreamTransport(self, self.source, self.destination, self._loop, listener.loop)
        far = StreamTransport(self, self.destination, self.source, listener.loop, self._loop)
        near.other, far.other = far, near
        self._ends = {self.source: near, self.destination: far}
        listener.accept(far)
        self._carry(self.destination, self.source, self._loop, partial(self._open_near, near, factory))

    def _open_near(self, near: StreamTransport, factory: Factory) -> None:
        opened = self._opened
        if opened is not None and not opened.done():
            near.begin(factory)
            opened.set_result((near, near.protocol))

    def give_up(self) -> None:
        """The caller does not wait any more."""
        near = self._ends.get(self.source)
        if near is None:
            self.forget()
        else:
            near.close()

    def _refuse(self) -> None:
        self.forget()
        if self._opened is not None and not self._opened.done():
            self._opened.set_exception(ConnectionRefusedError(f"{machine_of(self.destination)}:{self._port} refuses"))

    # -- carrying ------------------------------------------------------------------------------------------------------

    def send(self, end: StreamTransport, content: bytes) -> None:
        assert end.other is not None, "both ends are made together"
        self._network.log_event(f"{end.me}>{end.them} #{self._id} {len(content)}")
        self._carry(end.me, end.them, end.other.loop, partial(end.other.receive, content))

    def finish(self, end: StreamTransport) -> None:
        """One end closes: the other is notified after all that was sent."""
        if self._is_over or end.other is None:
            return
        self._carry(end.me, end.them, end.other.loop, partial(end.other.lose, None))

    # -- what the network does -----------------------------------------------------------------------------------------

    def cut(self, reason: str, ended: int = -1) -> None:
        """The stream is cut; the remaining ends are notified after a delay."""
        if self._is_over:
            return
        self._network.log_event(f"{self.source}>{self.destination} #{self._id} cut: {reason}")
        self.forget()
        error = ConnectionResetError(reason)
        if not self._ends:
            if ended != self.source and self._opened is not None:
                self._report_cut(self.destination, self.source, self._loop, partial(self._fail_open, error))
            return
        for end in self._ends.values():
            if end.me != ended:
                self._report_cut(end.them, end.me, end.loop, partial(end.lose, error))

    def _fail_open(self, error: ConnectionError) -> None:
        if self._opened is not None and not self._opened.done():
            self._opened.set_exception(error)

    def _report_cut(self, source: int, destination: int, loop: SimLoop, report: Callable[[], None]) -> None:
        network = self._network

        def receive() -> None:
            if network.is_cut(source, destination):
                network.hold(source, destination, partial(self._sockets.at, 0.0, loop, receive))
            else:
                report()

        self._sockets.at(self._sockets.now_s + network.delay_s(), loop, receive)

    def fall_silent(self, dead: int) -> None:
        """A machine lost power: the other end is notified when it is back."""

    def forget(self) -> None:
        self._is_over = True
        self._network.forget(self._id)


class StreamTransport(asyncio.Transport):
    """One end of a stream, as seen by its process."""

    def __init__(self, stream: Stream, me: int, them: int, loop: SimLoop, their_loop: SimLoop) -> None:
        super().__init__()
        self.me = me
        self.them = them
        self.loop = loop
        self.other: StreamTransport | None = None
        self.protocol: Any = None
        self._stream = stream
        self._is_closing = False
        self._is_lost = False
        self._is_paused = False
        self._early: list[Callable[[], None]] = []
        """Received before the process accepted the connection, or while reading is paused."""

    def begin(self, factory: Factory) -> None:
        if self._is_lost:
            return
        self.protocol = factory()
        self.protocol.connection_made(self)
        self._deliver_early()

    def _deliver_early(self) -> None:
        while self._early and not self._is_paused and not self._is_lost:
            self._early.pop(0)()

    def receive(self, content: bytes) -> None:
        if self._is_lost or self._is_closing:
            return
        protocol = self.protocol
        if protocol is None or self._is_paused:
            self._early.append(partial(self.receive, content))
        elif isinstance(protocol, asyncio.BufferedProtocol):
            position, size = 0, len(content)
            while position < size and not self._is_closing:
                if self._is_paused:
                    self._early.insert(0, partial(self.receive, content[position:]))
                    return
                with memoryview(protocol.get_buffer(-1)) as buffer:
                    taken = min(len(buffer), size - position)
                    buffer[:taken] = content if taken == size else content[position : position + taken]
                protocol.buffer_updated(taken)
                position += taken
        else:
            protocol.data_received(content)

    def lose(self, error: Exception | None) -> None:
        """Notify the protocol once that the connection is closed."""
        if self._is_lost:
            return
        self._is_lost = self._is_closing = True
        self._stream.forget()
        if self.protocol is not None:
            self.protocol.connection_lost(error)

    # -- asyncio's side ------------------------------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        if not self._is_closing:
            self._stream.send(self, bytes(data))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._stream.finish(self)
            self.loop.call_soon(self._closed)

    abort = close

    def _closed(self) -> None:
        if not self._is_lost:
            self._is_lost = True
            if self.protocol is not None:
                self.protocol.connection_lost(None)

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        self.loop.call_soon(self._deliver_early)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return address_of(self.them) if name == "peername" else default

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Buffers are unlimited."""
