"""Assignments that users give by hand: what one may say.

Rules: controller.md C21 (39), C24. Error messages are Kafka's, because tools show them.
"""

from __future__ import annotations

from fenceline.controller.outcome import Outcome
from fenceline.controller.state import ControllerState
from fenceline.errors import ErrorCode


class Refused(Exception):
    """One item of a request can not be done; the others go on."""

    def __init__(self, code: ErrorCode, message: str | None) -> None:
        super().__init__(message)
        self.outcome = Outcome(code, message)


def check_assignment(state: ControllerState, replicas: tuple[int, ...], factor: int | None = None) -> None:
    """Registered, distinct brokers, `factor` of them. Raises Refused."""

    def refuse(reason: str) -> Refused:
        return Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"The manual partition assignment includes {reason}")

    if not replicas:
        raise refuse("an empty replica list.")
    previous: int | None = None
    for broker in sorted(replicas):
        if broker not in state.image.brokers:
            raise refuse(f"broker {broker}, but no such broker is registered.")
        if broker == previous:
            raise refuse(f"the broker {broker} more than once.")
        previous = broker
    if factor is not None and len(replicas) != factor:
        raise refuse(
            f"a partition with {len(replicas)} replica(s), but this is not consistent with previous partitions, "
            f"which have {factor} replica(s)."
        )
