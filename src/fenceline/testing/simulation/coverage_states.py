"""The states of the components of a simulated broker, as labels for `coverage`.

Owns the list of labels and how each is read from a running node. Only reads. A component can be in several states at
once: a log is rebased and dirty; each of several logs has its own states.

| component | labels |
|---|---|
| log | `empty` (no record), `clean` and `dirty` (all, or not all of it is known to be on the disk), `rebased` (its start is not 0), `rolled` (several segments), `cutting`, `compacting`, `moving` (between directories) |
| replica | `leader`, `alone` (a leader that is the only member of the in-sync set), `expanding` and `shrinking` (its proposal is in flight), `recovering` (after an unclean election), `follower` (in sync), `joining` (a follower out of sync), `looking` (requests an end offset or an epoch), `waiting` (backs off), `offline`, `down` (its process) |
| quorum | the role: `leader`, `follower`, `candidate`, `prospective`, `unattached`, `resigned`; `observer` outside the voter set |
| controller | `active`, `loading` (leads, has not applied its log), `deciding` (active, records in flight), `standby` |
| groups | `loading`, `idle` (coordinates no group), `coordinating` |
| losses | `none`, `undelivered` (receipts that the ledger lacks) |
| metadata | `starting` (the node does not serve yet), `current`, `behind` (committed records not applied), `snapshotting`, `fenced` (as its image says) |
"""  # noqa: E501 - a table

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from fenceline.quorum.roles import Leader
from fenceline.replica.follower import FollowerPhase
from fenceline.testing.simulation.coverage import CoveredState

if TYPE_CHECKING:
    from fenceline.node.replication.replica import Replica
    from fenceline.testing.simulation.brokers_node import SimBroker

STATES: Final[Mapping[str, tuple[str, ...]]] = {
    "log": ("empty", "clean", "dirty", "rebased", "rolled", "cutting", "compacting", "moving"),
    "replica": (
        "leader",
        "alone",
        "expanding",
        "shrinking",
        "recovering",
        "follower",
        "joining",
        "looking",
        "waiting",
        "offline",
        "down",
    ),
    "quorum": ("leader", "follower", "candidate", "prospective", "unattached", "resigned", "observer"),
    "controller": ("active", "loading", "deciding", "standby"),
    "groups": ("loading", "idle", "coordinating"),
    "losses": ("none", "undelivered"),
    "metadata": ("starting", "current", "behind", "snapshotting", "fenced"),
}
"""By component, all labels that a sample can contain."""

DOWN: Final = CoveredState("replica", "down")
_PHASES: Final[Mapping[FollowerPhase | None, CoveredState]] = {
    FollowerPhase.LOOKING: CoveredState("replica", "looking"),
    FollowerPhase.WAITING: CoveredState("replica", "waiting"),
}


def states_of(broker: SimBroker, topic: str | None) -> set[CoveredState]:
    """The states of all components of a running node; of its replicas and logs only those of `topic`, if it is
    given."""
    found: set[CoveredState] = set()
    add = found.add
    if not broker.has_metadata:
        add(CoveredState("metadata", "starting"))
        return found
    controller = broker.controller
    found.update(_of_quorum(broker))
    if not broker.has_joined:
        add(CoveredState("metadata", "starting"))
        return found
    image = controller.image
    me = image.brokers.get(broker.node_id)
    if me is None or me.fenced:
        add(CoveredState("metadata", "fenced"))
    add(CoveredState("metadata", "behind" if controller.is_behind else "current"))
    if controller.snapshots is not None and controller.snapshots.is_running:
        add(CoveredState("metadata", "snapshotting"))
    coordinator = broker.groups.coordinator
    if coordinator.loading_partitions:
        add(CoveredState("groups", "loading"))
    add(CoveredState("groups", "coordinating" if coordinator.active_partitions else "idle"))
    add(CoveredState("losses", "undelivered" if broker.losses.undelivered else "none"))
    for replica in broker.partitions.in_service:
        if topic is None or replica.topic_partition.topic == topic:
            found.update(_of_log(broker, replica))
            found.update(_of_replica(broker, replica))
    for where in broker.partitions.offline:
        if topic is None or where.topic == topic:
            add(CoveredState("replica", "offline"))
    return found


def _of_quorum(broker: SimBroker) -> Iterator[CoveredState]:
    controller = broker.controller
    held = controller.quorum.role
    role = type(held).__name__.lower()
    if not broker.config.is_controller:
        yield CoveredState("quorum", "observer")
        return
    yield CoveredState("quorum", role)
    if not isinstance(held, Leader):
        yield CoveredState("controller", "standby")
    elif not controller.is_active:
        yield CoveredState("controller", "loading")
    else:
        yield CoveredState("controller", "deciding" if controller.active.waiting_count else "active")


def _of_log(broker: SimBroker, replica: Replica) -> Iterator[CoveredState]:
    log = replica.log
    if replica.is_being_cut:
        yield CoveredState("log", "cutting")  # a thread owns the log; no other state can be read
        return
    start, end = log.log_start_offset, log.log_end_offset
    if start == end:
        yield CoveredState("log", "empty")
    yield CoveredState("log", "clean" if log.recovery_point >= end else "dirty")
    if start > 0:
        yield CoveredState("log", "rebased")
    if len(log.segments) > 1:
        yield CoveredState("log", "rolled")
    if replica.cleaning is not None:
        yield CoveredState("log", "compacting")
    if replica.topic_partition in broker.moves.in_progress:
        yield CoveredState("log", "moving")


def _of_replica(broker: SimBroker, replica: Replica) -> Iterator[CoveredState]:
    leader = replica.leader
    if leader is not None:
        if leader.is_recovering:
            yield CoveredState("replica", "recovering")
        yield CoveredState("replica", "alone" if len(leader.isr) == 1 and not leader.is_only_replica else "leader")
        proposal = leader.proposal
        if proposal is not None and proposal.growth:
            yield CoveredState("replica", "expanding" if proposal.growth > 0 else "shrinking")
        return
    partition = broker.image.topics_by_id.get(replica.topic_id)
    index = replica.topic_partition.partition
    if partition is not None and index < len(partition.partitions):
        is_in_sync = broker.node_id in partition.partitions[index].isr
        yield CoveredState("replica", "follower" if is_in_sync else "joining")
    phase = broker.replication.fetchers.phase_of(replica)
    if phase in _PHASES:
        yield _PHASES[phase]
