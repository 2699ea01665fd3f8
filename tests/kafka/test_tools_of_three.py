"""Kafka 4.3.1's tools on a Fenceline and on a Kafka cluster of three nodes: the same arguments, the same output.

Each test runs the same commands on both clusters; output and exit codes are compared (`side_by_side.py`).
Intended differences are documented in `docs/protocol.md` and `docs/skipped.md`, and tested here.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fenceline.cli.app import app
from fenceline.client.producer.producer import Producer
from fenceline.node.metadata.metadata_log import DIRECTORY_NAME
from fenceline.testing.mixed_cluster import CLUSTER_ID, COMBINED, MixedCluster
from fenceline.testing.waiting import eventually
from tests.kafka.side_by_side import LATE, Both, Side, both_clusters
from tests.scheduling import CLUSTERS
from tests.support.partition_files import log_bytes

pytestmark = [pytest.mark.kafka, pytest.mark.together(CLUSTERS), pytest.mark.timeout(600)]

BROKERS = ("--bootstrap-server", "@brokers")
CONTROLLERS = ("--bootstrap-controller", "@controllers")
LISTENERS = (BROKERS, CONTROLLERS)
FIRST_LOG = "00000000000000000000.log"
PLACES = r"(Leader|Replicas|Isr): \d"
"""Where a topic that nobody assigned has come to lie."""
NUMBERS = r"-?\b\d+\b"


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    with both_clusters(tmp_path_factory.mktemp("tools")) as both:
        yield both


@pytest.fixture
def both(clusters: Both) -> Iterator[Both]:
    """The two clusters; any difference in the test's commands fails it."""
    yield clusters
    clusters.check()


def create(both: Both, topic: str, assignment: str = "1,2,3", *more: str) -> None:
    both.run("topics", *BROKERS, "--create", "--topic", topic, "--replica-assignment", assignment, *more)


# --- topics -----------------------------------------------------------------------------------------------------------


def test_topics_are_created(both: Both) -> None:
    def created(*arguments: str) -> None:
        both.run("topics", *BROKERS, "--create", "--topic", *arguments)

    created("a1", "--replica-assignment", "1,2,3")
    created("a2", "--partitions", "2", "--replication-factor", "1", "--config", "retention.ms=100000")
    created("a.3", "--partitions", "1", "--config", "cleanup.policy=compact", "--config", "min.insync.replicas=1")
    created("a1", "--partitions", "1", "--if-not-exists")
    for topic, *bad in (
        ("a1", "--partitions", "1"),
        ("a_3", "--partitions", "1"),
        ("bad name",),
        (".",),
        ("x" * 250,),
        ("__cluster_metadata",),
        ("bad", "--partitions", "0"),
        ("bad", "--partitions", "-1"),
        ("bad", "--replication-factor", "0"),
        ("bad", "--replication-factor", "4"),
        ("bad", "--replication-factor", "40000"),
        ("bad", "--config", "no.such=1"),
        ("bad", "--config", "retention.ms=x"),
        ("bad", "--config", "min.insync.replicas=0"),
        ("bad", "--replica-assignment", "9"),
        ("bad", "--replica-assignment", "1:1"),
        ("bad", "--replica-assignment", "1:2,3"),
        ("bad", "--replica-assignment", "1,2", "--partitions", "2"),
    ):
        both.refuse("topics", *BROKERS, "--create", "--topic", topic, *bad)
    both.refuse("topics", *BROKERS, "--create", "--partitions", "2")
    both.refuse("topics", *CONTROLLERS, "--list")


def test_topics_are_listed_and_described(both: Both) -> None:
    create(both, "d1")
    create(both, "d2", "2,3", "--config", "retention.ms=100000")
    for listed in ((), ("--exclude-internal",), ("--topic", "d.*"), ("--topic", "nope")):
        both.run("topics", *BROKERS, "--list", *listed)
    described = both.run("topics", *BROKERS, "--describe", "--topic", "d1")
    assert "PartitionCount: 3\tReplicationFactor: 1" in described
    both.run("topics", *BROKERS, "--describe", "--topic", "d1", "--partition-size-limit-per-response", "1")
    for asked in (
        (),
        ("--topic", "d1,d2"),
        ("--topic", "d.*", "--exclude-internal"),
        ("--topics-with-overrides",),
        ("--at-min-isr-partitions",),
        ("--under-min-isr-partitions",),
        ("--under-replicated-partitions",),
        ("--unavailable-partitions",),
        ("--topic", "nope", "--if-exists"),
    ):
        both.run("topics", *BROKERS, "--describe", *asked, leave_out=PLACES)
    both.refuse("topics", *BROKERS, "--describe", "--topic", "nope")
    both.refuse("topics", *BROKERS, "--describe", "--topic-id", "AAAAAAAAAAAAAAAAAAAAAw")
    both.refuse("topics", *BROKERS, "--describe", "--topic-id", "xx")


