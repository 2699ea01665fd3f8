"""Connections to the brokers of a cluster, metadata refresh, and requests with retries.

Owns the connections (one per broker and purpose), the metadata refresh and coordinator lookups. A broker handles the
requests of a connection one at a time, a Fetch waits on the broker and a JoinGroup may wait for minutes, so each
`Purpose` has its own connection. Runs on one event loop; not thread-safe.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from enum import Enum
from typing import Any, TypeVar

from fenceline.client.core.config import ClientConfig
from fenceline.client.core.connection import Connection
from fenceline.client.core.deadline import Deadline, backoff_ms, wait_at_most
from fenceline.client.core.errors import (
    COORDINATOR_MOVED,
    RETRIABLE,
    BrokersUnreachable,
    ClientError,
    ConnectionLost,
    TimedOut,
    broker_error,
    error_code,
)
from fenceline.client.core.leader_epochs import EpochGuesses
from fenceline.client.core.link import Link
from fenceline.client.core.login import ClientLogin
from fenceline.client.core.metadata import (
    ClusterMetadata,
    LeaderAndEpoch,
    MetadataCache,
    MetadataReader,
    parse_controllers,
)
from fenceline.client.core.security import tls_context
from fenceline.client.core.surroundings import surroundings
from fenceline.errors import ErrorCode, OperatorError, PeerError
from fenceline.ids import TopicPartition
from fenceline.wire.apis import ApiKey

_log = logging.getLogger("fenceline.client")
T = TypeVar("T")

_CLOSE_TIMEOUT_S = 2.0
_UNKNOWN_TOPIC_TIMEOUT_MS = 5_000
"""A topic that was just created may not be known to every broker yet; a misspelt one should not take a minute."""


class Purpose(Enum):
    CONTROL = "control"
    FETCH = "fetch"
    PRODUCE = "produce"
    GROUP = "group"


class CoordinatorOf(Enum):
    """What a coordinator is looked up for; the values are those of FindCoordinator."""

    GROUP = 0
    TRANSACTION = 1


class Cluster:
    """What producer, consumer, admin and reader share. Create it on the loop that runs it."""

    def __init__(self, config: ClientConfig) -> None:
        self.config = config
        self.metadata = MetadataCache()
        self._read_metadata = MetadataReader()
        self.epoch_guesses = EpochGuesses()
        self.tracked: set[str] | None = set()
        """Topics that a refresh requests; None for all."""
        self.on_update: list[Callable[[], None]] = []
        self._tls = tls_context(config)
        self._login = ClientLogin(config) if config["security.protocol"].startswith("SASL") else None
        self._seeds = [Link(host, port, config, self._tls, self._login) for host, port in config.bootstrap]
        self._links: dict[tuple[int, Purpose], Link] = {}
        self._coordinators: dict[tuple[CoordinatorOf, str], int] = {}
        self._refreshing: asyncio.Task[None] | None = None
        self._refresh_wanted = asyncio.Event()
        self._refresher: asyncio.Task[None] | None = None
        self._closed = False

    async def close(self) -> None:
        self._closed = True
        if self._login is not None:
            self._login.close()
        for task in (self._refresher, self._refreshing):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task
        closing = [connection for link in [*self._seeds, *self._links.values()] if (connection := link.close())]
        await asyncio.gather(*(connection.closed(_CLOSE_TIMEOUT_S) for connection in closing))
        self._links.clear()

    # -- finding brokers

    def link(self, node_id: int, purpose: Purpose = Purpose.CONTROL) -> Link:
        """The link to a node. Raises ConnectionLost for a node that is not in the metadata."""
        endpoint = self.metadata.brokers.get(node_id)
        if endpoint is None:
            raise ConnectionLost(f"broker {node_id} is not in the metadata")
        key = (node_id, purpose)
        link = self._links.get(key)
        if link is None or (link.host, link.port) != (endpoint.host, endpoint.port):
            if link is not None:
                link.close()
            link = self._links[key] = Link(endpoint.host, endpoint.port, self.config, self._tls, self._login)
        return link

    def reconnect_now(self, node_id: int) -> None:
        """Reconnect to a node without backoff: it was elected after its connections failed."""
        for (known, _), link in self._links.items():
            if known == node_id:
                link.skip_backoff()

    async def any_connection(self, deadline: Deadline) -> Connection:
        """A connection to any broker. Raises BrokersUnreachable if none can be established in time.

        Open connections are preferred: an attempt to connect to an unresponsive broker takes
        `socket.connection.setup.timeout.ms`.
        """
        errors: dict[str, str] = {}
        while True:
            for link in self._candidates():
                try:
                    return await self._connect(link, deadline)
                except (ConnectionLost, TimedOut) as error:
                    # An attempt that the deadline cut off must not replace a broker's earlier error.
                    if not deadline.is_over or link.address not in errors:
                        deadline.last_error = error
                        errors[link.address] = str(error)
                if deadline.is_over:
                    break
            if deadline.is_over:
                named = ", ".join(f"{host}:{port}" for host, port in self.config.bootstrap)
                role, key = ("controller", "controllers") if self.config.asks_controllers else ("broker", "servers")
                raise BrokersUnreachable(
                    f"No {role} answered within {deadline.timeout_ms:.0f} ms (bootstrap.{key}={named}): "
                    + "; ".join(dict.fromkeys(errors.values())),
                    f"Check that the {role} runs, the address, and that its advertised.listeners are reachable.",
                )
            await self.pause(deadline)

    def _candidates(self) -> list[Link]:
        known = [self.link(node_id) for node_id in self.metadata.brokers]
        rng = surroundings().rng
        rng.shuffle(known)
        known.sort(key=lambda link: link.in_flight)
        seeds = list(self._seeds)
        rng.shuffle(seeds)
        return sorted(known + seeds, key=lambda link: (link.is_backing_off, not link.is_open))

    @staticmethod
    async def _connect(link: Link, deadline: Deadline) -> Connection:
        """Raises ConnectionLost or TimedOut, also if the deadline ends before the connection is established."""
        try:
            async with asyncio.timeout(deadline.left_ms / 1000):
                return await link.connection()
        except TimeoutError:
            raise TimedOut(f"{link.address} did not accept the connection in time") from None

    def newest_connection(self) -> Connection | None:
        """The open connection with the newest finalized feature levels, None if no connection is open."""
        links = [*self._links.values(), *self._seeds]
        opened = [connection for link in links if (connection := link.open_connection) is not None]
        return max(opened, key=lambda connection: connection.features_epoch, default=None)

    # -- requests

    async def max_version(self, node_id: int, api_key: ApiKey, deadline: Deadline) -> int:
        """The newest version of an API that the node supports, -1 if none. Connects to it if necessary."""
        return (await self._connect(self.link(node_id), deadline)).max_version(api_key)

    async def call(
        self,
        node_id: int | None,
        api_key: ApiKey,
        fields: dict[str, Any],
        *,
        deadline: Deadline,
        purpose: Purpose = Purpose.CONTROL,
        extra_ms: float = 0,
        min_version: int = 0,
        max_version: int | None = None,
        decode: Callable[[int, memoryview], Any] | None = None,
    ) -> Any:
        """Send one request to a node (None: any); returns the response. `extra_ms`: how long a broker may delay it.
        `decode`: reads the response instead of the generated entities."""
        connection = await (
            self.any_connection(deadline) if node_id is None else self._connect(self.link(node_id, purpose), deadline)
        )
        version = connection.version_for(api_key)
        if max_version is not None:
            version = min(version, max_version)
        if version < min_version:
            raise broker_error(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{connection.peer} supports {api_key.name} up to version {version}, this call requires {min_version}",
            )
        return await self._call_until(connection, api_key, version, fields, deadline, extra_ms, decode)

    async def _call_until(
        self,
        connection: Connection,
        api_key: ApiKey,
        version: int,
        fields: dict[str, Any],
        deadline: Deadline,
        extra_ms: float = 0,
        decode: Callable[[int, memoryview], Any] | None = None,
    ) -> Any:
        """Wait until the deadline; the request keeps its own timeout, so that a late response is received in order."""
        timeout_ms = int(self.config["request.timeout.ms"] + extra_ms)
        try:
            async with asyncio.timeout((deadline.left_ms + extra_ms) / 1000):
                return await connection.call(api_key, version, fields, timeout_ms=timeout_ms, decode=decode)
        except TimeoutError:
            if deadline.last_error is None:
                deadline.last_error = TimedOut(f"{connection.peer} did not answer {api_key.name} in time")
            error = self.timeout_error(deadline)
            raise error from error.__cause__

    async def retrying(self, deadline: Deadline, attempt: Callable[[], Awaitable[T]]) -> T:
        """Run `attempt` until it succeeds, fails with an error that is not retriable, or times out (TimedOut)."""
        while True:
            try:
                return await attempt()
            except PeerError as error:
                if error.code not in RETRIABLE or (deadline.is_over and isinstance(error, TimedOut)):
                    raise
                deadline.last_error = error
                if error.code in COORDINATOR_MOVED or isinstance(error, ConnectionLost | TimedOut):
                    self._coordinators.clear()
            if deadline.is_over:
                raise self.timeout_error(deadline)
            if (
                not isinstance(deadline.last_error, ClientError)
                or deadline.last_error.code is not ErrorCode.NOT_COORDINATOR
            ):
                self.request_refresh()
            await self.pause(deadline)

    @staticmethod
    def timeout_error(deadline: Deadline) -> Exception:
        """The error of a call that timed out: the last error itself for an unknown topic, else TimedOut with it as the
        cause."""
        last_error = deadline.last_error
        if isinstance(last_error, ClientError) and last_error.code in (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.UNKNOWN_TOPIC_ID,
        ):
            return last_error
        timed_out = TimedOut(f"timed out after {deadline.timeout_ms:.0f} ms; the last error was: {last_error}")
        # If the deadline cut off the last attempt, the cause is the error before it.
        is_cut_off = isinstance(last_error, TimedOut) and last_error.__cause__ is not None
        timed_out.__cause__ = last_error.__cause__ if last_error is not None and is_cut_off else last_error
        return timed_out

    async def pause(self, deadline: Deadline) -> None:
        """Back off before the next attempt (`retry.backoff.*`), within the deadline and its `longest_pause_ms`."""
        deadline.attempt += 1
        pause = backoff_ms(deadline.attempt, self.config["retry.backoff.ms"], self.config["retry.backoff.max.ms"])
        await asyncio.sleep(min(pause, deadline.longest_pause_ms, deadline.left_ms) / 1000)

    # -- metadata

    async def fetch_metadata(
        self, topics: Collection[str] | None, deadline: Deadline, *, auto_create: bool = False
    ) -> ClusterMetadata:
        """Fetch metadata from any broker and apply it. None requests all topics, an empty collection only brokers.
        With `bootstrap.controllers` it is fetched from a controller and has the controllers, without topics.
        """

        async def attempt() -> ClusterMetadata:
            connection = await self.any_connection(deadline)
            answer: ClusterMetadata
            if self.config.asks_controllers:
                answer = await self._fetch_controllers(connection, deadline)
                self.metadata.apply(answer)
                return answer
            if connection.versions and ApiKey.METADATA not in connection.versions:
                raise OperatorError(
                    f"{connection.peer} is a controller listener, not a broker listener",
                    "Use bootstrap.controllers (--bootstrap-controller), or the address of a broker.",
                )
            version = connection.version_for(ApiKey.METADATA)
            fields: dict[str, Any] = {
                "topics": None if topics is None else [{"name": name, "topic_id": None} for name in topics],
                "allow_auto_topic_creation": auto_create,
            }
            code, answer = await self._call_until(
                connection, ApiKey.METADATA, version, fields, deadline, decode=self._read_metadata
            )
            if code is ErrorCode.REBOOTSTRAP_REQUIRED:
                # Forget the known brokers and start again with bootstrap.servers (KIP-1102).
                self.metadata.forget_brokers()
                raise ConnectionLost(f"{connection.peer} requires a rebootstrap from bootstrap.servers")
            if code is not ErrorCode.NONE:
                raise broker_error(code, f"{connection.peer} rejected Metadata")
            self.metadata.apply(answer, complete=topics is None, asked=topics or ())
            return answer

        answer = await self.retrying(deadline, attempt)
        for callback in self.on_update:
            callback()
        return answer

    async def _fetch_controllers(self, connection: Connection, deadline: Deadline) -> ClusterMetadata:
        """Raises OperatorError if the node is a broker."""
        key = ApiKey.DESCRIBE_CLUSTER
        fields = {"include_cluster_authorized_operations": False, "endpoint_type": 2}
        answer = await self._call_until(connection, key, connection.version_for(key), fields, deadline)
        code = error_code(answer.error_code)
        if code is ErrorCode.MISMATCHED_ENDPOINT_TYPE:
            raise OperatorError(
                f"{connection.peer} is a broker listener, not a controller listener",
                "Use bootstrap.servers (--bootstrap), or the address of a controller.",
            )
        if code is not ErrorCode.NONE:
            raise broker_error(code, f"{connection.peer} rejected DescribeCluster", answer.error_message)
        return parse_controllers(answer)

    async def refresh(self, deadline: Deadline | None = None) -> None:
        """Refresh the metadata of the tracked topics; concurrent callers share one request."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.ensure_future(self._refresh())
        waiting = asyncio.shield(self._refreshing)
        if deadline is None:
            await waiting
            return
        try:
            async with asyncio.timeout(deadline.left_ms / 1000):
                await waiting
        except TimeoutError:
            error = self.timeout_error(deadline)
            raise error from error.__cause__

    async def _refresh(self) -> None:
        topics = None if self.tracked is None else sorted(self.tracked)
        auto_create = bool(self.config["allow.auto.create.topics"]) and self.config.kind in ("producer", "consumer")
        deadline = Deadline(self.config["default.api.timeout.ms"])
        await self.fetch_metadata(topics, deadline, auto_create=auto_create)

    def request_refresh(self) -> None:
        """Refresh metadata in the background, at most once per `retry.backoff.ms`."""
        self._refresh_wanted.set()
        self.keep_fresh()

    def keep_fresh(self) -> None:
        """Refresh metadata every `metadata.max.age.ms` from now on, sooner while a tracked topic is unknown."""
        if self._refresher is None and not self._closed:
            self._refresher = asyncio.ensure_future(self._keep_fresh())

    async def _keep_fresh(self) -> None:
        fruitless = 0
        backoff = self.config["retry.backoff.ms"], self.config["retry.backoff.max.ms"]
        while not self._closed:
            age_ms = self.config["metadata.max.age.ms"]
            wait_ms = min(age_ms, backoff_ms(fruitless, *backoff)) if fruitless else age_ms
            await wait_at_most(self._refresh_wanted, wait_ms / 1000)
            self._refresh_wanted.clear()
            try:
                await self.refresh()
                fruitless = fruitless + 1 if self._misses_topics() else 0
            except Exception as error:
                fruitless += 1
                _log.warning("metadata could not be refreshed: %s", error)
            await asyncio.sleep(self.config["retry.backoff.ms"] / 1000)

    def _misses_topics(self) -> bool:
        """Whether a tracked topic is missing in the metadata."""
        known = self.metadata.topics
        return any(name not in known or not known[name].partitions for name in self.tracked or ())

    async def leader(self, tp: TopicPartition, deadline: Deadline) -> LeaderAndEpoch:
        """The partition's leader; fetches metadata until one is known.

        Raises PeerError(UNKNOWN_TOPIC_OR_PARTITION) if the topic or partition still does not exist at the deadline.
        """
        timeout_at_s = asyncio.get_running_loop().time() + _UNKNOWN_TOPIC_TIMEOUT_MS / 1000
        asked = False
        while True:
            found = self.metadata.leader(tp)
            if found.leader >= 0:
                return found
            topic = self.metadata.topics.get(tp.topic)
            is_unknown = topic is None or tp.partition not in topic.partitions
            if topic is not None and topic.error is not ErrorCode.NONE and topic.error not in RETRIABLE:
                raise broker_error(topic.error, f"topic {tp.topic}")
            error = broker_error(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_unknown else ErrorCode.LEADER_NOT_AVAILABLE, str(tp)
            )
            deadline.last_error = error
            if asked:
                if is_unknown and asyncio.get_running_loop().time() > timeout_at_s:
                    raise error
                if deadline.is_over:
                    raise self.timeout_error(deadline)
                await self.pause(deadline)
            asked = True
            await self.fetch_metadata([tp.topic], deadline)

    async def by_leader(
        self, partitions: Iterable[TopicPartition], deadline: Deadline
    ) -> dict[int, list[tuple[TopicPartition, LeaderAndEpoch]]]:
        """The partitions grouped by their current leader."""
        known = [(tp, self.metadata.leader(tp)) for tp in partitions]
        missing = {tp.topic for tp, found in known if found.leader < 0}
        if missing:
            await self.fetch_metadata(sorted(missing), deadline)
            known = [(tp, await self.leader(tp, deadline)) for tp, _ in known]
        grouped: dict[int, list[tuple[TopicPartition, LeaderAndEpoch]]] = {}
        for tp, found in known:
            grouped.setdefault(found.leader, []).append((tp, found))
        return grouped

    # -- coordinators

    async def coordinator(self, key: str, deadline: Deadline, of: CoordinatorOf = CoordinatorOf.GROUP) -> int:
        """The node id of the coordinator of a group or a transactional id. Raises PeerError;
        COORDINATOR_NOT_AVAILABLE is retriable."""
        known = self._coordinators.get((of, key))
        if known is not None and known in self.metadata.brokers:
            return known
        fields: dict[str, Any] = {"key": key, "key_type": of.value, "coordinator_keys": [key]}
        response = await self.call(None, ApiKey.FIND_COORDINATOR, fields, deadline=deadline, min_version=of.value)
        found = response.coordinators[0] if hasattr(response, "coordinators") else response
        code = error_code(found.error_code)
        if code is not ErrorCode.NONE:
            subject = f"coordinator of {'group' if of is CoordinatorOf.GROUP else 'transactional.id'} {key}"
            raise broker_error(code, subject, getattr(found, "error_message", None))
        node_id = int(found.node_id)
        if node_id not in self.metadata.brokers:
            await self.fetch_metadata([], deadline)
        self._coordinators[of, key] = node_id
        return node_id

    def forget_coordinator(self, key: str, of: CoordinatorOf = CoordinatorOf.GROUP) -> None:
        self._coordinators.pop((of, key), None)
