"""Filters on sockets of another process: nothing arrives, nothing is refused, nothing is lost afterwards."""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from fenceline.local_cluster import socket_cuts
from fenceline.local_cluster.socket_cuts import UNFILTERED, CutsUnavailable, SocketFilter, sockets_of
from tests.testing.echo_peer import Peer, need_cuts
from tests.testing.echo_process import ESTABLISHED, SYN_SENT


@pytest.fixture
def server() -> Iterator[Peer]:
    need_cuts()
    with Peer() as peer:
        yield peer


@pytest.fixture
def client() -> Iterator[Peer]:
    with Peer("127.0.0.7") as peer:
        yield peer


def apply_to_all(peer: Peer, treatment: SocketFilter, *, listening: bool, before: SocketFilter = UNFILTERED) -> int:
    """Apply a filter to all listening sockets or all connections of a process; returns their number."""
    count = 0
    for found in sockets_of(peer.pid):
        if found.is_listening is listening:
            found.apply(before, treatment)
            count += 1
    return count


def test_sockets_are_distinguished(server: Peer, client: Peer) -> None:
    client.connect(server)
    found = [(each.is_listening, each.local, each.remote) for each in sockets_of(server.pid)]
    listening, connected = sorted(found, key=lambda each: not each[0])
    assert listening == (True, ("127.0.0.1", server.port), None)
    assert connected[:2] == (False, ("127.0.0.1", server.port))
    assert connected[2] is not None
    assert connected[2][0] == "127.0.0.7"


def test_incoming_bytes_are_dropped_and_arrive_when_the_cut_ends(server: Peer, client: Peer) -> None:
    near, far = client.connect(server)
    cut = SocketFilter(lose_incoming=True)
    near.send("before ")
    far.wait_heard("before ")
    assert apply_to_all(server, cut, listening=False) == 1
    near.send("during ")
    near.wait_lost()
    far.look()
    assert far.heard == "before "
    apply_to_all(server, UNFILTERED, listening=False, before=cut)
    near.send("after")
    far.wait_heard("before during after")
    assert not near.is_ended


def test_outgoing_bytes_are_dropped_while_incoming_arrive(server: Peer, client: Peer) -> None:
    near, far = client.connect(server)
    cut = SocketFilter(lose_outgoing=True)
    apply_to_all(server, cut, listening=False)
    far.send("answer ")
    far.wait_lost()
    near.look()
    assert near.heard == ""
    near.send("question")
    far.wait_heard("question")
    apply_to_all(server, UNFILTERED, listening=False, before=cut)
    far.send("and more")
    near.wait_heard("answer and more")


def test_a_connect_hangs_and_is_not_refused(server: Peer, client: Peer) -> None:
    cut = SocketFilter(lose_incoming=True)
    assert apply_to_all(server, cut, listening=True) == 1
    near = client.dial(server)
    near.wait_lost()
    assert near.look()["state"] == SYN_SENT
    assert not near.is_ended
    apply_to_all(server, UNFILTERED, listening=True, before=cut)
    near.wait_state(ESTABLISHED)
    near.send("hello")
    server.accept().wait_heard("hello")


@pytest.mark.parametrize(
    ("treatment", "connects", "hangs"),
    [
        (SocketFilter(lose_from=frozenset({"127.0.0.7", "127.0.0.8"})), "127.0.0.9", "127.0.0.7"),
        (SocketFilter(lose_from=frozenset({"127.0.0.6", "127.0.0.7"})), "127.0.0.9", "127.0.0.7"),
        (SocketFilter(lose_incoming=True, let_in=frozenset({"127.0.0.9"})), "127.0.0.9", "127.0.0.7"),
    ],
)
def test_listening_sockets_distinguish_sources(
    server: Peer, client: Peer, treatment: SocketFilter, connects: str, hangs: str
) -> None:
    assert hangs == "127.0.0.7"
    apply_to_all(server, treatment, listening=True)
    with Peer(connects) as other:
        near, far = other.connect(server)
        near.send("x")
        far.wait_heard("x")
    lost = client.dial(server)
    lost.wait_lost()
    assert lost.look()["state"] == SYN_SENT


def test_the_end_of_a_cut_off_process_is_not_noticed(server: Peer, client: Peer) -> None:
    near, _ = client.connect(server)
    apply_to_all(server, SocketFilter(lose_incoming=True, lose_outgoing=True), listening=False)
    server.kill()
    near.send("anybody?")
    near.wait_lost()
    assert near.look()["state"] == ESTABLISHED
    assert not near.is_ended


def test_an_ended_process_has_no_sockets(server: Peer) -> None:
    server.kill()
    assert list(sockets_of(server.pid)) == []


@pytest.mark.parametrize(
    ("code", "said"), [(errno.EPERM, "cannot be reached"), (errno.ENOSYS, "cannot be cut on this kernel")]
)
def test_a_system_without_cuts_is_reported(server: Peer, monkeypatch: pytest.MonkeyPatch, code: int, said: str) -> None:
    class Refuses:
        def syscall(self, *arguments: int) -> int:
            ctypes.set_errno(code)
            return -1

    monkeypatch.setattr(socket_cuts, "_libc", Refuses())
    with pytest.raises(CutsUnavailable, match=said) as refused:
        list(sockets_of(server.pid))
    assert refused.value.advice


def test_a_descriptor_closed_meanwhile_is_skipped(server: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone:
        def syscall(self, *arguments: int) -> int:
            ctypes.set_errno(errno.EBADF)
            return -1

    monkeypatch.setattr(socket_cuts, "_libc", Gone())
    assert list(sockets_of(server.pid)) == []


def test_other_operating_systems_are_rejected(server: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket_cuts.sys, "platform", "darwin")
    with pytest.raises(CutsUnavailable, match="darwin"):
        list(sockets_of(server.pid))


def test_a_system_that_accepts_source_routed_packets_is_rejected(
    server: Peer, client: Peer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.connect(server)
    for device in ("all", "lo"):
        (tmp_path / device).write_text("1\n")
    monkeypatch.setattr(socket_cuts, "_SOURCE_ROUTE_ACCEPTED", f"{tmp_path}/{{}}")
    with pytest.raises(CutsUnavailable, match="source-routed"):
        apply_to_all(server, SocketFilter(lose_outgoing=True), listening=False)
    (tmp_path / "all").write_text("0\n")
    assert apply_to_all(server, SocketFilter(lose_outgoing=True), listening=False) == 1


def test_no_descriptors_stay_open(server: Peer) -> None:
    found = list(sockets_of(server.pid))
    assert found
    for each in found:
        with pytest.raises(OSError):
            each._socket.getsockname()
