"""TLS on an accepted connection: the transport of a `ServerConnection`, on top of that of the socket.

Owns the handshake, its deadline and the report of why it failed, and the TLS records of one connection. Decides nothing
about certificates: the context that it is given does. `connection_made` of the protocol above is called when the
handshake is complete, before any data.

Why not the event loop's own TLS: it logs no failed handshake, counts none, and has one context for the life of a
listener, so that certificates could not be exchanged; and its library is slower (`fenceline.tls.server_contexts`).

Rules: security.md A10, A12.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from cryptography.hazmat.primitives.serialization import Encoding
from OpenSSL import SSL

from fenceline.tls.decryption import MAX_RECORD_BYTES, decrypt_into
from fenceline.tls.server_contexts import reason_of

if TYPE_CHECKING:
    from fenceline.node.net.connection_limits import Admission

_RECEIVE_BYTES: Final = 64 << 10
_received: Final = memoryview(bytearray(_RECEIVE_BYTES))
"""Shared by all connections of the process: what is received is given to the TLS library before the loop goes on."""
_LOW_WATER_BYTES: Final = 32 << 10
_RECORD_HEADER_BYTES: Final = 5
_HANDSHAKE_RECORD: Final = 22
_PIECE_BYTES: Final = 7 * MAX_RECORD_BYTES
"""What is encrypted at once: it stays in the processor's cache, and below the size from which memory is mapped."""
_RECORD_OVERHEAD_BYTES: Final = 64
"""At most, in every version and with every cipher."""


