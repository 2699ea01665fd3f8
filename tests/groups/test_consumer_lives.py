"""Random consumer protocol members on a virtual clock: they join, send heartbeats, change, leave, crash; responses are
lost, writes fail, the broker crashes, topics grow.

Invariants: no partition is used by two members at a time, where a member uses the partitions last assigned to it that
it has not revoked; replay of the log restores the group. When the faults end, all members have the target.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fenceline.errors import ErrorCode
from fenceline.groups.consumer.model import ConsumerGroupState
from tests.groups.consumer_world import REBALANCE_MS, Client, ConsumerWorld, id_of
from tests.groups.helpers import GROUP

NAMES = "abcd"
TOPICS = st.sampled_from([("t",), ("t", "u"), ("u",)])


class Lives(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.world = ConsumerWorld(t=3, u=2)
        self.sizes = {"t": 3, "u": 2}
        self.clients: dict[str, Client] = {}
        self.generation = 0
        """Number of names used: a crashed client returns under a new name."""

    # --- client operations ---------------------------------------

    @rule(name=st.sampled_from(NAMES), topics=TOPICS)
    def start(self, name: str, topics: tuple[str, ...]) -> None:
        if name not in self.clients:
            self.generation += 1
            self.clients[name] = Client(self.world, f"{name}{self.generation}", topics)
            self.beat(name)

    @rule(name=st.sampled_from(NAMES), lost=st.booleans())
    def beat(self, name: str, lost: bool = False) -> None:
        client = self.clients.get(name)
        if client is None:
            return
        error = client.beat(answer_is_lost=lost)
        assert error in (
            ErrorCode.NONE,
            ErrorCode.FENCED_MEMBER_EPOCH,
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.GROUP_ID_NOT_FOUND,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
        )

    @rule(name=st.sampled_from(NAMES), topics=TOPICS)
    def change_topics(self, name: str, topics: tuple[str, ...]) -> None:
        client = self.clients.get(name)
        if client is not None:
            client.topics = topics
            client.beat()

    @rule(name=st.sampled_from(NAMES))
    def leave(self, name: str) -> None:
        client = self.clients.pop(name, None)
        if client is not None:
            client.leave()

    @rule(name=st.sampled_from(NAMES))
    def crash(self, name: str) -> None:
        """It is silent from now on, and uses no partition."""
        self.clients.pop(name, None)

    # --- other events ---------------------------------------

    @rule(ms=st.sampled_from([1_000, 5_000, 20_000]))
    def time_passes(self, ms: int) -> None:
        """Live members send heartbeats often enough to keep their sessions."""
        self.world.advance(ms)
        for client in self.clients.values():
            client.beat()

    @rule()
    def reload(self) -> None:
        before = self.world.shard().state.consumer.get(GROUP)
        self.world.reload()
        assert self.world.shard().state.consumer.get(GROUP) == before

    @rule(share=st.sampled_from([0.5, 0.9, 1.0]), drops_tombstones=st.booleans())
    def the_log_is_compacted(self, share: float, drops_tombstones: bool) -> None:
        self.world.compact(share, drops_tombstones=drops_tombstones)
        self.reload()

    @rule(topic=st.sampled_from(["t", "u"]))
    def grow(self, topic: str) -> None:
        if self.sizes[topic] < 6:
            self.sizes[topic] += 1
            self.world.set_topics(**self.sizes)

    @rule(name=st.sampled_from(NAMES))
    def the_log_refuses(self, name: str) -> None:
        client = self.clients.get(name)
        if client is None:
            return
        before = self.world.shard().state.consumer.get(GROUP)
        self.world.hold_appends = True
        asked: dict[str, Any] = {
            "rebalance_timeout_ms": REBALANCE_MS,
            "subscribed_names": client.topics,
            "owned": dict(client.owned) if client.epoch else {},
        }
        ticket = self.world.ask(client.member_id, client.epoch, **asked)
        if self.world.held:
            while self.world.held:
                self.world.release(ErrorCode.NOT_ENOUGH_REPLICAS)
            assert self.world.shard().state.consumer.get(GROUP) == before
            assert ticket.outcome.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        elif ticket.outcome.error is not ErrorCode.COORDINATOR_NOT_AVAILABLE:
            client.hear(ticket.outcome)
        self.world.hold_appends = False

    # --- invariants ---------------------------------------

    @invariant()
    def nobody_shares_a_partition(self) -> None:
        if not hasattr(self, "clients"):
            return
        users: dict[tuple[str, int], str] = {}
        for client in self.clients.values():
            for where in client.uses:
                assert where not in users, f"{where} is used by {users[where]} and by {client.member_id}"
                users[where] = client.member_id

    @precondition(lambda self: bool(self.clients))
    @rule()
    def quiet(self) -> None:
        """Crashed members are removed, all others reach the target."""
        for _ in range(30):
            for client in self.clients.values():
                client.beat()
            self.world.advance(5_000)
        group = self.world.consumers()
        assert group.state is ConsumerGroupState.STABLE
        assert set(group.members) == {client.member_id for client in self.clients.values()}
        wanted = {
            (str(id_of(topic)), index)
            for client in self.clients.values()
            for topic in client.topics
            for index in range(self.sizes[topic])
        }
        assert {where for client in self.clients.values() for where in client.uses} == wanted
        for client in self.clients.values():
            assert client.owned == dict(group.target_of(client.member_id))


Lives.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestLives = Lives.TestCase
