"""Changes of one partition: ISR, eligible leader replicas, leader.

Owns `change_partition`, the only place that chooses a leader. Pure: it gets one partition and returns the
PartitionChangeRecord that leads to the requested state, or None if nothing changes.

Order of an election (K21): a member of the ISR; with an empty ISR an eligible leader replica (which becomes the only
ISR member); the last known leader, if it is the only one recorded; with an unclean election any live replica. The
latter two may lose records: the partition becomes RECOVERING (`recovery.md V10-V13`), whatever else the same change
requests (V36).

Differences from Kafka, with the same wire protocol: replicas that leave the assignment also leave the eligible leader
replicas; a leader outside ISR and eligible replicas always means RECOVERING (V9), also when a reassignment is cancelled
(V35).

Rules: controller.md C9, C27, C28, C31, C33; since_4_0.md K21, K22, K27; recovery.md V3 (always: no metadata.version
below 7 is supported, K2), V6, V7, V8 (no state but RECOVERING is ever chosen here), V9-V11, V13, V14, V35, V36; gaps.md
G20 (V35), G21 (V36), G42 (a broker that is not alive is not elected, even as the last known leader), G43.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final
from uuid import UUID

from fenceline.ids import NO_LEADER
from fenceline.metadata.image import LeaderRecoveryState, PartitionImage
from fenceline.metadata.records import PartitionChangeRecord

NO_CHANGE: Final = -2
_NO_RECOVERY_CHANGE: Final = -1
_NOWHERE: Final[Mapping[int, UUID]] = MappingProxyType({})


class Election(Enum):
    """PREFERRED elects the first replica if possible; ONLINE keeps a leader that is still eligible."""

    PREFERRED = "preferred"
    ONLINE = "online"
    UNCLEAN = "unclean"


def change_partition(
    partition: PartitionImage,
    topic_id: UUID,
    index: int,
    *,
    may_lead: Callable[[int], bool],
    min_isr: int,
    elr_enabled: bool,
    election: Election = Election.ONLINE,
    target_isr: tuple[int, ...] | None = None,
    target_replicas: tuple[int, ...] | None = None,
    target_adding: tuple[int, ...] | None = None,
    target_removing: tuple[int, ...] | None = None,
    unclean_shutdown: int = NO_LEADER,
    directory_of: Callable[[int], UUID] | None = None,
    directories: Mapping[int, UUID] = _NOWHERE,
    recovery_state: LeaderRecoveryState | None = None,
    shrinking_starts_an_epoch: bool = False,
) -> PartitionChangeRecord | None:
    """The record that moves `partition` to the targets (None: unchanged) and elects a leader if one is needed.

    `may_lead` returns whether a broker is alive and its replica online. `min_isr` is the configured value; it is capped
    at the number of replicas (C37, `gaps.md G43`). `unclean_shutdown` is a broker that may have lost its latest records
    in an unclean shutdown: it is not added to the eligible leader replicas. `directory_of` returns the directory of a
    new replica (None: directories are not tracked), `directories` contains those reported now.
    `shrinking_starts_an_epoch` below metadata.version 3.6-IV0 (C27).
    """
    isr = partition.isr if target_isr is None else target_isr
    replicas = partition.replicas if target_replicas is None else target_replicas
    adding = partition.adding if target_adding is None else target_adding
    removing = partition.removing if target_removing is None else target_removing
    if adding or removing:
        isr, replicas, adding, removing = _complete_reassignment(isr, replicas, adding, removing)
    min_isr = min(min_isr, len(replicas))
    elr = _eligible(partition, replicas, isr, min_isr, unclean_shutdown) if elr_enabled else ()

    def is_clean(replica: int) -> bool:
        return (replica in isr if isr else replica in elr) and may_lead(replica)

    leader, unclean = _elect(partition, replicas, isr, elr, is_clean, may_lead, elr_enabled, election)
    new_leader = NO_CHANGE
    state = partition.leader_recovery_state if recovery_state is None else recovery_state
    if leader != partition.leader or unclean:
        new_leader = leader
        if unclean:
            isr, elr = (leader,), ()
            state = LeaderRecoveryState.RECOVERING
        elif leader in elr:
            isr = (leader,)
            if adding or removing:  # a sole leader may be the last condition of a reassignment
                isr, replicas, adding, removing = _complete_reassignment(isr, replicas, adding, removing)
            # Kafka keeps the others eligible even if one replica is enough to commit: they would lack records that the
            # new leader commits alone.
            enough = min(min_isr, len(replicas)) <= 1
            elr = () if enough else tuple(replica for replica in elr if replica != leader and replica in replicas)
    elif replicas is not partition.replicas and not set(partition.replicas) <= set(replicas):
        # C27: a replica set that loses a member starts a new leader epoch.
        new_leader = partition.leader
    if not isr and not elr_enabled:
        # C28: the last member stays in the ISR
        isr = tuple(replica for replica in partition.isr if replica in replicas)
        if not isr and partition.isr:
            isr, state = (replicas[0],), LeaderRecoveryState.RECOVERING  # V35: the replica was not in sync
    if shrinking_starts_an_epoch and new_leader == NO_CHANGE and not set(partition.isr) <= set(isr):
        new_leader = partition.leader

    last_known = _last_known(partition, replicas, isr, new_leader) if elr_enabled else None
    placed = _directories(partition, replicas, directories, directory_of)
    if (
        new_leader == NO_CHANGE
        and state == partition.leader_recovery_state
        and isr == partition.isr
        and elr == partition.elr
        and last_known is None
        and placed is None
        and replicas == partition.replicas
        and adding == partition.adding
        and removing == partition.removing
    ):
        return None
    return PartitionChangeRecord(
        partition_id=index,
        topic_id=topic_id,
        isr=isr if isr != partition.isr else None,
        leader=new_leader,
        replicas=replicas if replicas != partition.replicas else None,
        removing_replicas=removing if removing != partition.removing else None,
        adding_replicas=adding if adding != partition.adding else None,
        leader_recovery_state=state if state != partition.leader_recovery_state else _NO_RECOVERY_CHANGE,
        directories=placed,
        eligible_leader_replicas=elr if elr != partition.elr else None,
        last_known_elr=last_known,
    )


def _eligible(
    partition: PartitionImage, replicas: tuple[int, ...], isr: tuple[int, ...], min_isr: int, unclean_shutdown: int
) -> tuple[int, ...]:
    """K21: below min ISR, all former members of ISR or ELR that left cleanly; empty at or above it."""
    if len(isr) >= min_isr:
        return ()
    candidates = {*partition.elr, *partition.isr}.intersection(replicas) - set(isr) - {unclean_shutdown}
    return tuple(sorted(candidates))


def _elect(
    partition: PartitionImage,
    replicas: tuple[int, ...],
    isr: tuple[int, ...],
    elr: tuple[int, ...],
    is_clean: Callable[[int], bool],
    may_lead: Callable[[int], bool],
    elr_enabled: bool,
    election: Election,
) -> tuple[int, bool]:
    """(leader or -1, whether it may lose records)."""
    if election is Election.PREFERRED and replicas and is_clean(replicas[0]):
        return replicas[0], False
    if is_clean(partition.leader):
        return partition.leader, False
    for replica in replicas:
        if is_clean(replica):
            return replica, False
    last_known = partition.last_known_elr
    if (
        elr_enabled
        and not isr
        and not elr
        and len(last_known) == 1
        and last_known[0] in replicas
        and may_lead(last_known[0])
    ):
        return last_known[0], True
    if election is Election.UNCLEAN:
        for replica in replicas:
            if may_lead(replica):
                return replica, True
    return NO_LEADER, False


def _last_known(
    partition: PartitionImage, replicas: tuple[int, ...], isr: tuple[int, ...], new_leader: int
) -> tuple[int, ...] | None:
    """K21: the last leader is recorded when the ISR becomes empty, and cleared once a leader is elected."""
    if isr != partition.isr and not isr and partition.leader in replicas:
        return (partition.leader,) if partition.last_known_elr != (partition.leader,) else None
    leads = new_leader >= 0 or (partition.leader != NO_LEADER and new_leader != NO_LEADER)
    return () if leads and partition.last_known_elr else None


def _complete_reassignment(
    isr: tuple[int, ...], replicas: tuple[int, ...], adding: tuple[int, ...], removing: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """C33 as corrected by K27: complete once all added replicas are in sync (all target replicas if the factor
    shrinks)."""
    target = tuple(replica for replica in replicas if replica not in removing)
    needed = set(target) if len(removing) > len(adding) else set(adding)
    kept = tuple(replica for replica in isr if replica not in removing)
    if not kept or not needed <= set(kept):
        return isr, replicas, adding, removing
    return kept, target, (), ()


def _directories(
    partition: PartitionImage,
    replicas: tuple[int, ...],
    reported: Mapping[int, UUID],
    directory_of: Callable[[int], UUID] | None,
) -> tuple[UUID, ...] | None:
    """The directories of the replicas, if they change: a replica keeps its own, a new one gets the default (C20)."""
    if directory_of is None or (replicas == partition.replicas and not reported):
        return None
    known = {**dict(zip(partition.replicas, partition.directories, strict=False)), **reported}
    placed = tuple(known.get(replica) or directory_of(replica) for replica in replicas)
    return placed if placed != partition.directories else None