def test_partitions_are_added_and_topics_deleted(both: Both) -> None:
    create(both, "p1")

    def alter(*arguments: str) -> tuple[str, ...]:
        return ("topics", *BROKERS, "--alter", "--topic", *arguments)

    both.run(*alter("p1", "--partitions", "5", "--replica-assignment", "1,2,3,3,2"))
    both.run("topics", *BROKERS, "--describe", "--topic", "p1")
    for bad in (
        ("p1", "--partitions", "4"),
        ("p1", "--partitions", "5"),
        ("p1", "--partitions", "7", "--replica-assignment", "1,2,3,3,2,9,9"),
        ("p1", "--partitions", "7", "--replica-assignment", "1,2,3,3,2,1"),
        ("nope", "--partitions", "4"),
    ):
        both.refuse(*alter(*bad))
    both.run(*alter("nope", "--partitions", "4", "--if-exists"))
    both.run("topics", *BROKERS, "--delete", "--topic", "p1")
    both.refuse("topics", *BROKERS, "--delete", "--topic", "p1")
    both.run("topics", *BROKERS, "--delete", "--topic", "p1", "--if-exists")
    both.run("topics", *BROKERS, "--list", "--topic", "p1")


def test_partitions_below_their_minimum(both: Both) -> None:
    create(both, "m1", "1", "--config", "min.insync.replicas=2")
    for kind in ("--under-min-isr-partitions", "--at-min-isr-partitions", "--under-replicated-partitions"):
        both.run("topics", *BROKERS, "--describe", kind, "--topic", "m1")


# --- configs ----------------------------------------------------------------------------------------------------------


def alter_config(both: Both, entity: tuple[str, ...], keys: str, *, bad: str = "", where: Any = BROKERS) -> None:
    """Set keys, show them, take them away; refuse a bad one."""
    both.run("configs", *where, "--describe", *entity)
    both.run("configs", *where, "--alter", *entity, "--add-config", keys)
    both.run("configs", *where, "--describe", *entity)
    names = ",".join(pair.partition("=")[0] for pair in re.split(r",(?![^\[]*\])", keys))
    both.run("configs", *where, "--alter", *entity, "--delete-config", names)
    both.run("configs", *where, "--describe", *entity)
    if bad:
        both.refuse("configs", *where, "--alter", *entity, "--add-config", bad)


def test_configs_of_brokers(both: Both) -> None:
    node = ("--broker", "1")
    alter_config(both, node, "log.cleaner.threads=2,message.max.bytes=2000000", bad="log.dirs=/x")
    alter_config(both, ("--broker-defaults",), "message.max.bytes=3000000", bad="listeners=PLAINTEXT://:1")
    for bad in ("no.such=1", "message.max.bytes=x"):
        both.run("configs", *BROKERS, "--alter", *node, "--add-config", bad, code=int(bad != "no.such=1"))
    both.run("configs", *BROKERS, "--alter", *node, "--delete-config", "no.such")
    for shown in (("--entity-type", "brokers"), ("--broker-defaults", "--all")):
        both.run("configs", *BROKERS, "--describe", *shown)
    both.refuse("configs", *BROKERS, "--describe", "--broker", "x")


def test_every_config_of_a_broker(both: Both) -> None:
    reported = both.run("configs", *BROKERS, "--describe", "--broker", "1", "--all")
    assert "node.id=1 " in reported


def test_configs_of_topics(both: Both) -> None:
    create(both, "c1")
    topic = ("--topic", "c1")
    keys = "retention.ms=5,cleanup.policy=[delete,compact],unclean.leader.election.enable=true"
    alter_config(both, topic, keys, bad="retention.ms=x")
    for bad in ("nope=x", "max.compaction.lag.ms=1,min.compaction.lag.ms=2", "retention.ms"):
        both.refuse("configs", *BROKERS, "--alter", *topic, "--add-config", bad)
    both.refuse("configs", *BROKERS, "--alter", *topic)
    both.run("configs", *BROKERS, "--alter", *topic, "--delete-config", "nope")
    both.refuse("configs", *BROKERS, "--alter", "--topic", "nope", "--add-config", "retention.ms=5")
    both.write("add.properties", "retention.ms=7\n")
    both.run("configs", *BROKERS, "--alter", *topic, "--add-config-file", "@root/add.properties")
    for shown in ((*topic,), (*topic, "--all"), ("--entity-type", "topics")):
        both.run("configs", *BROKERS, "--describe", *shown)
    both.run("configs", *BROKERS, "--describe", "--topic", "nope")


