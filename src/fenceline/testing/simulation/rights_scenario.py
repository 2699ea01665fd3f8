"""Scenario: a cluster whose clients have rights, which an operator grants and removes all the time.

Owns the rights that each client has, as far as the operator knows, and the two guarantees of docs/security.md: a right
that was removed is gone at every node within `BOUND_S`, also at nodes that are cut off, frozen, or lag behind; and
nobody is denied what was granted that long ago. Peers are told apart by their addresses, as if each had its own user.

Rules: security.md A48 to A50.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from types import MappingProxyType
from typing import Any, Final
from unittest.mock import patch

from fenceline.config import authorizer
from fenceline.errors import ErrorCode
from fenceline.node.net.connection import ServerConnection
from fenceline.node.net.server import Server
from fenceline.testing.simulation.brokers import BrokersScenario
from fenceline.testing.simulation.brokers_admin import SimulatedAdmin
from fenceline.testing.simulation.brokers_clients import SimulatedClient, SimulatedConsumer, SimulatedProducer
from fenceline.testing.simulation.brokers_wire import PartitionInfo
from fenceline.testing.simulation.checks import InvariantBroken, Invariants
from fenceline.testing.simulation.options import Options, sometimes
from fenceline.testing.simulation.profiles import draw
from fenceline.testing.simulation.sockets import address_of
from fenceline.testing.simulation.world import World
from fenceline.wire.acl_codes import CLUSTER_NAME, AclOperation, PatternType, Permission, ResourceType
from fenceline.wire.apis import ApiKey
from fenceline.wire.fetch import FetchedPartition
from fenceline.wire.principal import Principal

_NODES: Final = (1, 2, 3)
_OPERATOR: Final = -1
MAX_LAG_MS: Final = 1000
BOUND_S: Final = MAX_LAG_MS / 1000 + 0.5
"""After the operator's request was answered. The rest is for clocks that run at different rates."""
_CHANGE_S: Final = 0.7
_GRANTED: Final = 0.6


def user_of(number: int) -> str:
    """The user of a node or a client."""
    return f"User:{address_of(number)[0]}"


def _principal(server: Server, connection: ServerConnection, certificate: bytes | None) -> Principal:
    return Principal("User", connection.host)


@dataclass(slots=True)
class _Right:
    """One right of one client. `is_granted` None: a change is in progress, or its outcome is unknown."""

    is_granted: bool | None = True
    since_s: float = 0.0


