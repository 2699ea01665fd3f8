"""Which nodes can reach which: nodes here are plain processes with TCP sockets, each with its own address."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from fenceline.local_cluster import socket_cuts
from fenceline.local_cluster.cuts import NetworkCut, NetworkCuts, outbound_address
from fenceline.local_cluster.socket_cuts import CutsUnavailable
from fenceline.testing.waiting import eventually
from tests.testing.echo_peer import LOST_AFTER_RETRANSMITS, Connection, Peer, need_cuts
from tests.testing.echo_process import ESTABLISHED, SYN_SENT


class Cluster:
    """Three peers as nodes, one as a client."""

    def __init__(self, stack: ExitStack) -> None:
        self.nodes = {node: stack.enter_context(Peer(outbound_address(node))) for node in (1, 2, 3)}
        self.client = stack.enter_context(Peer())
        listeners = {("127.0.0.1", peer.port): node for node, peer in self.nodes.items()}
        self.cuts = NetworkCuts(listeners, lambda: {node: peer.pid for node, peer in self.nodes.items()})
        stack.callback(self.cuts.close)

    def __getitem__(self, node: int) -> Peer:
        return self.nodes[node]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    need_cuts()
    with ExitStack() as stack:
        yield Cluster(stack)


def passes(sender: Connection, receiver: Connection, text: str) -> None:
    before = receiver.heard
    sender.send(text)
    receiver.wait_heard(before + text)


def is_lost(sender: Connection, receiver: Connection, text: str) -> None:
    receiver.look()
    before = receiver.heard
    sender.send(text)
    sender.wait_lost()
    receiver.look()
    assert receiver.heard == before


def test_isolation_cuts_open_connections(cluster: Cluster) -> None:
    dialled, taken = cluster[1].connect(cluster[2])
    called, answered = cluster[2].connect(cluster[1])
    asking, serving = cluster.client.connect(cluster[1])
    others = cluster[2].connect(cluster[3])
    for near, far in ((dialled, taken), (called, answered), (asking, serving)):
        passes(near, far, "a")
        passes(far, near, "b")
    cluster.cuts.isolate(1, [NetworkCut()])
    for near, far in ((dialled, taken), (called, answered), (asking, serving)):
        is_lost(near, far, "c")
        is_lost(far, near, "d")
        assert not near.is_ended
        assert not far.is_ended
    passes(*others, "meanwhile")
    cluster.cuts.heal(1)
    for near, far in ((dialled, taken), (called, answered), (asking, serving)):
        far.wait_heard("ac")
        near.wait_heard("bd")


def test_isolation_cuts_new_connections(cluster: Cluster) -> None:
    cluster.cuts.isolate(1, [NetworkCut()])
    hanging = [cluster[1].dial(cluster[2]), cluster[2].dial(cluster[1]), cluster.client.dial(cluster[1])]
    for each in hanging:
        each.wait_lost()
        assert each.look()["state"] == SYN_SENT
        assert not each.is_ended
    passes(*cluster[1].connect(cluster[1]), "itself")
    passes(*cluster[2].connect(cluster[3]), "others")
    passes(*cluster.client.connect(cluster[2]), "client")
    cluster.cuts.heal(1)
    for each in hanging:
        each.wait_state(ESTABLISHED)


def test_a_node_is_cut_off_from_one_other_node(cluster: Cluster) -> None:
    cut_off = cluster[1].connect(cluster[2])
    cluster.cuts.isolate(1, [NetworkCut(peer=2)])
    is_lost(*cut_off, "x")
    hanging = cluster[2].dial(cluster[1])
    passes(*cluster[1].connect(cluster[3]), "others")
    passes(*cluster[3].connect(cluster[1]), "others")
    passes(*cluster.client.connect(cluster[1]), "client")
    hanging.wait_lost()
    assert hanging.look()["state"] == SYN_SENT


@pytest.mark.parametrize("inbound", [True, False])
def test_only_one_direction_is_cut(cluster: Cluster, inbound: bool) -> None:
    ours, theirs = cluster[1].connect(cluster[2])
    cluster.cuts.isolate(1, [NetworkCut(peer=2, inbound=inbound, outbound=not inbound)])
    lost, kept = ((theirs, ours), (ours, theirs)) if inbound else ((ours, theirs), (theirs, ours))
    is_lost(*lost, "lost")
    passes(*kept, "kept")
    hanging = cluster[2].dial(cluster[1])
    hanging.wait_lost()
    cluster.cuts.heal(1)
    lost[1].wait_heard("lost")
    hanging.wait_state(ESTABLISHED)


def test_a_request_arrives_and_the_response_does_not(cluster: Cluster) -> None:
    asking, serving = cluster.client.connect(cluster[1])
    cluster.cuts.isolate(1, [NetworkCut(inbound=False)])
    passes(asking, serving, "question")
    is_lost(serving, asking, "answer")
    cluster.cuts.heal(1)
    asking.wait_heard("answer")


def test_a_connection_accepted_during_a_cut_is_cut(cluster: Cluster) -> None:
    asking = cluster.client.dial(cluster[1])
    asking.wait_state(ESTABLISHED)
    cluster.cuts.isolate(1, [NetworkCut()])
    serving = cluster[1].accept()
    # The socket cannot be filtered before it is accepted; the watch finds it soon afterwards.
    sent = 0

    def nothing_arrives() -> bool:
        nonlocal sent
        if asking.look()["retransmits"] == 0:
            asking.send("x")
            sent += 1
        return bool(asking.look()["retransmits"] >= LOST_AFTER_RETRANSMITS)

    eventually(nothing_arrives, "connections of an isolated node are closed")
    cluster.cuts.heal(1)
    serving.wait_heard("x" * sent)


def test_a_restarted_node_stays_cut_off(cluster: Cluster) -> None:
    with Peer(outbound_address(1)) as again:
        cluster.cuts = NetworkCuts(
            {("127.0.0.1", again.port): 1, ("127.0.0.1", cluster[2].port): 2},
            lambda: {node: peer.pid for node, peer in cluster.nodes.items() if node != 3},
        )
        cluster.cuts.isolate(1, [NetworkCut()])
        cluster[1].kill()
        cluster.nodes[1] = again
        hanging: list[Connection] = []

        def hangs() -> bool:
            if not hanging or hanging[-1].look()["state"] == ESTABLISHED:
                hanging.append(cluster.client.dial(again))
            return bool(hanging[-1].look()["retransmits"] >= LOST_AFTER_RETRANSMITS)

        eventually(hangs, "a node that was cut off before it was started is not reached")
        cluster.cuts.heal(1)
        hanging[-1].wait_state(ESTABLISHED)


def test_healing_a_node_keeps_the_cuts_of_others(cluster: Cluster) -> None:
    pair = cluster[1].connect(cluster[2])
    cluster.cuts.isolate(1, [NetworkCut()])
    cluster.cuts.isolate(2, [NetworkCut()])
    cluster.cuts.heal(1)
    assert cluster.cuts.of(1) == []
    assert cluster.cuts.of(2) == [NetworkCut()]
    is_lost(*pair, "x")
    passes(*cluster.client.connect(cluster[1]), "healed")
    cluster.cuts.heal(2)
    pair[1].wait_heard("x")


@pytest.mark.parametrize(
    ("cut", "lost"),
    [
        (NetworkCut(), {(1, 2), (1, 3), (1, None), (2, 1), (3, 1), (None, 1)}),
        (NetworkCut(outbound=False), {(2, 1), (3, 1), (None, 1)}),
        (NetworkCut(inbound=False), {(1, 2), (1, 3), (1, None)}),
        (NetworkCut(peer=2), {(1, 2), (2, 1)}),
        (NetworkCut(peer=2, outbound=False), {(2, 1)}),
        (NetworkCut(peer=3, inbound=False), {(1, 3)}),
    ],
)
def test_each_cut_loses_its_directions(cut: NetworkCut, lost: set[tuple[int | None, int | None]]) -> None:
    cuts = NetworkCuts({("127.0.0.1", port): port for port in (1, 2, 3)}, dict)
    cuts.isolate(1, [cut])
    everybody = (1, 2, 3, None)
    assert {(a, b) for a in everybody for b in everybody if cuts.is_lost(a, b)} == lost
    cuts.heal(1)
    assert not any(cuts.is_lost(a, b) for a in everybody for b in everybody)


def test_without_permission_nothing_changes(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket_cuts.sys, "platform", "darwin")
    with pytest.raises(CutsUnavailable):
        cluster.cuts.isolate(1, [NetworkCut()])
    assert cluster.cuts.of(1) == []
    assert not cluster.cuts.is_lost(1, 2)
