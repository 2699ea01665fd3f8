"""Invariants of a metadata quorum, checked after every step of a node that changed its state.

Owns the state that the invariants need: the leader of each epoch, the one committed log that all nodes must agree on,
and the image that results from it. Reads nodes through their `SimulatedNodeView` only, and computes the expected image from the
committed bytes.

Rules: raft.md Q50-Q56; snapshots.md N48-N53; controller.md C1 (an image is the replayed log).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import fields
from hashlib import blake2b
from operator import attrgetter
from typing import Final

from fenceline.errors import OperatorError, PeerError
from fenceline.metadata.delta import MetadataDelta
from fenceline.metadata.image import EMPTY_IMAGE, MetadataImage
from fenceline.metadata.records import UnknownRecord
from fenceline.metadata.snapshot import image_values
from fenceline.quorum.control_records import ControlRecord, SnapshotFooter, SnapshotHeader, decode_control
from fenceline.records.batch import check_crc, iter_headers, read_header
from fenceline.records.decode import decode_batch
from fenceline.testing.simulation.majorities import Majorities
from fenceline.testing.simulation.world import NodeState, Process, SimulatedNodeView, StoredBatch, World


class InvariantBroken(AssertionError):
    """An invariant was violated."""


class CommittedLog:
    """The one history of the cluster: every batch that was ever below a high watermark, and the resulting images."""

    def __init__(self) -> None:
        self._bases: list[int] = []
        self._batches: list[StoredBatch] = []
        self._images: dict[int, MetadataImage] = {-1: EMPTY_IMAGE}
        self._checksums: dict[int, str] = {}
        self._newest = EMPTY_IMAGE

    @property
    def end(self) -> int:
        return self._batches[-1].next_offset if self._batches else 0

    def __len__(self) -> int:
        return len(self._batches)

    def batch_at(self, offset: int) -> StoredBatch | None:
        """The committed batch that contains this offset."""
        position = bisect_right(self._bases, offset) - 1
        if position < 0 or offset >= self._batches[position].next_offset:
            return None
        return self._batches[position]

    def image_at(self, offset: int) -> MetadataImage | None:
        """The image after the record at `offset`, if a batch ends there."""
        return self._images.get(offset)

    def checksum_at(self, offset: int) -> str:
        """The checksum of `image_at`; each is computed once for all nodes."""
        checksum = self._checksums.get(offset)
        if checksum is None:
            checksum = self._checksums[offset] = image_checksum(self._images[offset])
        return checksum

    def compare(self, batch: StoredBatch, where: str) -> None:
        """A batch that a node considers committed: it must be the known one, or the next one."""
        known = self.batch_at(batch.base_offset)
        if known is None:
            self._append(batch, where)
        elif known != batch:
            raise InvariantBroken(
                f"{where}: the committed batch {_describe(known)} was replaced by {_describe(batch)} (Q56)"
            )

    def _append(self, batch: StoredBatch, where: str) -> None:
        if batch.base_offset != self.end:
            raise InvariantBroken(
                f"{where}: the committed log ends at {self.end}, {_describe(batch)} does not follow (Q56)"
            )
        if self._batches and batch.epoch < self._batches[-1].epoch:
            raise InvariantBroken(f"{where}: the epoch decreases at {_describe(batch)}")
        header = read_header(batch.content)
        delta = MetadataDelta(self._newest)
        if not header.is_control:
            for record in decode_batch(batch.content, header):
                with suppress(UnknownRecord):  # no node can apply it either, and none publishes an image
                    delta.replay_value(record.value or b"")
        self._newest, _ = delta.build(batch.next_offset - 1, batch.epoch)
        self._images[batch.next_offset - 1] = self._newest
        self._bases.append(batch.base_offset)
        self._batches.append(batch)


def _describe(batch: StoredBatch) -> str:
    return f"{batch.base_offset}..{batch.next_offset - 1} of epoch {batch.epoch}"


_parts: Final = attrgetter(*(each.name for each in fields(MetadataImage)))
"""All fields of an image."""

_NEVER: Final = NodeState(-1, -1, False, 0, 0, 0, (), (), -1)


class Invariants:
    """See the module. `check` after each step; `check_all` when every node can be read in full."""

    def __init__(self, world: World) -> None:
        self.committed = CommittedLog()
        self.changes = 0
        """Changes of a node's state that were checked."""
        self._world = world
        self._last: dict[int, NodeState] = {}
        self._verified: dict[int, int] = {}
        self._matched: dict[int, int] = {}
        self._written: dict[tuple[int, int], bytes] = {}
        self._leaders: dict[int, int] = {}
        self._committed_in: dict[int, int] = {}
        """By epoch: the end of what was committed while this was the newest epoch of the node that reported it."""
        self._durable_epoch: dict[int, int] = {}
        self._voter_sets: list[frozenset[tuple[int, str]]] = []
        self._majorities = Majorities(world)
        self._same_images = SameImages()
        world.on_end.append(self._life_ended)

    def _life_ended(self, process: Process) -> None:
        last = self._last.pop(process.node_id, None)
        self._verified.pop(process.node_id, None)
        self._matched.pop(process.node_id, None)
        self._majorities.ended(process)
        if last is not None:
            self._durable_epoch[process.node_id] = last.epoch

    def check(self, process: Process) -> None:
        """After a step of this node. Raises InvariantBroken."""
        view = process.view
        if view is not None and view.has_changed() and not view.has_failed:
            self._check_state(process, view, view.state())

    def _check_state(self, process: Process, view: SimulatedNodeView, state: NodeState) -> None:
        before = self._last.get(process.node_id, _NEVER)
        if state == before:
            return
        self.changes += 1
        self._last[process.node_id] = state
        where = process.name
        if state[:6] != before[:6]:
            process.log_event(
                f"epoch {state.epoch} leader {state.leader_id} log {state.log_start}..{state.log_end}"
                f" committed {state.high_watermark}"
            )
        _offsets(state, before, where)
        self._monotonic(process, state, before)
        disturbed = self._majorities.disturbed(process, state)
        if disturbed is not None:
            raise InvariantBroken(f"{where}: {disturbed} (K7)")
        if state.log_end != before.log_end or state.epoch != before.epoch:
            self._logs_match(process, view, state)
        if state.epoch != before.epoch or state.is_leader != before.is_leader:
            self._one_leader(process, view, state)
        if state.voters != before.voters:
            self._one_change_at_a_time(state, where)
        if state.high_watermark > self._verified.get(process.node_id, -1):
            known = self.committed.end
            self._same_history(process, view, state)
            if state.is_leader or self.committed.end > known:
                self._majority_has(view, state, before, where)
        if state.snapshots != before.snapshots:
            self._snapshots_are_complete(process, view, state, before)
        if state.image_offset != before.image_offset:
            self._image_is_the_log(view, state, where)

    def _monotonic(self, process: Process, state: NodeState, before: NodeState) -> None:
        """Q50, Q53 for one node."""
        least = max(before.epoch, self._durable_epoch.get(process.node_id, -1))
        if state.epoch < least:
            raise InvariantBroken(f"{process.name}: the epoch decreased from {least} to {state.epoch} (Q50)")
        still_leads = state.is_leader and before.is_leader and state.epoch == before.epoch
        if still_leads and (state.log_end < before.log_end or state.log_start > before.log_end):
            raise InvariantBroken(
                f"{process.name}: a leader's log went from {before.log_start}..{before.log_end}"
                f" to {state.log_start}..{state.log_end} (Q55)"
            )
        # The high watermark restarts in each epoch and process; what was below it stays in the committed log.
        if state.high_watermark < before.high_watermark and state.epoch == before.epoch:
            raise InvariantBroken(
                f"{process.name}: the high watermark decreased from {before.high_watermark}"
                f" to {state.high_watermark} (Q53)"
            )

    def _majority_has(self, view: SimulatedNodeView, state: NodeState, before: NodeState, where: str) -> None:
        """Q52, for the voters after the step or before it; Q32: only records of its own epoch are counted. Also for a
        follower, if no other node has reported before that so much is committed."""
        last = self.committed.batch_at(state.high_watermark - 1)
        if last is None or last.next_offset != state.high_watermark:
            return
        led_before = before.is_leader and before.epoch == state.epoch
        if led_before and state.high_watermark > before.high_watermark and last.epoch != state.epoch:
            raise InvariantBroken(
                f"{where} leads epoch {state.epoch} and commits {_describe(last)} by counting replicas (Q32)"
            )
        sets = {state.voters, before.voters or state.voters}
        if not state.is_leader:
            sets.add(self._majorities.newest_voters() or state.voters)
        if not any(self._majorities.is_on_a_majority(last, voters, view.log_directory) for voters in sets):
            raise InvariantBroken(f"{where}: {_describe(last)} is not durable on a majority of {state.voters} (Q52)")

    def _one_leader(self, process: Process, view: SimulatedNodeView, state: NodeState) -> None:
        """Q51, and leader completeness: a leader has everything that was committed in earlier epochs."""
        if not state.is_leader:
            return
        known = self._leaders.setdefault(state.epoch, process.node_id)
        if known != process.node_id:
            raise InvariantBroken(f"{known} and {process.node_id} lead epoch {state.epoch} (Q51)")
        newest = max((end for epoch, end in self._committed_in.items() if epoch < state.epoch), default=0)
        if state.log_end < newest:
            raise InvariantBroken(
                f"{process.name} leads epoch {state.epoch} with a log that ends at {state.log_end}, "
                f"but {newest} was committed (Q56)"
            )
        self._compare(view.batches(max(state.log_start, 0), newest), process.name)

    def _logs_match(self, process: Process, view: SimulatedNodeView, state: NodeState) -> None:
        """Offset and epoch identify a batch, even one that was never committed (log matching)."""
        start = max(self._matched.get(process.node_id, 0), state.log_start)
        if state.log_end < start:
            start = state.log_start
        for batch in view.batches(start, state.log_end):
            known = self._written.setdefault((batch.base_offset, batch.epoch), batch.content)
            if known != batch.content:
                raise InvariantBroken(
                    f"{process.name}: {_describe(batch)} differs from the batch of other nodes (log matching)"
                )
        self._matched[process.node_id] = state.log_end

    def _one_change_at_a_time(self, state: NodeState, where: str) -> None:
        """Q44: a voter set differs by one voter from one that was known before."""
        voters = frozenset(state.voters)
        if not voters or voters in self._voter_sets:
            return
        if self._voter_sets and not any(len(voters ^ known) <= 1 for known in self._voter_sets):
            raise InvariantBroken(f"{where}: the voters became {sorted(voters)}, more than one change at a time (Q44)")
        self._voter_sets.append(voters)

    def _compare(self, batches: Iterable[StoredBatch], where: str) -> None:
        for batch in batches:
            self.committed.compare(batch, where)

    def _same_history(self, process: Process, view: SimulatedNodeView, state: NodeState) -> None:
        """Q56: what this node considers committed is the same on all nodes."""
        start = max(self._verified.get(process.node_id, 0), state.log_start)
        self._compare(
            [batch for batch in view.batches(start, state.high_watermark) if batch.base_offset >= start], process.name
        )
        self._verified[process.node_id] = state.high_watermark
        self._committed_in[state.epoch] = max(self._committed_in.get(state.epoch, 0), state.high_watermark)

    def _image_is_the_log(self, view: SimulatedNodeView, state: NodeState, where: str) -> None:
        """C1: an image at the end of a batch matches the committed log."""
        image = view.image()
        if image is None or state.image_offset < 0:
            return
        if state.image_offset >= self.committed.end:
            raise InvariantBroken(
                f"{where}: published the image at {state.image_offset}, but {self.committed.end} is committed (G35)"
            )
        expected = self.committed.image_at(state.image_offset)
        if expected is not None and not self._same_images.are_equal(image, expected):
            raise InvariantBroken(f"{where}: the image at {state.image_offset} does not match the log (C1)")

    def _snapshots_are_complete(
        self, process: Process, view: SimulatedNodeView, state: NodeState, before: NodeState
    ) -> None:
        """N50, N52, N53: a new snapshot contains committed state only, and matches the log."""
        for end_offset, epoch in state.snapshots:
            if (end_offset, epoch) in before.snapshots or end_offset == 0:
                continue
            where = f"{process.name}: snapshot {end_offset}-{epoch}"
            last = self.committed.batch_at(end_offset - 1)
            if last is None or last.next_offset != end_offset or last.epoch != epoch:
                raise InvariantBroken(f"{where} does not end with a committed batch of its epoch (N53)")
            content = view.read_snapshot(end_offset, epoch)
            if content is None:
                continue
            try:
                checksum = snapshot_checksum(content)
            except (PeerError, OperatorError) as error:
                raise InvariantBroken(f"{where} cannot be read: {error} (N50)") from error
            replayed = self.committed.checksum_at(end_offset - 1)
            if checksum != replayed:
                raise InvariantBroken(f"{where} has checksum {checksum}, but the log has {replayed} (N50)")

    def check_all(self) -> None:
        """Compare the log of every running node with the committed one, from its start to the high watermark."""
        for process in self._world.processes.values():
            view = process.view
            if view is not None and not view.has_failed:
                state = view.state()
                image, expected = view.image(), self.committed.image_at(state.image_offset)
                checksum = self.committed.checksum_at(state.image_offset) if expected is not None else ""
                if image is not None and checksum and image_checksum(image) != checksum:
                    raise InvariantBroken(
                        f"{process.name}: the image at {state.image_offset} does not match the log (C1)"
                    )
                start = state.log_start
                self._compare(
                    [batch for batch in view.batches(start, state.high_watermark) if batch.base_offset >= start],
                    process.name,
                )