def test_configs_of_groups_and_metrics(both: Both) -> None:
    for entity, keys, kind in (
        (("--group", "g1"), "consumer.session.timeout.ms=50000", "groups"),
        (("--client-metrics", "m1"), "interval.ms=60000", "client-metrics"),
    ):
        alter_config(both, entity, keys, bad="bad=1")
        both.run("configs", *BROKERS, "--alter", *entity, "--add-config", keys)
        both.run("configs", *BROKERS, "--describe", *entity, "--all")
        both.run("configs", *BROKERS, "--describe", "--entity-type", kind)


def test_log_levels(both: Both) -> None:
    """Fenceline has one logger, listed under Kafka's name for it."""
    logger = ("--broker-logger", "1")
    for level in ("DEBUG", "WARN"):
        both.run("configs", *BROKERS, "--alter", *logger, "--add-config", f"root={level}")
        for side in both.sides:
            assert f"root={level}" in side.run("configs", *BROKERS, "--describe", *logger).printed
    for bad in ("root=LOUD", "no.such.logger=DEBUG"):
        both.refuse("configs", *BROKERS, "--alter", *logger, "--add-config", bad)
    both.refuse("configs", *BROKERS, "--alter", *logger, "--delete-config", "root")
    both.run("configs", *CONTROLLERS, "--alter", *logger, "--add-config", "root=WARN")


def test_configs_through_controllers(both: Both) -> None:
    """KIP-919. The active controller is asked, whichever broker it is about."""
    for node in ("1", "2", "3"):
        alter_config(both, ("--broker", node), "message.max.bytes=2000000", where=CONTROLLERS)
    alter_config(both, ("--broker-defaults",), "message.max.bytes=2000000", where=CONTROLLERS)
    both.run("configs", *CONTROLLERS, "--describe", "--entity-type", "brokers")
    create(both, "cc1")
    for asked in (
        ("--describe", "--topic", "cc1"),
        ("--alter", "--topic", "cc1", "--add-config", "retention.ms=8"),
        ("--describe", "--group", "g2"),
        ("--alter", "--group", "g2", "--add-config", "consumer.session.timeout.ms=50000"),
    ):
        both.run("configs", *CONTROLLERS, *asked, code=both.each("configs", *CONTROLLERS, *asked)[0].code)


def test_scram_credentials_are_altered(both: Both) -> None:
    both.run("configs", *BROKERS, "--alter", "--user", "u1", "--add-config", "SCRAM-SHA-256=[password=pw]")
    both.run("configs", *BROKERS, "--alter", "--user", "u1", "--delete-config", "SCRAM-SHA-256")
    both.refuse("configs", *BROKERS, "--alter", "--user", "u1", "--delete-config", "SCRAM-SHA-256")
    both.refuse(
        "configs", *BROKERS, "--alter", "--user", "u1", "--add-config", "SCRAM-SHA-256=[iterations=1,password=a]"
    )


def test_acls_need_an_authorizer(both: Both) -> None:
    """With one: `test_acl_tool.py`."""
    rule = ("--allow-principal", "User:a", "--operation", "Read", "--topic", "x")
    for listener in LISTENERS:
        for asked in (("--list",), ("--add", *rule), ("--remove", "--force", *rule)):
            both.refuse("acls", *listener, *asked)


QUOTAS = (
    (("--user", "u1"), "consumer_byte_rate=5,request_percentage=12.5"),
    (("--user-defaults",), "producer_byte_rate=7"),
    (("--client", "c1"), "request_percentage=0.001"),
    (("--client-defaults",), "producer_byte_rate=1e9"),
    (("--user", "u1", "--client", "c1"), "controller_mutation_rate=0.5"),
    (("--user", "u1", "--client-defaults"), "consumer_byte_rate=9223372036854775807"),
    (("--user-defaults", "--client", "c1"), "consumer_byte_rate=11"),
    (("--user-defaults", "--client-defaults"), "consumer_byte_rate=12"),
    (("--ip", "127.0.0.9"), "connection_creation_rate=100"),
    (("--ip-defaults",), "connection_creation_rate=2147483647"),
    (("--user", "a/b c,d:\u00fc"), "producer_byte_rate=3"),
    (("--client", "<default>"), "producer_byte_rate=4"),
)


def quota_configs(*arguments: str) -> tuple[str, ...]:
    return ("configs", *BROKERS, *arguments)


def describe_quotas(both: Both) -> None:
    """By types of entities, and each entity."""
    for kinds in (("users",), ("clients",), ("users", "clients"), ("clients", "users"), ("ips",)):
        both.run(*quota_configs("--describe", *(word for kind in kinds for word in ("--entity-type", kind))))
    for entity, _ in (*QUOTAS, (("--user", "nobody"), ""), (("--ip", "127.0.0.10"), "")):
        both.run(*quota_configs("--describe", *entity))
    # One user with all its clients, and one client of all users.
    both.run(*quota_configs("--describe", "--entity-type", "users", "--entity-name", "u1", "--entity-type", "clients"))
    both.run(*quota_configs("--describe", "--entity-type", "clients", "--entity-name", "c1", "--entity-type", "users"))


