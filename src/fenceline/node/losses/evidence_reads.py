"""Evidence of this node's losses, read for clients: by the id of a receipt, one piece after the other.

Owns the bound of these reads: one at a time on the node, in the order in which they came, each in a thread. Remembers,
for some readers, where their next piece begins, so that a reader of large evidence does not scan it again for every
piece. Never takes a path from a client, and never decides who may read (`api.fetch.evidence_fetch`).
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from fenceline.losses.evidence_pieces import EvidencePlace, LocatedPiece, load, locate

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from fenceline.losses.folder import ReceiptFiles
    from fenceline.losses.receipt import Receipt
    from fenceline.node.losses.keeper import FoundEvidence, LossKeeper

T = TypeVar("T")

_RECEIPT_ID: Final = re.compile(r"[0-9a-f]{24}")
_REMEMBERED: Final = 64


class _Reached(NamedTuple):
    evidence: tuple[str, ...]
    place: EvidencePlace


class EvidenceReads:
    """Belongs to the event loop. The caller of `find`, `locate` and `load` holds `turn`, and is not cancelled
    meanwhile: a thread cannot be."""

    def __init__(self, keeper: LossKeeper, executor: Executor) -> None:
        self._keeper = keeper
        self._executor = executor
        self.turn = asyncio.Lock()
        self._folders: OrderedDict[str, ReceiptFiles] = OrderedDict()
        """By receipt id, where the receipt was found."""
        self._reached: OrderedDict[tuple[str, int], _Reached] = OrderedDict()
        """By receipt id and the next offset that a reader lacks."""

    async def find(self, receipt_id: str) -> FoundEvidence | None:
        """None if this node has no evidence of such a receipt. Raises OSError."""
        if _RECEIPT_ID.fullmatch(receipt_id) is None:
            return None
        known = self._folders.pop(receipt_id, None)
        found = await self._in_thread(lambda: self._keeper.find(receipt_id, known))
        if found is not None:
            _remember(self._folders, receipt_id, found.folder)
        return found

    async def locate(self, found: FoundEvidence, from_offset: int, max_bytes: int) -> LocatedPiece:
        """Raises OSError, FileNotFoundError if the evidence has been deleted."""
        receipt, disk = found.receipt, found.folder.disk
        known = self._reached.get((receipt.id, from_offset))
        start = known.place if known is not None and known.evidence == receipt.evidence else None
        piece = await self._in_thread(lambda: locate(disk, receipt, from_offset, max_bytes, start))
        if piece.after is not None:
            _remember(self._reached, (receipt.id, piece.after.next_offset), _Reached(receipt.evidence, piece.after))
        return piece

    async def load(self, found: FoundEvidence, piece: LocatedPiece) -> bytearray:
        """Raises OSError, FileNotFoundError if the evidence has been deleted."""
        return await self._in_thread(lambda: load(found.folder.disk, piece))

    def count(self, receipt: Receipt, size_bytes: int) -> None:
        """These bytes are sent to a client."""
        self._keeper.fetched_evidence_bytes += size_bytes

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


K = TypeVar("K")
V = TypeVar("V")


def _remember(known: OrderedDict[K, V], key: K, value: V) -> None:
    known[key] = value
    known.move_to_end(key)
    if len(known) > _REMEMBERED:
        known.popitem(last=False)
