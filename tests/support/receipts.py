"""A loss receipt for tests that are about few of its facts."""

from __future__ import annotations

from typing import Any

from fenceline.losses.receipt import LossCause, LossClass, Receipt


def a_receipt(**facts: Any) -> Receipt:
    """Of two records of partition 0 of `t`, cut by a follower. `facts`: what is different."""
    usual: dict[str, Any] = {
        "topic": "t",
        "topic_id": None,
        "partition": 0,
        "start_offset": 1,
        "end_offset_exclusive": 3,
        "leader_epochs": (0,),
        "records": 2,
        "size_bytes": 100,
        "loss_class": LossClass.COMMITTED,
        "known_by": "a test",
        "cause": LossCause.DIVERGENCE,
        "reason": "a test",
        "replica": 1,
        "leader": 2,
        "leader_epoch": 1,
        "time_ms": 1,
    }
    return Receipt(**{**usual, **facts})