def test_quotas_are_altered(both: Both) -> None:
    for entity, values in QUOTAS:
        both.run(*quota_configs("--alter", *entity, "--add-config", values))
    describe_quotas(both)
    both.run(*quota_configs("--alter", "--user", "u1", "--add-config", "consumer_byte_rate=6,producer_byte_rate=7"))
    both.run(*quota_configs("--alter", "--user", "u1", "--add-config", "SCRAM-SHA-256=[iterations=5000,password=pw]"))
    described = both.run(*quota_configs("--describe", "--user", "u1"))
    assert all(each in described for each in ("producer_byte_rate=7", "request_percentage=12.5", "iterations=5000"))
    both.refuse(*quota_configs("--alter", "--user", "u1", "--delete-config", "SCRAM-SHA-256,producer_byte_rate"))
    for key in ("SCRAM-SHA-256", "producer_byte_rate"):
        both.run(*quota_configs("--alter", "--user", "u1", "--delete-config", key))
    for entity, values in QUOTAS:
        keys = ",".join(each.partition("=")[0] for each in values.split(","))
        both.run(*quota_configs("--alter", *entity, "--delete-config", keys))
    describe_quotas(both)


RATE = "consumer_byte_rate="
FAILING = {
    ("--user", "u2"): (
        *(RATE + value for value in ("0", "-1", "1.5", "4.9999999", "1e19", "x", "")),
        *("connection_creation_rate=1", "producer_byte_rate=1,no_such_quota=1"),
    ),
    ("--client", "c2"): ("no_such_quota=1",),
    ("--ip", "127.0.0.9"): ("producer_byte_rate=1", *(f"connection_creation_rate={at}" for at in (2147483648, 0.5))),
    ("--ip", "no.such.host.invalid"): ("connection_creation_rate=1",),
    ("--ip", "127.0.0.9", "--user", "u2"): (RATE + "1",),
    ("--user", "u2", "--user-defaults"): (RATE + "1",),
    ("--user", "u2", "--topic", "t"): (RATE + "1",),
}
ABSENT = {
    ("--user", "u2"): RATE[:-1],
    ("--client", "c2"): "no_such_quota",
    ("--client-defaults",): "producer_byte_rate",
}


@pytest.mark.parametrize(
    "asked",
    [
        *((*entity, "--add-config", value) for entity, values in FAILING.items() for value in values),
        *((*entity, "--delete-config", key) for entity, key in ABSENT.items()),
    ],
    ids=" ".join,
)
def test_changes_of_quotas_that_fail(both: Both, asked: tuple[str, ...]) -> None:
    """Or change nothing."""
    altered = quota_configs("--alter", *asked)
    both.run(*altered, code=both.each(*altered)[0].code)
    both.run(*quota_configs("--describe", "--entity-type", "users"))


def test_quotas_are_not_changed_through_controllers(both: Both) -> None:
    """By Kafka's tools: its client does not send such requests to controllers."""
    client = ("--client", "c3")
    for asked in (("--describe", *client), ("--alter", *client, "--add-config", "producer_byte_rate=5")):
        both.refuse("configs", *CONTROLLERS, *asked)


# --- features ---------------------------------------------------------------------------------------------------------


def test_features(both: Both) -> None:
    """Through brokers and through controllers. The finalizing node and the log length differ between clusters."""
    not_same = r"Epoch: \d+|Local controller \d"
    good = [
        "describe",
        "version-mapping",
        "version-mapping --release-version 4.0",
        "feature-dependencies --feature transaction.version=2",
        "upgrade --dry-run --release-version 4.3",
        "upgrade --metadata 4.3",
        "downgrade --feature transaction.version=1",
        "upgrade --feature transaction.version=2",
        "downgrade --feature group.version=0",
        "describe",
        "upgrade --feature group.version=1 --feature share.version=1",
        "disable --feature share.version --dry-run",
        "disable --feature share.version",
        "downgrade --feature share.version=0 --feature streams.version=0",
        "upgrade --release-version 4.3",
        "upgrade --feature kraft.version=1",
        "describe",
    ]
    bad = [
        "upgrade --feature metadata.version=99",
        "upgrade --feature metadata.version=29",
        "upgrade --feature no.such=1",
        "upgrade --metadata bogus",
        "upgrade --feature x",
        "upgrade",
        "upgrade --feature a=1 --feature a=2",
        "upgrade --feature group.version=2",
        "upgrade --feature kraft.version=2",
        "downgrade --feature transaction.version=3",
        "downgrade --metadata 3.3 --dry-run",
        "downgrade --release-version 3.9 --unsafe --dry-run",
        "downgrade --feature kraft.version=0",
        "disable --feature metadata.version",
        "disable --feature kraft.version",
        "disable --feature nope",
    ]
    for listener in LISTENERS:
        for words, code in [*((each, 0) for each in good), *((each, 1) for each in bad)]:
            both.run("features", *listener, *words.split(), leave_out=not_same, code=code)


