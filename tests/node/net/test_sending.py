"""Sending stored records to a socket."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import uvloop

from fenceline.log.core import disk as disk_module
from fenceline.log.core.disk import PAGE_BYTES, FileSlice, OsDisk, StoredFile
from fenceline.node.net import sending
from fenceline.node.net.sending import FileSender

CONTENT = os.urandom(1 << 20)


class _Transport:
    """The part of a transport that the sender uses."""

    def __init__(self, end: socket.socket) -> None:
        self.unsent_bytes = 0
        self.high_bytes: int | None = -1
        self._end = end

    def get_extra_info(self, name: str) -> socket.socket:
        assert name == "socket"
        return self._end

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def set_write_buffer_limits(self, high: int | None = None) -> None:
        self.high_bytes = high


class _Wire:
    """A sender and the peer's end of its socket."""

    def __init__(self, path: Path, ends: tuple[socket.socket, socket.socket] | None = None) -> None:
        """`ends`: ours and the peer's; None: a pair with a small send buffer."""
        ours, self.peer = ends or socket.socketpair()
        if ends is None:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 10)
        ours.setblocking(False)
        self.peer.setblocking(False)
        self.transport = _Transport(ours)
        self.threads = ThreadPoolExecutor(1)
        self.is_sent = asyncio.Event()
        self.failed: list[OSError] = []
        self.ended = asyncio.Event()
        self.sender = FileSender(
            self.transport,  # type: ignore[arg-type]
            self.threads,
            sent=self.is_sent.set,
            failed=self._note_failure,
        )
        path.write_bytes(CONTENT)
        disk = OsDisk()
        fd = disk.open_read(str(path))
        mapping = disk.map(fd, PAGE_BYTES, len(CONTENT) - PAGE_BYTES)
        assert mapping is not None
        file = StoredFile.of(fd)
        disk.close(fd)
        assert file is not None
        self.slice: FileSlice = mapping.file_slice(file, 10, len(CONTENT) - PAGE_BYTES)
        self.stored = CONTENT[PAGE_BYTES + 10 :]

    def _note_failure(self, error: OSError) -> None:
        self.failed.append(error)
        self.ended.set()

    async def received(self, size_bytes: int) -> bytes:
        taken = bytearray()
        while len(taken) < size_bytes:
            taken += await asyncio.get_running_loop().sock_recv(self.peer, 64 << 10)
        return bytes(taken)

    def close(self) -> None:
        self.sender.close()
        self.threads.shutdown()
        self.transport.get_extra_info("socket").close()
        self.peer.close()
        del self.slice
        self.failed.clear()  # their tracebacks know the slice


@pytest.fixture
def reported(tmp_path: Path) -> Callable[[Callable[[_Wire], Any]], None]:
    def run(story: Callable[[_Wire], Any]) -> None:
        async def whole() -> None:
            wire = _Wire(tmp_path / "segment")
            try:
                await asyncio.wait_for(story(wire), 60)
            finally:
                wire.close()

        disk_module._nowhere()  # is opened once
        before = len(os.listdir("/proc/self/fd"))
        asyncio.run(whole())
        assert len(os.listdir("/proc/self/fd")) == before, "every descriptor is closed"

    return run


def test_all_bytes_arrive_in_order(reported: Any) -> None:
    async def story(wire: _Wire) -> None:
        head, tail = b"h" * 50, bytearray(b"t" * 70_000)
        assert not wire.sender.send([head, wire.slice, tail, wire.slice, b"end"])
        assert wire.sender.is_busy
        expected = head + wire.stored + bytes(tail) + wire.stored + b"end"
        assert await wire.received(len(expected)) == expected
        await wire.is_sent.wait()
        assert not wire.sender.is_busy
        assert wire.sender.send([b"small"]), "the next one goes at once"
        assert await wire.received(5) == b"small"

    reported(story)


