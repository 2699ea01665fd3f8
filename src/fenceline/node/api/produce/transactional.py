"""What a transactional Produce request needs before its batches are appended (KIP-890).

A batch that opens a transaction in its partition is appended only after the transaction's coordinator knows of the
partition: versions from 12 on add it, version 11 and older ones check that the producer has added it.

Owns the checks of the whole request, the guards (`log.core.guards`) and the codes that a producer of each version
understands. Never appends, and asks nothing about partitions whose transaction is open already.

Rules: transactions.md X33, X34, X37.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from fenceline.errors import ErrorCode, PeerError
from fenceline.log.core.guards import WITHOUT_VERIFICATION, VerificationGuard
from fenceline.records.batch import BATCH_OVERHEAD, MAGIC, BatchHeader, peek_header
from fenceline.records.errors import RecordsError
from fenceline.wire.produce import PartitionRecords

if TYPE_CHECKING:
    from fenceline.node.clock import Clock
    from fenceline.node.replication.replicas import Replicas

FIRST_THAT_ADDS: Final = 12
_FIRST_WITH_ABORTABLE: Final = 11
_TRANSACTIONAL_AT: Final = 22
_TRANSACTIONAL_BIT: Final = 0x10
_MAGIC_AT: Final = 16
_RETRIABLE: Final = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


Verdicts: TypeAlias = dict[tuple[str, int], ErrorCode]
"""By topic and partition."""
Codes: TypeAlias = dict[int, ErrorCode]
"""By position among the partitions of a request."""


class Verifier(Protocol):
    """As `Verification`."""

    def ask(
        self,
        transactional_id: str,
        identity: tuple[int, int],
        partitions: Collection[tuple[str, int]],
        *,
        verify_only: bool,
    ) -> Verdicts | Awaitable[Verdicts]: ...


class VerificationLimits(NamedTuple):
    """Of the repeated questions while the transaction before is still being ended."""

    retry_backoff_ms: int
    retry_max_ms: int


class _Asked(NamedTuple):
    topic: str
    partition: int
    leader_epoch: int
    """Guards are of one leader epoch."""


class RequestGuards(NamedTuple):
    """One request. The keys are positions among its partitions."""

    transactional_id: str
    identity: tuple[int, int]
    verify_only: bool
    guards: dict[int, VerificationGuard]
    """Of the batches that open a transaction."""
    to_ask: dict[int, _Asked]
    """Those of them that the coordinator is asked about."""
    errors: dict[int, ErrorCode]
    """Of partitions that cannot be written here: their guards could not be made."""


def has_transactional(partitions: Sequence[PartitionRecords]) -> bool:
    """Whether a batch has the transactional flag."""
    return any(
        records is not None
        and len(records) > _TRANSACTIONAL_AT
        and records[_TRANSACTIONAL_AT] & _TRANSACTIONAL_BIT
        and records[_MAGIC_AT] == MAGIC
        for _, _, _, records in partitions
    )


class TransactionalProduce:
    """Used by the Produce handler of one broker."""

    def __init__(
        self,
        replicas: Replicas,
        verifier: Verifier,
        clock: Clock,
        limits: VerificationLimits,
        *,
        is_verification_on: Callable[[], bool],
    ) -> None:
        """`is_verification_on`: `transaction.partition.verification.enable`."""
        self._replicas = replicas
        self._verifier = verifier
        self._clock = clock
        self._limits = limits
        self._is_verification_on = is_verification_on

    def begin(
        self, transactional_id: str | None, version: int, partitions: Sequence[PartitionRecords]
    ) -> RequestGuards | None:
        """Make the guards of a request with transactional batches; None if it has none that belong to a producer.
        Raises PeerError for the whole request: 49, 53."""
        if transactional_id is None:
            raise PeerError(
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "Transactional records need a transactional id"
            )
        headers = _headers(partitions, range(len(partitions)))
        identities = {(header.producer_id, header.producer_epoch) for header in headers.values()}
        if not identities:
            return None
        if len(identities) > 1:
            raise PeerError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING, "Transactional records contained more than one producer ID"
            )
        verify_only = version < FIRST_THAT_ADDS
        opening = RequestGuards(transactional_id, identities.pop(), verify_only, {}, {}, {})
        if verify_only and not self._is_verification_on():
            opening.guards.update(dict.fromkeys(headers, WITHOUT_VERIFICATION))
        else:
            self._make_guards(opening, partitions, headers)
        return opening

    def _make_guards(
        self, opening: RequestGuards, partitions: Sequence[PartitionRecords], headers: Mapping[int, BatchHeader]
    ) -> None:
        now_ms = self._clock.now_ms()
        for position, header in headers.items():
            topic, topic_id, index, _ = partitions[position]
            try:
                replica = self._replicas.leader(topic, topic_id, index)
            except PeerError as error:
                opening.errors[position] = error.code
                continue
            if replica.is_internal:
                continue
            guard = replica.log.begin_verification(
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                adds_partition=not opening.verify_only,
                now_ms=now_ms,
            )
            if guard is not None:
                opening.guards[position] = guard
                opening.to_ask[position] = _Asked(replica.topic_partition.topic, index, replica.leader_epoch)

    def ask(self, opening: RequestGuards) -> Verdicts | Awaitable[Verdicts]:
        """The coordinator's codes for `to_ask`, which is not empty; at once if it can tell."""
        return self._verifier.ask(
            opening.transactional_id,
            opening.identity,
            [(each.topic, each.partition) for each in opening.to_ask.values()],
            verify_only=opening.verify_only,
        )

    def codes(self, opening: RequestGuards, partitions: Sequence[PartitionRecords], verdicts: Verdicts) -> Codes | None:
        """The codes by position, except NONE; None if the transaction before is being ended (X34)."""
        codes = self._codes(opening, partitions, verdicts)
        return None if _is_waiting(opening, codes) else codes

    async def await_codes(
        self,
        opening: RequestGuards,
        partitions: Sequence[PartitionRecords],
        verdicts: Verdicts | Awaitable[Verdicts],
    ) -> Codes:
        """As `codes`, and asks again while the transaction before is being ended."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._limits.retry_max_ms / 1000
        while True:
            codes = self._codes(opening, partitions, verdicts if isinstance(verdicts, dict) else await verdicts)
            if not _is_waiting(opening, codes) or loop.time() >= until_s:
                return codes
            await asyncio.sleep(self._limits.retry_backoff_ms / 1000)
            # A marker may have voided the guards.
            asked = list(opening.to_ask)
            for position in asked:
                del opening.guards[position], opening.to_ask[position]
            self._make_guards(opening, partitions, _headers(partitions, asked))
            if not opening.to_ask:
                return {}
            verdicts = self.ask(opening)

    def _codes(self, opening: RequestGuards, partitions: Sequence[PartitionRecords], verdicts: Verdicts) -> Codes:
        found: Codes = {}
        for position, each in opening.to_ask.items():
            code = verdicts[each.topic, each.partition]
            if code is not ErrorCode.NONE:
                found[position] = code
            elif not self._still_leads(partitions[position], each):
                found[position] = ErrorCode.NOT_LEADER_OR_FOLLOWER
        return found

    def _still_leads(self, partition: PartitionRecords, asked: _Asked) -> bool:
        try:
            return self._replicas.leader(*partition[:3]).leader_epoch == asked.leader_epoch
        except PeerError:
            return False


def _is_waiting(opening: RequestGuards, codes: Codes) -> bool:
    return ErrorCode.CONCURRENT_TRANSACTIONS in codes.values() and not opening.verify_only


def _headers(partitions: Sequence[PartitionRecords], positions: Iterable[int]) -> dict[int, BatchHeader]:
    """Of the transactional batches, by position."""
    found = {position: _transactional(partitions[position]) for position in positions}
    return {position: header for position, header in found.items() if header is not None}


def _transactional(partition: PartitionRecords) -> BatchHeader | None:
    """The header of a transactional batch with a producer id; batches that are damaged are left to the append."""
    records = partition.records
    if records is None or len(records) < BATCH_OVERHEAD:
        return None
    try:
        header = peek_header(records)
    except RecordsError:
        return None
    return header if header.is_transactional and header.producer_id >= 0 else None


def refusal(code: ErrorCode, version: int) -> tuple[ErrorCode, str]:
    """The coordinator's code as producers of this version understand it, and a message (X33, X34)."""
    if code in _RETRIABLE or (code is ErrorCode.CONCURRENT_TRANSACTIONS and version < FIRST_THAT_ADDS):
        # An error that makes old clients retry, without a refresh of their metadata.
        return (
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"Unable to verify the partition has been added to the transaction. Underlying error: {code.name}",
        )
    if code is ErrorCode.TRANSACTION_ABORTABLE and version < _FIRST_WITH_ABORTABLE:
        code = ErrorCode.INVALID_TXN_STATE
    if code is ErrorCode.INVALID_TXN_STATE:
        return code, "Partition was not added to the transaction"
    return code, ""
