"""Bugs from Kafka's history that the simulation finds again: which issue corresponds to which broken rule.

Owns the issue numbers and what each fixed. The patch, the seed and the check belong to the rules (`broken_rules`,
`broken_data_rules`, `broken_election_rules`, `broken_history_rules`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from tests.simulation.broken_holes_rules import NO_SEED
from tests.simulation.broken_holes_rules import RULES as DATA_RULES
from tests.simulation.broken_rules import RULES as QUORUM_RULES

HISTORY: Final[Mapping[str, tuple[str, str]]] = {
    "KAFKA-1211": (
        "kip_101_a_log_is_not_truncated_to_the_high_watermark",
        "followers cut to their high watermark and lost committed records (KIP-101)",
    ),
    "KAFKA-2334": (
        "kip_207_an_end_offset_is_returned_once_it_is_known",
        "a new leader answered with an end offset below one that clients knew (KIP-207)",
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
    "KAFKA-9491": (
        "kafka_9491_a_full_truncation_moves_the_high_watermark",
        "a full truncation moved the log start and not the high watermark",
    ),
    "KAFKA-9672": (
        "kafka_9672_an_in_sync_member_is_a_replica",
        "an in-sync set had members that are no replicas, in the middle of a reassignment",
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
    "KAFKA-13587": (
        "v37_a_recovering_leader_serves_no_requests",
        "a leader after an unclean election served records before it recovered (KIP-704)",
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
    "KAFKA-16530": (
        "kafka_16530_a_leader_outside_of_the_voters_does_not_count",
        "a leader that is no voter any more counted for the majority",
    ),
    "KAFKA-16541": (
        "kafka_16541_an_epoch_file_is_complete_before_it_is_renamed",
        "a crash could leave a corrupt leader-epoch-checkpoint",
    ),
}
"""By issue: the rule whose patch brings the bug back, and what the issue repaired."""

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
    return Found("brokers", DATA_RULES[rule].seed, DATA_RULES[rule].check)


def rows() -> Iterator[str]:
    """Rows of the table in docs/simulation.md."""
    for issue, (rule, repaired) in HISTORY.items():
        scenario, seed, check = found(rule)
        yield f"| {issue} | {repaired} | {scenario} | {seed if seed != NO_SEED else 'none'} | {check} |"


def table() -> str:
    """The table as in docs/simulation.md."""
    return HEAD + "\n".join(rows()) + "\n"
