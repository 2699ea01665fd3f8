"""The lists of operations and faults: each has a meaning, and injected faults are recorded by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from uuid import UUID

import pytest
from immutables import Map

from fenceline.log.compaction.compaction import Compaction, Uncleanable
from fenceline.metadata.image import EMPTY_IMAGE, LOST_DIRECTORY, BrokerImage, PartitionImage
from fenceline.testing.simulation.brokers_operator import Operator, has_lost_files
from fenceline.testing.simulation.coverage import Coverage
from fenceline.testing.simulation.data_checks import DataChecks
from fenceline.testing.simulation.operations import FAULTS, OPERATIONS, Fault, Operation
from fenceline.testing.simulation.search import CALM
from fenceline.testing.simulation.stage import SeedOutcome, options_of, play
from tests.simulation.test_brokers_scenario import NO_FAULTS

PROFILES = {"operated", "incarnations", "cleaning", "groups", "moves", "metadata"}
BEGUN = {
    Operation.PRODUCE,
    Operation.FETCH,
    Operation.LIST_OFFSETS,
    Operation.END_OF_EPOCH,
    Operation.CREATE_TOPIC,
    Operation.DELETE_TOPIC,
    Operation.RECREATE_TOPIC,
    Operation.DELETE_RECORDS,
    Operation.ADD_PARTITIONS,
    Operation.REASSIGN,
    Operation.REASSIGN_BACK,
    Operation.CANCEL_REASSIGNMENT,
    Operation.ALTER_CONFIG,
    Operation.PREFERRED_ELECTION,
    Operation.UNCLEAN_ELECTION,
    Operation.COMMIT_OFFSETS,
    Operation.FETCH_COMMITTED,
    Operation.RESET_OFFSETS,
    Operation.DELETE_OFFSETS,
    Operation.DELETE_GROUP,
    Operation.MOVE_DIRECTORY,
    Operation.RETENTION,
    Operation.COMPACTION,
    Operation.METADATA_SNAPSHOT,
}


def test_each_name_has_a_one_line_description() -> None:
    assert list(OPERATIONS) == list(Operation)
    assert list(FAULTS) == list(Fault)
    for meaning in (*OPERATIONS.values(), *FAULTS.values()):
        assert meaning
        assert "\n" not in meaning


def test_faults_are_counted_by_their_names() -> None:
    outcome = play(15, "brokers")
    assert outcome.struck
    assert set(outcome.struck) <= {str(each) for each in Fault}


def test_each_profile_is_drawn() -> None:
    assert {options_of(seed, "operations").profile for seed in range(100)} == PROFILES


def test_an_operator_uses_every_api(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: set[str] = set()
    monkeypatch.setattr(Coverage, "operation", lambda self, name, topic=None: begun.add(name))
    wanted = {"operations": "", "operate_s": "0.05", "safety_s": "10", "unclean": "1", "groups": "1", "log_dirs": "2"}
    wanted["quiet_s"] = "0"
    outcome = play(1, "operations", overrides=NO_FAULTS | wanted)
    assert outcome.failure is None, outcome.report()
    assert begun == BEGUN


def _outcome_of(profile: str) -> SeedOutcome:
    seed = next(seed for seed in range(200) if options_of(seed, "operations").profile == profile)
    outcome = play(seed, "operations", overrides={"lose_dir_s": "1", "log_dirs": "2"})
    assert outcome.failure is None, outcome.report()
    return outcome


def test_a_node_whose_disk_failed_is_restarted() -> None:
    """Without the restart, the partitions on it would stay offline, as on a real node: seed 2."""
    outcome = play(2, "operations", overrides={"fail_s": "1"})
    assert outcome.failure is None, outcome.report()
    assert outcome.struck[Fault.FAILING_DISK]
    assert Fault.FAILING_DISK in {each.fault for each in outcome.triples}


def test_a_node_that_was_down_loads_a_metadata_snapshot() -> None:
    options = {"forget_metadata": "1", "snapshot_bytes": "300", "snapshot_interval_ms": "200", "quiet_s": "0"}
    lines: list[str] = []
    overrides = options | {"crash_s": "0.5", "down_s": "1", "max_job_ms": "100", "silence_ms": "-1"}
    outcome = play(13, "operations", overrides=overrides, sink=lines.append)
    assert outcome.failure is None, outcome.report()
    assert any("-from-" in line and ".checkpoint.part" in line for line in lines)
    assert {each.state for each in outcome.triples} >= {"behind", "snapshotting"}


def test_directories_are_lost() -> None:
    assert _outcome_of("moves").struck[Fault.DIRECTORY_LOST.value] > 0


def test_records_restored_by_a_later_unclean_election_are_not_lost() -> None:
    """Seed 100066: a replica that lost its log leads, then the one with the complete log leads again."""
    busy = {"quiet_s": "0", "safety_s": "6", "tidy_ms": "2000"}
    outcome = play(100066, "operations", overrides={"retention": "0", "stop_s": "1.5"} | busy)
    assert outcome.failure is None, outcome.report()


@pytest.mark.parametrize(
    ("seed", "options"),
    [
        (30012, {}),  # compaction removed a superseded record, and an unclean election lost the newer one
        (9102826, {}),  # a receipt pending beside the directories, a truncation, and a kill during it (checker)
        (9100995, {}),  # the only replica with acknowledged records was moved away
        (9200178, {}),  # the same while its node was down
        (
            9320468,
            {},
        ),  # an unclean election lost a record for which compaction had removed an older one (checker)
        (9320087, {}),  # an empty log was restarted after the leader had added the replica to the in-sync set
        (21000399, {}),  # a broker lost power between fetching a metadata snapshot and truncating its log
        (9200933, {}),  # a flush of a deleted topic wrote into the directory of the next one of that name
        (9100327, {}),  # an empty log was restarted above the log start of a leader with another history
        (9103861, {}),  # the ledger has a receipt before the truncation has ended (checker)
        (9100066, {}),  # a fetch commits, and its read finds that the directory has failed (checker)
        (9101397, {}),  # a removed replica trusted the log start of a leader that was elected uncleanly
        (9102718, {}),  # a leader that does not know the new topic answers for the old one of the same name (checker)
        (
            7000004,  # a follower was in sync whose log ended at the leader's log start, with another history
            dict(CALM)
            | {
                "elr": "1",
                "aim": "log rebased",
                "aim_faults": "failing disk,full disk,partition,quick return,stop,stranded",
                "aim_s": "0.2",
                "operate_s": "0.3",
                "safety_s": "24",
                "calm_s": "2",
                "load_s": "1.2",
                "quiet_s": "0.5",
                "retention": "1",
                "segment_bytes": "500",
                "tidy_ms": "50",
                "operations": "add partitions,recreate topic",
            },
        ),
    ],
)
def test_games_that_found_a_bug(seed: int, options: dict[str, str]) -> None:
    outcome = play(seed, "operations", overrides=options)
    assert outcome.failure is None, outcome.report()


def test_a_loss_without_a_receipt_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed 0 loses acknowledged records to an unclean election."""
    check = DataChecks.losses_have_receipts

    def without_receipts(self: DataChecks) -> None:
        self.receipts.clear()
        check(self)

    monkeypatch.setattr(DataChecks, "losses_have_receipts", without_receipts)
    outcome = play(0, "brokers")
    assert outcome.failure is not None
    assert "was acknowledged and lost without a receipt (losses)" in outcome.failure