def _offsets(state: NodeState, before: NodeState, where: str) -> None:
    """N48, N49, N51, Q54. After a restart the log starts at its first segment (N43)."""
    if not state.log_start <= state.log_end:
        raise InvariantBroken(f"{where}: the log starts at {state.log_start} and ends at {state.log_end} (N49)")
    if state.high_watermark > state.log_end:
        raise InvariantBroken(
            f"{where}: the high watermark {state.high_watermark} is beyond the log end {state.log_end} (N49)"
        )
    if state.log_start <= 0:
        return
    is_restart = before is _NEVER or state.log_start == before.log_start
    if not any(end >= state.log_start if is_restart else end == state.log_start for end, _ in state.snapshots):
        raise InvariantBroken(f"{where}: the log starts at {state.log_start} without a snapshot there (N48)")


class SameImages:
    """Compares images field by field, and each pair of objects once: images are immutable and share unchanged
    objects."""

    def __init__(self) -> None:
        self._equal: dict[tuple[int, int], tuple[object, object]] = {}
        """By the ids of two equal objects; references them, so that no other object gets their ids."""

    def are_equal(self, one: MetadataImage, other: MetadataImage) -> bool:
        """Whether two images are equal."""
        for mine, theirs in zip(_parts(one), _parts(other), strict=True):
            if mine is theirs or (id(mine), id(theirs)) in self._equal:
                continue
            if mine != theirs:
                return False
            self._equal[id(mine), id(theirs)] = (mine, theirs)
        return True


def image_checksum(image: MetadataImage) -> str:
    """The checksum of an image: of the records that a snapshot of it contains, in any order."""
    return _checksum(image_values(image))


def snapshot_checksum(content: bytes) -> str:
    """The `image_checksum` of a snapshot file. Raises PeerError, OperatorError if it is incomplete."""
    view = memoryview(content)
    values: list[bytes] = []
    controls: list[ControlRecord | None] = []
    for header in iter_headers(view):
        check_crc(view, header)
        for record in decode_batch(view, header):
            if header.is_control:
                controls.append(decode_control(record.key, record.value))
            else:
                values.append(record.value or b"")
    if not controls or not isinstance(controls[0], SnapshotHeader) or not isinstance(controls[-1], SnapshotFooter):
        raise OperatorError("its header or footer record is missing")
    return _checksum(values)


def _checksum(values: Iterable[bytes]) -> str:
    content = b"".join([len(value).to_bytes(4, "big") + value for value in sorted(values)])
    return blake2b(content, digest_size=8).hexdigest()
