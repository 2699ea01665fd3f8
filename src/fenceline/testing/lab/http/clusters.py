"""The routes of clusters: their lives, topics, records, losses, logs and timeline.

Owns these routes and the models of their requests and answers. What a cluster can do is `LabCluster`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, Body, Depends, Query, Request
from fastapi.responses import PlainTextResponse, Response
from pydantic import BaseModel, Field, create_model, model_validator

from fenceline.client import ConsumerRecord, LossReceipt
from fenceline.config.properties import read_properties
from fenceline.local_cluster.secured import properties_of_clients
from fenceline.testing.lab.cluster import LabCluster
from fenceline.testing.lab.http.answers import RESPONSES
from fenceline.testing.lab.http.json_values import STRICT, Content, Wait, plain, view_of
from fenceline.testing.lab.http.leases import DEFAULT_LEASE_S, LeasedCluster, LeasedClusters, UnknownIdError
from fenceline.testing.lab.http.operations import cluster_options, create_topic_operation
from fenceline.testing.lab.partition_state import PartitionState
from fenceline.testing.processing_checks import AcknowledgedRecord

if TYPE_CHECKING:
    from fenceline.testing.lab.http.guard import Receive, Scope, Send

_LONGEST_LEASE_S: Final = 86_400.0
_KEEP_ALIVE_S: Final = 10.0
_ClusterOptions: Any = cluster_options()
_CREATE_TOPIC: Final = create_topic_operation()

router = APIRouter(prefix="/v1", responses=RESPONSES)


# --- models -----------------------------------------------------------------------------------------------------------

Lease = Annotated[float, Field(gt=0, le=_LONGEST_LEASE_S)]
ClusterRequest = create_model(
    "ClusterRequest",
    __base__=_ClusterOptions,
    __doc__="""The arguments of the Python class LabCluster.

    `properties` are of every node, as in Kafka's server.properties. `quick`: short timeouts for tests, otherwise those
    of Kafka. `security`: TLS and SCRAM users. `lease_s`: the cluster ends when no request was about it for so long.""",
    lease_s=(Lease, DEFAULT_LEASE_S),
)
TopicRequest = create_model("TopicRequest", __base__=_CREATE_TOPIC.model, __doc__=_CREATE_TOPIC.doc)
AcknowledgedView: Any = view_of(AcknowledgedRecord)
RecordView: Any = view_of(ConsumerRecord)
ReceiptView: Any = view_of(LossReceipt)
PartitionView: Any = view_of(PartitionState)


class ClientSettings(BaseModel):
    """The same settings by librdkafka's names (confluent-kafka, kcat, Fenceline's client) and by Java's."""

    librdkafka: dict[str, str]
    java: dict[str, str]


class LabNodeView(BaseModel):
    """A node. `state`: running, paused, killed and so on."""

    node: int
    roles: list[str]
    address: str | None
    state: str
    pid: int | None


class ClusterView(BaseModel):
    """A running cluster. `is_held`: a request holds its lease."""

    id: str
    bootstrap_servers: str
    client_settings: ClientSettings
    nodes: list[LabNodeView]
    broker_ids: list[int]
    lease_s: float
    is_held: bool


class TopicView(BaseModel):
    """The name of a new topic."""

    name: str


class RecordsRequest(BaseModel):
    """Records to write with acks=all: their values, or how many distinct ones, with a key for each if there are any.

    `settings` are of the producer."""

    model_config = {**STRICT, "json_schema_extra": {"examples": [{"values": 100}, {"values": ["a", "b"]}]}}

    values: Annotated[int, Field(ge=0, le=1_000_000)] | list[Content | None]
    keys: list[Content | None] | None = None
    partition: int | None = None
    settings: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _check_keys(self) -> RecordsRequest:
        count = self.values if isinstance(self.values, int) else len(self.values)
        if self.keys is not None and len(self.keys) != count:
            raise ValueError(f"keys: there are {len(self.keys)} for {count} values")
        return self


