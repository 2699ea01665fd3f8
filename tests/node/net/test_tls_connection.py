"""The handshake of a TLS connection, whatever the peer sends. Rules: security.md A12, A69."""

from __future__ import annotations

import hashlib
import hmac
import ssl
import struct
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fenceline.wire.apis import ApiKey
from tests.security.attacked_server import AttackedServer, Peer, with_server

VERSIONS = struct.pack(">ihhih", 10, ApiKey.API_VERSIONS, 0, 7, 0)
KEY_UPDATES = 20_000


class Client:
    """The other side, with the `ssl` library."""

    def __init__(self, server: AttackedServer, key_log: Path | None = None) -> None:
        context = server.trust
        if key_log is not None:
            context.keylog_filename = str(key_log)
        self._incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self.outgoing, server_hostname="127.0.0.1")
        with pytest.raises(ssl.SSLWantReadError):
            self.tls.do_handshake()
        self.hello = self.outgoing.read()

    def finish(self, peer: Peer) -> bytes:
        """Complete the handshake; returns what the client sends after it: an ApiVersions request."""
        self._incoming.write(peer.take())
        self.tls.do_handshake()
        assert peer.receive(self.outgoing.read())
        self.tls.write(VERSIONS)
        return self.outgoing.read()

    def read(self, peer: Peer) -> bytes:
        self._incoming.write(peer.take())
        return self.tls.read(1 << 16)


@pytest.mark.parametrize("fragment_bytes", [1, 100, 1 << 14])
def test_records_split_at_each_byte(fragment_bytes: int, tmp_path: Path) -> None:
    """Also the message of the client in many records."""

    def story(server: AttackedServer) -> None:
        whole = Client(server).hello
        for at in range(0, len(whole) + 1, 1 if fragment_bytes > 100 else 50):
            client = Client(server)
            left, records = client.hello[5:], b""
            while left:
                piece, left = left[:fragment_bytes], left[fragment_bytes:]
                records += client.hello[:3] + struct.pack(">H", len(piece)) + piece
            peer = server.connect("SSL")
            assert peer.receive(records[:at])
            assert peer.receive(records[at:])
            request = client.finish(peer)
            assert peer.receive(request[: at % len(request)])
            assert peer.receive(request[at % len(request) :])
            assert client.read(peer)[4:8] == struct.pack(">i", 7)
            peer.end()

    with_server(tmp_path, story)


def test_one_byte_at_a_time(tmp_path: Path) -> None:
    def story(server: AttackedServer) -> None:
        client, peer = Client(server), server.connect("SSL")
        assert all(peer.receive(bytes((byte,))) for byte in client.hello)
        assert all(peer.receive(bytes((byte,))) for byte in client.finish(peer))
        assert client.read(peer)[4:8] == struct.pack(">i", 7)
        peer.end()

    with_server(tmp_path, story)


def test_plaintext_and_damaged_records_are_answered_with_an_alert(tmp_path: Path) -> None:
    def story(server: AttackedServer) -> None:
        for count, content in enumerate((VERSIONS, b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + bytes(9)), 1):
            peer = server.connect("SSL")
            assert not peer.receive(content)
            assert peer.take()[:1] in (b"\x15", b"")
            assert server.metrics.failed_authentications == count
            peer.end()

    with_server(tmp_path, story)


def test_a_peer_that_stalls_is_disconnected_whatever_it_has_sent(tmp_path: Path) -> None:
    def story(server: AttackedServer) -> None:
        hello = Client(server).hello
        for sent in (b"", hello[:1], hello[:5], hello[:-1], hello, hello + b"\x16\x03\x03"):
            peer = server.connect("SSL")
            assert peer.receive(sent)
            server.loop.pass_s(9.9)
            assert not peer.is_closed
            server.loop.pass_s(0.2)
            assert peer.is_closed
            peer.end()

    with_server(tmp_path, story)


def test_handshakes_count_as_connections(tmp_path: Path) -> None:
    """Of max.connections: a peer above it is disconnected before the handshake."""

    def story(server: AttackedServer) -> None:
        first = [server.connect("SSL") for _ in range(3)]
        refused = server.connect("SSL")
        assert refused.is_closed
        refused.end()
        client = Client(server)
        assert first[0].receive(client.hello)
        assert first[0].receive(client.finish(first[0]))
        assert client.read(first[0])[4:8] == struct.pack(">i", 7)
        for peer in first:
            peer.end()

    with_server(tmp_path, story, {"max.connections": "3"})


