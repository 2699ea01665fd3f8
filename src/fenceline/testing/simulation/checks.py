"""Invariants of a metadata quorum, looked at after every step of a node that changed something.

Owns the memory that invariants need: who led which epoch, the one committed log that all nodes must agree on, and the
image it leads to. Reads nodes through their `NodeView` only, and computes what it expects from the committed bytes.

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
from fenceline.testing.simulation.world import NodeState, NodeView, Process, StoredBatch, World


class InvariantBroken(AssertionError):
    """What can never be was seen."""


class CommittedLog:
    """The one history of the cluster: every batch that was ever below a high watermark, and the images it gives."""

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
        """The committed batch that holds this offset."""
        position = bisect_right(self._bases, offset) - 1
        if position < 0 or offset >= self._batches[position].next_offset:
            return None
        return self._batches[position]

    def image_at(self, offset: int) -> MetadataImage | None:
        """After the record at `offset`, where that is the end of a batch."""
        return self._images.get(offset)

    def checksum_at(self, offset: int) -> str:
        """Of `image_at`, where there is one; each is made once, for all nodes."""
        checksum = self._checksums.get(offset)
        if checksum is None:
            checksum = self._checksums[offset] = image_checksum(self._images[offset])
        return checksum

    def compare(self, batch: StoredBatch, where: str) -> None:
        """A batch that a node counts as committed: it is the one that is known, or the next one."""
        known = self.batch_at(batch.base_offset)
        if known is None:
            self._append(batch, where)
        elif known != batch:
            raise InvariantBroken(f"{where}: the committed batch {_told(known)} was replaced by {_told(batch)} (Q56)")

    def _append(self, batch: StoredBatch, where: str) -> None:
        if batch.base_offset != self.end:
            raise InvariantBroken(
                f"{where}: the committed log ends at {self.end}, {_told(batch)} does not follow (Q56)"
            )
        if self._batches and batch.epoch < self._batches[-1].epoch:
            raise InvariantBroken(f"{where}: epochs fall at {_told(batch)}")
        header = read_header(batch.content)
        delta = MetadataDelta(self._newest)
        if not header.is_control:
            for record in decode_batch(batch.content, header):
                with suppress(UnknownRecord):  # no node can take it in either, and none publishes an image
                    delta.replay_value(record.value or b"")
        self._newest, _ = delta.build(batch.next_offset - 1, batch.epoch)
        self._images[batch.next_offset - 1] = self._newest
        self._bases.append(batch.base_offset)
        self._batches.append(batch)


def _told(batch: StoredBatch) -> str:
    return f"{batch.base_offset}..{batch.next_offset - 1} of epoch {batch.epoch}"


_parts: Final = attrgetter(*(each.name for each in fields(MetadataImage)))
"""Of an image, all its fields."""

_NEVER: Final = NodeState(-1, -1, False, 0, 0, 0, (), (), -1)


class Invariants:
    """See the module. `look` after each step; `whole` now and then, when every node may be read through."""

    def __init__(self, world: World) -> None:
        self.committed = CommittedLog()
        self.changes = 0
        """Changes of a node's state that were looked at."""
        self._world = world
        self._last: dict[int, NodeState] = {}
        self._verified: dict[int, int] = {}
        self._matched: dict[int, int] = {}
        self._written: dict[tuple[int, int], bytes] = {}
        self._leaders: dict[int, int] = {}
        self._committed_in: dict[int, int] = {}
        """By epoch: the end of what was committed while it was the newest that the one who said so knew."""
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

    def look(self, process: Process) -> None:
        """After a step of this node. Raises InvariantBroken."""
        view = process.view
        if view is not None and view.has_changed() and not view.has_failed:
            self._look(process, view, view.state())

    def _look(self, process: Process, view: NodeView, state: NodeState) -> None:
        before = self._last.get(process.node_id, _NEVER)
        if state == before:
            return
        self.changes += 1
        self._last[process.node_id] = state
        where = process.name
        if state[:6] != before[:6]:
            process.tell(
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
            self._snapshots_are_whole(process, view, state, before)
        if state.image_offset != before.image_offset:
            self._image_is_the_log(view, state, where)

    def _monotonic(self, process: Process, state: NodeState, before: NodeState) -> None:
        """Q50, Q53 for one node."""
        least = max(before.epoch, self._durable_epoch.get(process.node_id, -1))
        if state.epoch < least:
            raise InvariantBroken(f"{process.name}: the epoch fell from {least} to {state.epoch} (Q50)")
        still_leads = state.is_leader and before.is_leader and state.epoch == before.epoch
        if still_leads and (state.log_end < before.log_end or state.log_start > before.log_end):
            raise InvariantBroken(
                f"{process.name}: a leader's log went from {before.log_start}..{before.log_end}"
                f" to {state.log_start}..{state.log_end} (Q55)"
            )
        # Across terms and lives the high watermark is learned anew; what was below it stays in the committed log.
        if state.high_watermark < before.high_watermark and state.epoch == before.epoch:
            raise InvariantBroken(
                f"{process.name}: the high watermark fell from {before.high_watermark} to {state.high_watermark} (Q53)"
            )

    def _majority_has(self, view: NodeView, state: NodeState, before: NodeState, where: str) -> None:
        """Q52, of the voters that are known after the step or were before it; Q32: only its own epoch is counted. Of a
        follower too, where nobody has said before that so much is committed."""
        last = self.committed.batch_at(state.high_watermark - 1)
        if last is None or last.next_offset != state.high_watermark:
            return
        led_before = before.is_leader and before.epoch == state.epoch
        if led_before and state.high_watermark > before.high_watermark and last.epoch != state.epoch:
            raise InvariantBroken(f"{where} leads epoch {state.epoch} and commits {_told(last)} by counting (Q32)")
        sets = {state.voters, before.voters or state.voters}
        if not state.is_leader:
            sets.add(self._majorities.newest_voters() or state.voters)
        if not any(self._majorities.is_on_a_majority(last, voters, view.log_directory) for voters in sets):
            raise InvariantBroken(f"{where}: {_told(last)} is not safe on a majority of {state.voters} (Q52)")

    def _one_leader(self, process: Process, view: NodeView, state: NodeState) -> None:
        """Q51, and leader completeness: who leads has everything that was committed in the epochs before."""
        if not state.is_leader:
            return
        known = self._leaders.setdefault(state.epoch, process.node_id)
        if known != process.node_id:
            raise InvariantBroken(f"{known} and {process.node_id} lead epoch {state.epoch} (Q51)")
        newest = max((end for epoch, end in self._committed_in.items() if epoch < state.epoch), default=0)
        if state.log_end < newest:
            raise InvariantBroken(
                f"{process.name} leads epoch {state.epoch} with a log that ends at {state.log_end}: "
                f"{newest} was committed (Q56)"
            )
        self._compare(view.batches(max(state.log_start, 0), newest), process.name)

    def _logs_match(self, process: Process, view: NodeView, state: NodeState) -> None:
        """A batch is known by its offset and epoch, also where it was never committed (log matching)."""
        start = max(self._matched.get(process.node_id, 0), state.log_start)
        if state.log_end < start:
            start = state.log_start
        for batch in view.batches(start, state.log_end):
            known = self._written.setdefault((batch.base_offset, batch.epoch), batch.content)
            if known != batch.content:
                raise InvariantBroken(
                    f"{process.name}: {_told(batch)} is not the batch that others have (log matching)"
                )
        self._matched[process.node_id] = state.log_end

    def _one_change_at_a_time(self, state: NodeState, where: str) -> None:
        """Q44: a set that a node knows differs by one voter from one that was known before."""
        voters = frozenset(state.voters)
        if not voters or voters in self._voter_sets:
            return
        if self._voter_sets and not any(len(voters ^ known) <= 1 for known in self._voter_sets):
            raise InvariantBroken(f"{where}: the voters became {sorted(voters)}, more than one change at a time (Q44)")
        self._voter_sets.append(voters)

    def _compare(self, batches: Iterable[StoredBatch], where: str) -> None:
        for batch in batches:
            self.committed.compare(batch, where)

    def _same_history(self, process: Process, view: NodeView, state: NodeState) -> None:
        """Q56: what this node counts as committed is what everybody does."""
        start = max(self._verified.get(process.node_id, 0), state.log_start)
        self._compare(
            [batch for batch in view.batches(start, state.high_watermark) if batch.base_offset >= start], process.name
        )
        self._verified[process.node_id] = state.high_watermark
        self._committed_in[state.epoch] = max(self._committed_in.get(state.epoch, 0), state.high_watermark)

    def _image_is_the_log(self, view: NodeView, state: NodeState, where: str) -> None:
        """C1: an image at a batch's end is what the committed log says."""
        image = view.image()
        if image is None or state.image_offset < 0:
            return
        if state.image_offset >= self.committed.end:
            raise InvariantBroken(
                f"{where}: published the image at {state.image_offset}, {self.committed.end} is committed (G35)"
            )
        expected = self.committed.image_at(state.image_offset)
        if expected is not None and not self._same_images.are_equal(image, expected):
            raise InvariantBroken(f"{where}: the image at {state.image_offset} is not what the log says (C1)")

    def _snapshots_are_whole(self, process: Process, view: NodeView, state: NodeState, before: NodeState) -> None:
        """N50, N52, N53: a new snapshot is of committed state, and says what the log says."""
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
                told = snapshot_checksum(content)
            except (PeerError, OperatorError) as error:
                raise InvariantBroken(f"{where} can not be read: {error} (N50)") from error
            replayed = self.committed.checksum_at(end_offset - 1)
            if told != replayed:
                raise InvariantBroken(f"{where} says {told}, and the log says {replayed} (N50)")

    def whole(self) -> None:
        """Every running node's log against the committed one, from its start to the high watermark."""
        for process in self._world.processes.values():
            view = process.view
            if view is not None and not view.has_failed:
                state = view.state()
                image, expected = view.image(), self.committed.image_at(state.image_offset)
                told = self.committed.checksum_at(state.image_offset) if expected is not None else ""
                if image is not None and told and image_checksum(image) != told:
                    raise InvariantBroken(f"{process.name}: the image at {state.image_offset} is another's (C1)")
                start = state.log_start
                self._compare(
                    [batch for batch in view.batches(start, state.high_watermark) if batch.base_offset >= start],
                    process.name,
                )


def _offsets(state: NodeState, before: NodeState, where: str) -> None:
    """N48, N49, N51, Q54. The log start of a new life is where its first segment begins (N43)."""
    if not state.log_start <= state.log_end:
        raise InvariantBroken(f"{where}: the log starts at {state.log_start} and ends at {state.log_end} (N49)")
    if state.high_watermark > state.log_end:
        raise InvariantBroken(
            f"{where}: the high watermark {state.high_watermark} lies behind the log's end {state.log_end} (N49)"
        )
    if state.log_start <= 0:
        return
    starts_anew = before is _NEVER or state.log_start == before.log_start
    if not any(end >= state.log_start if starts_anew else end == state.log_start for end, _ in state.snapshots):
        raise InvariantBroken(f"{where}: the log starts at {state.log_start} and no snapshot stands for that (N48)")


class SameImages:
    """Compares images field by field, and each pair of fields once: images never change, and share what did not."""

    def __init__(self) -> None:
        self._equal: dict[tuple[int, int], tuple[object, object]] = {}
        """By the ids of two objects that are equal; holds them, so that no other gets their ids."""

    def are_equal(self, one: MetadataImage, other: MetadataImage) -> bool:
        """Whether two images say the same."""
        for mine, theirs in zip(_parts(one), _parts(other), strict=True):
            if mine is theirs or (id(mine), id(theirs)) in self._equal:
                continue
            if mine != theirs:
                return False
            self._equal[id(mine), id(theirs)] = (mine, theirs)
        return True


def image_checksum(image: MetadataImage) -> str:
    """Of all that the image says: of the records that a snapshot of it holds, in any order."""
    return _checksum(image_values(image))


def snapshot_checksum(content: bytes) -> str:
    """The `image_checksum` of what a snapshot file says. Raises PeerError, OperatorError for one that is not whole."""
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
        raise OperatorError("its first or last record is missing")
    return _checksum(values)


def _checksum(values: Iterable[bytes]) -> str:
    told = b"".join([len(value).to_bytes(4, "big") + value for value in sorted(values)])
    return blake2b(told, digest_size=8).hexdigest()