def test_a_replica_that_lost_its_files_is_replaced() -> None:
    """The operator elects another replica if all eligible ones have lost their directory and are running."""
    online, lost = UUID(int=7), LOST_DIRECTORY
    brokers = {
        node: BrokerImage(node, 1, UUID(int=node), (), {}, None, node == 3, False, (online,)) for node in (1, 2, 3)
    }
    image = replace(EMPTY_IMAGE, brokers=Map(brokers))

    def partition(*isr: int, last: tuple[int, ...] = (), lost_of: int = 1) -> PartitionImage:
        directories = tuple(lost if node == lost_of else online for node in (1, 2, 3))
        return PartitionImage((1, 2, 3), isr, -1, 4, 5, directories=directories, last_known_elr=last)

    assert has_lost_files(partition(1), image)
    assert has_lost_files(partition(last=(1,)), image)
    assert not has_lost_files(partition(1, 2), image), "it will be elected"
    assert not has_lost_files(partition(2), image)
    assert not has_lost_files(partition(3, lost_of=3), image), "it may return"


def test_a_log_that_the_cleaner_stops_cleaning_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Compaction, keys: object) -> Iterator[int]:
        raise Uncleanable("a test")

    monkeypatch.setattr(Compaction, "_index", refuse)
    wanted = {"compaction": "1", "segment_bytes": "500", "tidy_ms": "50", "operations": "alter config", "topics": "2"}
    no_faults = NO_FAULTS | dict.fromkeys(("fail_s", "flip_s", "lose_dir_s"), "0")
    outcome = play(3, "operations", overrides=no_faults | wanted)
    assert outcome.failure is not None
    assert "is no longer compacted: a test (compaction)" in outcome.failure


def test_an_operator_at_its_request_limit_still_recreates_topics() -> None:
    """Seed 10095: the deletion whose answer was lost took effect two seconds after the last fault."""
    operator = object.__new__(Operator)
    operator.request_limit, operator.done = 3, 5
    assert operator.quiet_s() == 0.0
