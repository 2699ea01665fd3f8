"""The log's state while a batch was written: the leaders' epochs, and the epochs of logs where they are needed.

Owns the requests that a writing task sends after its last row. Tasks send them in parallel over connections that they
have just read from, so that the driver's commit, for which the whole query waits, need not. Spark 4.2 runs commits in a
separate Python process, which it keeps while batches follow each other; that process caches epochs too, but never reads
a log. Never decides anything about rows.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fenceline.ids import TopicPartition
from pyspark_fenceline.common import connect
from pyspark_fenceline.common.log_columns import ColumnSpan
from pyspark_fenceline.common.log_epochs import NO_EPOCHS_WARNING, LogEpochsCache, existing_partitions, readable_ends
from pyspark_fenceline.common.log_matching import UNKNOWN_EPOCH, LogEpochs
from pyspark_fenceline.common.retries import DEFAULT_RETRIES, RetryPolicy, with_retries

_log = logging.getLogger("pyspark_fenceline")


@dataclass(frozen=True, slots=True)
class TruncationEvidence:
    """`leader_epochs`: of every requested partition that exists. `logs`: epochs of the logs of those whose rows that
    epoch alone does not prove. `topic_ids`: None from brokers without ids. `log_ends`: first offset that was not
    readable yet.
    """

    leader_epochs: Mapping[TopicPartition, int] = field(default_factory=dict)
    logs: Mapping[TopicPartition, LogEpochs] = field(default_factory=dict)
    topic_ids: Mapping[str, str | None] = field(default_factory=dict)
    log_ends: Mapping[TopicPartition, int] = field(default_factory=dict)


_caches: dict[tuple[Any, ...], LogEpochsCache] = {}
_has_warned = False


def epochs_cache_of(client: Mapping[str, str]) -> LogEpochsCache:
    """The process's cache for the cluster that these properties name."""
    key = (os.getpid(), *sorted(client.items()))
    if key not in _caches:
        _caches[key] = LogEpochsCache(connect.connect(client))
    return _caches[key]


def cached_log_epochs(
    client: Mapping[str, str], partitions: Iterable[TopicPartition]
) -> Mapping[TopicPartition, LogEpochs]:
    """Cached epochs of those partitions that exist; bounds may be old. Raises the brokers' errors."""
    return epochs_cache_of(client).get(existing_partitions(connect.connect(client), partitions))


def fetch_log_epochs(
    client: Mapping[str, str], partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, LogEpochs]:
    """Epochs and current bounds of those partitions that exist. Raises the brokers' errors."""
    found = existing_partitions(connect.connect(client), partitions)
    return epochs_cache_of(client).fetch(found) if found else {}


def gather_evidence(
    client: Mapping[str, str],
    spans: Iterable[ColumnSpan],
    known: Mapping[TopicPartition, int],
    retries: RetryPolicy = DEFAULT_RETRIES,
) -> TruncationEvidence:
    """The evidence for the partitions of `spans`, and of `known` (partition -> leader epoch that the table was compared
    with). Raises the brokers' errors, or `BrokersUnreachable`.
    """
    written: dict[TopicPartition, set[int]] = {}
    for span in spans:
        written.setdefault(span.topic_partition, set()).add(span.epoch)
    if not written and not known:
        return TruncationEvidence()
    return with_retries(lambda: _fetch(client, written, known), retries)


def _fetch(
    client: Mapping[str, str], written: Mapping[TopicPartition, set[int]], known: Mapping[TopicPartition, int]
) -> TruncationEvidence:
    cluster = connect.connect(client)
    found = existing_partitions(cluster, {*written, *known})
    ends = readable_ends(cluster, found)
    epochs = {tp: end.leader_epoch for tp, end in ends.items()}
    doubtful = {
        tp: topic_id
        for tp, topic_id in found.items()
        if epochs[tp] >= 0
        and (known.get(tp, epochs[tp]) != epochs[tp] or written.get(tp, {epochs[tp]}) != {epochs[tp]})
    }
    _warn_once(epochs)
    return TruncationEvidence(
        epochs,
        epochs_cache_of(client).get(doubtful, ends) if doubtful else {},
        {tp.topic: topic_id for tp, topic_id in found.items()},
        {tp: end.offset for tp, end in ends.items()},
    )


def _warn_once(epochs: Mapping[TopicPartition, int]) -> None:
    global _has_warned
    if not _has_warned and UNKNOWN_EPOCH in epochs.values():
        _has_warned = True
        _log.warning("%s", NO_EPOCHS_WARNING)


def merge_evidence(parts: Iterable[TruncationEvidence]) -> TruncationEvidence:
    """Merge the evidence of all tasks of a batch. Of two leaders the newer one counts."""
    epochs: dict[TopicPartition, int] = {}
    logs: dict[TopicPartition, LogEpochs] = {}
    ids: dict[str, str | None] = {}
    ends: dict[TopicPartition, int] = {}
    for part in parts:
        for tp, epoch in part.leader_epochs.items():
            if epoch >= epochs.get(tp, epoch):
                if tp in part.log_ends:
                    ends[tp] = max(part.log_ends[tp], ends.get(tp, 0) if epochs.get(tp) == epoch else 0)
                epochs[tp] = epoch
                ids[tp.topic] = part.topic_ids.get(tp.topic)
        for tp, log in part.logs.items():
            if tp not in logs or log.leader_epoch > logs[tp].leader_epoch:
                logs[tp] = log
    current = {tp: log for tp, log in logs.items() if log.leader_epoch == epochs.get(tp)}
    return TruncationEvidence(epochs, current, ids, ends)