class EventView(BaseModel):
    """An event of the timeline. `at_s` counts from the start of the cluster; `text` has all of it on one line."""

    number: int
    at_s: float
    kind: str
    node: int | None
    fields: dict[str, Any]
    text: str


class TimelineView(BaseModel):
    """Events, oldest first. `mark` for `since` in a later request."""

    mark: int
    events: list[EventView]


class LagView(BaseModel):
    """How many offsets a group is behind."""

    lag: int


# --- what routes need -------------------------------------------------------------------------------------------------


def all_clusters(request: Request) -> LeasedClusters:
    """The clusters of the service."""
    found = request.app.state.clusters
    assert isinstance(found, LeasedClusters)
    return found


Clusters = Annotated[LeasedClusters, Depends(all_clusters)]


def cluster_in_use(cluster_id: str, clusters: Clusters) -> Iterator[LeasedCluster]:
    """The cluster that a request is about; renews its lease."""
    with clusters.use(cluster_id) as leased:
        yield leased


Leased = Annotated[LeasedCluster, Depends(cluster_in_use)]


# --- lives ------------------------------------------------------------------------------------------------------------


@router.get("/clusters", response_model=list[ClusterView], tags=["clusters"])
def list_clusters(clusters: Clusters) -> list[ClusterView]:
    """All clusters. Renews no lease."""
    return [_view(each) for each in clusters.all()]


@router.post("/clusters", response_model=ClusterView, status_code=201, tags=["clusters"])
def create_cluster(
    clusters: Clusters,
    wanted: Annotated[ClusterRequest | None, Body()] = None,  # type: ignore[valid-type]
) -> ClusterView:
    """Start a cluster, and wait until it is complete."""
    given: dict[str, Any] = {} if wanted is None else {name: getattr(wanted, name) for name in wanted.model_fields_set}
    lease_s = given.pop("lease_s", DEFAULT_LEASE_S)
    return _view(clusters.create(given, lease_s))


@router.get("/clusters/{cluster_id}", response_model=ClusterView, tags=["clusters"])
def describe_cluster(leased: Leased) -> ClusterView:
    """A cluster, and the state of its nodes."""
    return _view(leased)


@router.delete("/clusters/{cluster_id}", status_code=204, tags=["clusters"])
def delete_cluster(cluster_id: str, clusters: Clusters) -> None:
    """End a cluster, and remove its files."""
    clusters.close(cluster_id)


@router.get(
    "/clusters/{cluster_id}/lease",
    tags=["clusters"],
    response_class=PlainTextResponse,
    responses={200: {"description": "A line every 10 seconds, until the cluster ends"}},
)
async def hold_lease(cluster_id: str, clusters: Clusters) -> Response:
    """Hold the lease of a cluster with an open request. When the request ends, as with a client that was killed, the
    cluster ends at once."""
    return _LeaseResponse(clusters, clusters.hold(cluster_id))


class _LeaseResponse(Response):
    """Ends with the cluster or with the connection, whichever is first."""

    def __init__(self, clusters: LeasedClusters, leased: LeasedCluster) -> None:
        super().__init__(media_type="text/plain")
        self._clusters = clusters
        self._leased = leased

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        self._leased.at_end(lambda: _set_in(loop, ended))
        headers = [(name, value) for name, value in self.raw_headers if name != b"content-length"]
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            gone = asyncio.create_task(_disconnected(receive))
            over = asyncio.create_task(ended.wait())
            try:
                while not self._leased.end_reason:
                    await send({"type": "http.response.body", "body": b"held\n", "more_body": True})
                    await asyncio.wait({gone, over}, timeout=_KEEP_ALIVE_S, return_when=asyncio.FIRST_COMPLETED)
                    if gone.done() or over.done():
                        break
            finally:
                gone.cancel()
                over.cancel()
            if not gone.done():
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._clusters.release(self._leased)


