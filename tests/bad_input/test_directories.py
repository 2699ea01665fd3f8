"""Directories that belong to another node, and voters that were changed while they were down."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from fenceline.errors import ErrorCode, OperatorError
from fenceline.node.controller_node import ControllerNode
from fenceline.node.logs import redirect
from fenceline.node.metadata.format import format_directory
from fenceline.node.quorum import watch as quorum_watch
from fenceline.quorum.election_state import decode_election
from fenceline.wire.apis import ApiKey
from tests.node.test_controller_nodes import CLUSTER, Three, eventually, run, three

pytestmark = pytest.mark.timeout(180)

Line = tuple[str, dict[str, Any]]


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Line]]:
    """The lines logged by the node; problems are logged without delay."""
    monkeypatch.setattr(quorum_watch, "_LASTS_MS", 0)
    monkeypatch.setattr(quorum_watch, "_CHECK_S", 0.05)
    logged: list[Line] = []
    before = redirect(lambda level, room, event, fields: logged.append((event, fields)))
    yield logged
    redirect(before)


async def reported(lines: list[Line], event: str, **wanted: Any) -> dict[str, Any]:
    found: dict[str, Any] = await eventually(
        lambda: next(
            (fields for text, fields in lines if text == event and all(fields.get(k) == v for k, v in wanted.items())),
            None,
        )
    )
    return found


def data(cluster: Three, node_id: int) -> Path:
    return Path(cluster.configs[node_id - 1].log_dirs[0])


async def start_error(cluster: Three, node_id: int) -> OperatorError:
    node = ControllerNode(cluster.configs[node_id - 1])
    try:
        with pytest.raises(OperatorError) as logged:
            await node.start()
        return logged.value
    finally:
        await node.stop()


@pytest.mark.parametrize("edited", [False, True], ids=["unchanged", "with meta.properties adjusted"])
def test_data_directories_swapped_between_nodes(tmp_path: Path, edited: bool) -> None:
    async def story() -> None:
        async with three(tmp_path) as cluster:
            await cluster.leader()
            one, two = data(cluster, 1), data(cluster, 2)
            for node_id in (1, 2):
                await cluster.stop(node_id)
            one.rename(tmp_path / "away")
            two.rename(one)
            (tmp_path / "away").rename(two)
            for directory, own, other in ((one, 1, 2), (two, 2, 1)) if edited else ():
                meta = directory / "meta.properties"
                meta.write_text(meta.read_text().replace(f"node.id={other}", f"node.id={own}"))
            for node_id, other in ((1, 2), (2, 1)):
                logged = await start_error(cluster, node_id)
                if edited:
                    assert logged.message.endswith(f"belongs to voter {other}, but this is node {node_id}.")
                    assert "Restore each node's own directory" in logged.advice
                else:
                    assert f"belongs to node {other}, this is node {node_id}" in logged.message

    run(story)


def test_voter_removed_while_down_returns_as_observer(tmp_path: Path, lines: list[Line]) -> None:
    """It returns as an observer with the full log, and reports that it is no voter."""

    async def story() -> None:
        async with three(tmp_path) as cluster:
            await cluster.leader()
            await cluster.stop(3)
            leader = await cluster.leader()
            connection = await cluster.connect(leader.node_id)
            removal = {"cluster_id": None, "voter_id": 3, "voter_directory_id": UUID(int=1002)}
            answer = await connection.call(ApiKey.REMOVE_RAFT_VOTER, 0, removal, 20)
            assert answer.error_code is ErrorCode.NONE
            connection.close()
            del lines[:]
            await cluster.start(3)
            logged = await reported(lines, "this controller is not a voter", node=3)
            assert logged["voters"] == [1, 2]
            assert "fenceline quorum add" in logged["advice"]
            back = cluster.running[3].controller
            await eventually(lambda: back.quorum.leader_id == leader.node_id)
            assert not back.quorum.is_voter
            assert [fields for event, fields in lines if event == "this controller is not a voter"] == [logged]

    run(story)


def test_voter_with_replaced_disk_follows_without_voting(tmp_path: Path, lines: list[Line]) -> None:
    """The right node id with another directory id: it follows and does not vote, and both sides log it."""

    async def story() -> None:
        async with three(tmp_path) as cluster:
            await cluster.leader()
            await cluster.stop(3)
            shutil.rmtree(data(cluster, 3))
            format_directory([data(cluster, 3)], cluster_id=CLUSTER, node_id=3, voters=())
            await cluster.start(3)
            logged = await reported(lines, "this controller is not a voter", node=3)
            assert logged["registered"] != logged["directory"]
            assert f"fenceline quorum remove 3 --directory-id {logged['registered']}" in logged["advice"]
            meant = await eventually(lambda: next((text for text, _ in lines if "is not voter 3" in text), None))
            assert logged["registered"] in meant

    run(story)


def test_no_leader_without_a_majority(tmp_path: Path, lines: list[Line], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quorum_watch, "_REPEAT_MS", 0)

    async def story() -> None:
        async with three(tmp_path, 1) as cluster:
            logged = await reported(lines, "the quorum has no leader")
            assert logged["voters"] == [1, 2, 3]
            assert "majority" in logged["advice"]
            gone = f"no process listens on 127.0.0.1:{cluster.ports[1]}"
            await eventually(lambda: any(gone in fields.get("unreached", "") for _, fields in lines))
            await cluster.start(2)
            await reported(lines, "the quorum has a leader again")
            assert (await cluster.leader()).controller.is_active

    run(story)


@pytest.mark.parametrize(
    ("content", "logged"),
    [
        (b"", "Cannot read"),
        (b"\0\xff", "Cannot read"),
        (b"[]", "Cannot read"),
        (b"{}", "Cannot read"),
        (b'{"leaderId":1,"leaderEpoch":-5,"votedId":-1,"data_version":0}', "Cannot read"),
        (
            b'{"leaderId":1,"leaderEpoch":5,"votedId":-1,"data_version":2}',
            "has data_version 2; this release supports 0 and 1",
        ),
    ],
)
def test_damaged_or_newer_quorum_state_is_rejected(content: bytes, logged: str) -> None:
    with pytest.raises(OperatorError) as refused_:
        decode_election(content, "/data/quorum-state")
    assert "/data/quorum-state" in refused_.value.message
    assert logged in refused_.value.message
    assert "newer release" in refused_.value.advice or "must not be recreated" in refused_.value.advice
