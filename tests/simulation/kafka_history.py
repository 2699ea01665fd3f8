"""Bugs from Kafka's history that the simulation finds again: which issue corresponds to which broken rule.

Owns the issue numbers and what each fixed. The patch, the seed and the check belong to the rules (`broken_rules`,
`broken_data_rules`, `broken_election_rules`, `broken_history_rules`, `broken_transaction_rules`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from tests.simulation.broken_rules import RULES as QUORUM_RULES
from tests.simulation.broken_silence_rules import NO_SEED
from tests.simulation.broken_silence_rules import RULES as DATA_RULES

HISTORY: Final[Mapping[str, tuple[str, str]]] = {
    "KAFKA-1211": (
        "kip_101_a_log_is_not_truncated_to_the_high_watermark",
        "followers cut to their high watermark and lost committed records (KIP-101)",
    ),
    "KAFKA-2334": (
        "kip_207_an_end_offset_is_returned_once_it_is_known",
        "a new leader answered with an end offset below one that clients knew (KIP-207)",
    ),
    "KAFKA-6119": (
        "kafka_6119_a_time_out_raises_the_epoch",
        "a producer whose transaction had timed out could go on with it",
    ),
    "KAFKA-6361": (
        "kip_279_an_unknown_epoch_is_looked_up",
        "logs diverged after two fast failovers (KIP-279)",
    ),
    "KAFKA-7128": (
        "kafka_7128_a_joining_follower_has_reached_this_epoch",
        "a follower joined the in-sync set below the start of the leader's epoch",
    ),
    "KAFKA-7395": (
        "kip_320_requests_are_fenced_by_epochs",
        "requests of an old leader epoch were served (KIP-320)",
    ),
    "KAFKA-7747": (
        "e49_a_consumer_validates_its_epoch",
        "consumers did not check for a truncation after the leader changed (KIP-320)",
    ),
    "KAFKA-8351": (
        "kafka_8351_a_transaction_may_span_groups_of_segments",
        "the cleaner showed records of aborted transactions that span segments",
    ),
    "KAFKA-9491": (
        "kafka_9491_a_full_truncation_moves_the_high_watermark",
        "a full truncation moved the log start and not the high watermark",
    ),
    "KAFKA-9600": (
        "kafka_9600_an_end_is_of_the_current_epoch",
        "EndTxn of another epoch ended a transaction",
    ),
    "KAFKA-9672": (
        "kafka_9672_an_in_sync_member_is_a_replica",
        "an in-sync set had members that are no replicas, in the middle of a reassignment",
    ),
    "KAFKA-9777": (
        "kafka_9777_a_completion_that_is_rejected_is_tried_again",
        "a transaction stayed in PrepareCommit if its completion could not be written",
    ),
    "KAFKA-9866": (
        "kafka_9866_the_preferred_leader_is_in_sync",
        "a preferred replica outside of the in-sync set was elected",
    ),
    "KAFKA-10101": (
        "a_truncation_lowers_the_recovery_point",
        "the recovery point lay beyond the log end",
    ),
    "KAFKA-10527": (
        "a_restarted_leader_never_leads_the_same_epoch_again",
        "a voter that restarted led the same epoch again",
    ),
    "KAFKA-10533": (
        "a_follower_flushes_what_it_fetches",
        "the metadata quorum counted records that were not flushed",
    ),
    "KAFKA-10706": (
        "kafka_10706_an_epoch_without_records_is_removed",
        "a truncation to the log end left a stale epoch in the cache",
    ),
    "KAFKA-12403": (
        "kafka_12403_the_state_of_a_deleted_topic_is_removed",
        "the local state of a topic survived its deletion",
    ),
    "KAFKA-12460": (
        "a_log_is_truncated_where_it_diverges",
        "the metadata log could be cut below its high watermark",
    ),
    "KAFKA-12619": (
        "old_epochs_are_committed_by_the_new_one",
        "a new quorum leader exposed a high watermark before a record of its own epoch was committed",
    ),
    "KAFKA-12671": (
        "kafka_12671_a_late_batch_opens_no_transaction",
        "a late batch opened a transaction that nobody ended",
    ),
    "KAFKA-13587": (
        "v37_a_recovering_leader_serves_no_requests",
        "a leader after an unclean election served records before it recovered (KIP-704)",
    ),
    "KAFKA-13727": (
        "kafka_13727_a_marker_stays_while_its_data_do",
        "the cleaner removed the marker of an aborted transaction too early",
    ),
    "KAFKA-13782": (
        "kafka_13782_the_offsets_partition_is_added_to_the_transaction",
        "another partition of the offsets topic was added to the transaction",
    ),
    "KAFKA-13916": (
        "e36_a_fenced_broker_does_not_join",
        "fenced brokers joined the in-sync set (KIP-841)",
    ),
    "KAFKA-14238": (
        "the_log_starts_at_a_snapshot",
        "segments of the metadata log were deleted that no snapshot covers",
    ),
    "KAFKA-14617": (
        "kip_903_an_in_sync_member_is_the_process_that_fetched",
        "a broker that restarted without its tail joined the in-sync set by its old process's fetches (KIP-903)",
    ),
    "KAFKA-14618": (
        "kafka_14618_a_snapshot_is_named_by_its_end_offset",
        "the offset in a snapshot's name was one too small",
    ),
    "KAFKA-15345": (
        "kafka_15345_a_controller_has_applied_its_log",
        "a controller became active before it had applied the log",
    ),
    "KAFKA-15583": (
        "e40_below_min_isr_nothing_is_committed",
        "the high watermark advanced with fewer in sync than min.insync.replicas (KIP-966)",
    ),
    "KAFKA-15586": (
        "kip_966_the_last_replica_standing_may_have_lost_its_tail",
        "a broker that comes back from an unclean stop was taken for one with a whole log (KIP-966)",
    ),
    "KAFKA-16164": (
        "a_candidacy_needs_a_pre_vote",
        "a voter that was cut off began elections that a healthy leader lost (KIP-996)",
    ),
    "KAFKA-16352": (
        "kafka_16352_the_code_of_one_marker_does_not_hide_the_others",
        "one response of a broker ended the wait for the markers of others",
    ),
    "KAFKA-16530": (
        "kafka_16530_a_leader_outside_of_the_voters_does_not_count",
        "a leader that is no voter any more counted for the majority",
    ),
    "KAFKA-16541": (
        "kafka_16541_an_epoch_file_is_complete_before_it_is_renamed",
        "a crash could leave a corrupt leader-epoch-checkpoint",
    ),
    "KAFKA-17754": (
        "kafka_17754_a_client_raises_its_epoch_after_a_request_without_answer",
        "a late EndTxn ended the next transaction",
    ),
    "KAFKA-17877": (
        "kafka_17877_a_marker_that_failed_is_written_again",
        "a transaction was complete although a marker had not been written",
    ),
    "KAFKA-18575": (
        "kafka_18575_partitions_are_not_added_while_markers_are_written",
        "partitions were added to a transaction that was being completed",
    ),
    "KAFKA-19999": (
        "kafka_19999_a_marker_may_be_repeated",
        "a marker that was sent again was rejected, and the transaction never completed",
    ),
    "KAFKA-20090": (
        "kafka_20090_a_producer_id_ends_with_its_epochs",
        "a producer id with the last epoch was not replaced",
    ),
}
"""By issue: the rule whose patch brings the bug back, and what the issue repaired."""

OTHERS: Final[Mapping[str, tuple[str, str]]] = {
    "KIP-890": (
        "kip_890_every_end_raises_the_epoch",
        "a late request of a producer belonged to its next transaction",
    ),
    "Redpanda 21.10, duplicates": (
        "a_batch_is_written_once",
        "a batch that was sent again was written twice",
    ),
    "Redpanda 21.10, lost messages": (
        "a_response_waits_for_the_replicas",
        "a decision was answered before it was replicated",
    ),
    "Redpanda 21.10, circular information": (
        "a_reader_gets_decided_records_only",
        "readers of committed records got those of open transactions",
    ),
    "Redpanda 21.10, aborted reads": (
        "a_reader_is_told_what_was_aborted",
        "readers of committed records got those of aborted transactions",
    ),
    "KoP and brod": (
        "an_aborted_transaction_is_found_by_its_last_offset",
        "aborted records were shown to readers that began inside of their transaction",
    ),
    "Bufstream 0.1.0, zero offsets": (
        "a_group_coordinator_that_loads_does_not_answer_zero",
        "a group without a known position began at 0",
    ),
    "Bufstream 0.1.0, stuck clients": (
        "a_new_coordinator_goes_on_with_the_markers",
        "a transaction was never completed after its coordinator had moved",
    ),
}
"""The same for bugs of other systems, which Jepsen found (`transactions.md X67`), and of a whole proposal."""

HEAD: Final = "| Issue | What it repaired | Scenario | Seed | Noticed by |\n|---|---|---|---|---|\n"


class Found(NamedTuple):
    """Where a bug is found again."""

    scenario: str
    seed: int
    check: str


def found(rule: str) -> Found:
    """The bugs found by the rules of all tables."""
    if rule in QUORUM_RULES:
        return Found(QUORUM_RULES[rule].scenario, QUORUM_RULES[rule].seed, QUORUM_RULES[rule].check)
    return Found(DATA_RULES[rule].scenario, DATA_RULES[rule].seed, DATA_RULES[rule].check)


def rows() -> Iterator[str]:
    """Rows of the table in docs/simulation.md."""
    for issue, (rule, repaired) in (*HISTORY.items(), *OTHERS.items()):
        scenario, seed, check = found(rule)
        yield f"| {issue} | {repaired} | {scenario} | {seed if seed != NO_SEED else 'none'} | {check} |"


def table() -> str:
    """The table as in docs/simulation.md."""
    return HEAD + "\n".join(rows()) + "\n"