def test_bytes_buffered_in_the_transport_are_sent_first(reported: Any) -> None:
    async def story(wire: _Wire) -> None:
        wire.transport.unsent_bytes = 1
        assert not wire.sender.send([b"later"])
        assert wire.transport.high_bytes == 0, "the transport resumes its protocol when all is sent"
        await asyncio.sleep(0.01)
        with pytest.raises(BlockingIOError):
            wire.peer.recv(1)
        wire.transport.unsent_bytes = 0
        wire.sender.drained()
        assert wire.transport.high_bytes is None, "as before"
        assert await wire.received(5) == b"later"
        await wire.is_sent.wait()

    reported(story)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_response_follows_what_the_transport_has_buffered(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """On real transports: the response of a file comes after all small ones, and without a poll."""
    small, large = b"s" * (24 << 20), b"l" * (1 << 20)

    class Sending(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            self.transport = transport
            self.sender = FileSender(transport, None, sent=self.end, failed=errors.append)  # type: ignore[arg-type]
            transport.write(small)
            assert transport.get_write_buffer_size()
            assert not self.sender.send([large])

        def resume_writing(self) -> None:
            assert self.transport.get_write_buffer_size() == 0
            self.sender.drained()

        def end(self) -> None:
            self.sender.close()
            self.transport.close()

    errors: list[OSError] = []

    async def story() -> bytes:
        server = await asyncio.get_running_loop().create_server(Sending, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        received = await asyncio.wait_for(reader.read(-1), 60)
        writer.close()
        server.close()
        return received

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(story()) == small + large
    assert errors == []


@pytest.mark.parametrize("hurried", [True, False])
def test_one_response_blocks_the_loop_for_one_slice_only(
    reported: Any, monkeypatch: pytest.MonkeyPatch, hurried: bool
) -> None:
    """However fast the client reads: other requests are handled between two slices."""
    turns: list[int] = []

    def send_file(fd: int, stored: int, position: int, size_bytes: int) -> int:
        turns[-1] += size_bytes
        return size_bytes

    async def story(wire: _Wire) -> None:
        monkeypatch.setattr(sending.os, "sendfile", send_file)
        monkeypatch.setattr(sending, "LARGE_SLICE_BYTES", 2 * sending.SLICE_BYTES)
        wire.sender._has_urgent_requests = lambda: hurried
        go_on = FileSender._continue

        def counted(self: FileSender, *, is_fresh: bool) -> bool:
            turns.append(0)
            return go_on(self, is_fresh=is_fresh)

        monkeypatch.setattr(FileSender, "_continue", counted)
        assert not wire.sender.send([wire.slice])
        await wire.is_sent.wait()
        assert sum(turns) == len(wire.slice)
        assert max(turns) == (sending.SLICE_BYTES if hurried else sending.LARGE_SLICE_BYTES)

    reported(story)


def test_pages_dropped_from_the_cache_are_loaded_by_a_thread(reported: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loop_thread = threading.get_ident()
    loaded: list[tuple[int, int]] = []
    sent_after: list[int] = []
    load, send_file = FileSlice.load, os.sendfile

    def noted_load(self: FileSlice, start: int, end: int) -> None:
        assert threading.get_ident() != loop_thread
        load(self, start, end)
        loaded.append((start, end))

    def noted_send(out: int, fd: int, position: int, size_bytes: int) -> int:
        if threading.get_ident() == loop_thread:
            sent_after.append(len(loaded))
        return send_file(out, fd, position, size_bytes)

    async def story(wire: _Wire) -> None:
        monkeypatch.setattr(FileSlice, "is_resident", lambda self, start, end: False)
        monkeypatch.setattr(FileSlice, "load", noted_load)
        monkeypatch.setattr(sending.os, "sendfile", noted_send)
        wire.sender.send([wire.slice])
        assert await wire.received(len(wire.stored)) == wire.stored
        await wire.is_sent.wait()
        assert loaded
        assert sent_after[0] == 0, "the first bytes were seen in the cache when the response was built"
        assert loaded[-1][1] == len(wire.slice)

    reported(story)


def test_a_failing_disk_aborts_the_response(reported: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: FileSlice, start: int, end: int) -> None:
        raise OSError(5, "broken")

    async def story(wire: _Wire) -> None:
        monkeypatch.setattr(FileSlice, "is_resident", lambda self, start, end: False)
        monkeypatch.setattr(FileSlice, "load", broken)
        wire.sender.send([wire.slice])
        wire.peer.recv(64 << 10)
        await wire.ended.wait()
        assert wire.failed[0].errno == 5
        assert not wire.sender.is_busy
        assert not wire.is_sent.is_set()

    reported(story)


def test_a_truncated_file_aborts_the_response(reported: Any, tmp_path: Path) -> None:
    async def story(wire: _Wire) -> None:
        os.truncate(tmp_path / "segment", PAGE_BYTES)
        wire.sender.send([b"head", wire.slice])
        assert [str(error) for error in wire.failed] == ["[Errno 5] the segment file was truncated"]

    reported(story)


def test_a_client_disconnects(reported: Any) -> None:
    async def story(wire: _Wire) -> None:
        assert not wire.sender.send([wire.slice])
        wire.peer.close()
        await wire.ended.wait()
        assert isinstance(wire.failed[0], ConnectionError)
        assert not wire.is_sent.is_set()

    reported(story)


@pytest.fixture
def over_tcp(tmp_path: Path) -> Callable[[Callable[[_Wire], Any]], None]:
    def run(story: Callable[[_Wire], Any]) -> None:
        async def whole() -> None:
            with socket.create_server(("127.0.0.1", 0)) as listening:
                ours = socket.create_connection(listening.getsockname())
                peer, _ = listening.accept()
            ours.setblocking(False)
            peer.setblocking(False)
            wire = _Wire(tmp_path / "segment", (ours, peer))
            try:
                await asyncio.wait_for(story(wire), 60)
            finally:
                wire.close()

        asyncio.run(whole())

    return run


class _WatchedSocket:
    """Records the options that a sender sets, in the order of what it sends."""

    def __init__(self, real: socket.socket, calls: list[tuple[str, int]]) -> None:
        self._real = real
        self._calls = calls

    def setsockopt(self, level: int, option: int, value: int) -> None:
        assert (level, option) == (socket.IPPROTO_TCP, socket.TCP_CORK)
        self._calls.append(("cork", value))
        self._real.setsockopt(level, option, value)

    def send(self, content: memoryview, flags: int) -> int:
        self._calls.append(("send", len(content)))
        return self._real.send(content, flags)

    def close(self) -> None:
        self._real.close()


@pytest.mark.skipif(not hasattr(socket, "TCP_CORK"), reason="of Linux")
def test_an_answer_is_one_run_of_full_segments(over_tcp: Any) -> None:
    """The socket is corked once for each answer and uncorked at its end; a single buffer needs neither."""

    async def story(wire: _Wire) -> None:
        calls: list[tuple[str, int]] = []
        wire.sender._socket = _WatchedSocket(wire.sender._socket, calls)  # type: ignore[assignment]
        expected = b"head" + wire.stored + b"between" + wire.stored + b"end"
        for _ in range(2):
            wire.is_sent.clear()
            if not wire.sender.send([b"head", wire.slice, b"between", wire.slice, b"end"]):
                assert await wire.received(len(expected)) == expected
                await wire.is_sent.wait()
            else:
                assert await wire.received(len(expected)) == expected
        sizes = ["head", "between", "end"] * 2
        assert [value for name, value in calls if name == "send"] == [len(each) for each in sizes]
        assert [value for name, value in calls if name == "cork"] == [1, 0, 1, 0]
        assert calls[0] == ("cork", 1)
        assert calls[-1] == ("cork", 0), "nothing stays behind"
        calls.clear()
        assert wire.sender.send([b"small"])
        assert calls == [("send", 5)]

    over_tcp(story)


class _Connected:
    """A socket between two addresses, with a congestion control."""

    def __init__(self, here: str, there: str, control: bytes) -> None:
        self._addresses = here, there
        self.control = control

    def getsockname(self) -> tuple[str, int]:
        return self._addresses[0], 9092

    def getpeername(self) -> tuple[str, int]:
        return self._addresses[1], 40_000

    def getsockopt(self, level: int, option: int, size_bytes: int) -> bytes:
        return self.control.ljust(size_bytes, b"\0")

    def setsockopt(self, level: int, option: int, value: bytes) -> None:
        self.control = value


@pytest.mark.skipif(not hasattr(socket, "TCP_CONGESTION"), reason="of Linux")
@pytest.mark.parametrize(
    ("here", "there", "control", "expected"),
    [
        ("127.0.0.1", "127.0.0.1", b"bbr", b"reno"),
        ("10.0.0.7", "10.0.0.7", b"bbr", b"reno"),
        ("::1", "::1", b"bbr2", b"reno"),
        ("10.0.0.7", "10.0.0.8", b"bbr", b"bbr"),
        ("127.0.0.1", "127.0.0.1", b"cubic", b"cubic"),
    ],
)
def test_only_peers_on_this_machine_are_not_paced(here: str, there: str, control: bytes, expected: bytes) -> None:
    connected = _Connected(here, there, control)
    sending.unpace_local(connected)  # type: ignore[arg-type]
    assert connected.control == expected


@pytest.mark.skipif(not hasattr(socket, "TCP_CONGESTION"), reason="of Linux")
def test_a_sender_looks_at_its_socket_once(over_tcp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[socket.socket] = []
    monkeypatch.setattr(sending, "unpace_local", looked.append)

    async def story(wire: _Wire) -> None:
        for _ in range(3):
            assert wire.sender.send([b"small", b"answer"])
        assert looked == [wire.sender._socket]

    over_tcp(story)
