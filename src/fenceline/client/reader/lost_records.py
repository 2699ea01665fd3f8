"""The records that logs of a Fenceline cluster have lost, read from the evidence on the nodes that cut them.

Owns the order of the requests, one piece after the other, and the comparison with the receipt: records that the
evidence lacks are an error after the last record. Control records are left out; records of transactions are returned
whether or not they were committed, which the lost part of a log may not tell. In memory there is one piece at a time.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from fenceline.client.core.client_base import AsyncClient, BlockingClient, blocking
from fenceline.client.core.cluster import Cluster
from fenceline.client.core.config import ClientConfig
from fenceline.client.core.deadline import Deadline
from fenceline.client.core.errors import EvidenceIncompleteError
from fenceline.client.core.evidence_wire import fetch_evidence
from fenceline.client.core.fetched import ConsumerRecord, Fetched, to_arrow, to_records
from fenceline.client.core.loss_ledger import all_receipts
from fenceline.client.core.loss_receipts import LossReceipt
from fenceline.errors import OperatorError

if TYPE_CHECKING:
    import pyarrow as pa


class AsyncLostRecordsReader(AsyncClient):
    """Create it inside a running loop."""

    def __init__(self, bootstrap: str | Sequence[str] | Mapping[str, Any] | None = None, **config: Any) -> None:
        self.config = ClientConfig.parse("reader", bootstrap, config)
        self.cluster = Cluster(self.config)

    async def close(self) -> None:
        await self.cluster.close()

    async def receipts(self) -> list[LossReceipt]:
        """Every loss receipt of the cluster in its newest version, oldest loss first; none if it is Apache Kafka."""
        return await all_receipts(self.cluster, self.config, deadline=self._deadline())

    async def receipt(self, receipt_id: str) -> LossReceipt:
        """The receipt with this id, or whose id begins with it. Raises OperatorError unless there is exactly one."""
        found = [receipt for receipt in await self.receipts() if receipt_id and receipt.id.startswith(receipt_id)]
        if len(found) != 1:
            raise OperatorError(
                f"{len(found) or 'No'} loss receipts have an id that begins with {receipt_id!r}",
                "List them with: fenceline losses list",
            )
        return found[0]

    async def fetch(self, receipt: LossReceipt) -> AsyncGenerator[Fetched]:
        """The records in pieces, in offset order.

        Raises OperatorError if there is no evidence or its node is not running; PeerError with
        UNKNOWN_TOPIC_OR_PARTITION if the evidence was deleted meanwhile, TOPIC_AUTHORIZATION_FAILED without READ on the
        topic and on `__fenceline_evidence`, POLICY_VIOLATION if the node does not send evidence; and at the end
        EvidenceIncompleteError if the receipt has more records.
        """
        if not receipt.evidence:
            raise OperatorError(
                f"There is no evidence of loss receipt {receipt.id[:12]}",
                receipt.evidence_note or "No log was truncated: records were deleted before a group had read them.",
            )
        offset, records = receipt.start_offset, 0
        while offset < receipt.end_offset_exclusive:
            piece = await fetch_evidence(self.cluster, self.config, receipt, offset, deadline=self._deadline())
            if piece is None:
                break
            offset = piece.fetched.next_offset
            records += piece.record_count
            if piece.fetched.runs:
                yield piece.fetched
        if records < receipt.records:
            raise EvidenceIncompleteError(receipt, records)

    def _deadline(self) -> Deadline:
        return Deadline(self.config["default.api.timeout.ms"])


class LostRecordsReader(BlockingClient[AsyncLostRecordsReader]):
    """Blocking: `for batch in reader.read(reader.receipt("4f2a")): ...`. Cannot be used after a fork."""

    def __init__(self, bootstrap: str | Sequence[str] | Mapping[str, Any] | None = None, **config: Any) -> None:
        super().__init__("fenceline-lost-records", lambda: AsyncLostRecordsReader(bootstrap, **config))

    receipts = blocking(AsyncLostRecordsReader.receipts)
    receipt = blocking(AsyncLostRecordsReader.receipt)

    def fetch(self, receipt: LossReceipt) -> Iterator[Fetched]:
        """As `AsyncLostRecordsReader.fetch`."""
        pieces = self._on_loop(lambda: self._async.fetch(receipt))
        try:
            while (piece := self._run(_next(pieces))) is not None:
                yield piece
        finally:
            with contextlib.suppress(OperatorError):  # the client was closed meanwhile
                self._run(_close(pieces))

    @overload
    def read(
        self, receipt: LossReceipt, *, arrow: Literal[True] = True, **options: Any
    ) -> Iterator[pa.RecordBatch]: ...
    @overload
    def read(self, receipt: LossReceipt, *, arrow: Literal[False]) -> Iterator[list[ConsumerRecord]]: ...
    def read(self, receipt: LossReceipt, *, arrow: bool = True, **options: Any) -> Iterator[Any]:
        """The records as pyarrow.RecordBatch (columns and `options` as in `fenceline.records.arrow`), or as lists of
        ConsumerRecord. Raises what `fetch` raises."""
        for piece in self.fetch(receipt):
            yield to_arrow([piece], **options) if arrow else to_records(piece)


async def _next(pieces: AsyncGenerator[Fetched]) -> Fetched | None:
    return await anext(pieces, None)


async def _close(pieces: AsyncGenerator[Fetched]) -> None:
    await pieces.aclose()
