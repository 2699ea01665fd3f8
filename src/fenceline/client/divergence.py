"""Where the log that was read and the leader's log part: the search of KIP-101 and KIP-279, for a reader. Pure.

Owns one step of it: from the leader's answer about an epoch to the point, to the next epoch to ask about, or to the
finding that the reader does not know enough. A leader tells where an epoch ends in its own log only; where it ended in
the log that was read, the reader has to know. One answer is not enough where the leader has epochs that were never read
(`gaps.md G6`): then the next older epoch that was read is asked about. Never takes a point that could lie above the
true one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fenceline.client.epoch_history import EpochStart
from fenceline.client.offsets import EpochEnd


@dataclass(frozen=True, slots=True)
class Parting:
    """Exactly here: both logs hold the same records below `offset`, and another one, or none, at it.

    `leader_epoch`: the leader's, of the record before.
    """

    offset: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class AskAbout:
    """The leader has to be asked where this epoch ends in its log."""

    leader_epoch: int


@dataclass(frozen=True, slots=True)
class NotKnown:
    """Somewhere below all that the reader knows of. `leader_epoch`: the leader's answer, -1 where it had none."""

    leader_epoch: int


Step = Parting | AskAbout | NotKnown


def next_step(read: Sequence[EpochStart], end_offset: int, asked_epoch: int, answer: EpochEnd) -> Step:
    """What follows from the leader's `answer` about `asked_epoch` (`epochs.md E13`).

    `read`: epochs of the log that was read, oldest first, each with its first offset there (only the first one's may be
    unknown), up to `end_offset` (exclusive). A parting at `end_offset` means that the leader's log holds all of it.
    Asked about the epochs it names, the search ends: each is older than the one before.
    """
    is_undefined = answer.leader_epoch < 0 or answer.end_offset < 0
    if not is_undefined and answer.leader_epoch > asked_epoch:
        return NotKnown(answer.leader_epoch)
    below = asked_epoch - 1 if is_undefined else answer.leader_epoch
    older = [number for number, start in enumerate(read) if 0 <= start.epoch <= below]
    if not older:
        return NotKnown(-1 if is_undefined else answer.leader_epoch)
    number = older[-1]
    if is_undefined or read[number].epoch < answer.leader_epoch:
        return AskAbout(read[number].epoch)
    ended_at = read[number + 1].offset if number + 1 < len(read) else end_offset
    return Parting(min(answer.end_offset, ended_at), answer.leader_epoch)
