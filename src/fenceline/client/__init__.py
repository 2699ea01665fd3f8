"""Producer, consumer, admin and range reader for Fenceline and Apache Kafka 2.1 and newer.

The public names; modules are loaded on first use, so that an executor that only reads ranges loads little.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from fenceline.ids import TopicPartition

if TYPE_CHECKING:
    from fenceline.client.admin.admin import Admin as Admin
    from fenceline.client.admin.async_admin import AsyncAdmin as AsyncAdmin
    from fenceline.client.admin.async_admin import NewTopic as NewTopic
    from fenceline.client.consumer.async_consumer import AsyncConsumer as AsyncConsumer
    from fenceline.client.consumer.consumer import Consumer as Consumer
    from fenceline.client.core.errors import EpochMismatchError as EpochMismatchError
    from fenceline.client.core.errors import EvidenceIncompleteError as EvidenceIncompleteError
    from fenceline.client.core.errors import FencedLeaderEpochError as FencedLeaderEpochError
    from fenceline.client.core.errors import LogTruncationError as LogTruncationError
    from fenceline.client.core.errors import OffsetOutOfRangeError as OffsetOutOfRangeError
    from fenceline.client.core.errors import ProducerFenced as ProducerFenced
    from fenceline.client.core.errors import RetriableError as RetriableError
    from fenceline.client.core.errors import TopicReplacedError as TopicReplacedError
    from fenceline.client.core.errors import TransactionAbortable as TransactionAbortable
    from fenceline.client.core.errors import TransactionAborted as TransactionAborted
    from fenceline.client.core.errors import TransactionFailed as TransactionFailed
    from fenceline.client.core.errors import UnknownEpochError as UnknownEpochError
    from fenceline.client.core.errors import UnknownLeaderEpochError as UnknownLeaderEpochError
    from fenceline.client.core.fetched import ConsumerRecord as ConsumerRecord
    from fenceline.client.core.fetched import ConsumerRecords as ConsumerRecords
    from fenceline.client.core.group_requests import ConsumerGroupMetadata as ConsumerGroupMetadata
    from fenceline.client.core.loss_receipts import LossReceipt as LossReceipt
    from fenceline.client.core.offsets import CommittedOffset as CommittedOffset
    from fenceline.client.core.offsets import OffsetAndEpoch as OffsetAndEpoch
    from fenceline.client.producer.producer import AsyncProducer as AsyncProducer
    from fenceline.client.producer.producer import Producer as Producer
    from fenceline.client.producer.transaction_handle import TransactionHandle as TransactionHandle
    from fenceline.client.producer.transaction_owner import AsyncTransactionOwner as AsyncTransactionOwner
    from fenceline.client.producer.transaction_owner import TransactionOwner as TransactionOwner
    from fenceline.client.producer.transaction_owner import transaction_writer as transaction_writer
    from fenceline.client.reader.lost_records import AsyncLostRecordsReader as AsyncLostRecordsReader
    from fenceline.client.reader.lost_records import LostRecordsReader as LostRecordsReader
    from fenceline.client.reader.ranges import OffsetRange as OffsetRange
    from fenceline.client.reader.reader import AsyncRangeReader as AsyncRangeReader
    from fenceline.client.reader.reader import RangeReader as RangeReader

_MODULES: Final = {
    "Admin": "admin.admin",
    "AsyncAdmin": "admin.async_admin",
    "AsyncConsumer": "consumer.async_consumer",
    "AsyncLostRecordsReader": "reader.lost_records",
    "AsyncProducer": "producer.producer",
    "AsyncRangeReader": "reader.reader",
    "AsyncTransactionOwner": "producer.transaction_owner",
    "CommittedOffset": "core.offsets",
    "Consumer": "consumer.consumer",
    "ConsumerGroupMetadata": "core.group_requests",
    "ConsumerRecord": "core.fetched",
    "ConsumerRecords": "core.fetched",
    "EpochMismatchError": "core.errors",
    "EvidenceIncompleteError": "core.errors",
    "FencedLeaderEpochError": "core.errors",
    "LogTruncationError": "core.errors",
    "LossReceipt": "core.loss_receipts",
    "LostRecordsReader": "reader.lost_records",
    "NewTopic": "admin.async_admin",
    "OffsetAndEpoch": "core.offsets",
    "OffsetOutOfRangeError": "core.errors",
    "OffsetRange": "reader.ranges",
    "Producer": "producer.producer",
    "ProducerFenced": "core.errors",
    "RangeReader": "reader.reader",
    "RetriableError": "core.errors",
    "TopicReplacedError": "core.errors",
    "TransactionAbortable": "core.errors",
    "TransactionAborted": "core.errors",
    "TransactionFailed": "core.errors",
    "TransactionHandle": "producer.transaction_handle",
    "TransactionOwner": "producer.transaction_owner",
    "UnknownEpochError": "core.errors",
    "UnknownLeaderEpochError": "core.errors",
    "transaction_writer": "producer.transaction_owner",
}
__all__ = ["TopicPartition", *_MODULES]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"fenceline.client.{_MODULES[name]}"), name)
