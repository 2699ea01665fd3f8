"""Loss receipts as a node writes them."""

from __future__ import annotations

import json
from typing import Any

from fenceline.losses.receipt import LossCause, LossClass, Receipt, document


def receipt(id: str = "a", time_ms: int = 1_000, topic: str = "t", **others: Any) -> bytes:
    """A receipt for seven records from offset 10 on; `others` override fields by their documented names."""
    reported = Receipt(
        id=id,
        topic=topic,
        topic_id=None,
        partition=0,
        start_offset=10,
        end_offset_exclusive=17,
        leader_epochs=(1, 3),
        records=7,
        size_bytes=700,
        loss_class=LossClass.COMMITTED,
        known_by="a high watermark",
        cause=LossCause.DIVERGENCE,
        reason="an election",
        replica=2,
        leader=1,
        leader_epoch=4,
        time_ms=time_ms,
    )
    return json.dumps({**document(reported), **others}).encode()
