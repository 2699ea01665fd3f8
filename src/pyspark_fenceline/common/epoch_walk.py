"""Walks down the epochs of one leader's log: each OffsetForLeaderEpoch answer contains the start of one epoch.

Owns which epoch to request next, and how to interpret an answer (`epochs.md` E5, E13). A caller that needs only the
newest epochs may stop early and continue later. Pure: the caller sends the requests.
"""

from __future__ import annotations

from fenceline.client.core.epoch_history import EpochStart
from fenceline.client.core.offsets import EpochEnd


class EpochWalk:
    """Under one `leader_epoch`; a leader only appends, so the result stays valid while it leads."""

    __slots__ = ("_candidate", "_found", "_is_over", "leader_epoch")

    def __init__(self, leader_epoch: int) -> None:
        self.leader_epoch = leader_epoch
        self._candidate = leader_epoch
        """The newest epoch whose start is not known yet."""
        self._found: list[EpochStart] = []
        """Newest first."""
        self._is_over = False

    def next_epoch(self, log_start: int) -> int | None:
        """The epoch to request, under `leader_epoch`; None if all are known. `log_start`: current first offset of the
        log."""
        return self._candidate - 1 if self._candidate > 0 and self._has_older(log_start) else None

    def add_answer(self, answer: EpochEnd) -> None:
        """The leader's answer to `next_epoch`: that epoch, or the one before it in this log, ends where the next one
        begins."""
        is_undefined = answer.leader_epoch < 0 or answer.end_offset < 0
        # Below its first epoch a leader echoes the request with that epoch's start (E13 d): there is no older one.
        if is_undefined or (self._found and answer.end_offset >= self._found[-1].offset):
            self._is_over = True
            return
        self._found.append(EpochStart(self._candidate, answer.end_offset))
        self._candidate = answer.leader_epoch

    def starts(self, log_start: int) -> tuple[EpochStart, ...]:
        """The epochs known so far, oldest first, each with its first offset."""
        found = list(reversed(self._found))
        if self._candidate == 0 and self._has_older(log_start):
            # 0 is the first epoch of any log (E5): it starts at offset 0.
            found.insert(0, EpochStart(0, 0))
        return tuple(found)

    def _has_older(self, log_start: int) -> bool:
        return not self._is_over and (not self._found or self._found[-1].offset > log_start)
