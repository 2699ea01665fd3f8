"""Receipts as files: next to the evidence of one partition, in its `lost+found`.

Owns their names and states, and makes each durable before it counts. Does not interpret their content.

| file                    | meaning                                                                           |
|-------------------------|-----------------------------------------------------------------------------------|
| `receipt-ID.intended`   | a truncation is about to start, and will remove this; its result is not known yet |
| `receipt-ID.due`        | a loss that the ledger does not have yet, or not in this form                     |
| `receipt-ID.told`       | the ledger has it; the file records which receipt the evidence belongs to         |
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from fenceline.log.core.disk import Disk, read_file, replace_file
from fenceline.log.core.lost_and_found import EVIDENCE_DIR, INTENDED_SUFFIX
from fenceline.log.recovery.note import NOTE_PREFIX, NOTE_SUFFIX
from fenceline.losses.receipt import Receipt, decode, document, encode, from_document

PREFIX: Final = "receipt-"
OUTBOX_PREFIX: Final = "fenceline-loss-"
INTENDED: Final = INTENDED_SUFFIX
DUE: Final = ".due"
REPORTED: Final = ".told"


@dataclass(frozen=True, slots=True)
class Intent:
    """A truncation that is about to happen. `receipt`: its receipt if it is executed completely."""

    receipt: Receipt
    log_start_offset: int
    """Before the truncation."""
    log_end_offset: int
    high_watermark: int
    truncates_fully: bool
    others: tuple[str, ...]
    """Files that were in `lost+found` before."""
    kept_end_offset: int = 0
    """Log end after the complete truncation; 0: nothing stays, or it is unknown."""
    is_lossless: bool = False
    """The leader has everything that is removed; a crash in the middle needs no receipt either."""


@dataclass(frozen=True, slots=True)
class FolderContents:
    """`evidence`: paths of all evidence files, of any receipt."""

    receipts: tuple[Receipt, ...]
    evidence: tuple[str, ...]
    is_pending: bool
    """As `ReceiptFolder.is_pending`."""


class ReceiptFiles:
    """Receipts in one folder, as files. For a thread; all methods may raise OSError."""

    def __init__(self, disk: Disk, path: str, prefix: str) -> None:
        self.disk = disk
        self.path = path
        self._prefix = prefix

    def is_known(self, receipt_id: str) -> bool:
        return any(self.disk.stat(self._file(receipt_id, state)) is not None for state in (DUE, REPORTED))

    def find(self, receipt_id: str) -> Receipt | None:
        """The receipt in its newest form; None if it is not here, or cannot be read."""
        for state in (DUE, REPORTED):
            content = read_if_exists(self.disk, self._file(receipt_id, state))
            if content is not None:
                with contextlib.suppress(ValueError):
                    return decode(content)
        return None

    def mark_due(self, receipt: Receipt) -> None:
        """Mark the receipt as due in its current form. Durable on return."""
        self.disk.mkdir(self.path)
        replace_file(self.disk, self._file(receipt.id, DUE), encode(receipt))
        with contextlib.suppress(FileNotFoundError):
            self.disk.unlink(self._file(receipt.id, REPORTED))

    def due(self) -> list[Receipt]:
        return self._receipts(self._names(), DUE)

    def mark_reported(self, receipt: Receipt, *, is_needed: bool = False) -> None:
        """The ledger has the receipt in this form; one without evidence is deleted, unless it `is_needed`."""
        path = self._file(receipt.id, DUE)
        if read_if_exists(self.disk, path) != encode(receipt):
            return  # a newer form is due by now
        if receipt.evidence or is_needed:
            self.disk.rename(path, self._file(receipt.id, REPORTED))
        else:
            self.disk.unlink(path)

    def contents(self) -> FolderContents:
        """All of it, from one directory listing."""
        names = self._names()
        return FolderContents((*self._receipts(names, DUE), *self._receipts(names, REPORTED)), (), is_pending=False)

    def drop(self, receipt_id: str) -> None:
        """It is kept elsewhere."""
        for state in (DUE, REPORTED):
            with contextlib.suppress(FileNotFoundError):
                self.disk.unlink(self._file(receipt_id, state))

    def _receipts(self, names: Sequence[str], state: str) -> list[Receipt]:
        found = []
        for name in names:
            if name.startswith(self._prefix) and name.endswith(state):
                content = read_if_exists(self.disk, f"{self.path}/{name}")
                with contextlib.suppress(ValueError):
                    if content is not None:
                        found.append(decode(content))
        return found

    def _names(self) -> list[str]:
        try:
            return sorted(self.disk.listdir(self.path))
        except FileNotFoundError:
            return []

    def _file(self, receipt_id: str, state: str) -> str:
        return f"{self.path}/{self._prefix}{receipt_id}{state}"


class ReceiptOutbox(ReceiptFiles):
    """Receipts that belong to no partition's folder, or whose folder is removed: next to the checkpoints of a log
    directory.

    They are files, as Apache Kafka takes every folder there for a partition. Their evidence, if any, lies in
    directories that are set aside.
    """

    def __init__(self, disk: Disk, log_dir: str) -> None:
        super().__init__(disk, log_dir, OUTBOX_PREFIX)


class ReceiptFolder(ReceiptFiles):
    """The `lost+found` of one partition's directory."""

    def __init__(self, disk: Disk, directory: str) -> None:
        super().__init__(disk, f"{directory}/{EVIDENCE_DIR}", PREFIX)
        self.directory = directory

    def evidence(self) -> list[str]:
        """Names of evidence files."""
        return [name for name in self._names() if not is_receipt_file(name)]

    @property
    def is_pending(self) -> bool:
        """Whether there is a truncation whose result is not determined yet."""
        return _is_pending(self._names())

    def notes(self) -> list[str]:
        """Paths of recovery's notes."""
        return [f"{self.path}/{name}" for name in self._names() if _is_note(name)]

    def intend(self, intent: Intent) -> None:
        """Durable on return."""
        self.disk.mkdir(self.path)
        self.disk.fsync_dir(self.directory)
        fields = {
            "receipt": document(intent.receipt),
            "log_start_offset": intent.log_start_offset,
            "log_end_offset": intent.log_end_offset,
            "high_watermark": intent.high_watermark,
            "begins_anew": intent.truncates_fully,
            "others": list(intent.others),
            "kept_end_offset": intent.kept_end_offset,
            "is_whole": intent.is_lossless,
        }
        replace_file(self.disk, self._file(intent.receipt.id, INTENDED), json.dumps(fields).encode())

    def intents(self) -> Iterator[Intent]:
        for name in self._names():
            if not name.endswith(INTENDED):
                continue
            with contextlib.suppress(ValueError, KeyError, TypeError):
                fields = json.loads(read_file(self.disk, f"{self.path}/{name}") or b"")
                yield Intent(
                    from_document(fields["receipt"]),
                    int(fields["log_start_offset"]),
                    int(fields["log_end_offset"]),
                    int(fields["high_watermark"]),
                    bool(fields["begins_anew"]),
                    tuple(fields["others"]),
                    int(fields.get("kept_end_offset", 0)),
                    bool(fields.get("is_whole", False)),
                )

    def drop_intent(self, receipt_id: str) -> None:
        """Durable on return: an intent that reappears would describe the log as it is by then."""
        self.disk.unlink(self._file(receipt_id, INTENDED))
        self.disk.fsync_dir(self.path)

    def contents(self) -> FolderContents:
        """All of it, from one directory listing."""
        names = self._names()
        return FolderContents(
            (*self._receipts(names, DUE), *self._receipts(names, REPORTED)),
            tuple(f"{self.path}/{name}" for name in names if not is_receipt_file(name)),
            _is_pending(names),
        )


def read_if_exists(disk: Disk, path: str) -> bytes | None:
    """None if another thread has removed it. Raises OSError."""
    try:
        return read_file(disk, path)
    except FileNotFoundError:
        return None


def _is_note(name: str) -> bool:
    return name.startswith(NOTE_PREFIX) and name.endswith(NOTE_SUFFIX)


def _is_pending(names: Sequence[str]) -> bool:
    """A file that was being written during a crash (`.tmp`) does not count."""
    return any(_is_note(name) or (name.startswith(PREFIX) and name.endswith(INTENDED)) for name in names)


def is_receipt_file(name: str) -> bool:
    """Whether a file in `lost+found` describes evidence, and is none itself."""
    return name.startswith((PREFIX, NOTE_PREFIX))
