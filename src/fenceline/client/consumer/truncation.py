"""The reaction of poll to a truncation below the position: an error, or the policy of `on.truncation`.

Owns that policy and the lookup of loss receipts. Every truncation is logged, and kept for `truncations()`, whatever the
policy.

| on.truncation | reaction |
|---|---|
| fail | raise LogTruncationError from every poll until a seek (E50) |
| rewind | continue where the log diverges (E49); if that is unknown, follow `auto.offset.reset`, or fail (E48) |
| latest | continue at the log end |
| reset | exactly as in KIP-320: with `auto.offset.reset` earliest or latest as rewind, with none as fail |
| a function | call it with the error; it may seek, or return a policy, an offset or (offset, epoch); None: fail |
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Final

from fenceline.client.consumer.positions import Positions, PositionState
from fenceline.client.core.cluster import Cluster
from fenceline.client.core.config import ClientConfig
from fenceline.client.core.deadline import Deadline
from fenceline.client.core.errors import LogTruncationError
from fenceline.client.core.loss_ledger import find_receipts
from fenceline.client.core.loss_receipts import LossReceipt
from fenceline.client.core.offsets import reset_spec
from fenceline.client.core.surroundings import surroundings
from fenceline.errors import OperatorError, PeerError
from fenceline.ids import TopicPartition

_log = logging.getLogger("fenceline.client")
_KEPT: Final = 1000
_PAUSE_MS: Final = 50
"""Between attempts to read a ledger topic without a leader: the cluster's first loss creates it."""

Choice = str | int | tuple[int, int] | None
Decide = Callable[[LogTruncationError], Choice | Awaitable[Choice]]


class Truncations:
    """The truncations of one consumer. `decide`: the function of `on.truncation`, if it is one."""

    def __init__(self, cluster: Cluster, positions: Positions, config: ClientConfig) -> None:
        self._cluster = cluster
        self._positions = positions
        self._config = config
        chosen = config["on.truncation"]
        self._policy: str = chosen if isinstance(chosen, str) else "fail"
        self.decide: Decide | None = None if isinstance(chosen, str) else chosen
        self._with_receipts: dict[TopicPartition, LogTruncationError] = {}
        self.seen: deque[LogTruncationError] = deque(maxlen=_KEPT)

    async def handle(self, lost: Collection[tuple[TopicPartition, PositionState]]) -> None:
        """Apply `on.truncation` to these. Raises one LogTruncationError for all partitions that are to fail."""
        await self._attach_receipts(lost)
        failed = [error for tp, state in lost if (error := await self._handle_one(tp, state)) is not None]
        if failed:
            raise failed[0] if len(failed) == 1 else failed[0].with_others(failed[1:])

    async def _attach_receipts(self, lost: Collection[tuple[TopicPartition, PositionState]]) -> None:
        """Add loss receipts to the truncations that are new, with one read of the ledger for all of them."""
        met = [
            (tp, state, state.truncation)
            for tp, state in lost
            if state.truncation is not None and self._with_receipts.get(tp) is not state.truncation
        ]
        found = await self._receipts([error for _, _, error in met])
        for (tp, state, error), receipts in zip(met, found, strict=True):
            if state.truncation is error and self._positions.get(tp) is state:
                state.truncation = self._with_receipts[tp] = error.with_evidence(receipts)
                self.seen.append(state.truncation)

    async def _handle_one(self, tp: TopicPartition, state: PositionState) -> LogTruncationError | None:
        """Returns the error if it is to be raised."""
        error = state.truncation
        if error is None or self._with_receipts.get(tp) is not error or self._positions.get(tp) is not state:
            return None
        if self.decide is None:
            return self._apply_choice(tp, error, self._policy)
        serial = state.serial
        choice = self.decide(error)
        if inspect.isawaitable(choice):
            choice = await choice
        if self._positions.get(tp) is state and state.serial == serial:
            return self._apply_choice(tp, error, "fail" if choice is None else choice)
        return None

    def _apply_choice(self, tp: TopicPartition, error: LogTruncationError, choice: Any) -> LogTruncationError | None:
        """Returns the error if it is to be raised."""
        if choice == "reset":
            choice = "fail" if self._config["auto.offset.reset"] == "none" else "rewind"
        if choice == "latest":
            self._positions.await_reset(tp, "latest")
        elif choice == "rewind" and error.divergent_offset >= 0:
            self._positions.seek(tp, error.divergent_offset, error.divergent_epoch)
        elif choice == "rewind" and self._config["auto.offset.reset"] != "none":
            to = reset_spec(self._config["auto.offset.reset"], surroundings().wall_ms())
            self._positions.await_reset(tp, to)
        elif choice in ("fail", "rewind"):
            return error
        elif isinstance(choice, int):
            self._positions.seek(tp, choice)
        elif isinstance(choice, tuple):
            self._positions.seek(tp, int(choice[0]), int(choice[1]))
        else:
            raise OperatorError(
                f"on.truncation returned {choice!r}",
                "Return 'fail', 'rewind', 'latest', 'reset', an offset, (offset, epoch), or None.",
            ) from error
        _log.warning("%s: continuing after the truncation by on.truncation=%s", tp, choice)
        return None

    async def _receipts(self, errors: Sequence[LogTruncationError]) -> list[tuple[LossReceipt, ...]]:
        """The loss receipts of each, read within `truncation.evidence.timeout.ms`."""
        timeout_ms = self._config["truncation.evidence.timeout.ms"]
        if not timeout_ms or not errors:
            return [()] * len(errors)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                deadline = Deadline(timeout_ms, longest_pause_ms=_PAUSE_MS)
                return await find_receipts(self._cluster, self._config, errors, deadline=deadline)
        except (PeerError, OperatorError, TimeoutError) as failure:
            _log.info("loss receipts could not be read: %s", failure)
            return [()] * len(errors)

    async def receipts_of(self, error: LogTruncationError, deadline: Deadline) -> tuple[LossReceipt, ...]:
        """The cluster's loss receipts for the truncation in `error`. Raises PeerError, OperatorError."""
        (found,) = await find_receipts(self._cluster, self._config, [error], deadline=deadline)
        return found