def test_a_peer_that_reads_no_answers_to_key_updates_is_not_read(tmp_path: Path) -> None:
    """The TLS library answers each by itself, so that they would fill the memory of the node."""

    def story(server: AttackedServer) -> None:
        log = tmp_path / "secrets"
        client, peer = Client(server, log), server.connect("SSL")
        assert peer.receive(client.hello)
        assert peer.receive(client.finish(peer))
        secret = next(
            bytes.fromhex(line.split()[2])
            for line in log.read_text().splitlines()
            if line.startswith("CLIENT_TRAFFIC_SECRET_0")
        )
        peer.high_water_bytes = 64 << 10
        sequence, count = 1, 0  # the first record was the request
        while peer.receive(_key_update(secret, sequence)) and count < KEY_UPDATES:
            secret, sequence, count = _expanded(secret, b"traffic upd", 48), 0, count + 1
        assert 100 < count < KEY_UPDATES
        assert len(peer.take()) < 128 << 10
        peer.drain()
        assert peer.receive(_key_update(secret, 0)), "it is read again"
        peer.end()

    with_server(tmp_path, story)


@pytest.mark.parametrize("record_bytes", [1, 10, 1_000, 16_384])
@pytest.mark.parametrize("segment_bytes", [1_460, 30_000, 1 << 20])
def test_a_large_request_is_read_in_large_steps(record_bytes: int, segment_bytes: int, tmp_path: Path) -> None:
    """And its end as soon as it is there."""

    def story(server: AttackedServer) -> None:
        client, peer = Client(server), server.connect("SSL")
        assert peer.receive(client.hello)
        assert peer.receive(client.finish(peer))
        client.read(peer)
        small = record_bytes < 1_000
        for name_bytes in (0, 60_000, 80_000, 100_000) if small else (0, 79_990, 81_900, 300_000, 3_000_000):
            request = _request(name_bytes)
            for at in range(0, len(request), record_bytes):
                client.tls.write(request[at : at + record_bytes])
            content, steps = client.outgoing.read(), []
            for at in range(0, len(content), segment_bytes):
                assert peer.receive(content[at : at + segment_bytes])
                steps.append(peer.low_water_bytes)
            assert client.read(peer)[4:8] == struct.pack(">i", 7), name_bytes
            assert peer.low_water_bytes == 1
            if name_bytes >= 100_000 and segment_bytes < 1 << 20:
                assert max(steps) == 32 << 10
        peer.end()

    with_server(tmp_path, story)


def _request(name_bytes: int) -> bytes:
    """ApiVersions of a client with a long name."""
    head = struct.pack(">hhih", ApiKey.API_VERSIONS, 3, 7, -1) + b"\0"
    size, left = b"", name_bytes + 1
    while left > 0x7F:
        size, left = size + bytes((left & 0x7F | 0x80,)), left >> 7
    content = head + size + bytes((left,)) + b"n" * name_bytes + b"\x021\0"
    return struct.pack(">i", len(content)) + content


def _key_update(secret: bytes, sequence: int) -> bytes:
    """A record of TLS_AES_256_GCM_SHA384 that asks for an answer (RFC 8446, 4.6.3)."""
    content = b"\x18\0\0\x01\x01\x16"
    header = b"\x17\x03\x03" + struct.pack(">H", len(content) + 16)
    nonce = bytes(a ^ b for a, b in zip(_expanded(secret, b"iv", 12), sequence.to_bytes(12, "big"), strict=True))
    return header + AESGCM(_expanded(secret, b"key", 32)).encrypt(nonce, content, header)


def _expanded(secret: bytes, label: bytes, size: int) -> bytes:
    """HKDF-Expand-Label, of at most one hash."""
    labelled = struct.pack(">HB", size, len(label) + 6) + b"tls13 " + label + b"\0"
    return hmac.new(secret, labelled + b"\x01", hashlib.sha384).digest()[:size]
