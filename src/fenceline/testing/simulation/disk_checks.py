"""Checks the disks of a stopped cluster with the operators' tools: verify and losses.

Owns the two comparisons at the end of a seed. The library of `fenceline verify` reads all data directories together, as
an operator would, and must find no error; then one byte of one replica is changed, and it must find that. The ledger
topic must have every receipt that any node wrote, unchanged, or that node must still have it to deliver.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Final, cast

from fenceline.log.core.checkpoints import read_epochs
from fenceline.log.core.disk import Disk, FileStat
from fenceline.log.core.file_names import EPOCH_FILE, LOG_SUFFIX
from fenceline.log.core.lost_and_found import EVIDENCE_DIR
from fenceline.log.verify.findings import LogFinding
from fenceline.log.verify.verify import Severity, VerifySettings, find_places, groups_of, verify_group
from fenceline.losses.receipt import Receipt, decode
from fenceline.records.batch import iter_headers
from fenceline.testing.sim_disk import SimDisk
from fenceline.testing.simulation.checks import InvariantBroken
from fenceline.testing.simulation.data_history import decoded

if TYPE_CHECKING:
    from fenceline.testing.simulation.world import StoredBatch


_UNUSED_SUFFIXES: Final = ("-stray", "-delete", "-future")
"""Suffixes of directories from which no log is opened: torn files there are not repaired."""


_EPOCH_BYTES: Final = range(12, 16)
"""The position of the leader epoch in a batch."""


class Disks:
    """The disks of several machines as one read-only disk: the path of a file begins with the name of its machine."""

    def __init__(self, disks: Mapping[str, SimDisk]) -> None:
        self._disks = disks
        self._open: dict[int, tuple[SimDisk, int]] = {}
        self._next_fd = 1

    def _at(self, path: str) -> tuple[SimDisk, str]:
        machine, _, rest = path.lstrip("/").partition("/")
        return self._disks[machine], f"/{rest}"

    def listdir(self, path: str) -> Sequence[str]:
        disk, path = self._at(path)
        return disk.listdir(path)

    def stat(self, path: str) -> FileStat | None:
        disk, path = self._at(path)
        return disk.stat(path)

    def open_read(self, path: str) -> int:
        disk, path = self._at(path)
        fd, self._next_fd = self._next_fd, self._next_fd + 1
        self._open[fd] = disk, disk.open_read(path)
        return fd

    def pread(self, fd: int, size_bytes: int, position: int, /) -> bytes:
        disk, real = self._open[fd]
        return disk.pread(real, size_bytes, position)

    def close(self, fd: int) -> None:
        disk, real = self._open.pop(fd)
        disk.close(real)


def errors_of(disks: Mapping[str, SimDisk], directories: Iterable[str], *, holding: str = "") -> list[LogFinding]:
    """The errors that `fenceline verify` finds in all these data directories together. `holding`: only those of the
    replicas that are compared with the one that has this file; all if none has it."""
    disk = cast(Disk, cast(Any, Disks(disks)))
    places = find_places(disk, list(directories))
    settings = VerifySettings(deep=True, wait=lambda seconds: None)
    groups = groups_of(places)
    concerned = [group for group in groups if any(holding.startswith(place.path) for place in group)] if holding else []
    reports = list(places.reports)
    for group in concerned or groups:
        reports += verify_group(disk, group, settings)
    return [finding for report in reports for finding in report.findings.kept if finding.severity is Severity.ERROR]


def verify_finds_nothing(disks: Mapping[str, SimDisk], directories: Sequence[str]) -> None:
    """Raises InvariantBroken if verify finds an error."""
    found = [each for each in errors_of(disks, directories) if not any(name in each.path for name in _UNUSED_SUFFIXES)]
    if found:
        errors = "; ".join(f"{each.path}: {each.message}" for each in found[:3])
        raise InvariantBroken(f"verify reports {len(found)} errors on undamaged disks: {errors} (verify)")


def is_log_in_use(path: str) -> bool:
    """Whether the file is a segment in a directory from which logs are opened."""
    return path.endswith(LOG_SUFFIX) and not path.rpartition("/")[0].endswith((*_UNUSED_SUFFIXES, EVIDENCE_DIR))


def verify_finds_a_changed_byte(disks: Mapping[str, SimDisk], directories: Sequence[str], rng: Random) -> None:
    """Change a byte of a segment that is not empty; it is restored afterwards. Raises InvariantBroken."""
    segments = [
        (machine, disk, f"{folder}/{name}")
        for machine, disk in sorted(disks.items())
        for folder in disk.folders()
        for name in sorted(disk.folder(folder) or ())
        if is_log_in_use(f"{folder}/{name}") and disk.peek(f"{folder}/{name}")
    ]
    if not segments:
        return
    machine, disk, path = rng.choice(segments)
    position = rng.randrange(len(disk.peek(path) or b""))
    if _is_epoch_of_deleted_records(disk, path, position):
        return
    disk.flip(path, position)
    found = errors_of(disks, directories, holding=f"/{machine}{path}")
    disk.flip(path, position)
    # A changed offset or epoch may be reported for the batch after it, in the next file.
    folder, _, changed = path.rpartition("/")
    behind = [name for name in sorted(disk.folder(folder) or ()) if name.endswith(LOG_SUFFIX) and name > changed]
    near = (path, *(f"{folder}/{name}" for name in behind[:1]))
    if not any(each in finding.path or each in finding.message for finding in found for each in near):
        raise InvariantBroken(f"verify does not find the changed byte {position} of {path} (verify)")


def _is_epoch_of_deleted_records(disk: SimDisk, path: str, position: int) -> bool:
    """Whether it is a byte of the leader epoch of a batch below the log start. No checksum covers it, and neither the
    leader epoch checkpoint nor another replica has it."""
    batch = next(each for each in iter_headers(disk.peek(path) or b"") if position < each.end_position)
    if position - batch.position not in _EPOCH_BYTES:
        return False
    epochs = read_epochs(cast(Disk, disk), f"{path.rpartition('/')[0]}/{EPOCH_FILE}")
    return not epochs or batch.next_offset <= epochs[0][1]


def ledger_is_complete(
    ledger: Iterable[StoredBatch], written: Mapping[str, Receipt], waiting: Iterable[str], *, was_lost: bool
) -> None:
    """`written`: all receipts of all nodes, by id; `waiting`: those that a node still has to deliver. `was_lost`:
    records of the ledger itself may be lost. Raises InvariantBroken."""
    delivered: dict[str, Receipt] = {}
    for batch in ledger:
        for record in decoded(batch):
            if record.value is not None:
                receipt = decode(record.value)
                delivered[receipt.id] = receipt
    due = set(waiting)
    for name, receipt in sorted(written.items()):
        theirs = delivered.get(name)
        if theirs is None:
            if name not in due and not was_lost:
                raise InvariantBroken(f"the ledger lacks the receipt of {receipt} (ledger)")
        elif _range_of(theirs) != _range_of(receipt):
            raise InvariantBroken(f"the ledger has {_range_of(theirs)} instead of {_range_of(receipt)} (ledger)")


def _range_of(receipt: Receipt) -> tuple[object, ...]:
    return (
        receipt.topic_id,
        receipt.partition,
        receipt.start_offset,
        receipt.end_offset_exclusive,
        receipt.loss_class.value,
        receipt.cause.value,
        receipt.group,
    )