class TlsConnection(asyncio.BufferedProtocol, asyncio.Transport):
    """The protocol of a socket's transport, and the transport of `protocol`."""

    __slots__ = (
        "_begun",
        "_context",
        "_deadline",
        "_ended",
        "_gone",
        "_hello",
        "_is_closing",
        "_is_reading_paused",
        "_is_writing_paused",
        "_low_water_bytes",
        "_made",
        "_protocol",
        "_raw",
        "_tls",
    )

    _tls: SSL.Connection

    def __init__(
        self,
        context: SSL.Context,
        made: Callable[[], asyncio.BufferedProtocol],
        *,
        handshake_timeout_s: float,
        begun: Callable[[str], Admission],
        gone: Callable[[str], None],
        ended: Callable[[str, str | None], None],
    ) -> None:
        """`begun`, `gone`: called with the peer's host when the socket is open, and when it is closed. `made` returns
        the protocol above, when the handshake is complete. `ended`: called once when it is over, with the peer's host,
        and the reason if it failed."""
        self._context = context
        self._hello: bytearray | None = bytearray()
        """What has arrived of the peer's first record. The TLS library needs about 40 KB as soon as it has one byte."""
        self._begun, self._gone = begun, gone
        self._made = made
        self._protocol: asyncio.BufferedProtocol | None = None
        self._ended = ended
        self._raw: asyncio.Transport | None = None
        self._is_closing = False
        self._is_reading_paused = False
        self._is_writing_paused = False
        self._low_water_bytes = 1
        """What must have arrived before the socket is read."""
        self._deadline = asyncio.get_running_loop().call_later(handshake_timeout_s, self._time_out)

    # --- the socket's side ----------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        raw: asyncio.Transport = transport  # type: ignore[assignment]
        self._raw = raw
        refusal, delay_ms, _ = self._begun(self._host)
        if delay_ms:
            raw.pause_reading()
            after = raw.resume_reading if refusal is None else self.abort
            asyncio.get_running_loop().call_later(delay_ms / 1000, after)
        if refusal is not None:
            self._handshake_ended(refusal)
            if not delay_ms:
                self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.cancel()
        self._is_closing = True
        self._gone(self._host)
        self._handshake_ended("the peer closed the connection")
        if self._protocol is not None:
            self._protocol.connection_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        return _received

    def buffer_updated(self, nbytes: int) -> None:
        if self._protocol is not None:
            self._tls.bio_write(_received[:nbytes])
            self._deliver()
        elif self._take_first_record(nbytes) and self._shake_hands():
            self._deliver()

    def eof_received(self) -> bool:
        """Whether the connection stays open: the protocol still has to handle what it has received."""
        return self._protocol is not None and bool(self._protocol.eof_received())

    def pause_writing(self) -> None:
        # A peer that does not read what the library answers by itself (to a KeyUpdate) must not make it answer more.
        self._is_writing_paused = True
        if self._raw is not None:
            self._raw.pause_reading()
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._is_writing_paused = False
        self._resume_raw()
        if self._protocol is not None:
            self._protocol.resume_writing()

    def _resume_raw(self) -> None:
        if self._raw is not None and not self._is_reading_paused and not self._is_writing_paused:
            self._raw.resume_reading()

    # --- the handshake ----------------------------------------

    def _take_first_record(self, nbytes: int) -> bool:
        """Whether the TLS library is to look at what it has: from the first complete record on."""
        hello = self._hello
        if hello is None:
            self._tls.bio_write(_received[:nbytes])
            return True
        hello += _received[:nbytes]
        if hello[0] == _HANDSHAKE_RECORD:
            size_bytes = int.from_bytes(hello[3:_RECORD_HEADER_BYTES], "big")
            if len(hello) < _RECORD_HEADER_BYTES + size_bytes <= _RECORD_HEADER_BYTES + MAX_RECORD_BYTES:
                return False
        self._tls = SSL.Connection(self._context, None)
        self._tls.set_accept_state()
        self._tls.bio_write(hello)
        self._hello = None
        return True

    def _shake_hands(self) -> bool:
        try:
            self._tls.do_handshake()
        except SSL.WantReadError:
            self._flush()
            return False
        except SSL.Error as error:
            self._flush()  # the alert that tells the peer why
            self._handshake_ended(reason_of(error, self._tls))
            self._close_raw()
            return False
        self._deadline.cancel()
        self._flush()
        self._handshake_ended(None)
        self._protocol = self._made()
        self._protocol.connection_made(self)
        return True

    def _time_out(self) -> None:
        self._handshake_ended("the handshake took too long")
        self.abort()

    def _handshake_ended(self, failure: str | None) -> None:
        ended, self._ended = self._ended, _ignore
        ended(self._host, failure)

    @property
    def _host(self) -> str:
        peername = self._raw.get_extra_info("peername") if self._raw is not None else None
        return str(peername[0]) if peername else "?"

    def _close_raw(self) -> None:
        """Close after what is written has been sent."""
        self._deadline.cancel()
        self._is_closing = True
        if self._raw is not None:
            self._raw.close()

    # --- data ----------------------------------------

    def _deliver(self) -> None:
        """Give the protocol what is decrypted, until it pauses reading."""
        protocol, tls = self._protocol, self._tls
        assert protocol is not None, "the handshake is complete"
        while not self._is_reading_paused and not self._is_closing:
            target = memoryview(protocol.get_buffer(-1))
            assert target, "the protocol pauses when its buffer is full"
            count, ended = decrypt_into(tls, target)
            if count:
                protocol.buffer_updated(count)
            if ended is not None:
                self._deliver_end(ended)
                return
            if count < len(target):
                break
        self._flush()  # the library answers some messages by itself

    def _deliver_end(self, ended: SSL.Error) -> None:
        if isinstance(ended, SSL.ZeroReturnError):
            # The peer has said that it is done.
            if not self.eof_received():
                self.close()
        else:
            # Renegotiation, a damaged record: the library's alert says which.
            self._flush()
            self._close_raw()

    def _flush(self, most_bytes: int = MAX_RECORD_BYTES) -> None:
        """Send what the library has for the peer; `most_bytes`: what that can be, or the size of a step."""
        assert self._raw is not None, "the handshake has begun"
        with contextlib.suppress(SSL.WantReadError):  # there is nothing
            while True:
                content = self._tls.bio_read(most_bytes)
                self._raw.write(content)
                if len(content) < most_bytes:
                    return

    # --- the protocol's side ----------------------------------------

    def expect(self, missing_bytes: int) -> None:
        """The protocol can do nothing before it has so many bytes more; to be called whenever it is so.

        The socket is then read in large steps: a client writes each of its small records by itself, and a server that
        is faster would wake up for each of them.
        """
        # Of what is missing, the TLS library may have a part of a record; encrypted, the rest is not smaller.
        low_water_bytes = _LOW_WATER_BYTES if missing_bytes >= _RECEIVE_BYTES + MAX_RECORD_BYTES else 1
        if low_water_bytes == self._low_water_bytes or self._raw is None:
            return
        self._low_water_bytes = low_water_bytes
        plain = self._raw.get_extra_info("socket")
        if plain is None:
            return
        with contextlib.suppress(OSError):  # the connection is about to end
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, low_water_bytes)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        if self._is_closing:
            return
        send, waiting_bytes = self._tls.send, 0
        for data in list_of_data:
            left = memoryview(data)
            while left:
                count = send(left[:_PIECE_BYTES])
                left = left[count:]
                waiting_bytes += count + (count // MAX_RECORD_BYTES + 1) * _RECORD_OVERHEAD_BYTES
                if waiting_bytes >= _PIECE_BYTES:
                    self._flush(waiting_bytes)
                    waiting_bytes = 0
        if waiting_bytes:
            self._flush(waiting_bytes)

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        with contextlib.suppress(SSL.Error):
            self._tls.shutdown()  # the peer need not answer
        self._flush()
        if self._raw is not None:
            self._raw.close()

    def abort(self) -> None:
        self._deadline.cancel()
        self._is_closing = True
        if self._raw is not None:
            self._raw.abort()

    def pause_reading(self) -> None:
        self._is_reading_paused = True
        if self._raw is not None:
            self._raw.pause_reading()

    def resume_reading(self) -> None:
        if not self._is_reading_paused:
            return
        self._is_reading_paused = False
        self._resume_raw()
        if self._raw is not None:
            # What was decrypted before the pause waits in the library, and no socket reports it.
            asyncio.get_running_loop().call_soon(self._deliver)

    def is_reading(self) -> bool:
        return not self._is_reading_paused

    def get_write_buffer_size(self) -> int:
        return self._raw.get_write_buffer_size() if self._raw is not None else 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if self._raw is not None:
            self._raw.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """`layer`: this connection (`SocketLayer`). `peer_certificate`: the DER bytes of the peer's certificate, None
        if it showed none. There is no `socket`: bytes that go around the TLS library would not be encrypted."""
        if name == "peer_certificate":
            certificate = self._tls.get_peer_certificate(as_cryptography=True)
            return None if certificate is None else certificate.public_bytes(Encoding.DER)
        if name == "layer":
            return self
        if name == "peername" and self._raw is not None:
            return self._raw.get_extra_info(name, default)
        return default


def _ignore(peer: str, failure: str | None) -> None:
    pass
