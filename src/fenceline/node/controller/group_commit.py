"""A group commit of the metadata log: decisions made one after another, written in one append, with their responses.

A decision that is taken in steps, and what is still queued once enough was decided, wait for the next commit: no commit
blocks the event loop for long.

Owns the step from queued requests to bytes for the log. Pure except for advancing the controller: no I/O, no clock, and
no response is sent here.

Rules: controller.md C1 (each decision sees those before it), C3, C5.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from fenceline.controller.controller import Controller
from fenceline.controller.requests import Request
from fenceline.errors import PeerError
from fenceline.metadata.changes import Delta
from fenceline.metadata.image import MetadataImage
from fenceline.node.metadata.batches import DecisionBatches
from fenceline.rng import Rng

_ENOUGH_RECORDS: Final = 1000
"""With so many records nothing more is decided for this commit."""


class PendingRequest(NamedTuple):
    """A request, the future of its response, and its arrival time by the loop's clock."""

    request: Request
    answer: asyncio.Future[Any]
    asked_s: float


@dataclass(slots=True)
class GroupCommit:
    """Offsets of the records [first, end), the batches to append, and the results once they are durable."""

    first_offset: int
    end_offset: int
    content: bytearray = field(default_factory=bytearray)
    images: list[tuple[MetadataImage, Delta]] = field(default_factory=list)
    answers: list[tuple[asyncio.Future[Any], Any]] = field(default_factory=list)
    """The responses; an exception is raised to the waiting caller."""
    sent_s: float = 0.0
    """Time of the append, by the loop's clock."""
    kraft_versions: list[tuple[asyncio.Future[Any], Any, int]] = field(default_factory=list)
    """Responses that wait until the quorum has finalized a level of kraft.version (K15)."""
    undecided: list[PendingRequest] = field(default_factory=list)
    """For the next commit, in order; last those of which one step was decided."""

    def is_committed(self, offset: int) -> bool:
        """Whether it is complete once everything below `offset` is committed, and all commits before it are."""
        return not self.content or self.end_offset <= offset

    @property
    def futures(self) -> list[asyncio.Future[Any]]:
        """The futures of all its requests."""
        return [
            *(answer for answer, _ in self.answers),
            *(answer for answer, _, _ in self.kraft_versions),
            *(waiting.answer for waiting in self.undecided),
        ]


def decide_all(
    controller: Controller, queue: Sequence[PendingRequest], *, epoch: int, now_ms: int, monotonic_ms: int, rng: Rng
) -> GroupCommit:
    """Decide in order; a request that fails with PeerError fails alone. `Controller.reset` reverts the decisions."""
    commit = GroupCommit(controller.next_offset, controller.next_offset)
    batches = DecisionBatches(now_ms)
    continued: list[PendingRequest] = []
    for position, waiting in enumerate(queue):
        if controller.next_offset - commit.first_offset >= _ENOUGH_RECORDS:
            commit.undecided += queue[position:]
            break
        request, answer, _ = waiting
        try:
            decision = controller.decide(request, monotonic_ms, rng)
        except PeerError as error:
            commit.answers.append((answer, error))
            continue
        if decision.records:
            batches.add(decision.records, decision.atomic, controller.image.metadata_version)
            last_offset = controller.next_offset + len(decision.records) - 1
            commit.images.append(controller.replay(decision.records, last_offset, epoch))
        if decision.more:
            continued.append(waiting)
        elif decision.kraft_version is None:
            commit.answers.append((answer, decision.answer))
        else:
            commit.kraft_versions.append((answer, decision.answer, decision.kraft_version))
    commit.undecided += continued
    commit.end_offset = controller.next_offset
    commit.content = batches.finish()
    return commit
