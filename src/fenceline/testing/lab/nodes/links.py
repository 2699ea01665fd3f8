"""Connections of a node whose network is slow, cut, or half open.

Owns what lies between the transport of a socket and the protocol on top of it, for every connection that the node
accepts or opens. Without a fault, bytes go through at once. Never changes bytes or their order.

A fault applies to both ways of a connection, in this process: the peer needs not know. Bytes that a fault delays are
held here, up to `_MOST_HELD_BYTES` a way; then the socket is not read, or the protocol is asked to pause, as with a
slow peer. While a way is held, its end is held too: a peer that closes or dies is not noticed before the fault ends.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from fenceline.testing.lab.fault_state import BROKERS, CLIENTS, CONTROLLERS, LinkFault

_MOST_HELD_BYTES: Final = 1 << 20
_RECEIVE_BYTES: Final = 64 << 10
_HIGH_WATER_BYTES: Final = 64 << 10
_received: Final = memoryview(bytearray(_RECEIVE_BYTES))
"""Shared: what is received is copied before the loop goes on."""
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
_NODE_ADDRESS_PREFIX: Final = "127.0.0."
"""A node connects from 127.0.0.(1 + its id) (`local_cluster.cuts`)."""

Piece = bytes | bytearray | memoryview


class Pipe:
    """The bandwidth of one way of a fault, shared by its connections."""

    __slots__ = ("_bytes_per_s", "_free_at_s")

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at_s = 0.0

    def end_of(self, size_bytes: int, now_s: float) -> float:
        """When the last byte of a piece is through."""
        if not self._bytes_per_s:
            return now_s
        self._free_at_s = max(self._free_at_s, now_s) + size_bytes / self._bytes_per_s
        return self._free_at_s


class AppliedFault:
    """A fault of the network with its pipes."""

    __slots__ = ("fault", "incoming", "outgoing")

    def __init__(self, fault: LinkFault) -> None:
        self.fault = fault
        self.incoming = Pipe(fault.bytes_per_s)
        self.outgoing = Pipe(fault.bytes_per_s)


class Way:
    """One way of a connection: pieces with the time at which each arrives."""

    __slots__ = ("_faults", "_is_incoming", "_last_s", "_rng", "held_bytes", "is_held", "pieces")

    def __init__(self, *, is_incoming: bool, rng: random.Random) -> None:
        self._is_incoming = is_incoming
        self._rng = rng
        self._faults: Sequence[AppliedFault] = ()
        self._last_s = 0.0
        self.pieces: deque[tuple[float, Piece]] = deque()
        self.held_bytes = 0
        self.is_held = False

    @property
    def is_open(self) -> bool:
        """Whether bytes go through at once."""
        return not self._faults and not self.pieces

    def set(self, faults: Sequence[AppliedFault], now_s: float) -> None:
        """Replace the faults. What was held only because of a cut or a delay that has ended arrives now."""
        self._faults = faults
        self.is_held = any(
            each.fault.holds_incoming if self._is_incoming else each.fault.holds_outgoing for each in faults
        )
        if not faults:
            self.pieces = deque((now_s, piece) for _, piece in self.pieces)
            self._last_s = now_s

    def add(self, piece: Piece, now_s: float) -> None:
        """Bytes enter this way."""
        due_s = now_s
        for each in self._faults:
            pipe = each.incoming if self._is_incoming else each.outgoing
            due_s = max(due_s, pipe.end_of(len(piece), now_s)) + each.fault.delay_s
            if each.fault.jitter_s:
                due_s += self._rng.random() * each.fault.jitter_s
        self._last_s = max(self._last_s, due_s)
        self.pieces.append((self._last_s, bytes(piece)))
        self.held_bytes += len(piece)

    def take(self, now_s: float) -> Iterator[Piece]:
        """The pieces that have arrived."""
        while self.pieces and not self.is_held and self.pieces[0][0] <= now_s:
            _, piece = self.pieces.popleft()
            self.held_bytes -= len(piece)
            yield piece

    def put_back(self, piece: Piece, now_s: float) -> None:
        """The rest of a piece that was taken, which its receiver has no room for."""
        self.pieces.appendleft((now_s, piece))
        self.held_bytes += len(piece)

    def next_s(self) -> float | None:
        """When the next piece arrives; None if there is none, or not before the fault ends."""
        return None if self.is_held or not self.pieces else self.pieces[0][0]

    def drop(self) -> None:
        self.pieces.clear()
        self.held_bytes = 0


class FaultyLink(asyncio.BufferedProtocol, asyncio.Transport):
    """The protocol of a socket's transport, and the transport of `protocol`."""

    def __init__(self, links: FaultyLinks, protocol: asyncio.BufferedProtocol, *, peer_node: int | None) -> None:
        """`peer_node`: to which node the connection is opened; None: it is accepted."""
        self._links = links
        self._loop = links.loop
        self.protocol = protocol
        self._inner: asyncio.BufferedProtocol | None = protocol
        """None when it has been told that the connection has ended."""
        self._peer_node = peer_node
        self._raw: asyncio.Transport | None = None
        self._in = Way(is_incoming=True, rng=links.rng)
        self._out = Way(is_incoming=False, rng=links.rng)
        self._timer: asyncio.TimerHandle | None = None
        self._reads_to_scratch = False
        self._is_reading_paused = False
        self._raw_reading_paused = False
        self._raw_writing_paused = False
        self._inner_writing_paused = False
        self._is_closing = False
        self._ended: tuple[Exception | None] | None = None
        """The end of the socket that the protocol has not been given yet."""
        self._eof_waits = False
        self._high_bytes, self._low_bytes = _HIGH_WATER_BYTES, _HIGH_WATER_BYTES // 4
        self.client_id: str | None = None
        self.peer = "?"
        """`host:port`."""
        self._port = 0
        """On which the connection was accepted, or to which it was opened."""

    @property
    def listener(self) -> str:
        """`brokers` or `controllers`."""
        return CONTROLLERS if self._port in self._links.controller_ports else BROKERS

    @property
    def peer_name(self) -> str:
        """`clients`, or the id of a node."""
        if self._peer_node is not None:
            return str(self._peer_node)
        host = self.peer.rpartition(":")[0]
        number = host.removeprefix(_NODE_ADDRESS_PREFIX)
        if number != host and number.isdigit() and int(number) > 1:
            return str(int(number) - 1)
        return CLIENTS

    def set_faults(self, faults: Sequence[AppliedFault]) -> None:
        """Replace the faults that apply to this connection."""
        now_s = self._loop.time()
        self._in.set(faults, now_s)
        self._out.set(faults, now_s)
        self._continue()

    # --- the socket's side ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        raw: asyncio.Transport = transport  # type: ignore[assignment]
        self._raw = raw
        plain = raw.get_extra_info("socket")
        if plain is not None and plain.family != getattr(socket, "AF_UNIX", None):
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peername = raw.get_extra_info("peername")
        if peername:
            self.peer = f"{peername[0]}:{peername[1]}"
            self._port = peername[1] if self._peer_node is not None else raw.get_extra_info("sockname")[1]
        self._links.add(self)
        assert self._inner is not None, "it is new"
        self._inner.connection_made(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._raw = None
        self._out.drop()
        self._ended = (exc,)
        self._continue()

    def get_buffer(self, sizehint: int) -> memoryview:
        inner = self._inner
        self._reads_to_scratch = inner is None or not self._in.is_open
        if inner is None or self._reads_to_scratch:
            return _received
        return inner.get_buffer(sizehint)  # type: ignore[return-value]

    def buffer_updated(self, nbytes: int) -> None:
        if not self._reads_to_scratch:
            if self._inner is not None:
                self._inner.buffer_updated(nbytes)
            return
        self._in.add(_received[:nbytes], self._loop.time())
        self._continue()

    def eof_received(self) -> bool:
        if self._in.is_open:
            return bool(self._inner is not None and self._inner.eof_received())
        self._eof_waits = True
        return True

    def pause_writing(self) -> None:
        self._raw_writing_paused = True
        self._check_writing()

    def resume_writing(self) -> None:
        self._raw_writing_paused = False
        self._check_writing()

    # --- what flows -----------------------------------------------------------------------------------------------

    def _continue(self) -> None:
        """Pass on what has arrived, both ways, and set the timer for the next piece."""
        now_s = self._loop.time()
        self._send(now_s)
        self._deliver(now_s)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        dues = [due_s for way in self._live_ways() if (due_s := way.next_s()) is not None]
        if dues:
            self._timer = self._loop.call_at(min(dues), self._continue)

    def _live_ways(self) -> Iterator[Way]:
        if self._raw is not None:
            yield self._out
        if not self._is_reading_paused:
            yield self._in

    def _send(self, now_s: float) -> None:
        raw = self._raw
        if raw is None:
            return
        for piece in self._out.take(now_s):
            raw.write(piece)
        if self._is_closing and not self._out.pieces:
            raw.close()
        self._check_writing()

    def _deliver(self, now_s: float) -> None:
        inner = self._inner
        for piece in self._in.take(now_s):
            if inner is None or self._is_closing:
                continue
            rest = memoryview(piece)
            while rest and not self._is_reading_paused:
                target = memoryview(inner.get_buffer(-1))
                size = min(len(target), len(rest))
                target[:size] = rest[:size]
                rest = rest[size:]
                inner.buffer_updated(size)
                inner = self._inner
                if inner is None:
                    return
            if rest:
                self._in.put_back(bytes(rest), now_s)
                break
        self._check_reading()
        if not self._in.pieces and not self._in.is_held:
            self._deliver_end()

    def _deliver_end(self) -> None:
        inner = self._inner
        if self._eof_waits:
            self._eof_waits = False
            if inner is None or not inner.eof_received():
                self.close()
        if self._ended is not None:
            self._links.remove(self)
            self._lose_protocol(self._ended[0])

    def _lose_protocol(self, error: Exception | None) -> None:
        inner, self._inner = self._inner, None
        if inner is not None:
            inner.connection_lost(error)

    def _check_reading(self) -> None:
        """The socket is read while the protocol wants more, and not too much is held."""
        must_pause = self._is_reading_paused or self._in.held_bytes >= _MOST_HELD_BYTES
        raw = self._raw
        if raw is None or must_pause == self._raw_reading_paused:
            return
        self._raw_reading_paused = must_pause
        if must_pause:
            raw.pause_reading()
        else:
            raw.resume_reading()

    def _check_writing(self) -> None:
        inner = self._inner
        if inner is None:
            return
        held_bytes = self._out.held_bytes
        if not self._inner_writing_paused and (self._raw_writing_paused or held_bytes > self._high_bytes):
            self._inner_writing_paused = True
            inner.pause_writing()
        elif self._inner_writing_paused and not self._raw_writing_paused and held_bytes <= self._low_bytes:
            self._inner_writing_paused = False
            inner.resume_writing()

    # --- one-time faults ------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Both ends find that the connection was reset."""
        raw = self._raw
        if raw is None:
            return
        plain = raw.get_extra_info("socket")
        if plain is not None:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        raw.abort()

    def forget(self) -> None:
        """This end has no connection any more, and the peer does not know: half open. `reset` ends it."""
        if self._inner is None or self._raw is None:
            return
        self._in.drop()
        self._out.drop()
        self._lose_protocol(ConnectionResetError("a half-open connection"))

    # --- the protocol's side --------------------------------------------------------------------------------------

    def expect(self, missing_bytes: int) -> None:
        """See `SocketLayer`."""

    def write(self, data: Any) -> None:
        if self._raw is None or self._is_closing:
            return
        if self._out.is_open:
            self._raw.write(data)
        else:
            self._out.add(data, self._loop.time())
            self._continue()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        if self._raw is None or self._is_closing:
            return
        if self._out.is_open:
            self._raw.writelines(list_of_data)
        else:
            self.write(b"".join(list_of_data))

    def is_closing(self) -> bool:
        return self._is_closing or self._raw is None or self._raw.is_closing()

    def close(self) -> None:
        self._is_closing = True
        if self._raw is not None and not self._out.pieces:
            self._raw.close()

    def abort(self) -> None:
        self._is_closing = True
        if self._raw is None:
            return
        if self._out.is_held:
            # The peer must not notice before the fault ends.
            self._loop.call_soon(self.forget)
        else:
            self._raw.abort()

    def pause_reading(self) -> None:
        self._is_reading_paused = True
        self._check_reading()

    def resume_reading(self) -> None:
        if self._is_reading_paused:
            self._is_reading_paused = False
            self._loop.call_soon(self._continue)

    def is_reading(self) -> bool:
        return not self._is_reading_paused

    def get_write_buffer_size(self) -> int:
        return self._out.held_bytes + (self._raw.get_write_buffer_size() if self._raw is not None else 0)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high_bytes = _HIGH_WATER_BYTES if high is None else high
        self._low_bytes = self._high_bytes // 4 if low is None else low
        if self._raw is not None:
            self._raw.set_write_buffer_limits(high, low)
        self._check_writing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """`layer`: this connection. There is no `socket`: bytes must not go around the faults."""
        if name == "layer":
            return self
        if name == "socket" or self._raw is None:
            return default
        return self._raw.get_extra_info(name, default)


class FaultyLinks:
    """All connections of a node."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.rng = random.Random()
        self.peers: dict[str, int] = {}
        """The addresses on which nodes listen."""
        self.controller_ports: frozenset[int] = frozenset()
        self._links: dict[FaultyLink, None] = {}
        self._by_peer: dict[str, FaultyLink] = {}
        self.unnamed: set[str] = set()
        """Peers whose client id is not known yet."""
        self._faults: dict[LinkFault, AppliedFault] = {}
        self._forgotten: list[FaultyLink] = []

    def wrap(self, protocol: asyncio.BaseProtocol, address: str | None) -> asyncio.BaseProtocol:
        """The protocol for the socket's transport. `address`: to which the connection is opened."""
        if not isinstance(protocol, asyncio.BufferedProtocol):
            return protocol
        return FaultyLink(self, protocol, peer_node=None if address is None else self.peers.get(address))

    def add(self, link: FaultyLink) -> None:
        self._links[link] = None
        self._by_peer[link.peer] = link
        self.unnamed.add(link.peer)
        if self._faults:
            link.set_faults(self._of(link))

    def remove(self, link: FaultyLink) -> None:
        self._links.pop(link, None)
        if self._by_peer.get(link.peer) is link:
            del self._by_peer[link.peer]
        self.unnamed.discard(link.peer)

    def name(self, peer: str, client_id: str | None) -> None:
        """A peer has told its client id."""
        self.unnamed.discard(peer)
        link = self._by_peer.get(peer)
        if link is not None:
            link.client_id = client_id
            if self._faults:
                link.set_faults(self._of(link))

    def set(self, faults: Iterable[LinkFault]) -> None:
        """Replace the faults of all connections; the half-open ones of before end with them."""
        self._faults = {each: self._faults.get(each) or AppliedFault(each) for each in faults}
        for link in list(self._links):
            link.set_faults(self._of(link))

    def chosen(self, fault: LinkFault) -> list[FaultyLink]:
        """The open connections that a fault is about."""
        return [link for link in self._links if _concerns(fault, link)]

    def reset(self, fault: LinkFault) -> int:
        """Reset the connections that the fault is about; returns their number."""
        links = self.chosen(fault)
        for link in links:
            link.reset()
        return len(links)

    def forget(self, fault: LinkFault) -> int:
        """Leave the connections that the fault is about half open; returns their number."""
        links = self.chosen(fault)
        for link in links:
            self.remove(link)
            self._forgotten.append(link)
            link.forget()
        return len(links)

    def end_half_open(self) -> None:
        """The peers of half-open connections find out."""
        forgotten, self._forgotten = self._forgotten, []
        for link in forgotten:
            link.reset()

    def of(self, peer: str) -> FaultyLink | None:
        """The connection of a peer (`host:port`)."""
        return self._by_peer.get(peer)

    def clients(self) -> dict[str, str | None]:
        """The client ids of the connected clients, by `host:port`."""
        return {link.peer: link.client_id for link in self._links if link.peer_name == CLIENTS}

    def _of(self, link: FaultyLink) -> list[AppliedFault]:
        return [
            applied
            for fault, applied in self._faults.items()
            if fault.matches(link.peer_name, link.client_id, link.listener)
        ]


def _concerns(fault: LinkFault, link: FaultyLink) -> bool:
    return fault.matches(link.peer_name, link.client_id, link.listener)
