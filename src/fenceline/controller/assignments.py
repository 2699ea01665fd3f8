"""Checks of manual replica assignments.

Rules: controller.md C21 (39), C24. Error messages are Kafka's, because tools show them.
"""

from __future__ import annotations

from fenceline.controller.outcome import RequestOutcome
from fenceline.controller.state import ControllerState
from fenceline.errors import ErrorCode


class ItemRejected(Exception):
    """One item of a request is rejected; the others are still processed."""

    def __init__(self, code: ErrorCode, message: str | None) -> None:
        super().__init__(message)
        self.outcome = RequestOutcome(code, message)


def check_assignment(state: ControllerState, replicas: tuple[int, ...], factor: int | None = None) -> None:
    """Registered, distinct brokers, `factor` of them. Raises ItemRejected."""

    def rejected(reason: str) -> ItemRejected:
        return ItemRejected(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"The manual partition assignment includes {reason}")

    if not replicas:
        raise rejected("an empty replica list.")
    previous: int | None = None
    for broker in sorted(replicas):
        if broker not in state.image.brokers:
            raise rejected(f"broker {broker}, but no such broker is registered.")
        if broker == previous:
            raise rejected(f"the broker {broker} more than once.")
        previous = broker
    if factor is not None and len(replicas) != factor:
        raise rejected(
            f"a partition with {len(replicas)} replica(s), but this is not consistent with previous partitions, "
            f"which have {factor} replica(s)."
        )
