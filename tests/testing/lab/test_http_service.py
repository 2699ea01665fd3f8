"""The laboratory by HTTP does what the Python API does, in process."""

from __future__ import annotations

import base64
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from fenceline.client import Consumer
from fenceline.testing.kafka_helpers import KafkaHelpers
from fenceline.testing.lab.cluster import LabCluster
from fenceline.testing.lab.faults import ClusterFaults
from fenceline.testing.lab.http import operations
from fenceline.testing.lab.http.app import create_app
from fenceline.testing.lab.http.injection import FAULTS, SITUATIONS, WAITS
from fenceline.testing.lab.http.leases import LeasedClusters
from fenceline.testing.lab.situations import Situations, common

CLUSTER = "/v1/clusters/{cluster_id}"


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    clusters = LeasedClusters()
    try:
        with TestClient(create_app(clusters), base_url="http://127.0.0.1:8090") as made:
            yield made
    finally:
        clusters.close_all()


@pytest.fixture(scope="module")
def shared(client: TestClient) -> str:
    """The path of a cluster of three."""
    made = client.post("/v1/clusters")
    assert made.status_code == 201
    return f"/v1/clusters/{made.json()['id']}"


@pytest.fixture
def cluster(client: TestClient, shared: str) -> Iterator[str]:
    yield shared
    assert client.delete(f"{shared}/faults").status_code == 200


@pytest.fixture
def topic(client: TestClient, cluster: str) -> str:
    return str(client.post(f"{cluster}/topics", json={"partitions": 2}).json()["name"])


def public_methods(owner: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(owner) if not name.startswith("_")}


# --- what there is ----------------------------------------------------------------------------------------------------


