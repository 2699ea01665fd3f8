"""Random lives of transactional ids: producers and zombies, rejected and late writes, moves, levels, time.

After each step the invariants of the coordinator hold. At the end all faults stop, and the log is read: epochs of a
producer id never fall, each decision has one outcome and is completed with it, and what a client was told is there.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fenceline.errors import ErrorCode
from fenceline.transactions import records
from fenceline.transactions.messages import ProducerIdentity
from fenceline.transactions.states import TransactionState
from tests.transactions.world import WAITING, A, B, World

IDS = ("orders", "copies")
PARTITIONS = (A, B, ("a", 3))
MARKER_CODES = (ErrorCode.NETWORK_EXCEPTION, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.INVALID_PRODUCER_EPOCH)


class RandomLives(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World(partition_count=2)
        self.identities: dict[str, list[ProducerIdentity]] = {name: [] for name in IDS}
        """That producers have got, also those that are fenced by now."""
        self.acknowledged: list[tuple[ProducerIdentity, bool]] = []
        """Ends of transactions that were answered with 0: the epoch of the decision, and whether it commits."""

    @initialize(level=st.sampled_from((0, 1, 2)))
    def begin(self, level: int) -> None:
        self.world.level = level

    # --- clients ----------------------------------------

    @rule(name=st.sampled_from(IDS), pick=st.integers(0, 3), expects=st.booleans())
    def init(self, name: str, pick: int, expects: bool) -> None:
        known = self.identities[name]
        identity = known[-1 - pick % len(known)] if known and expects else (-1, -1)
        outcome = self.world.init(identity, name=name)
        if outcome is not WAITING and outcome.error is ErrorCode.NONE:
            known.append(outcome.identity)

    @rule(
        name=st.sampled_from(IDS),
        pick=st.integers(0, 2),
        partitions=st.lists(st.sampled_from(PARTITIONS), max_size=2),
        version=st.sampled_from((0, 2)),
    )
    def add(self, name: str, pick: int, partitions: list[Any], version: int) -> None:
        if known := self.identities[name]:
            identity = known[-1 - pick % len(known)]
            self.world.add(identity, *partitions, name=name, transaction_version=version)

    @rule(name=st.sampled_from(IDS), pick=st.integers(0, 2), commit=st.booleans(), version=st.sampled_from((4, 5)))
    def end(self, name: str, pick: int, commit: bool, version: int) -> None:
        known = self.identities[name]
        if not known:
            return
        identity = known[-1 - pick % len(known)]
        outcome = self.world.end(identity, commit=commit, version=version, name=name)
        if outcome is WAITING or outcome.error is not ErrorCode.NONE:
            return
        if outcome.identity.producer_id >= 0:
            known.append(outcome.identity)
        decided = identity if version == 4 else identity._replace(epoch=identity.epoch + 1)
        self.acknowledged.append((decided, commit))

    # --- faults and operations ----------------------------------------

    @rule(holds=st.booleans())
    def hold(self, holds: bool) -> None:
        self.world.holds = holds
        if not holds:
            self.world.commit_all()

    @rule(code=st.sampled_from((ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_LEADER_OR_FOLLOWER)))
    def reject(self, code: ErrorCode) -> None:
        self.world.reject_all(code)

    @rule()
    def late(self) -> None:
        self.world.late_all()

    @rule(partition=st.sampled_from(PARTITIONS), code=st.sampled_from((ErrorCode.NONE, *MARKER_CODES)))
    def marker_code(self, partition: Any, code: ErrorCode) -> None:
        self.world.marker_codes = {partition: code}

    @rule()
    def move(self) -> None:
        self.world.move()

    @rule(level=st.sampled_from((0, 1, 2)))
    def change_level(self, level: int) -> None:
        self.world.level = level

    @rule(ms=st.sampled_from((10, 1_000, 40_000, 100_000)))
    def advance(self, ms: int) -> None:
        self.world.advance(ms)

    @rule()
    def leaders_changed(self) -> None:
        self.world.coordinator.on_leaders_changed(self.world.now)

    # --- what holds ----------------------------------------

    @invariant()
    def epochs_never_fall(self) -> None:
        for log in self.world.log.values():
            epochs: dict[int, int] = {}
            for key, value in log:
                meaning = records.decode(key, value)
                assert isinstance(meaning, records.StoredTransaction)
                if meaning.transaction is not None:
                    producer_id, epoch = meaning.transaction.identity
                    assert epoch >= epochs.get(producer_id, -1)
                    epochs[producer_id] = epoch

    def teardown(self) -> None:
        world = self.world
        world.marker_codes = {}
        world.holds = False
        world.commit_all()
        world.advance(200_000)
        outcomes: dict[ProducerIdentity, set[bool]] = {}
        for log in world.log.values():
            decided: dict[str, Any] = {}
            for key, value in log:
                meaning = records.decode(key, value)
                assert isinstance(meaning, records.StoredTransaction)
                name, after = meaning
                assert after is not None
                before = decided.pop(name, None)
                if before is not None:
                    expected = (
                        TransactionState.COMPLETE_COMMIT if before.state.commits else TransactionState.COMPLETE_ABORT
                    )
                    assert after.state is expected, "nothing but its completion follows a decision"
                if after.state.is_prepared:
                    decided[name] = after
                    outcomes.setdefault(after.identity, set()).add(after.state.commits)
            assert not decided, "every decision is completed"
        for identity, commit in self.acknowledged:
            assert commit in outcomes[identity], "what was acknowledged is in the log"


RandomLives.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestRandomLives = RandomLives.TestCase
