"""Blocks of producer ids. Rules: controller.md C13, C41."""

from __future__ import annotations

from typing import Final

from fenceline.controller.requests import AllocateProducerIds, ProducerIdBlock
from fenceline.controller.state import ControllerState, Decision
from fenceline.errors import ErrorCode, PeerError
from fenceline.metadata.records import ProducerIdsRecord

BLOCK_SIZE: Final = 1000
_LARGEST: Final = 2**63 - 1


def allocate_producer_ids(state: ControllerState, request: AllocateProducerIds) -> Decision:
    """The next block. The ids of a lost response are never allocated again (C41).

    Raises PeerError(STALE_BROKER_EPOCH), or UNKNOWN_SERVER_ERROR when the ids are exhausted.
    """
    state.broker(request.broker_id, request.broker_epoch)
    first = state.image.next_producer_id
    if first > _LARGEST - BLOCK_SIZE:
        raise PeerError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            f"Exhausted all producerIds as the next block's end producerId is {first} "
            "has exceeded the int64 type limit",
        )
    record = ProducerIdsRecord(request.broker_id, request.broker_epoch, first + BLOCK_SIZE)
    return Decision((record,), ProducerIdBlock(first, BLOCK_SIZE))
