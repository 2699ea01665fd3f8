"""The driver of the transaction coordinator: which ends of transactions are confirmed by the other replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from fenceline.errors import ErrorCode
from fenceline.ids import TRANSACTION_STATE_TOPIC, TopicPartition
from fenceline.node.coordination.replies import Reply
from fenceline.node.transactions.driver import TransactionsDriver
from fenceline.transactions.messages import (
    AddPartitions,
    EndMarkers,
    EndTransaction,
    InitProducer,
    ProducerIdentity,
    TransactionEnded,
)

NAME = "copier"
EPOCH = 3
NONE = ErrorCode.NONE


class Stage:
    """A coordinator with one transactional id; its log writes at once, and so do the leaders of partitions."""

    def __init__(self, level: int) -> None:
        self.confirmed: list[tuple[TopicPartition, int]] = []
        self.answers: list[Callable[[ErrorCode], None]] = []
        state_log: Any = SimpleNamespace(append=lambda *_: 0, read=lambda *_: (), when_committed=lambda *_: None)
        clock: Any = SimpleNamespace(now_ms=lambda: 1_000, monotonic_ms=lambda: 0)
        self.driver = TransactionsDriver(
            state_log,
            clock,
            next_producer_id=lambda: 7,
            level=lambda: level,
            partition_exists=lambda topic, index: True,
            confirm_leadership=self._confirm,
        )
        self.driver.send_with(self)
        self.partition = self.driver.coordinator.partition_of(NAME)
        self.driver.on_leader(self.partition, EPOCH)
        outcome = self.driver.init_producer(InitProducer(NAME, 60_000)).outcome
        assert outcome is not None
        self.identity = outcome.identity

    def _confirm(self, where: TopicPartition, leader_epoch: int, confirmed: Callable[[ErrorCode], None]) -> None:
        self.confirmed.append((where, leader_epoch))
        self.answers.append(confirmed)

    def send(self, markers: EndMarkers) -> None:
        self.driver.markers_written(markers, dict.fromkeys(markers.partitions, NONE))

    def on_brokers_changed(self) -> None:
        """There are none."""

    def begin(self) -> None:
        version = 2 if self.driver.coordinator._level() else 0
        request = AddPartitions(NAME, self.identity, (("t", 0),), transaction_version=version)
        outcome = self.driver.add_partitions(request).outcome
        assert outcome is not None
        assert outcome.errors == (NONE,)

    def end(self, *, commit: bool, version: int, identity: ProducerIdentity | None = None) -> Reply[TransactionEnded]:
        return self.driver.end_transaction(EndTransaction(NAME, identity or self.identity, commit, version))


def run(story: Callable[[Stage], Coroutine[Any, Any, None]], level: int) -> None:
    async def whole() -> None:
        stage = Stage(level)
        await story(stage)
        stage.driver.close()

    asyncio.run(asyncio.wait_for(whole(), 30))


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("code", [NONE, ErrorCode.NOT_COORDINATOR])
def test_an_end_that_was_written_before_is_confirmed(commit: bool, code: ErrorCode) -> None:
    async def story(stage: Stage) -> None:
        stage.begin()
        assert stage.end(commit=commit, version=4).outcome == TransactionEnded(NONE)
        assert not stage.confirmed
        again = stage.end(commit=commit, version=4)
        assert again.outcome is None
        assert stage.confirmed == [(TopicPartition(TRANSACTION_STATE_TOPIC, stage.partition), EPOCH)]
        stage.answers[0](code)
        assert again.outcome == TransactionEnded(code)

    run(story, level=0)


def test_a_rejected_end_is_not_confirmed() -> None:
    async def story(stage: Stage) -> None:
        stage.begin()
        stage.end(commit=True, version=4)
        assert stage.end(commit=False, version=4).outcome == TransactionEnded(ErrorCode.INVALID_TXN_STATE)
        assert not stage.confirmed

    run(story, level=0)


def test_an_epoch_of_one_transaction_needs_no_confirmation() -> None:
    """EndTxn v5: a repeated end names the epoch of the transaction that has ended."""

    async def story(stage: Stage) -> None:
        stage.begin()
        first = stage.end(commit=True, version=5).outcome
        assert first is not None
        assert first.identity.epoch == stage.identity.epoch + 1
        assert stage.end(commit=True, version=5).outcome == first
        assert not stage.confirmed

    run(story, level=2)
