"""Random members on a virtual clock: they join, sync, commit, leave and crash; writes fail; the broker crashes.

Invariants: at most one leader per generation, one assignment per member and generation, delivered at most once per
SyncGroup and equal every time; generations only grow, an acknowledged commit is never lost, and replay of the log
restores the acknowledged state. When the faults end, all remaining members become stable.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from fenceline.errors import ErrorCode
from fenceline.groups.classic.states import GroupState
from fenceline.groups.messages import JoinResponse, SyncResponse
from fenceline.groups.settings import GroupSettings
from tests.groups.helpers import GROUP, Ticket, World

_SESSION_MS = 10_000
_BEAT_MS = 3_000


@dataclass
class Client:
    """A consumer that follows the protocol; `instance` makes it a static one."""

    name: str
    instance: str | None
    must_know_id: bool
    member_id: str = ""
    generation: int = -1
    is_stable: bool = False
    assignment: bytes | None = None
    join: Ticket | None = None
    sync: Ticket | None = None
    next_beat_ms: int = 0


@dataclass
class Life:
    rng: Random
    world: World
    clients: list[Client] = field(default_factory=list)
    leaders: dict[int, str] = field(default_factory=dict)
    assigned: dict[tuple[int, str], bytes] = field(default_factory=dict)
    commits: dict[int, int] = field(default_factory=dict)
    """Partition to the newest acknowledged offset."""
    unsure: dict[int, set[int]] = field(default_factory=dict)
    """Offsets whose commit failed or got no response: they may be committed or not."""
    next_offset: int = 1

    # --- client operations -------------------------------------------------------------------------------------------

    def start(self, client: Client) -> None:
        client.generation, client.is_stable, client.sync = -1, False, None
        client.join = self.world.join(
            client.member_id,
            instance=client.instance,
            client_id=client.name,
            must_know_member_id=client.must_know_id,
            session_timeout_ms=_SESSION_MS,
            rebalance_timeout_ms=20_000,
            protocols=(("range", b""),),
        )

    def step(self, client: Client) -> None:
        if client.join is not None:
            if client.join.outcome is not None:
                self._joined(client, client.join.outcome)
        elif client.sync is not None:
            if client.sync.outcome is not None:
                self._synced(client, client.sync.outcome)
        elif self.world.now.monotonic_ms >= client.next_beat_ms:
            self._beat(client)

    def _joined(self, client: Client, answer: JoinResponse) -> None:
        client.join = None
        match answer.error:
            case ErrorCode.NONE:
                client.member_id, client.generation = answer.member_id, answer.generation
                if not answer.skip_assignment and answer.members:
                    known = self.leaders.setdefault(answer.generation, answer.member_id)
                    assert known == answer.member_id, f"two leaders in generation {answer.generation}"
                assignments = {
                    member.member_id: f"{answer.generation}:{member.member_id}".encode() for member in answer.members
                }
                if answer.skip_assignment:
                    assignments = {}
                client.sync = self.world.sync(client.member_id, client.generation, assignments)
            case ErrorCode.MEMBER_ID_REQUIRED:
                client.member_id = answer.member_id
                self.start(client)
            case ErrorCode.UNKNOWN_MEMBER_ID | ErrorCode.FENCED_INSTANCE_ID:
                client.member_id = ""
                self.start(client)
            case _:
                self.start(client)

    def _synced(self, client: Client, answer: SyncResponse) -> None:
        client.sync = None
        if answer.error is not ErrorCode.NONE:
            if answer.error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
                client.member_id = ""
            self.start(client)
            return
        client.assignment, client.is_stable = answer.assignment, True
        client.next_beat_ms = self.world.now.monotonic_ms + _BEAT_MS
        # A static member's assignment may have been made under its former id.
        if client.instance is None:
            expected = f"{client.generation}:{client.member_id}".encode()
            assert answer.assignment == expected, "the leader's assignment for this member"
        known = self.assigned.setdefault((client.generation, client.member_id), answer.assignment)
        assert known == answer.assignment, "one assignment for a member and generation"

    def _beat(self, client: Client) -> None:
        client.next_beat_ms = self.world.now.monotonic_ms + _BEAT_MS
        error = self.world.heartbeat(client.member_id, client.generation, instance=client.instance)
        if error is not ErrorCode.NONE:
            if error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
                client.member_id = ""
            self.start(client)

    def commit(self, client: Client) -> None:
        partition, offset = self.rng.randrange(3), self.next_offset
        self.next_offset += 1
        ticket = self.world.commit(
            offset, member_id=client.member_id, generation=client.generation, partition=partition
        )
        if ticket.outcome is None:
            # Pending; whether it is acknowledged is known when the write completes.
            self.unsure.setdefault(partition, set()).add(offset)
            self.pending.append((ticket, partition, offset))
        else:
            self._acknowledge(ticket, partition, offset)

    pending: list[tuple[Ticket, int, int]] = field(default_factory=list)

    def _acknowledge(self, ticket: Ticket, partition: int, offset: int) -> None:
        if ticket.outcome.errors == (ErrorCode.NONE,):
            self.commits[partition] = offset
            self.unsure.get(partition, set()).discard(offset)

    def settle(self) -> None:
        for ticket, partition, offset in [each for each in self.pending if each[0].outcome is not None]:
            self._acknowledge(ticket, partition, offset)
            self.pending.remove((ticket, partition, offset))

    # --- faults ----------------------------------------------------------------------------------------

    def crash_broker(self) -> None:
        """The state in memory is lost. Waiting clients get no response and retry."""
        state = self.world.group().state if GROUP in self.world.shard().state.classic else None
        if state is GroupState.STABLE and not self.world.held:
            before = _stored(self.world)
            self.world.reload()
            assert _stored(self.world) == before, "replay restores the state"
        else:
            self.world.reload()
        self.leaders.clear()
        self.assigned.clear()
        self.pending.clear()
        for client in self.clients:
            if client.join is not None or client.sync is not None:
                self.start(client)

    def check_offsets(self) -> None:
        for partition, offset in self.commits.items():
            shown = self.world.offset(partition=partition)
            assert shown == offset or shown in self.unsure.get(partition, set()), "an acknowledged commit is kept"


def _stored(world: World) -> object:
    """The state that the log must restore for a stable group without pending writes."""
    group = world.group()
    members = {
        member.member_id: (member.group_instance_id, member.assignment, member.metadata(group.protocol_name))
        for member in group.members.values()
    }
    return group.generation, group.leader_id, group.protocol_name, group.protocol_type, members


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), client_count=st.integers(1, 6), can_fail=st.booleans())
@example(seed=383, client_count=1, can_fail=True)  # two new ids of one static member, both rejected
@example(seed=10099, client_count=3, can_fail=True)  # a session ends while the new id of a static member is written
def test_random_member_operations(seed: int, client_count: int, can_fail: bool) -> None:
    rng = Random(seed)
    world = World(GroupSettings(initial_rebalance_delay_ms=rng.choice([0, 3_000])))
    life = Life(rng, world)
    for number in range(client_count):
        life.clients.append(Client(f"c{number}", f"i{number}" if rng.random() < 0.4 else None, rng.random() < 0.7))
        life.start(life.clients[-1])
    last_generation = 0
    for _ in range(250):
        world.advance(rng.choice([0, 1, 100, 1_000, 3_000]))
        world.hold_appends = can_fail and rng.random() < 0.3
        if world.held and rng.random() < 0.5:
            world.release(rng.choice([ErrorCode.NONE, ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS]))
        life.settle()
        action, client = rng.random(), rng.choice(life.clients)
        if action < 0.02:
            life.crash_broker()
        elif action < 0.06:
            # The client crashes and another one replaces it, as static members do under the same name.
            client.member_id = ""
            life.start(client)
        elif action < 0.10 and client.member_id and client.is_stable and client.join is None and client.sync is None:
            world.leave((client.member_id, None))
            client.member_id = ""
            life.start(client)
        elif action < 0.35 and client.is_stable and client.join is None:
            life.commit(client)
        for each in life.clients:
            life.step(each)
        life.settle()
        if not world.held:
            life.check_offsets()
        if GROUP in world.shard().state.classic and not can_fail:
            generation = world.group().generation
            assert generation >= last_generation or world.group().state is not GroupState.STABLE
    # No faults from here: all remaining members get an assignment of the same generation.
    world.hold_appends = False
    while world.held:
        world.release()
    life.settle()
    for _ in range(200):
        world.advance(1_000)
        for each in life.clients:
            life.step(each)
    assert world.group().state is GroupState.STABLE
    assert {each.generation for each in life.clients} == {world.group().generation}
    assert {each.member_id for each in life.clients} == set(world.group().members)
    life.check_offsets()
    before = _stored(world)
    world.reload()
    assert _stored(world) == before
    life.check_offsets()