def _set_in(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(event.set)


async def _disconnected(receive: Receive) -> None:
    while True:
        message: MutableMapping[str, Any] = await receive()
        if message["type"] == "http.disconnect":
            return


def _view(leased: LeasedCluster) -> ClusterView:
    cluster = leased.cluster
    return ClusterView(
        id=leased.id,
        bootstrap_servers=cluster.bootstrap_servers,
        client_settings=ClientSettings(
            librdkafka={name: str(value) for name, value in cluster.client_settings.items()},
            java=_java_settings(cluster),
        ),
        nodes=[_node_view(cluster, node) for node in cluster.nodes],
        broker_ids=list(cluster.broker_ids),
        lease_s=leased.lease_s,
        is_held=leased.is_held,
    )


def _java_settings(cluster: LabCluster) -> dict[str, str]:
    login = cluster.processes.layout.login
    settings = {} if login is None else read_properties(properties_of_clients(login)["client.properties"])
    return {"bootstrap.servers": cluster.bootstrap_servers, **settings}


def _node_view(cluster: LabCluster, node: int) -> LabNodeView:
    status = cluster.processes.status_of(node)
    return LabNodeView(node=node, roles=list(status.roles), address=status.address, state=status.state, pid=status.pid)


# --- nodes ------------------------------------------------------------------------------------------------------------


@router.post("/clusters/{cluster_id}/nodes/{node}/start", response_model=LabNodeView, tags=["nodes"])
def start_node(leased: Leased, node: int) -> LabNodeView:
    """Start a node, and wait until it is ready; one that runs is restarted."""
    check_node(leased, node)
    leased.cluster.start_node(node)
    return _node_view(leased.cluster, node)


@router.get("/clusters/{cluster_id}/nodes/{node}/log", response_class=PlainTextResponse, tags=["nodes"])
def read_node_log(leased: Leased, node: int, start: Annotated[int, Query(ge=0)] = 0) -> PlainTextResponse:
    """The log lines of a node, from a byte of its log file on."""
    check_node(leased, node)
    return PlainTextResponse(leased.cluster.log(node, start=start))


def check_node(leased: LeasedCluster, node: int) -> None:
    """Raises UnknownIdError if the cluster has no such node."""
    if node not in leased.cluster.nodes:
        raise UnknownIdError(
            f"Cluster {leased.id} has no node {node}", f"It has {', '.join(map(str, leased.cluster.nodes))}."
        )


# --- topics and records -----------------------------------------------------------------------------------------------


@router.post("/clusters/{cluster_id}/topics", response_model=TopicView, status_code=201, tags=["topics"])
def create_topic(
    leased: Leased,
    wanted: Annotated[TopicRequest | None, Body()] = None,  # type: ignore[valid-type]
) -> TopicView:
    """Create a topic, with a new name if none is given, and wait until every broker knows it."""
    given: dict[str, Any] = {} if wanted is None else {name: getattr(wanted, name) for name in wanted.model_fields_set}
    return TopicView(name=leased.cluster.create_topic(**given))


@router.delete("/clusters/{cluster_id}/topics/{topic}", status_code=204, tags=["topics"])
def delete_topic(leased: Leased, topic: str) -> None:
    """Delete a topic."""
    leased.cluster.delete_topic(topic)


@router.get(
    "/clusters/{cluster_id}/topics/{topic}/partitions/{partition}", response_model=PartitionView, tags=["topics"]
)
def describe_partition(leased: Leased, topic: str, partition: int) -> Any:
    """Leader, epoch, replicas and ISR of a partition: the newest state that a running broker knows."""
    found = leased.cluster.partition(topic, partition)
    if found is None:
        raise UnknownIdError(f"There is no partition {topic}-{partition}", "Create the topic: POST .../topics.")
    return plain(found)


@router.post(
    "/clusters/{cluster_id}/topics/{topic}/records",
    response_model=list[AcknowledgedView],
    status_code=201,
    tags=["topics"],
)
def produce(leased: Leased, topic: str, wanted: RecordsRequest) -> Any:
    """Write records, and wait until all are acknowledged."""
    keys = wanted.keys
    written = leased.cluster.produce(
        topic,
        wanted.values,
        key=lambda number: None if keys is None else keys[number],
        partition=wanted.partition,
        settings=wanted.settings,
    )
    return plain(written)


@router.get("/clusters/{cluster_id}/topics/{topic}/records", response_model=list[RecordView], tags=["topics"])
def read(
    leased: Leased,
    topic: str,
    count: Annotated[int | None, Query(ge=0)] = None,
    partition: int | None = None,
    start: Annotated[str, Query(pattern=r"^(earliest|latest|\d+)$")] = "earliest",
    committed_only: bool = False,
    wait_s: Wait = 30.0,
) -> Any:
    """The first `count` records of a topic or of a partition, from an offset (or "earliest", "latest") on; without
    `count`, all that are there now."""
    _check_topic(leased, topic)
    found = leased.cluster.read(
        topic,
        count,
        partition=partition,
        start=int(start) if start.isdigit() else start,
        committed_only=committed_only,
        wait_s=wait_s,
    )
    return plain(list(found))


def _check_topic(leased: LeasedCluster, topic: str) -> None:
    found = leased.cluster.admin.metadata([topic]).topics.get(topic)
    if found is None or not found.partitions:
        raise UnknownIdError(f"There is no topic {topic}", "Create it: POST .../topics.")


@router.get("/clusters/{cluster_id}/lag", response_model=LagView, tags=["groups"])
def lag(leased: Leased, group: str, topic: str | None = None) -> LagView:
    """How many offsets a group is behind, of the partitions it has committed or of a topic."""
    if topic is not None:
        _check_topic(leased, topic)
    return LagView(lag=leased.cluster.lag(group, topic))


# --- what happened ----------------------------------------------------------------------------------------------------


@router.get("/clusters/{cluster_id}/timeline", response_model=TimelineView, tags=["what happened"])
def read_timeline(leased: Leased, since: Annotated[int, Query(ge=0)] = 0) -> TimelineView:
    """Faults, elections, ends of nodes and situations, from a mark on."""
    timeline = leased.cluster.timeline
    events = [
        EventView(
            number=each.number,
            at_s=each.at_s,
            kind=each.kind,
            node=each.node,
            fields=plain(dict(each.fields)),
            text=str(each),
        )
        for each in timeline.since(since)
    ]
    return TimelineView(mark=events[-1].number + 1 if events else max(since, timeline.mark()), events=events)


@router.get("/clusters/{cluster_id}/timeline/text", response_class=PlainTextResponse, tags=["what happened"])
def read_timeline_text(leased: Leased, since: Annotated[int, Query(ge=0)] = 0) -> PlainTextResponse:
    """The same, one event a line."""
    return PlainTextResponse(leased.cluster.timeline.text(since))


@router.get("/clusters/{cluster_id}/losses", response_model=list[ReceiptView], tags=["what happened"])
def read_losses(leased: Leased, topic: str | None = None, wait_s: Wait = 0.0) -> Any:
    """The loss receipts of the cluster or of a topic, oldest first; waits up to `wait_s` for the first one."""
    return plain(leased.cluster.losses(topic, wait_s=wait_s))


@router.get(
    "/clusters/{cluster_id}/losses/{receipt_id}/records", response_model=list[RecordView], tags=["what happened"]
)
def read_lost_records(leased: Leased, receipt_id: str) -> Any:
    """The records that a receipt is about, from the evidence."""
    receipt = next((each for each in leased.cluster.losses() if each.id == receipt_id), None)
    if receipt is None:
        raise UnknownIdError(f"There is no loss receipt {receipt_id}", "List them: GET .../losses.")
    return plain(leased.cluster.lost_records(receipt))