class Rights:
    """What each client may do, as the operator's answers say."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, AclOperation], _Right] = {}
        self.checked = 0
        """Answers that were compared with a right that was certain."""

    def of(self, user: str, operation: AclOperation) -> _Right:
        return self._of.setdefault((user, operation), _Right(None))

    def check(self, user: str, operation: AclOperation, code: int, sent_s: float) -> None:
        """A request that was sent at `sent_s` was answered. Raises InvariantBroken."""
        right = self.of(user, operation)
        if right.is_granted is None or sent_s < right.since_s + BOUND_S:
            return
        is_denied = code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if code and not is_denied:
            return
        self.checked += 1
        if is_denied is right.is_granted:
            word = "granted" if right.is_granted else "removed"
            raise InvariantBroken(
                f"{user} is {'denied' if is_denied else 'allowed'} {operation.name} at {sent_s:.3f} s, which was {word}"
                f" at {right.since_s:.3f} s"
            )


class _WithRights(SimulatedClient):
    """A client whose answers are compared with its rights."""

    rights: Rights
    operation: AclOperation

    def compare(self, code: int, sent_s: float) -> None:
        self.rights.check(user_of(self.number), self.operation, code, sent_s)


class RightsProducer(SimulatedProducer, _WithRights):
    """Each of its batches may be denied."""

    operation = AclOperation.WRITE

    async def _try(self, place: PartitionInfo, batch: bytes, producer_id: int, sequence: int) -> int:
        sent_s = self.world.scheduler.now_s
        code = await super()._try(place, batch, producer_id, sequence)
        if code >= 0:
            self.compare(code, sent_s)
        return code


class RightsConsumer(SimulatedConsumer, _WithRights):
    """Each of its fetches may be denied."""

    operation = AclOperation.READ

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._fetch_by_wire, self.wire.fetch = self.wire.fetch, self._compared_fetch  # type: ignore[method-assign]

    async def _compared_fetch(self, place: PartitionInfo, offset: int, **how: Any) -> FetchedPartition | None:
        sent_s = self.world.scheduler.now_s
        fetched = await self._fetch_by_wire(place, offset, **how)
        if fetched is not None:
            self.compare(fetched.error_code, sent_s)
        return fetched


class RightsOperator(SimulatedAdmin):
    """Creates the topics, then grants and removes one right of one client after the other; at last all are granted."""

    rights: Rights

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._changeable: list[tuple[str, AclOperation]] = []
        self._permanent: list[tuple[str, ResourceType, str, AclOperation]] = []
        self._lost: set[tuple[str, AclOperation]] = set()
        """Rights with a change whose answer was lost: it may still be carried out, after later ones."""

    def manage(self, clients: Mapping[int, AclOperation]) -> None:
        """The clients by their numbers in the network, and what each does."""
        for number, operation in clients.items():
            user = user_of(number)
            self._changeable.append((user, operation))
            self._permanent.append((user, ResourceType.TOPIC, "*", AclOperation.DESCRIBE))
            self._permanent.append((user, ResourceType.CLUSTER, CLUSTER_NAME, AclOperation.IDEMPOTENT_WRITE))

    async def one_request(self) -> None:
        while self._permanent:
            await self._create(*self._permanent[-1])
            self._permanent.pop()
        if self.world.faults_active:
            await asyncio.sleep(self.rng.expovariate(1 / _CHANGE_S))
            # More often granted than removed, so that clients work most of the time.
            await self._set(*self.rng.choice(self._changeable), granted=self.rng.random() < _GRANTED)
        else:
            for user, operation in self._changeable:
                await self._set(user, operation, granted=True)
        await super().one_request()

    async def _set(self, user: str, operation: AclOperation, *, granted: bool) -> None:
        right, name = self.rights.of(user, operation), (user, operation)
        if right.is_granted is granted:
            return
        right.is_granted = None
        change = self._create if granted else self._delete
        try:
            await change(user, ResourceType.TOPIC, "*", operation)
        except BaseException:
            self._lost.add(name)
            raise
        self.log_event(f"{'grants' if granted else 'removes'} {operation.name} of {user}")
        if name not in self._lost:
            right.is_granted, right.since_s = granted, self.world.scheduler.now_s

    async def _create(self, user: str, resource: ResourceType, name: str, operation: AclOperation) -> None:
        """Raises ConnectionError, also if it was refused."""
        fields = {
            "resource_type": resource,
            "resource_name": name,
            "resource_pattern_type": PatternType.LITERAL,
            "principal": user,
            "host": "*",
            "operation": operation,
            "permission_type": Permission.ALLOW,
        }
        answer = await self.ask(ApiKey.CREATE_ACLS, 3, {"creations": [fields]})
        self._require(answer.results[0].error_code)

    async def _delete(self, user: str, resource: ResourceType, name: str, operation: AclOperation) -> None:
        """As `_create`."""
        fields = {
            "resource_type_filter": resource,
            "resource_name_filter": name,
            "pattern_type_filter": PatternType.LITERAL,
            "principal_filter": user,
            "host_filter": "*",
            "operation": operation,
            "permission_type": Permission.ALLOW,
        }
        answer = await self.ask(ApiKey.DELETE_ACLS, 3, {"filters": [fields]})
        self._require(answer.filter_results[0].error_code)

    def _require(self, code: int) -> None:
        if code:
            raise ConnectionError(f"the change was answered with {code}")


class RightsScenario(BrokersScenario):
    """The cluster of `brokers` with an authorizer: a `stage.Scenario`."""

    name = "rights"
    more_config: Mapping[str, str] = MappingProxyType(
        {
            authorizer.CLASS: authorizer.STANDARD,
            authorizer.SUPER_USERS: ";".join(map(user_of, (*_NODES, _OPERATOR))),
            authorizer.MAX_LAG: str(MAX_LAG_MS),
        }
    )

    def __init__(self, world: World, invariants: Invariants) -> None:
        super().__init__(world, invariants)
        self.rights = Rights()
        self._by_address = patch.object(Server, "principal", _principal)

    @staticmethod
    def adjust_options(rng: Random, drawn: Options) -> Options:
        """Nodes are often cut off or frozen, and topics are not deleted."""
        options = draw(rng, drawn)
        return replace(
            options,
            deletes=False,
            safety_s=12.0,
            partition_s=options.partition_s or rng.uniform(1, 4),
            pause_s=options.pause_s or sometimes(rng, 0.5, 1, 4),
            paused_s=rng.choice((1.0, 2.5)),
        )

    def build(self) -> None:
        self._by_address.start()
        super().build()
        operator = self._clients[0]
        assert isinstance(operator, RightsOperator), "the first client"
        for client in self._clients:
            client.rights = self.rights  # type: ignore[attr-defined]
        operator.manage(
            {client.number: client.operation for client in self._clients if isinstance(client, _WithRights)}
        )

    def clients(self) -> list[type[SimulatedClient]]:
        """See `BrokersScenario`."""
        return [RightsOperator, RightsProducer, RightsConsumer, RightsProducer, RightsConsumer]

    def end(self) -> tuple[int, int]:
        """See `BrokersScenario`."""
        self._by_address.stop()
        return super().end()
