"""The parts of the argument why fencing a silent broker is safe, each removed by a patch: the sixth part of the table
of `test_broken_data_rules`.

The argument is in docs/replication.md, "A leader that freezes". The runs are those of the scenario `freezes`: leaders
freeze or are cut off, are fenced for their silence, and return while they still believe that they lead.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

from fenceline.controller import alter_partition, elections
from fenceline.controller.partition_requests import AlteredPartition
from fenceline.errors import ErrorCode
from fenceline.metadata.image import BrokerImage
from fenceline.node.controller.silence_watch import SilenceWatch
from tests.simulation.broken_data_rules import breaks
from tests.simulation.broken_transaction_rules import NO_SEED, RULES

__all__ = ("NO_SEED", "RULES")

_IN: Final = "freezes"


def _again(rule: str, patch: pytest.MonkeyPatch) -> None:
    """The breach of another rule, whose seeds are of another scenario."""
    RULES[rule].breach(patch)


@breaks(4, "LeaderInIsr", "2026-11-29", scenario=_IN, silence_ms="100")
def _silence_the_next_leader_is_in_sync(patch: pytest.MonkeyPatch) -> None:
    """E35, E64: the first replica that is alive leads instead, as if it were in sync."""
    elect = elections._elect

    def any_that_lives(
        partition: Any, replicas: Any, isr: Any, elr: Any, is_clean: Any, may_lead: Any, *rest: Any
    ) -> tuple[int, bool]:
        if may_lead(partition.leader):
            return elect(partition, replicas, isr, elr, is_clean, may_lead, *rest)
        living = [each for each in replicas if may_lead(each)]
        outside = [each for each in living if each not in isr]
        return next(iter(outside or living), -1), False

    patch.setattr(elections, "_elect", any_that_lives)


@breaks(2, "E2, E7", "2026-11-29", scenario=_IN, silence_ms="100")
def _silence_followers_leave_the_old_leader(patch: pytest.MonkeyPatch) -> None:
    """E2, E23: no request and no response is checked for its epoch."""
    _again("kip_320_requests_are_fenced_by_epochs", patch)


@breaks(0, "acknowledgements", "2026-11-29", scenario=_IN, silence_ms="100")
def _silence_acks_all_waits_for_the_in_sync_set(patch: pytest.MonkeyPatch) -> None:
    """E40, E42."""
    _again("e42_acks_all_waits_for_the_high_watermark", patch)


@breaks(15, "logs", "2026-11-29", scenario=_IN, silence_ms="100")
def _silence_the_old_leader_cannot_remove_the_others(patch: pytest.MonkeyPatch) -> None:
    """E39: a change of the in-sync set in an old epoch is answered as if it had been made."""
    alter = alter_partition._Requests.alter

    def granted(self: Any, topic: Any, requested: Any) -> AlteredPartition:
        answer = alter(self, topic, requested)
        if answer.code is not ErrorCode.FENCED_LEADER_EPOCH:
            return answer
        return AlteredPartition(
            requested.index,
            ErrorCode.NONE,
            self._broker_id,
            requested.leader_epoch,
            tuple(member.broker_id for member in requested.new_isr),
            requested.leader_recovery_state,
            requested.partition_epoch + 1,
        )

    patch.setattr(alter_partition._Requests, "alter", granted)


@breaks(0, "WeakIsr", "2026-11-29", scenario=_IN, silence_ms="100")
def _silence_the_old_leader_cuts_what_the_new_one_lacks(patch: pytest.MonkeyPatch) -> None:
    """E25: it keeps its tail, and appends what it fetches behind it, whatever the epochs say."""
    _again("kip_101_a_log_is_not_truncated_to_the_high_watermark", patch)


@breaks(210, "InvariantBroken", "2026-11-29", scenario=_IN, silence_ms="100")
def _silence_the_controller_asks_the_broker_itself(patch: pytest.MonkeyPatch) -> None:
    """No loss, but an alarm that is false: followers may be cut off from a leader that the controller reaches."""

    async def is_silent(self: SilenceWatch, broker: BrokerImage) -> bool:
        return True

    patch.setattr(SilenceWatch, "_is_silent", is_silent)
