"""The table of `fenceline quorum describe`: the leader, and the state and lag of each replica.

Owns the texts and bars only. All values come from one response of the leader, and all times from the leader's clock.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, Final, Literal

from fenceline.ids import encode_uuid

if TYPE_CHECKING:
    from fenceline.client.admin.quorum import QuorumDescription, ReplicaStatus

SILENT_AFTER_MS: Final = 2000
"""A running replica fetches at least twice a second; controller.quorum.fetch.timeout.ms is 2 s."""
_BAR_WIDTH: Final = 8
_RECORDS_OF_A_FULL_BAR: Final = 100_000

State = Literal["leader", "in sync", "behind", "silent", "never seen"]
_STYLES: Final[dict[State, str]] = {
    "leader": "bold green",
    "in sync": "green",
    "behind": "yellow",
    "silent": "red",
    "never seen": "red",
}


def headline(found: QuorumDescription) -> str:
    """The leader, and how many voters may fail before the quorum loses its majority."""
    now_ms = leaders_time_ms(found)
    following = sum(state_of(each, found.leader_id, now_ms) in ("leader", "in sync", "behind") for each in found.voters)
    majority = len(found.voters) // 2 + 1
    spare = following - majority
    if spare < 0:
        outlook = f"a majority is {majority}: no metadata can be changed until more voters are back"
    elif spare == 0:
        outlook = f"a majority is {majority}: no voter may fail"
    else:
        outlook = f"{spare} of them may fail"
    return (
        f"Leader {found.leader_id}, epoch {found.leader_epoch}, high watermark {found.high_watermark}."
        f" {following} of {len(found.voters)} voter{'s' * (len(found.voters) != 1)}"
        f" {'follows' if following == 1 else 'follow'}; {outlook}."
    )


def rows(found: QuorumDescription, *, ascii_only: bool) -> list[dict[str, Any]]:
    """A row for each replica, voters first; styled cells are rich's Text."""
    now_ms = leaders_time_ms(found)
    return [
        _row(each, role, found.leader_id, now_ms, ascii_only=ascii_only)
        for role, replicas in (("voter", found.voters), ("observer", found.observers))
        for each in replicas
    ]


def _row(replica: ReplicaStatus, role: str, leader_id: int, now_ms: int, *, ascii_only: bool) -> dict[str, Any]:
    from rich.text import Text

    state = state_of(replica, leader_id, now_ms)
    style = _STYLES[state]
    if replica.replica_id == leader_id:
        name = Text(f"{'*' if ascii_only else '★'} {replica.replica_id}", style)
        last_fetch = "-"
    else:
        name = Text(f"  {replica.replica_id}")
        last_fetch = ago(replica.last_fetch_ms, now_ms)
    lag = Text(f"{replica.lag} ")
    lag.append(bar(replica.lag, "#" if ascii_only else "█"), style)
    return {
        "node": name,
        "role": role,
        "state": Text(
            state if state != "behind" else f"behind, caught up {ago(replica.last_caught_up_ms, now_ms)}", style
        ),
        "lag": lag,
        "log end": replica.log_end_offset,
        "last fetch": last_fetch,
        "directory id": encode_uuid(replica.directory_id) if replica.directory_id is not None else None,
        "address": [f"{each.host}:{each.port}" for each in replica.endpoints] or None,
    }


def leaders_time_ms(found: QuorumDescription) -> int:
    """The leader reports itself as caught up now; if it does not, use the local clock."""
    times = [each.last_caught_up_ms for each in found.voters if each.replica_id == found.leader_id]
    return times[0] if times and times[0] else int(time.time() * 1000)


def state_of(replica: ReplicaStatus, leader_id: int, now_ms: int) -> State:
    if replica.replica_id == leader_id:
        return "leader"
    if not replica.last_fetch_ms or replica.last_fetch_ms < 0:
        return "never seen"
    if now_ms - replica.last_fetch_ms > SILENT_AFTER_MS:
        return "silent"
    return "behind" if replica.lag > 0 else "in sync"


def bar(lag: int, block: str) -> str:
    """A bar of the lag on a logarithmic scale; empty without lag."""
    if lag <= 0:
        return ""
    part = math.log10(lag + 1) / math.log10(_RECORDS_OF_A_FULL_BAR)
    return block * max(1, min(_BAR_WIDTH, round(part * _BAR_WIDTH)))


def ago(at_ms: int | None, now_ms: int) -> str:
    """The time since `at_ms`, in one unit."""
    if at_ms is None or at_ms <= 0:
        return "never"
    seconds = max(0.0, (now_ms - at_ms) / 1000)
    if seconds < 60:
        return f"{seconds:.1f} s ago"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min ago"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.0f} h ago"
    return f"{seconds / 86400:.0f} d ago"
