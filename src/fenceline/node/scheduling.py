"""The kernel's scheduling policy of this process, and of threads started later.

Owns that choice. Never changes a policy that was set from outside, and never prevents a node from starting.
"""

from __future__ import annotations

import os
import sys

from fenceline.config.broker import BATCH_POLICY, SCHEDULING_POLICY
from fenceline.node.logs import Logger

log = Logger("node")


def set_policy(wanted: str | None) -> None:
    """`batch`: if there are few cores, a woken process does not preempt the process that woke it, so several requests
    are handled in one go. Needs no privilege (`sched(7)`). `normal`, and systems without it: no change.
    """
    if wanted != BATCH_POLICY or sys.platform != "linux":
        return
    try:
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except OSError as error:
        log.info(
            "scheduling",
            detail=f"could not set the scheduling policy {BATCH_POLICY}: {error.strerror}",
            key=SCHEDULING_POLICY,
        )
