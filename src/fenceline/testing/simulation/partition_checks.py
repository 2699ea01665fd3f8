"""The valid states of a partition in the committed metadata, and its valid changes: leader, in-sync set, epochs.

Owns checks of two images of one partition. Never reads a broker or a log: that is `data_checks`.

Rules: `recovery.md V9`; `epochs.md E36` (KIP-841); LeaderInIsr of the public models.
"""

from __future__ import annotations

from typing import Final

from fenceline.ids import NO_LEADER
from fenceline.metadata.image import LeaderRecoveryState, MetadataImage, PartitionImage
from fenceline.testing.simulation.checks import InvariantBroken
from fenceline.testing.simulation.data_history import PartitionHistory

_RECOVERING: Final = LeaderRecoveryState.RECOVERING


def check_change(
    history: PartitionHistory, before: PartitionImage | None, after: PartitionImage, image: MetadataImage
) -> None:
    """`after` is the partition in `image`; `before` None: it is new. Records unclean elections. Raises
    InvariantBroken."""
    where = f"{history.name}, leader epoch {after.leader_epoch}"
    if after.leader != NO_LEADER and after.leader not in after.isr:
        raise InvariantBroken(f"{where}: {after.leader} leads and is not in the in-sync set {after.isr} (LeaderInIsr)")
    if not set(after.isr) <= set(after.replicas):
        raise InvariantBroken(f"{where}: in sync are {after.isr}, replicas {after.replicas}")
    is_recovering = after.leader_recovery_state is _RECOVERING
    if is_recovering:
        if len(after.isr) > 1:
            raise InvariantBroken(f"{where}: RECOVERING with {after.isr} in sync (V9)")
        history.last_unclean = max(history.last_unclean, after.leader_epoch)
    history.recovering_epoch = after.leader_epoch if is_recovering else -1
    # The last in-sync replica stays in the set, even when it is fenced.
    idle = [member for member in after.isr if must_have_left(member, image)] if len(after.isr) > 1 else []
    if idle:
        raise InvariantBroken(f"{where}: in sync are {after.isr}, of these {idle} are fenced or shut down (E36)")
    if before is not None:
        _check_epochs(where, before, after)
        if not is_recovering:
            _check_election(where, before, after)


def must_have_left(broker_id: int, image: MetadataImage) -> bool:
    """Whether a broker may not be in a set of several in-sync replicas."""
    return not image.is_active(broker_id)


def _check_epochs(where: str, before: PartitionImage, after: PartitionImage) -> None:
    if after.leader_epoch < before.leader_epoch or after.partition_epoch <= before.partition_epoch:
        raise InvariantBroken(f"{where}: an epoch decreases from {before} to {after}")
    if after.leader != before.leader and after.leader_epoch == before.leader_epoch:
        raise InvariantBroken(f"{where}: {after.leader} leads in the epoch of {before.leader}")


def _check_election(where: str, before: PartitionImage, after: PartitionImage) -> None:
    known = (NO_LEADER, before.leader, *before.isr, *before.elr, *before.adding)
    # The last change of a leader that is reassigned may be an expansion of the in-sync set.
    is_moved = before.leader in before.removing and before.leader not in after.replicas
    if after.partition_epoch == before.partition_epoch + 1 and after.leader not in known and not is_moved:
        raise InvariantBroken(
            f"{where}: {after.leader} was elected, in sync were {before.isr}, eligible {before.elr}, and it"
            " is not RECOVERING (V9)"
        )


def shown(partition: PartitionImage) -> str:
    parts = [f"leader {partition.leader} epoch {partition.leader_epoch} isr {partition.isr} of {partition.replicas}"]
    parts += [
        f"{name} {members}" for name, members in (("elr", partition.elr), ("last", partition.last_known_elr)) if members
    ]
    if partition.leader_recovery_state is _RECOVERING:
        parts.append("RECOVERING")
    return " ".join(parts)
