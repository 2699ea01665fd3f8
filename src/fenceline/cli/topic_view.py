"""The table of `fenceline topics describe`: the state of each partition and the lag of its replicas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rich.text import Text

    from fenceline.client.admin.replicas import ReplicaStates

_HEALTHY: Final = "in sync"
_STYLES: Final = {
    "no leader": "bold red",
    "recovering": "bold red",
    "too few in sync": "bold red",
    "leader silent": "bold red",
}
_UNHEALTHY: Final = "yellow"


def state_of(states: ReplicaStates, min_insync_replicas: int) -> str:
    """The most severe state that applies: no leader, recovering, too few in sync (acks=all is rejected), leader silent,
    under-replicated, replica silent (in the ISR, but does not answer), or in sync."""
    partition = states.partition
    if partition.leader < 0:
        return "no leader"
    if states.is_recovering:
        return "recovering"
    if len(partition.isr) < min(min_insync_replicas, len(partition.replicas)):
        return "too few in sync"
    if partition.leader not in states.ends:
        return "leader silent"
    if len(partition.isr) < len(partition.replicas):
        return "under-replicated"
    return _HEALTHY if all(each in states.ends for each in partition.isr) else "replica silent"


def json_row(index: int, states: ReplicaStates, min_insync_replicas: int) -> dict[str, Any]:
    """`lag` and `log_end_offsets` are by replica; an unknown lag is null."""
    partition = states.partition
    return {
        "partition": index,
        "leader": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "replicas": list(partition.replicas),
        "isr": list(partition.isr),
        "high_watermark": states.high_watermark,
        "log_end_offsets": dict(sorted(states.ends.items())),
        "lag": dict(sorted(states.lag.items())),
        "state": state_of(states, min_insync_replicas),
    }


def table_row(index: int, states: ReplicaStates, min_insync_replicas: int) -> dict[str, Any]:
    """A row of the table; lagging replicas and unhealthy states are highlighted."""
    from rich.text import Text

    partition = states.partition
    state = state_of(states, min_insync_replicas)
    high_watermark = states.high_watermark
    return {
        "partition": index,
        "leader": "none" if partition.leader < 0 else str(partition.leader),
        "epoch": partition.leader_epoch,
        "replicas": _ids(partition.replicas),
        "in sync": _ids(partition.isr),
        "high_watermark": "?" if high_watermark is None else str(high_watermark),
        "behind": _behind(states),
        "state": Text(state, style="" if state == _HEALTHY else _STYLES.get(state, _UNHEALTHY)),
    }


def summary(found: Sequence[ReplicaStates], min_insync_replicas: int) -> str:
    """Number of partitions by unhealthy state; empty if all are healthy."""
    counts = Counter(state_of(states, min_insync_replicas) for states in found)
    del counts[_HEALTHY]
    if not counts:
        return ""
    return f": of {len(found)} partitions " + ", ".join(f"{count} {state}" for state, count in counts.most_common())


def _behind(states: ReplicaStates) -> Text:
    """Followers that lack records or do not answer, as `3: 120, 2: ?`. Without a leader, the log end offset of each
    replica: an unclean election loses the records that the new leader lacks."""
    from rich.text import Text

    if states.partition.leader < 0:
        ends = {replica: states.ends.get(replica) for replica in sorted(states.partition.replicas)}
        listed = ", ".join(
            f"{replica}: ?" if end is None else f"{replica} ends at {end}" for replica, end in ends.items()
        )
        return Text(listed, style=_UNHEALTHY)
    lag = {replica: lag for replica, lag in states.lag.items() if lag != 0}
    listed = ", ".join(f"{replica}: {'?' if each is None else each}" for replica, each in sorted(lag.items()))
    return Text(listed, style=_UNHEALTHY)


def _ids(nodes: Sequence[int]) -> str:
    return ", ".join(map(str, nodes))
