"""The kernel's scheduling policy of this process, and of the threads that it begins later.

Owns that choice. Never touches a policy that somebody else gave the process, and never keeps a node from starting.
"""

from __future__ import annotations

import os
import sys

from fenceline.config.broker import BATCH_POLICY, SCHEDULING_POLICY
from fenceline.node.logs import Logger

log = Logger("node")


def take_policy(wanted: str | None) -> None:
    """`batch`: where cores are short, who is woken does not take the core of who woke it; several requests are then
    handled in one go. It asks for no privilege (`sched(7)`). `normal`, and systems without it: nothing changes.
    """
    if wanted != BATCH_POLICY or sys.platform != "linux":
        return
    try:
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except OSError as error:
        log.info(
            "scheduling",
            detail=f"the system does not give the policy {BATCH_POLICY}: {error.strerror}",
            key=SCHEDULING_POLICY,
        )