# --- the quorum -------------------------------------------------------------------------------------------------------


def describe_quorum(both: Both) -> None:
    """The leader, the log length and fetch times differ."""
    moving = r"^[MHL]\w+: .*| -?\d+ \d+ (TIME|\d+ ms ago) (TIME|\d+ ms ago) (Leader|Follower)$"
    of_observers = r"| \d+ \d+ (TIME|\d+ ms ago) (TIME|\d+ ms ago)(?= Observer)"
    for listener in LISTENERS:
        for shown in (("--status",), ("--replication",), ("--replication", "--human-readable")):
            both.run("metadata-quorum", *listener, "describe", *shown, leave_out=moving + of_observers)


def test_the_quorum_is_described(both: Both) -> None:
    describe_quorum(both)
    for side in both.sides:
        for shown, time in (((), r"\d{13}"), (("--human-readable",), r"\d+ ms ago")):
            reported = side.run("metadata-quorum", *CONTROLLERS, "describe", "--replication", *shown).printed
            rows = [line for line in reported.splitlines()[1:] if line.strip()]
            kinds = [re.fullmatch(rf"\d\s+\S{{22}}\s+\d+\s+\d+\s+{time}\s+{time}\s+(\w+)\s*", row) for row in rows]
            assert sorted(found[1] for found in kinds if found) == ["Follower", "Follower", "Leader"], reported
    for words in ("describe", "describe --status --human-readable"):
        both.refuse("metadata-quorum", *BROKERS, *words.split())


def has_caught_up(side: Side) -> bool:
    """The late controller has everything that the leader had."""
    described = side.cluster.leader().describe_quorum()
    late = next((each for each in described.observers if each.replica_id == LATE), None)
    return late is not None and late.log_end_offset >= described.high_watermark and late.last_caught_up_timestamp > 0


def votes(side: Side) -> bool:
    """The leader counts the late controller among the voters."""
    return LATE in {each.replica_id for each in side.cluster.leader().describe_quorum().current_voters}


def test_controllers_are_added_and_removed(both: Both) -> None:
    for side in both.sides:
        late = side.cluster.node(LATE)
        shutil.rmtree(late.log_dir)
        how = ("format", "--cluster-id", CLUSTER_ID, "--config", f"@config{LATE}", "--no-initial-controllers")
        assert side.run("storage", *how).code == 0
        late.directory_id = directory_id(late.log_dir)
        late.start()
        late.wait_ready()
    for side in both.sides:
        eventually(partial(has_caught_up, side), "it follows")
    describe_quorum(both)
    for listener in LISTENERS:
        add = ("metadata-quorum", *listener, "--command-config", f"@config{LATE}", "add-controller")
        remove = ("metadata-quorum", *listener, "remove-controller", "--controller-id", str(LATE))
        this = ("--controller-directory-id", f"@id{LATE}")
        both.run(*add, "--dry-run")
        both.run(*add)
        for side in both.sides:
            eventually(partial(votes, side), "it votes")
        both.run("cluster", "list-endpoints", *CONTROLLERS, leave_out=r"\d{4,5}")
        both.run(*remove, *this, "--dry-run")
        both.run(*remove, *this)
        for side in both.sides:
            eventually(partial(has_caught_up, side), "it follows again")
        both.run("cluster", "list-endpoints", *CONTROLLERS, leave_out=r"\d{4,5}")
    describe_quorum(both)
    for side in both.sides:
        side.cluster.node(LATE).stop()


def test_removing_unknown_and_adding_existing_voters_fails(both: Both) -> None:
    """The same errors; Kafka's messages list all voters, Fenceline's the requested one."""
    words = r"(?<=VoterNotFoundException: ).*|(?<=DuplicateVoterException: ).*"
    both.write("broker.properties", "process.roles=broker\n")
    for listener in LISTENERS:
        remove = ("metadata-quorum", *listener, "remove-controller", "--controller-id")
        both.refuse(*remove, "9", "--controller-directory-id", CLUSTER_ID, leave_out=words)
        both.refuse(*remove, "1", "--controller-directory-id", CLUSTER_ID, leave_out=words)
        both.refuse(*remove, "1", "--controller-directory-id", "x")
        both.refuse(*remove, "-1", "--controller-directory-id", CLUSTER_ID)
        for config in ("@config1", "@root/broker.properties"):
            both.refuse("metadata-quorum", *listener, "--command-config", config, "add-controller", leave_out=words)


# --- the cluster ------------------------------------------------------------------------------------------------------


