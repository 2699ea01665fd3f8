"""A node's server in this process, with connections that tests play: no network, no waiting, virtual time.

Owns the loop (timers run when a test says so), the transports, and the listeners: SASL with every mechanism, TLS.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from immutables import Map
from joserfc.jwk import ECKey, KeySet

from fenceline.config.node import NodeConfig
from fenceline.metadata.image import EMPTY_IMAGE
from fenceline.node import logs
from fenceline.node.api.handlers.api_versions import ANY_VERSION, ApiVersions, api_ranges
from fenceline.node.broker import server_limits
from fenceline.node.context import NodeView
from fenceline.node.metrics import NodeMetrics
from fenceline.node.net.certificates import NodeCertificates
from fenceline.node.net.connection_limits import ConnectionLimits
from fenceline.node.net.listening import sasl_of, tls_of
from fenceline.node.net.server import Server
from fenceline.node.net.tls_connection import TlsConnection
from fenceline.node.turns import Turns
from fenceline.sasl.scram import DIGESTS, NUMBERS
from fenceline.security.added_users import added_user
from fenceline.wire.apis import ApiKey
from tests.support.certificates import TestAuthority

KNOWN, UNKNOWN, WRONG = "anna", "nora", "guess"
MECHANISMS = ("PLAIN", *DIGESTS, "OAUTHBEARER")
KEY = ECKey.generate_key("P-256", {"kid": "first"})
JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    f'username="broker" password="of the broker" user_{KNOWN}="secret";'
)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Timers run in `pass_s` only."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._made = 0

    def call_later(self, delay: float, callback: Callable[..., object], *arguments: Any, context: Any = None) -> Any:
        self._made += 1
        handle = asyncio.TimerHandle(self.now_s + delay, callback, arguments, self, context)  # type: ignore[arg-type]
        heapq.heappush(self._timers, (handle.when(), self._made, handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        if len(self._timers) > 1_000:
            self._timers = [each for each in self._timers if not each[2].cancelled()]
            heapq.heapify(self._timers)

    def pass_s(self, seconds: float) -> None:
        self.now_s += seconds
        while self._timers and self._timers[0][0] <= self.now_s:
            handle = heapq.heappop(self._timers)[2]
            if not handle.cancelled():
                handle._run()

    def now_ms(self) -> int:
        return 1_700_000_000_000 + self.monotonic_ms()

    def monotonic_ms(self) -> int:
        return int(self.now_s * 1000)


class Peer:
    """One connection, of which the test is the other side: the transport that the server writes to."""

    def __init__(self, protocol: asyncio.BufferedProtocol, host: str = "10.0.0.1") -> None:
        self._protocol = protocol
        self._host = host
        self.sent: list[bytes] = []
        """By the server."""
        self.is_closed = False
        self._is_paused = False
        self.high_water_bytes = 1 << 62
        """Of what is sent and not taken."""
        self._is_full = False
        self.low_water_bytes = 1
        """What must have arrived before the server sees some of it."""
        self._arrived = bytearray()
        protocol.connection_made(self)  # type: ignore[arg-type]

    def receive(self, content: bytes) -> bool:
        """The server receives `content`; whether it took all that its socket reported, and serves on."""
        self._arrived += content
        while self._arrived and len(self._arrived) >= self.low_water_bytes:
            if self.is_closed or self._is_paused:
                self._arrived.clear()
                return False
            buffer = memoryview(self._protocol.get_buffer(-1))
            count = min(len(self._arrived), len(buffer))
            assert count > 0, "the server reads no further, and has not said so"
            buffer[:count] = self._arrived[:count]
            del self._arrived[:count]
            self._protocol.buffer_updated(count)
        return not self.is_closed

    @property
    def is_served(self) -> bool:
        """Whether its TLS handshake is complete: on that listener nothing else is asked for."""
        return isinstance(self._protocol, TlsConnection) and self._protocol._protocol is not None

    def take(self) -> bytes:
        """What the server has sent since."""
        found = b"".join(self.sent)
        self.sent.clear()
        return found

    def drain(self) -> None:
        """Everything is read."""
        self.sent.clear()
        if self._is_full:
            self._is_full = False
            self._protocol.resume_writing()

    def end(self) -> None:
        """The connection is gone."""
        self.is_closed = True
        self._protocol.connection_lost(None)

    # --- the transport ----------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": (self._host, 1), "socket": self}.get(name, default)

    def setsockopt(self, level: int, option: int, value: int) -> None:
        assert (level, option) == (socket.SOL_SOCKET, socket.SO_RCVLOWAT)
        self.low_water_bytes = value

    def write(self, content: bytes) -> None:
        self.sent.append(bytes(content))
        if not self._is_full and sum(map(len, self.sent)) > self.high_water_bytes:
            self._is_full = True
            self._protocol.pause_writing()

    def writelines(self, contents: list[bytes]) -> None:
        self.sent.extend(map(bytes, contents))

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False

    def get_write_buffer_size(self) -> int:
        return 0


class AttackedServer:
    """See the module. Needs a running `VirtualLoop`."""

    def __init__(self, folder: Path, loop: VirtualLoop, changes: Mapping[str, str]) -> None:
        authority = TestAuthority(folder)
        keys = folder / "keys.json"
        keys.write_text(json.dumps(KeySet([KEY]).as_dict(private=False)))
        prefix = "listener.name.sasl_plaintext."
        overrides = {
            "listeners": "SASL_PLAINTEXT://127.0.0.1:9092,SSL://127.0.0.1:9093",
            "advertised.listeners": "SASL_PLAINTEXT://127.0.0.1:9092,SSL://127.0.0.1:9093",
            "inter.broker.listener.name": "SASL_PLAINTEXT",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            prefix + "plain.sasl.jaas.config": JAAS,
            prefix + "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
            prefix + "sasl.oauthbearer.jwks.endpoint.refresh.ms": str(2**31 - 1),
            "delegation.token.secret.key": "of the tokens",
            **authority.broker_settings(),
            "ssl.client.auth": "requested",
            **changes,
        }
        config = NodeConfig.load(None, overrides, {})
        users = [added_user(f"{each}=[name={KNOWN},password=secret]", bytes) for each in DIGESTS]
        assert {each.mechanism for each in users} == set(NUMBERS.values())
        image = replace(EMPTY_IMAGE, scram=Map({(each.name, each.mechanism): each for each in users}))
        node = NodeView(1, "", config, lambda: image)
        answering = ApiVersions(node, api_ranges((), {}), supported={}, finalized=dict)
        threads: Any = None
        self.loop = loop
        self.metrics = NodeMetrics()
        self.errors: list[str] = []
        """Lines of the log that say that the node has a bug."""
        self.trust = ssl.create_default_context(cafile=str(authority.ca))
        self._listeners_sasl = sasl_of(config, config.listeners, lambda: image, loop)
        self._limits = ConnectionLimits(config.text, config.of_listener_only, dict, loop.monotonic_ms)
        self._server = Server(
            (),
            {ApiKey.API_VERSIONS: (*ANY_VERSION, answering.handle)},
            server_limits(config),
            self._limits,
            turns=Turns(loop, lambda: 0),
            metrics=self.metrics,
            threads=threads,
            tls=tls_of(config, NodeCertificates(config), config.listeners),
            sasl=self._listeners_sasl,
        )

    def connect(self, listener: str) -> Peer:
        return Peer(self._server._accept(listener))

    def note(self, level: str, room: str, event: str, fields: dict[str, Any]) -> None:
        """Receives the log."""
        if level == "error":
            self.errors.append(logs.json_line(level, room, event, fields))

    @property
    def connections(self) -> int:
        return sum(self._limits._open.values())


def with_server(
    folder: Path, story: Callable[[AttackedServer], None], changes: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Run `story`; the server may have no bug, and keep no connection. `changes`: of its properties."""

    async def run() -> None:
        server = AttackedServer(folder, loop, changes)
        before = logs.redirect(server.note)
        try:
            story(server)
        finally:
            logs.redirect(before)
        # The keys of tokens are read again in a thread.
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
        assert not server.errors, server.errors[0]
        assert server.connections == 0

    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(run())
    finally:
        asyncio.set_event_loop(None)
        loop.close()