def test_every_fault_situation_and_wait_has_a_route(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    kinds = document["paths"][f"{CLUSTER}/faults"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert set(kinds["discriminator"]["mapping"]) == set(FAULTS)
    assert set(FAULTS) == public_methods(ClusterFaults) - operations.NOT_FAULTS
    paths = set(document["paths"])
    assert {f"{CLUSTER}/situations/{name}" for name in public_methods(Situations)} <= paths
    waits = {name.removeprefix("wait_for_") for name in public_methods(KafkaHelpers) if name.startswith("wait_for_")}
    assert {f"{CLUSTER}/waits/{name}" for name in waits} <= paths
    assert len(SITUATIONS) > 15
    assert set(WAITS) == waits


def test_the_tables_have_arguments_and_docs(client: TestClient) -> None:
    found = {each["name"]: each for each in client.get("/v1/situations").json()}
    assert set(found) == set(SITUATIONS)
    unclean = found["unclean_election"]
    assert unclean["arguments"]["required"] == ["topic"]
    assert unclean["arguments"]["properties"]["lose"]["default"] == 50
    assert unclean["left_out"] == ["produce"]
    assert unclean["doc"].startswith("Elect a leader that lacks")
    kinds = {each["name"]: each for each in client.get("/v1/faults").json()}
    assert kinds["fail_requests"]["left_out"] == ["when"]
    assert {"client_id", "topic", "group", "skip", "times"} <= set(kinds["throttle"]["arguments"]["properties"])


def test_a_new_situation_appears_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def comet(self: Situations, topic: str, *, size: int = 3, values: list[bytes] | None = None) -> tuple[int, ...]:
        """A comet hits the topic."""
        return (size,)

    monkeypatch.setattr(Situations, "comet", comet, raising=False)
    made = operations.situation_operations()["comet"]
    wanted = made.model.model_validate({"topic": "t", "size": 4, "values": ["a", {"base64": "/w=="}]})
    assert made.call(object(), wanted) == (4,)
    assert made.summary == "A comet hits the topic."
    assert wanted.values == [b"a", b"\xff"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("table", [FAULTS, SITUATIONS, WAITS], ids=["faults", "situations", "waits"])
def test_examples_are_valid(table: dict[str, operations.LabOperation]) -> None:
    for each in table.values():
        each.model.model_validate(each.example)


def test_the_page_has_every_route_and_nothing_from_elsewhere(client: TestClient) -> None:
    page = client.get("/").text
    for path, methods in client.get("/openapi.json").json()["paths"].items():
        assert f"<code>{path}</code>" in page
        for operation in methods.values():
            assert f'id="{operation["operationId"]}"' in page
    assert all(f"<code>{kind}</code>" in page for kind in FAULTS)
    assert "LAB=http://127.0.0.1:8090\n" in page
    assert not re.search(r"<script|<link|<img|\bsrc=|url\(|@import|https?://(?!127\.0\.0\.1:8090)", page)


# --- clusters ---------------------------------------------------------------------------------------------------------


def test_a_cluster_describes_itself(client: TestClient, shared: str) -> None:
    found = client.get(shared).json()
    assert [node["state"] for node in found["nodes"]] == ["running"] * 3
    assert found["broker_ids"] == [1, 2, 3]
    assert found["client_settings"]["java"] == {"bootstrap.servers": found["bootstrap_servers"]}
    assert found["client_settings"]["librdkafka"] == found["client_settings"]["java"]
    assert found["id"] in {each["id"] for each in client.get("/v1/clusters").json()}
    assert "listening on" in client.get(f"{shared}/nodes/1/log").text


def test_a_secure_cluster_has_settings_for_both_families(client: TestClient) -> None:
    made = client.post("/v1/clusters", json={"nodes": 1, "security": True}).json()
    settings = made["client_settings"]
    assert settings["librdkafka"]["sasl.username"] == "admin"
    assert settings["librdkafka"]["sasl.password"] in settings["java"]["sasl.jaas.config"]
    assert settings["java"]["ssl.truststore.type"] == "PEM"
    assert client.delete(f"/v1/clusters/{made['id']}").status_code == 204
    gone = client.get(f"/v1/clusters/{made['id']}")
    assert gone.status_code == 404
    assert "deleted" in gone.json()["message"]


def test_records_go_in_and_out(client: TestClient, cluster: str, topic: str) -> None:
    values = ["a", {"base64": base64.b64encode(b"\xff").decode()}, None]
    path = f"{cluster}/topics/{topic}/records"
    written = client.post(path, json={"values": values, "keys": ["k", None, "l"], "partition": 1})
    assert written.status_code == 201
    assert [each["offset"] for each in written.json()] == [0, 1, 2]
    read = client.get(path, params={"partition": 1, "start": 1, "count": 2}).json()
    assert [each["value"] for each in read] == [{"text": None, "base64": "/w=="}, None]
    assert [each["key"] for each in read] == [None, {"text": "l", "base64": "bA=="}]
    # What was read can be written again.
    again = client.post(path, json={"values": [each["value"] for each in read], "partition": 0})
    assert again.status_code == 201
    assert [each["value"] for each in client.get(path, params={"partition": 0}).json()] == [
        each["value"] for each in read
    ]


def test_waits_end_when_it_is_true(client: TestClient, cluster: str, topic: str) -> None:
    assert client.post(f"{cluster}/topics/{topic}/records", json={"values": 3, "partition": 0}).status_code == 201
    late = client.post(f"{cluster}/waits/lag", json={"group": f"g-{topic}", "topic": topic, "wait_s": 0})
    assert late.status_code == 504
    assert late.json()["error"] == "timeout"
    assert "its lag is 3" in late.json()["message"]
    assert client.get(f"{cluster}/lag", params={"group": f"g-{topic}", "topic": topic}).json() == {"lag": 3}
    behind = {"group": f"g-{topic}", "topic": topic, "at_most": 3, "wait_s": 0}
    assert client.post(f"{cluster}/waits/lag", json=behind).status_code == 204


# --- faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", sorted(FAULTS))
def test_every_fault_is_injected_and_ended(client: TestClient, cluster: str, kind: str) -> None:
    made = client.post(f"{cluster}/faults", json={**FAULTS[kind].example})
    assert made.status_code == 201, made.text
    fault = made.json()
    if fault["id"] is None:
        assert kind == "reset"
        assert fault["count"] >= 0
        return
    active = {each["id"]: each for each in client.get(f"{cluster}/faults").json()}
    assert active[fault["id"]]["is_active"]
    ended = client.delete(f"{cluster}/faults/{fault['id']}")
    assert ended.status_code == 200
    assert not ended.json()["is_active"]
    assert fault["id"] not in {each["id"] for each in client.get(f"{cluster}/faults").json()}
    assert not client.get(f"{cluster}/faults/{fault['id']}").json()["is_active"]
    assert {node["state"] for node in client.get(cluster).json()["nodes"]} == {"running"}


def test_hits_are_counted_and_awaited(client: TestClient, cluster: str, topic: str) -> None:
    wanted = {"kind": "fail_requests", "api": "Produce", "error": "NOT_LEADER_OR_FOLLOWER", "topic": topic, "times": 1}
    fault = client.post(f"{cluster}/faults", json=wanted).json()
    client.post(f"{cluster}/topics/{topic}/records", json={"values": 1})
    hit = client.get(f"{cluster}/faults/{fault['id']}", params={"hits": 1}).json()
    assert hit["hits"] == 1
    assert sum(hit["hits_by_node"].values()) == 1
    late = client.get(f"{cluster}/faults/{fault['id']}", params={"hits": 2, "wait_s": 0})
    assert late.status_code == 504


def test_a_fault_on_a_node_that_is_down(client: TestClient, cluster: str) -> None:
    fault = client.post(f"{cluster}/faults", json={"kind": "kill", "node": 3}).json()
    refused = client.post(f"{cluster}/faults", json={"kind": "full_disk", "node": 3})
    assert refused.status_code == 409
    assert refused.json()["message"] == "Node 3 is down"
    assert f"DELETE .../faults/{fault['id']}" in refused.json()["advice"]
    assert client.post(f"{cluster}/nodes/3/start").json()["state"] == "running"
    assert client.post(f"{cluster}/faults", json={"kind": "full_disk", "node": 3}).status_code == 201


# --- situations -------------------------------------------------------------------------------------------------------


def test_an_unclean_election_with_receipts_and_timeline(client: TestClient, cluster: str, topic: str) -> None:
    mark = client.get(f"{cluster}/timeline").json()["mark"]
    made = client.post(f"{cluster}/situations/unclean_election", json={"topic": topic, "lose": 3})
    assert made.status_code == 200
    assert [each["value"]["text"] for each in made.json()["lost"]] == ["lost-0", "lost-1", "lost-2"]
    receipts = client.get(f"{cluster}/losses", params={"topic": topic}).json()
    assert {each["id"] for each in receipts} == {each["id"] for each in made.json()["receipts"]}
    records = client.get(f"{cluster}/losses/{receipts[0]['id']}/records").json()
    assert [each["value"] for each in records] == [each["value"] for each in made.json()["lost"]]
    events = client.get(f"{cluster}/timeline", params={"since": mark}).json()["events"]
    assert {"unclean election begins", "leader elected", "unclean election done"} <= {each["kind"] for each in events}
    assert "unclean election begins" in client.get(f"{cluster}/timeline/text", params={"since": mark}).text
    leader = client.get(f"{cluster}/topics/{topic}/partitions/0").json()["leader"]
    assert leader == made.json()["new_leader"]


def test_what_lasts_of_a_situation_is_a_fault(client: TestClient, cluster: str, topic: str) -> None:
    made = client.post(f"{cluster}/situations/hanging_transaction", json={"topic": topic}).json()
    fault = made["fault"]
    assert fault["id"] in {each["id"] for each in client.get(f"{cluster}/faults").json()}
    path = f"{cluster}/topics/{topic}/records"
    assert client.get(path, params={"partition": 0, "committed_only": True}).json() == []
    assert client.delete(f"{cluster}/faults/{fault['id']}").status_code == 200
    aborted = client.post(f"{cluster}/situations/aborted_transaction", json={"topic": topic, "values": ["a", None]})
    assert aborted.json()["values"] == [{"text": "a", "base64": "YQ=="}, None]
    poison = client.post(f"{cluster}/situations/poison_record", json={"topic": topic}).json()
    assert poison["value"]["text"] is None


IMPOSSIBLE = {name for name in SITUATIONS if {"topic", "group"} & set(SITUATIONS[name].model.model_fields)}


@pytest.mark.parametrize("name", sorted(IMPOSSIBLE - {"coordinator_moved", "lost_commit"}))
def test_situations_of_what_there_is_not_are_impossible(
    client: TestClient, cluster: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reaches its method, which says what is missing."""
    monkeypatch.setattr(common, "_KNOWN_WAIT_S", 0)
    example = {**SITUATIONS[name].example}
    example |= {each: "missing" for each in ("topic", "group") if each in example}
    refused = client.post(f"{cluster}/situations/{name}", json=example)
    assert refused.status_code == 409, refused.text
    assert refused.json()["error"] == "situation_impossible"
    assert "missing" in refused.json()["message"]
    assert refused.json()["advice"]


def test_the_other_situations_are_reached(client: TestClient, cluster: str, topic: str) -> None:
    lost = client.post(f"{cluster}/situations/lost_commit", json={"group": "any", "times": 1}).json()
    assert lost["fault"]["is_active"]
    fenced = client.post(f"{cluster}/situations/zombie_producer", json={"transactional_id": topic}).json()
    assert fenced["producer_id"] >= 0
    read = {"group.id": topic, "enable.auto.commit": False}
    settings = client.get(cluster).json()["client_settings"]["librdkafka"]
    with Consumer({**settings, **read}) as consumer:
        consumer.subscribe([topic])
        consumer.poll(0)
        assert client.post(f"{cluster}/waits/group", json={"group": topic, "members": 1}).status_code == 204
        moved = client.post(f"{cluster}/situations/coordinator_moved", json={"group": topic}).json()
        assert moved["old"] != moved["new"]


def test_a_situation_that_the_settings_rule_out_says_which(client: TestClient, cluster: str) -> None:
    name = client.post(f"{cluster}/topics", json={"configs": {"min.insync.replicas": 3}}).json()["name"]
    refused = client.post(f"{cluster}/situations/unclean_election", json={"topic": name})
    assert refused.status_code == 409
    assert "min.insync.replicas=3" in refused.json()["message"]


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "error", "says"),
    [
        ("GET", "/v1/clusters/none", None, 404, "unknown_id", "There is no cluster none"),
        ("GET", "{c}/faults/999", None, 404, "unknown_id", "no fault 999"),
        ("GET", "{c}/nodes/9/log", None, 404, "unknown_id", "no node 9"),
        ("POST", "{c}/nodes/9/start", None, 404, "unknown_id", "no node 9"),
        ("GET", "{c}/losses/none/records", None, 404, "unknown_id", "no loss receipt none"),
        ("GET", "{c}/topics/missing/records", None, 404, "unknown_id", "no topic missing"),
        ("GET", "{c}/lag?group=g&topic=missing", None, 404, "unknown_id", "no topic missing"),
        ("GET", "{c}/topics/missing/partitions/0", None, 404, "unknown_id", "no partition missing-0"),
        ("GET", "{c}/topics/missing/records?start=soon", None, 422, "wrong_arguments", "start"),
        ("DELETE", "{c}/topics/missing", None, 409, "kafka", "UNKNOWN_TOPIC_OR_PARTITION"),
        ("POST", "{c}/topics", {"name": "a b"}, 409, "kafka", "INVALID_TOPIC_EXCEPTION"),
        ("POST", "{c}/topics", {"nam": "a"}, 422, "wrong_arguments", "nam: Extra inputs"),
        ("POST", "{c}/topics/t/records", {"values": 2, "keys": ["a"]}, 422, "wrong_arguments", "keys: there are 1"),
        ("POST", "{c}/topics/t/records", {"values": [1]}, 422, "wrong_arguments", "give text"),
        ("POST", "{c}/topics/t/records", {"values": [{"base64": "%"}]}, 422, "wrong_arguments", "values"),
        ("POST", "{c}/faults", {"kind": "explode"}, 422, "wrong_arguments", "kind"),
        ("POST", "{c}/faults", {}, 422, "wrong_arguments", "kind"),
        ("POST", "{c}/faults", {"kind": "kill"}, 422, "wrong_arguments", "node: Field required"),
        ("POST", "{c}/faults", {"kind": "kill", "node": 9}, 404, "unknown_id", "no node 9"),
        ("POST", "{c}/faults", {"kind": "cut", "node": 1, "direction": "up"}, 422, "wrong_arguments", "direction"),
        ("POST", "{c}/faults", {"kind": "slow_cpu", "node": 1, "share": 2}, 409, "refused", "share of the CPU"),
        (
            "POST",
            "{c}/faults",
            {"kind": "fail_requests", "api": "Nope", "error": "NONE"},
            422,
            "wrong_arguments",
            "api: 'Nope' is no API",
        ),
        (
            "POST",
            "{c}/faults",
            {"kind": "fail_requests", "api": None, "error": "NOPE"},
            422,
            "wrong_arguments",
            "error: 'NOPE' is no error",
        ),
        (
            "POST",
            "{c}/faults",
            {"kind": "lose_answers", "api": "Produce", "when": "x"},
            422,
            "wrong_arguments",
            "when: Extra inputs",
        ),
        ("POST", "{c}/situations/expiry", {"topic": "t", "foo": 1}, 422, "wrong_arguments", "foo: Extra"),
        ("POST", "{c}/waits/group", {"group": "g", "wait_s": 1e9}, 422, "wrong_arguments", "wait_s"),
        ("POST", "/v1/clusters", {"nodes": 0}, 409, "refused", "nodes"),
        ("POST", "/v1/clusters", {"data_dir": "/tmp/x"}, 422, "wrong_arguments", "data_dir: Extra"),
        ("POST", "/v1/clusters", {"lease_s": 0}, 422, "wrong_arguments", "lease_s"),
        ("POST", "/v1/clusters", {"nodes": 1, "properties": {"num.partitions": "many"}}, 409, "refused", "num.part"),
    ],
)
def test_errors_say_what_is_wrong(
    client: TestClient, cluster: str, method: str, path: str, body: Any, status: int, error: str, says: str
) -> None:
    found = client.request(method, path.replace("{c}", cluster), json=body)
    assert found.status_code == status, found.text
    view = found.json()
    assert view["error"] == error
    assert says in view["message"]
    if error == "kafka":
        assert view["kafka_error"] == says
        assert view["kafka_code"] > 0


def test_a_cluster_that_ends_under_a_request_is_unknown(client: TestClient) -> None:
    """The request gets this, not an error of a node that is gone."""
    clusters = client.app.state.clusters  # type: ignore[attr-defined]
    leased = clusters.create({"nodes": 1})

    def end_and_fail() -> None:
        with clusters.use(leased.id):
            clusters.close(leased.id)
            raise ConnectionResetError

    with pytest.raises(Exception, match="has ended: a client has deleted it"):
        end_and_fail()


def test_options_of_a_cluster_are_those_of_the_class() -> None:
    given = set(inspect.signature(LabCluster.__init__).parameters) - {"self"}
    assert set(operations.cluster_options().model_fields) == given - operations.NOT_OPTIONS


def test_the_page_of_the_documentation_has_every_route(client: TestClient) -> None:
    page = (Path(__file__).parents[3] / "docs" / "lab.md").read_text()
    documented = set(re.findall(r"`(?:GET|POST|DELETE) (/v1/[^`]+)`", page))
    paths = {path.replace("{cluster_id}", "{id}") for path in client.get("/openapi.json").json()["paths"]}
    assert {re.sub(r"(situations)/[a-z_]+$", r"\1/{name}", path) for path in paths} == documented