def test_the_cluster(both: Both) -> None:
    for listener in LISTENERS:
        both.run("cluster", "cluster-id", *listener)
        both.run("cluster", "list-endpoints", *listener, leave_out=r"\d{4,5}")
        both.refuse("cluster", "unregister", *listener, "--id", "9")
    both.refuse("cluster", "unregister", *BROKERS, "--id", "-1")
    both.run("cluster", "list-endpoints", *BROKERS, "--include-fenced-brokers")


def test_versions_of_the_protocol(both: Both) -> None:
    """Supported APIs have Kafka's versions; others are listed as unsupported."""
    for listener in LISTENERS:
        reported = both.each("broker-api-versions", *listener)
        assert [each.code for each in reported] == [reported[0].code] * 2
        theirs, ours = (set(re.findall(r"^\s*(\w+\(\d+\): .*?),?$", each.printed, re.MULTILINE)) for each in reported)
        assert [line for line in ours - theirs if "UNSUPPORTED" not in line] == []


def test_leaders_are_elected(both: Both) -> None:
    create(both, "e1")
    both.write("e.json", '{"partitions":[{"topic":"e1","partition":1},{"topic":"e1","partition":2}]}')
    one = ("--topic", "e1", "--partition", "0")
    for kind in ("preferred", "unclean"):
        both.run("leader-election", *BROKERS, "--election-type", kind, *one)
        both.run("leader-election", *BROKERS, "--election-type", kind, "--all-topic-partitions")
    preferred = ("leader-election", *BROKERS, "--election-type", "preferred")
    both.run(*preferred, "--path-to-json-file", "@root/e.json")
    both.refuse(*preferred, "--topic", "nope", "--partition", "0")
    both.refuse(*preferred, "--topic", "e1", "--partition", "9")
    both.refuse(*preferred)


def test_partitions_are_reassigned(both: Both) -> None:
    create(both, "r1")

    def reassign(*arguments: str) -> tuple[str, ...]:
        return ("reassign-partitions", *BROKERS, *arguments)

    both.write("t.json", '{"topics":[{"topic":"r1"}],"version":1}')
    both.run(*reassign("--generate", "--topics-to-move-json-file", "@root/t.json", "--broker-list", "1"))
    both.refuse(*reassign("--generate", "--topics-to-move-json-file", "@root/t.json", "--broker-list", "9"))
    plans: dict[str, list[tuple[str, list[int]]]] = {
        "same": [("r1", [1])],
        "unknown": [("nope", [1])],
        "nowhere": [("r1", [9])],
        "twice": [("r1", [1, 1])],
        "empty": [],
    }
    for name, plan in plans.items():
        partitions = [{"topic": topic, "partition": 0, "replicas": replicas} for topic, replicas in plan]
        both.write(f"{name}.json", json.dumps({"version": 1, "partitions": partitions}))
        execute = reassign("--execute", "--reassignment-json-file", f"@root/{name}.json")
        both.run(*execute) if name == "same" else both.refuse(*execute)
    same = ("--reassignment-json-file", "@root/same.json")
    both.run(*reassign("--execute", *same, "--throttle", "1000"))
    both.run("configs", *BROKERS, "--describe", "--topic", "r1")
    both.run(*reassign("--verify", *same))
    both.run(*reassign("--cancel", *same))
    both.run(*reassign("--list"))
    both.run("configs", *BROKERS, "--describe", "--broker", "1")


def test_reassignment_is_throttled_resumed_and_verified(both: Both) -> None:
    """More than one fetch has to move, at a rate that lets one pass and then nothing for a quarter of an hour; the tool
    raises it while the replicas move, and takes all settings away when they have.
    """
    create(both, "t1", "1")
    create(both, "t2", "1")
    for side in both.sides:
        with Producer(side.words["@broker1"]) as producer:
            for number in range(40):
                producer.send("t1", bytes([number]) * 100_000, partition=0)
            producer.flush()
    partitions = [{"topic": topic, "partition": 0, "replicas": [2, 3]} for topic in ("t1", "t2")]
    both.write("t.json", json.dumps({"version": 1, "partitions": partitions}))
    plan = ("--reassignment-json-file", "@root/t.json")

    def reassign(*arguments: str) -> tuple[str, ...]:
        return ("reassign-partitions", *BROKERS, *arguments)

    def show() -> list[str]:
        whose = [("--topic", topic) for topic in ("t1", "t2")] + [("--broker", f"{number}") for number in (1, 2, 3)]
        return [both.run("configs", *BROKERS, "--describe", *each) for each in whose]

    both.run(*reassign("--execute", *plan, "--throttle", "1000"))
    before = "".join(show())
    assert "leader.replication.throttled.rate=1000" in before
    assert "leader.replication.throttled.replicas=0:1" in before
    eventually(
        lambda: all("t2-0 is completed" in side.run(*reassign("--verify", *plan)).printed for side in both.sides)
    )
    assert "t1-0 is still in progress" in both.run(*reassign("--verify", *plan))
    both.run(*reassign("--list"))
    assert "leader.replication.throttled.rate=1000" in "".join(show()), "as long as anything moves"
    both.refuse(*reassign("--execute", *plan, "--throttle", "100000000"))
    both.run(*reassign("--execute", "--additional", *plan, "--throttle", "100000000"))
    assert "follower.replication.throttled.rate=100000000" in "".join(show())

    def has_moved(side: Side) -> bool:
        return "t1-0 is completed" in side.run(*reassign("--verify", *plan)).printed

    eventually(lambda: all(has_moved(side) for side in both.sides), "both have moved", wait_s=120)
    both.run(*reassign("--verify", *plan))
    assert "throttled" not in "".join(show())
    both.run("topics", *BROKERS, "--describe", "--topic", "t1", leave_out=PLACES)
    for side in both.sides:
        moved = [log_bytes(node.log_dir, "t1") for node in side.cluster.nodes[1:3]]
        assert moved[0] == moved[1]
        assert len(moved[0]) > 4_000_000
        eventually(lambda side=side: not log_bytes(side.cluster.nodes[0].log_dir, "t1"))  # type: ignore[misc]


