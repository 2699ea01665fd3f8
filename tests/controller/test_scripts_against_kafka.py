"""Whole scripts for this controller and for Apache Kafka 4.3.1's: equal responses, equal records.

The brokers of a script do not exist: both controllers know them only from the script (`two_controllers`). Where this
controller deviates on purpose, the step gives the reason (`gaps.md`), and only the response is compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from fenceline.controller.partition_requests import (
    AlterPartition,
    AlterPartitionReassignments,
    AssignReplicasToDirs,
    ElectLeaders,
    IsrChange,
    IsrMember,
    ListPartitionReassignments,
    Reassignment,
)
from fenceline.controller.requests import (
    AllocateProducerIds,
    BrokerHeartbeat,
    ConfigChange,
    ConfigOperation,
    CreateTopics,
    FenceStaleBroker,
    IncrementalAlterConfigs,
    RegisterBroker,
    TopicToCreate,
    UnregisterBroker,
)
from fenceline.metadata.features import SUPPORTED, Levels
from fenceline.metadata.image import ConfigResource, ConfigResourceType, Endpoint, LeaderRecoveryState
from tests.controller.helpers import CLUSTER, Cluster
from tests.controller.two_controllers import Here, Side, There
from tests.support.recorded import Answer, as_recorded

MIN_ISR, UNCLEAN = "min.insync.replicas", "unclean.leader.election.enable"


class Step(NamedTuple):
    """`request` builds the request for one side. `differs`: why the records are not compared."""

    name: str
    request: Callable[[Side], Any]
    differs: str = ""


def directories(broker: int) -> tuple[UUID, ...]:
    return UUID(int=10_000 + 2 * broker), UUID(int=10_001 + 2 * broker)


def register(broker: int, *, differs: str = "", **more: Any) -> Step:
    def request(side: Side) -> RegisterBroker:
        wanted: dict[str, Any] = {
            "broker_id": broker,
            "cluster_id": CLUSTER,
            "incarnation_id": UUID(int=broker * 1000 + 1),
            "endpoints": (Endpoint("PLAINTEXT", f"host{broker}", 9092, 0),),
            "features": SUPPORTED,
            "rack": f"rack{broker}",
            "log_dirs": directories(broker),
        }
        return RegisterBroker(**{**wanted, **more})

    return Step(f"register {broker} {sorted(more)}", request, differs)


def beat(broker: int, *, differs: str = "", **more: Any) -> Step:
    def request(side: Side) -> BrokerHeartbeat:
        offset = more.get("current_metadata_offset", side.end)
        epoch = more.get("broker_epoch") or side.epoch(broker)
        rest = {key: value for key, value in more.items() if key not in ("current_metadata_offset", "broker_epoch")}
        return BrokerHeartbeat(broker, epoch, offset, **rest)

    return Step(f"heartbeat {broker} {more}", request, differs)


def create(name: str, *replicas: tuple[int, ...], **configs: str) -> Step:
    named = tuple((key.replace("_", "."), value) for key, value in configs.items())
    topic = TopicToCreate(name, assignments=tuple(enumerate(replicas)), configs=named)
    differs = "a new topic has no eligible replicas to forget" if "min_insync_replicas" in configs else ""
    return Step(f"create {name}", lambda side: CreateTopics((topic,)), differs)


def isr(
    sender: int,
    name: str,
    epochs: tuple[int, int],
    members: tuple[int, ...],
    *,
    index: int = 0,
    state: int = 0,
    known: bool = True,
    differs: str = "",
    stale: tuple[int, ...] = (),
) -> Step:
    """`epochs`: leader and partition epoch; `known`: member epochs are sent, wrong ones of `stale`."""

    def request(side: Side) -> AlterPartition:
        reported = tuple(
            IsrMember(b, side.epoch(b) + (b in stale) if known and b in side.epochs else -1) for b in members
        )
        change = IsrChange(index, epochs[0], epochs[1], reported, state)
        return AlterPartition(sender, side.epoch(sender), ((side.topic(name), (change,)),))

    return Step(f"isr {name}-{index} {members} by {sender} {epochs} {state}", request, differs)


def elect(kind: int, *topics: tuple[str, tuple[int, ...]], differs: str = "") -> Step:
    return Step(f"elect {kind} {topics}", lambda side: ElectLeaders(kind, topics or None), differs)


def move(name: str, *targets: tuple[int, ...] | None, first: int = 0, resize: bool = True, differs: str = "") -> Step:
    wanted = tuple(Reassignment(index, target) for index, target in enumerate(targets, start=first))
    return Step(f"move {name} {targets}", lambda side: AlterPartitionReassignments(((name, wanted),), resize), differs)


def listed(*topics: tuple[str, tuple[int, ...]]) -> Step:
    return Step(f"list {topics}", lambda side: ListPartitionReassignments(topics or None))


def assign(broker: int, directory: UUID, name: str, *indexes: int, differs: str = "") -> Step:
    def request(side: Side) -> AssignReplicasToDirs:
        return AssignReplicasToDirs(broker, side.epoch(broker), ((directory, ((side.topic(name), indexes),)),))

    return Step(f"assign {broker} {name} {indexes}", request, differs)


def configure(name: str, key: str, value: str | None, *, differs: str = "") -> Step:
    kind = ConfigResourceType.TOPIC if name else ConfigResourceType.BROKER
    operation = ConfigOperation.DELETE if value is None else ConfigOperation.SET
    change = ConfigChange(key, operation, value)
    return Step(
        f"configure {name} {key}={value}",
        lambda side: IncrementalAlterConfigs(((ConfigResource(kind, name), (change,)),)),
        differs,
    )


def unregister(broker: int, *, differs: str = "") -> Step:
    return Step(f"unregister {broker}", lambda side: UnregisterBroker(broker), differs)


def allocate(broker: int, epoch: int | None = None) -> Step:
    return Step(
        f"allocate {broker}", lambda side: AllocateProducerIds(broker, side.epoch(broker) if epoch is None else epoch)
    )


REGISTRATIONS = (
    register(1, cluster_id="other"),
    register(1, log_dirs=()),
    register(1, log_dirs=(UUID(int=1),)),
    register(1, log_dirs=(UUID(int=777), UUID(int=777))),
    register(1, features={}),
    register(1, features={"metadata.version": Levels(7, 30)}),
    register(1, features={**SUPPORTED, "metadata.version": Levels(7, 29)}),
    register(1),
    register(1),
    register(1, incarnation_id=UUID(int=5)),
    register(2, log_dirs=directories(1)),
    register(2),
    register(3),
    register(4),
    beat(1, broker_epoch=1),
    beat(1, want_fence=True),
    beat(1, current_metadata_offset=0),
    beat(1),
    beat(1),
    beat(1, cordoned_log_dirs=()),
    beat(1, cordoned_log_dirs=()),
    beat(1, want_fence=True),
    beat(1),
    beat(2),
    beat(3),
    beat(4),
    register(4),
    beat(4),
    allocate(1),
    allocate(2),
    allocate(2, 1),
    allocate(77, 1),
)

IN_SYNC = (
    create("t", (1, 2, 3), (2, 3, 1), min_insync_replicas="2"),
    isr(1, "t", (0, 0), (1, 2)),
    isr(1, "t", (0, 1), (1,)),
    isr(1, "t", (0, 2), (1,)),
    isr(1, "t", (0, 2), (1, 3)),
    isr(1, "t", (0, 3), (1, 2, 3), known=False),
    isr(1, "nope", (0, 0), (1,)),
    isr(1, "t", (0, 4), (1,), index=9),
    isr(1, "t", (1, 4), (1,)),
    isr(1, "t", (0, 5), (1,)),
    isr(1, "t", (-1, 4), (1,)),
    isr(1, "t", (-1, 5), (1,)),
    isr(2, "t", (0, 4), (1, 2)),
    isr(2, "t", (0, 3), (1, 2)),
    isr(1, "t", (0, 3), (1, 2)),
    isr(1, "t", (0, 4), (1, 1)),
    isr(1, "t", (0, 4), (1, 4)),
    isr(1, "t", (0, 4), (2, 3)),
    isr(1, "t", (0, 4), ()),
    isr(1, "t", (0, 4), (1, 2), state=1),
    isr(1, "t", (0, 4), (1,), state=1),
    isr(1, "t", (0, 4), (1, 2), stale=(2,)),
    beat(2, want_fence=True),
    isr(1, "t", (0, 5), (1, 2, 3)),
    beat(2),
    isr(1, "t", (0, 5), (1, 2, 3)),
)

ELECTIONS = (
    create("e", (1, 2), (2, 1), min_insync_replicas="2"),
    create("e1", (3,)),
    create("e3", (1, 2, 3), min_insync_replicas="2"),
    elect(0, ("e", (0, 1, 7)), ("e3", (0,)), ("none", (0,))),
    elect(1, ("e", (0,))),
    elect(2, ("e", (0,))),
    beat(1, want_fence=True),
    elect(0, ("e", (0, 1)), ("e3", (0,))),
    beat(1),
    elect(0, ("e", (0, 1)), ("e3", (0,))),
    isr(2, "e", (1, 1), (2, 1)),
    elect(0, ("e", (0,))),
    beat(3, want_fence=True),
    elect(1, ("e1", (0,))),
    elect(0, ("e1", (0,))),
    beat(3),
    beat(2, want_fence=True),
    beat(1, want_fence=True),
    elect(1),
    beat(2),
    elect(1),
    beat(1),
    elect(0),
)

MOVES = (
    create("m", (1, 2), (1, 2), (1, 2), (1, 2), (1, 2)),
    create("n", (3,)),
    move("none", (1, 2)),
    move("m", (1, 2), first=9),
    move("m", None),
    move("m", ()),
    move("m", (1, 1)),
    move("m", (1, 77)),
    move("m", (1,), resize=False),
    move("m", (1, 2, 3), resize=False),
    move("m", (1, 2, 77), resize=False),
    move("m", (2, 1)),
    move("m", (1, 2)),
    move("m", (1, 3), first=1),
    move("m", (3, 4), resize=False, first=2),
    move("m", (1, 2, 4), first=3),
    listed(),
    listed(("m", (0, 1, 2, 3, 9)), ("none", (0,))),
    listed(("m", (0,))),
    isr(1, "m", (0, 1), (1, 2, 3), index=1),
    isr(1, "m", (0, 1), (1, 2, 3), index=2),
    move("m", (3, 4, 2), resize=False, first=2),
    isr(1, "m", (0, 2), (1, 2, 3, 4), index=2),
    listed(),
    move("m", None, first=3),
    move("m", None, first=3),
    move("n", (4,)),
    listed(),
    isr(3, "n", (0, 1), (3, 4)),
    move("m", (4, 3, 2, 1), first=4),
    move("m", (4, 3, 2, 1), first=4),
    isr(1, "m", (0, 1), (1, 2, 3), index=4),
    isr(1, "m", (0, 2), (1, 2, 3, 4), index=4),
    listed(),
    move("m", (4,), first=4),
    isr(1, "m", (0, 4), (1, 4), index=4),
    isr(1, "m", (0, 4), (4,), index=4),
    listed(),
)

LOSSES = (
    create("l", (1, 2), (3, 2), (2, 3), min_insync_replicas="2"),
    create("l1", (2,)),
    create("k", (3, 1), unclean_leader_election_enable="true"),
    create("k1", (2,), unclean_leader_election_enable="true"),
    beat(2, want_fence=True),
    beat(3, want_fence=True),
    beat(1, want_fence=True),
    elect(1, ("l", (0, 1, 2)), ("l1", (0,)), ("k", (0,)), ("k1", (0,))),
    elect(0, ("l", (0, 1, 2)), ("l1", (0,)), ("k", (0,)), ("k1", (0,))),
    beat(3),
    elect(1, ("l", (0, 1, 2)), ("l1", (0,)), ("k", (0,)), ("k1", (0,))),
    beat(2),
    beat(1),
    isr(3, "l", (2, 2), (3, 2), index=1),
    isr(3, "l", (2, 3), (3, 2), index=1),
    isr(2, "l", (1, 1), (2,), index=2),
    configure("l", MIN_ISR, "1"),
    configure("l", MIN_ISR, "2"),
    configure("", MIN_ISR, "2"),
    configure("", MIN_ISR, "1"),
    move("k", (3, 2, 1)),
    move("k", None),
    configure("k", MIN_ISR, None),
    beat(3, want_fence=True),
    beat(2, want_fence=True),
    beat(1, want_fence=True),
    configure("l", UNCLEAN, "true"),
    elect(1),
    beat(1),
    elect(1),
    beat(2),
    beat(3),
)

DIRECTORIES = (
    create("d", (1, 2), (2, 1), (3, 1)),
    create("d1", (1,)),
    assign(1, directories(1)[0], "d", 0, 1, 9),
    assign(1, directories(1)[1], "d", 2),
    assign(1, directories(1)[0], "d1", 0),
    assign(4, directories(4)[0], "d", 0),
    assign(1, directories(1)[0], "none", 0),
    assign(1, directories(1)[0], "d", 0),
    assign(2, UUID(int=4711), "d", 1, differs="one change instead of two"),
    beat(1, offline_log_dirs=(directories(1)[0],)),
    beat(1, offline_log_dirs=(directories(1)[0],)),
    assign(1, directories(1)[1], "d1", 0, differs="who is online again leads at once"),
    beat(2, want_fence=True),
    beat(2, differs="Kafka elects the leader of d1 here"),
    beat(1, cordoned_log_dirs=(directories(1)[1],)),
    create("d2", (1,)),
    move("d", (2, 1)),
    beat(1, cordoned_log_dirs=()),
)

SHUTDOWN = (
    create("s", (4, 3), (3, 4)),
    create("s1", (4,), (3,)),
    beat(1),
    beat(2),
    beat(3),
    beat(4, want_shut_down=True),
    beat(4, want_shut_down=True, current_metadata_offset=0),
    isr(3, "s", (1, 1), (3, 4)),
    create("s2", (4, 3)),
    create("s3", (4,)),
    beat(4, want_shut_down=True, differs="who is fenced is not fenced again"),
    beat(3, want_fence=True, want_shut_down=True),
    beat(3),
)

UNREGISTERED = (
    create("u", (2, 1), (1, 2)),
    unregister(77),
    unregister(2, differs="who is gone for good is not eligible (C19)"),
    beat(2),
    move("u", (1, 2)),
    elect(1, ("u", (0, 1))),
    register(2, differs="what unregistering left, see above"),
)

SCRIPTS = {
    "registrations": REGISTRATIONS,
    "in sync": IN_SYNC,
    "elections": ELECTIONS,
    "moves": MOVES,
    "losses": LOSSES,
    "directories": DIRECTORIES,
    "shutdown": SHUTDOWN,
    "unregistered": UNREGISTERED,
}
"""In this order, on the same two controllers: each continues with the state that the previous one left."""


class Both(NamedTuple):
    here: Here
    there: There


@pytest.fixture(scope="module")
def here() -> Here:
    return Here(Cluster(0, session_timeout_ms=3_600_000, node_id=100))


@pytest.fixture(scope="module")
def there() -> Iterator[There]:
    with There() as side:
        yield side


@pytest.mark.parametrize(
    ("script", "number"),
    [(name, number) for name, script in SCRIPTS.items() for number in range(len(script))],
    ids=[f"{name} {number}: {step.name}" for name, script in SCRIPTS.items() for number, step in enumerate(script)],
)
def test_the_same_response_and_the_same_records(script: str, number: int, here: Here, answer: Answer) -> None:
    """The steps build on each other, in order."""
    step = SCRIPTS[script][number]

    def outcome(side: Side) -> Any:
        response = side.ask(step.request(side))
        records = side.records()
        return [response, *([] if step.differs else records)]

    assert as_recorded(outcome(here)) == answer("there", outcome)


@pytest.mark.kafka
def test_killed_and_stopped_brokers() -> None:
    """K22-K24 with real time on Kafka's side: a crash, a new incarnation, a clean stop, another incarnation."""
    session_ms = 8000
    with There(session_timeout_ms=session_ms) as there:
        here = Here(Cluster(0, session_timeout_ms=session_ms, node_id=100))
        both = Both(here, there)
        here.records()
        for step in (
            *(each for broker in (1, 2) for each in (register(broker), beat(broker))),
            create("alone", (2,)),
            create("pair", (2, 1), (1, 2)),
        ):
            _same(both, step)
        _let_expire(both, session_ms)
        _same(both, register(2, incarnation_id=UUID(int=2002)))
        _same(both, beat(2))
        assert here.cluster.partition("alone").leader_recovery_state is LeaderRecoveryState.RECOVERING
        _same(both, isr(1, "pair", (0, 1), (1, 2), index=1))
        for broker in (1, 2):
            _same(both, beat(broker))
        _same(both, beat(2, want_shut_down=True))
        _same(both, register(2, incarnation_id=UUID(int=2003)))
        _same(both, beat(1))
        _same(both, beat(2, want_shut_down=True))
        stopped = [side.epoch(2) for side in both]
        _let_expire(both, session_ms)
        for side, epoch in zip(both, stopped, strict=True):
            clean = register(2, incarnation_id=UUID(int=2004), previous_broker_epoch=epoch)
            assert side.ask(clean.request(side)) == (0,)
        assert here.records() == there.records()
        _same(both, beat(2))
        assert here.cluster.partition("pair", 1).isr == (1,)


def _same(both: Both, step: Step) -> None:
    answers = [side.ask(step.request(side)) for side in both]
    records = [side.records() for side in both]
    assert answers[0] == answers[1], step.name
    assert records[0] == records[1], step.name


def _let_expire(both: Both, session_ms: int) -> None:
    """Only broker 1 sends heartbeats; the expiry of broker 2's session writes the same, or nothing if it is fenced."""
    here, there = both
    was_fenced = here.cluster.image.brokers[2].fenced
    here.cluster.now_ms += session_ms
    assert here.ask(beat(1).request(here)) == (0, True, False, False)
    here.send(FenceStaleBroker())
    deadline = time.monotonic() + 60
    written: list[Any] = []
    while not any(record["record"] == "BrokerRegistrationChangeRecord" for record in written):
        assert time.monotonic() < deadline, "Kafka's session does not expire"
        assert there.ask(beat(1).request(there)) == (0, True, False, False)
        written += there.records()
        time.sleep(0.2)
    assert here.records() == ([] if was_fenced else written)
