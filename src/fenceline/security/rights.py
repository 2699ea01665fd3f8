"""What the sender of a request may do, by the rules of the metadata log in force at this node.

Owns the set of rules in force (`Authorization`, which follows the metadata), the questions that a request asks
(`RequestRights`), their counts, and the report of a denial. `security.acls` decides. Never looks at a request: what an
API needs is in `node.api.permissions`.

Rules: security.md A40, A41, A43, A44, A49 to A52.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, NamedTuple, TypeAlias
from uuid import UUID

from immutables import Map

from fenceline.errors import ErrorCode
from fenceline.security.acls import AclAuthorizer, AskingPeer
from fenceline.wire.acl_codes import CLUSTER_NAME, OPERATIONS, AclOperation, ResourceType
from fenceline.wire.apis import ApiKey

if TYPE_CHECKING:
    from fenceline.metadata.image import MetadataImage
    from fenceline.metadata.security_records import AccessControlEntryRecord
    from fenceline.wire.principal import Principal


class Denial(NamedTuple):
    """One question that was answered with no. `resource`: `Topic:LITERAL:name`, as Kafka's audit log writes it."""

    principal: str
    host: str
    operation: str
    resource: str
    request: str


Denied: TypeAlias = Callable[[Denial], None]


class Authorization:
    """The rules in force at one node. Belongs to the event loop."""

    def __init__(self, super_users: Iterable[str], *, allows_without_rules: bool, denied: Denied) -> None:
        """`super_users`: `Type:name` each. `allows_without_rules`: `allow.everyone.if.no.acl.found`. `denied`: receives
        each denial, for the audit log."""
        self._super_users = frozenset(super_users)
        self._rules = AclAuthorizer(self._super_users, allows_without_rules=allows_without_rules)
        self._in_force: Map[UUID, AccessControlEntryRecord] = Map()
        self._denied = denied
        self.is_in_force = False
        """Whether the rules are known and current. Otherwise only super users have rights (A41)."""
        self.allowed = 0
        self.denied = 0

    @property
    def rule_count(self) -> int:
        return len(self._in_force)

    def follow(self, image: MetadataImage, changed: Iterable[UUID] | None = None) -> None:
        """Take over the rules of `image`. `changed`: those that differ from the image before; None: unknown."""
        before, after = self._in_force, image.acls
        if before is after:
            return
        self._in_force = after
        for key in {*before, *after} if changed is None else changed:
            old, new = before.get(key), after.get(key)
            if old == new:
                continue
            if old is not None:
                self._rules.remove(old)
            if new is not None:
                self._rules.add(new)

    def is_super_user(self, principal: Principal) -> bool:
        return str(principal) in self._super_users

    def rights(self, peer: AskingPeer, request: int) -> RequestRights:
        """Of a request with this API key."""
        return RequestRights(self, peer, request)

    def allows(self, peer: AskingPeer, operation: AclOperation, resource: ResourceType, name: str) -> bool:
        """The decision, neither counted nor reported."""
        if not self.is_in_force and not self.is_super_user(peer.principal):
            return False
        return self._rules.may(peer, operation, resource, name)

    def allows_any(self, peer: AskingPeer, operation: AclOperation, resource: ResourceType) -> bool:
        if not self.is_in_force and not self.is_super_user(peer.principal):
            return False
        return self._rules.may_any(peer, operation, resource)

    def report(self, denial: Denial) -> None:
        self.denied += 1
        self._denied(denial)


class RequestRights:
    """The rights of the sender of one request. Each denial is reported, unless the question is quiet: one whose answer
    only selects what is shown."""

    __slots__ = ("_authorization", "_peer", "_request")

    def __init__(self, authorization: Authorization, peer: AskingPeer, request: int) -> None:
        self._authorization = authorization
        self._peer = peer
        self._request = request

    @property
    def principal(self) -> Principal:
        return self._peer.principal

    @property
    def are_known(self) -> bool:
        """Whether the rules are in force, or do not matter. Otherwise every answer is no, and none is reported: the
        request has to wait, or its sender to ask another node."""
        authorization = self._authorization
        return authorization.is_in_force or authorization.is_super_user(self._peer.principal)

    def of_client(self, principal: Principal, host: str, request: int) -> RequestRights:
        """The rights of a client whose request was forwarded. `host`: an IP address."""
        return RequestRights(self._authorization, AskingPeer(principal, java_address(host)), request)

    def may(self, operation: AclOperation, resource: ResourceType, name: str, *, quiet: bool = False) -> bool:
        authorization = self._authorization
        if authorization.allows(self._peer, operation, resource, name):
            authorization.allowed += 1
            return True
        if not quiet and authorization.is_in_force:
            self._report(operation, resource, name)
        return False

    def may_any(self, operation: AclOperation, resource: ResourceType) -> bool:
        """Whether the sender may do this to at least one resource of the type (A45)."""
        return self._authorization.allows_any(self._peer, operation, resource)

    def on_cluster(self, operation: AclOperation, *, quiet: bool = False) -> bool:
        return self.may(operation, ResourceType.CLUSTER, CLUSTER_NAME, quiet=quiet)

    def on_topic(self, operation: AclOperation, topic: str, *, quiet: bool = False) -> bool:
        return self.may(operation, ResourceType.TOPIC, topic, quiet=quiet)

    def may_write(self, topic: str, quiet: bool = False) -> bool:
        return self.may(AclOperation.WRITE, ResourceType.TOPIC, topic, quiet=quiet)

    def may_read(self, topic: str) -> bool:
        return self.may(AclOperation.READ, ResourceType.TOPIC, topic)

    @property
    def topic_fault(self) -> ErrorCode:
        """The error of a topic that the sender may not read or write. If that is not known here, one that makes it ask
        for the leader again: this node has lost the quorum, and will lose its partitions to other leaders."""
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED if self.are_known else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def may_write_as(self, transactional_id: str, quiet: bool = False) -> bool:
        return self.may(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id, quiet=quiet)

    def describes(self, topic: str) -> bool:
        """Whether the topic is shown to the sender."""
        return self.may(AclOperation.DESCRIBE, ResourceType.TOPIC, topic, quiet=True)

    def operations(self, resource: ResourceType, name: str) -> int:
        """The bits of the operations that the sender may do, for answers that list them (A44)."""
        allows, peer = self._authorization.allows, self._peer
        return sum(1 << operation for operation in OPERATIONS[resource] if allows(peer, operation, resource, name))

    def _report(self, operation: AclOperation, resource: ResourceType, name: str) -> None:
        kind = "".join(part.capitalize() for part in resource.name.split("_"))
        self._authorization.report(
            Denial(
                str(self._peer.principal),
                self._peer.host,
                operation.name,
                f"{kind}:LITERAL:{name}",
                ApiKey(self._request).name,
            )
        )


def java_address(host: str) -> str:
    """An IP address as Java writes it, which is how rules name hosts: `0:0:0:0:0:0:0:1` for `::1` (A43). Other text is
    unchanged."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return ":".join(f"{int(part, 16):x}" for part in address.exploded.split(":"))