def test_offsets_records_and_directories(both: Both) -> None:
    create(both, "o1")
    for asked in (
        *(("--time", at) for at in ("-1", "-2", "-4", "-5", "0", "earliest", "latest")),
        ("--topic", "o1"),
        ("--topic-partitions", "o1:0,o1:2"),
        ("--topic", "o.*", "--partitions", "1"),
    ):
        both.run("get-offsets", *BROKERS, *asked)
    # Which record was written last by the clock is another one on each side; where there is none, both say so.
    both.run("get-offsets", *BROKERS, "--time", "-3", leave_out=r"(?<=:)\d+$")
    both.refuse("get-offsets", *BROKERS, "--topic", "nope")
    both.refuse("get-offsets", *BROKERS, "--topic-partitions", "o1:7")

    def delete(name: str, *partitions: tuple[str, int, int]) -> tuple[str, ...]:
        wanted = [{"topic": topic, "partition": index, "offset": at} for topic, index, at in partitions]
        both.write(f"{name}.json", json.dumps({"version": 1, "partitions": wanted}))
        return ("delete-records", *BROKERS, "--offset-json-file", f"@root/{name}.json")

    both.run(*delete("some", ("o1", 0, 0), ("o1", 1, 5)))
    # No broker reports the metadata directory, so the tool never sends the request (the node would reject it).
    both.write("quick.properties", "default.api.timeout.ms=3000\nrequest.timeout.ms=2000\n")
    quick = ("--command-config", "@root/quick.properties")
    both.run(*delete("metadata", (DIRECTORY_NAME.rpartition("-")[0], 0, 0)), *quick, leave_out="TimeoutException.*")
    sizes = r'"size":\d+|"(total|usable)Bytes":-?\d+'
    for listed in (("--topic-list", "o1"), ("--broker-list", "1,3", "--topic-list", "o1"), ("--topic-list", "no")):
        both.run("log-dirs", *BROKERS, "--describe", *listed, leave_out=sizes)


# --- files ------------------------------------------------------------------------------------------------------------


def directory_id(data: Path) -> str:
    return (data / "meta.properties").read_text().partition("directory.id=")[2].split()[0]


def test_kafka_storage_info_of_running_nodes(both: Both) -> None:
    both.run("storage", "info", "--config", "@config1")
    for words in ("version-mapping", "version-mapping --release-version 4.1", "feature-dependencies --feature a=1"):
        both.run("storage", *words.split(), code=int("a=1" in words))
    for side in both.sides:
        assert re.fullmatch(r"[\w-]{22}\n", side.run("storage", "random-uuid").printed)


FEATURES = ("--release-version", "4.1", "--feature", "group.version=0", "--feature", "transaction.version=1")
VOTING = "1@127.0.0.1:17093:JEXY6aqzQY-32P5TStzaFg,2@127.0.0.1:17094:MvDxzVmcRsaTz33bUuRU6A"


def test_formatted_directories_are_equal(both: Both) -> None:
    """By `kafka-storage format` on Kafka's side, by `fenceline format` on ours: the same files, the same records."""
    both.write(
        "formatted.properties",
        "process.roles=controller\nnode.id=1\nlisteners=CONTROLLER://127.0.0.1:17093\n"
        "controller.listener.names=CONTROLLER\ncontroller.quorum.bootstrap.servers=127.0.0.1:17093\n"
        "log.dirs=@root/formatted\n",
    )
    same_file = r"(crc|CreateTime): \w+|TIME|(?<=voterDirectoryId\":\")[\w-]{22}|directory.id=[\w-]{22}"
    for how in (("--standalone",), ("--initial-controllers", VOTING), ("--no-initial-controllers",)):
        folders = [side.cluster.root / "formatted" for side in both.sides]
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        words = ("format", "--cluster-id", CLUSTER_ID, "--config", "@root/formatted.properties", *how)
        for other, again in ((CLUSTER_ID, ()), (CLUSTER_ID, ()), (CLUSTER_ID, ("-g",)), ("B" * 22, ("-g",))):
            words = ("format", "--cluster-id", other, "--config", "@root/formatted.properties", *how)
            theirs = both.theirs.run("storage", *words, *again)
            more = ("--ignore-formatted",) if again else ()
            ours = CliRunner().invoke(app, [both.ours.fill(word) for word in (*words, *more)])
            assert ours.exit_code == theirs.code, (ours.output, theirs.printed)
        files = [{str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} for folder in folders]
        assert files[0] == files[1]
        both.run("storage", "info", "--config", "@root/formatted.properties", leave_out=same_file)
        for name in sorted(files[1]):
            if name.endswith(".checkpoint"):
                dump = ("dump-log", "--cluster-metadata-decoder", "--files", f"@root/formatted/{name}")
                both.run(*dump, leave_out=same_file)
                both.run(*dump, "--skip-record-metadata", leave_out=same_file)


def test_node_starts_on_a_directory_formatted_by_kafka(both: Both, tmp_path: Path) -> None:
    """With the features that were asked for, whichever kind it is."""
    reported = []
    for side, kind in zip(both.sides, ("kafka:", ""), strict=True):
        with MixedCluster(tmp_path / (kind or "ours"), [f"{kind}{COMBINED}"], late=[1]) as cluster:
            node = cluster.node(1)
            shutil.rmtree(node.log_dir)
            where = ("--config", str(node.properties_file), "--cluster-id", CLUSTER_ID)
            formatted = side.run("storage", "format", *where, "--standalone", *FEATURES)
            assert formatted.code == 0, formatted.printed
            node.start()
            node.wait_ready()
            cluster.wait_complete()
            described = side.run("features", "--bootstrap-server", node.bootstrap, "describe")
            reported.append([re.sub(r"Epoch: \d+", "", line) for line in described.printed.splitlines()])
    assert reported[1] == reported[0]
    assert any("group.version" in line and "FinalizedVersionLevel: 0" in line for line in reported[1])


def copied(side: Side) -> Path:
    """The first node's metadata directory, where no running node holds its lock, with a snapshot that is not empty."""
    source = side.cluster.node(1).log_dir / DIRECTORY_NAME

    def newest() -> list[Path]:
        return [path for path in source.glob("*.checkpoint") if int(path.name[:20]) > 0]

    eventually(newest, "a snapshot")
    copy = side.cluster.root / "copied" / DIRECTORY_NAME
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("*.part", "*.deleted"))
    return copy


def shapes(printed: str) -> set[tuple[str, int, tuple[str, ...]]]:
    """Type, version and fields of every record that was dumped."""
    payloads = [json.loads(found) for found in re.findall(r"payload: (\{.*\})$", printed, re.MULTILINE)]
    return {(each["type"], each["version"], tuple(sorted(each["data"]))) for each in payloads}


def test_the_metadata_is_dumped(both: Both) -> None:
    create(both, "dumped", "1,2,3", "--config", "retention.ms=5")
    dumped = {}
    for side in both.sides:
        copy = copied(side)
        for kind in ("*.log", "*.checkpoint"):
            files = ",".join(map(str, sorted(copy.glob(kind))))
            whole = side.run("dump-log", "--cluster-metadata-decoder", "--files", files)
            batches = side.run("dump-log", "--cluster-metadata-decoder", "--skip-record-metadata", "--files", files)
            assert (whole.code, batches.code) == (0, 0)
            assert "isvalid: false" not in whole.printed
            assert "Skipping" not in whole.printed
            dumped[side, kind] = shapes(whole.printed)
            assert shapes(batches.printed) == dumped[side, kind]
    theirs, ours = (dumped[side, "*.log"] for side in both.sides)
    assert ours - theirs == set()
    # Kafka also clears the eligible replicas of a topic that is created with min.insync.replicas, and has none yet.
    assert {kind for kind, _, _ in theirs - ours} <= {"NO_OP_RECORD", "CLEAR_ELR_RECORD"}
    kafkas = both.theirs.run("dump-log", "--cluster-metadata-decoder", "--files", str(copied(both.theirs) / FIRST_LOG))
    cleared = set(re.findall(r'CLEAR_ELR_RECORD","version":0,"data":\{"topicName":"([^"]*)"', kafkas.printed))
    assert cleared <= {"a.3", "m1"}
