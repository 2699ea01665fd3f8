"""ACLs and filters from the options of `fenceline acls`.

Owns the names of options' values, and what the shortcuts stand for. Never talks to a cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import product
from typing import Final, TypeVar

from fenceline.client.admin.acls import AclBinding, AclBindingFilter
from fenceline.errors import OperatorError
from fenceline.wire.acl_codes import (
    ANY,
    CLUSTER_NAME,
    MATCH,
    OPERATIONS,
    AclOperation,
    PatternType,
    Permission,
    ResourceType,
)

E = TypeVar("E", bound=IntEnum)
Resource = tuple[ResourceType, str]

_PRODUCER: Final = {
    ResourceType.TOPIC: (AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.CREATE),
    ResourceType.TRANSACTIONAL_ID: (AclOperation.WRITE, AclOperation.DESCRIBE),
}
_CONSUMER: Final = {
    ResourceType.TOPIC: (AclOperation.READ, AclOperation.DESCRIBE),
    ResourceType.GROUP: (AclOperation.READ,),
}


@dataclass(frozen=True, slots=True)
class AclOptions:
    """What was given; empty if an option was left out."""

    resources: tuple[Resource, ...]
    pattern: str = ""
    allowed: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    denied_hosts: tuple[str, ...] = ()
    operations: tuple[str, ...] = ()
    producer: bool = False
    consumer: bool = False
    idempotent: bool = False

    @property
    def has_shortcut(self) -> bool:
        return self.producer or self.consumer


def named_resources(
    topics: Sequence[str] | None,
    groups: Sequence[str] | None,
    transactional_ids: Sequence[str] | None,
    delegation_tokens: Sequence[str] | None,
    users: Sequence[str] | None,
    *,
    cluster: bool,
) -> tuple[Resource, ...]:
    found = [(ResourceType.TOPIC, name) for name in topics or ()]
    found += [(ResourceType.GROUP, name) for name in groups or ()]
    found += [(ResourceType.TRANSACTIONAL_ID, name) for name in transactional_ids or ()]
    found += [(ResourceType.DELEGATION_TOKEN, name) for name in delegation_tokens or ()]
    found += [(ResourceType.USER, name) for name in users or ()]
    if cluster:
        found.append((ResourceType.CLUSTER, CLUSTER_NAME))
    return tuple(found)


def bindings(options: AclOptions) -> list[AclBinding]:
    """The ACLs to create. Raises OperatorError for options that contradict each other or name nothing."""
    _check_shortcuts(options)
    if not options.resources:
        raise OperatorError("No resource is given", f"Give at least one of {_RESOURCES}.")
    if not (options.allowed or options.denied):
        raise OperatorError("No principal is given", "Give --allow-principal User:NAME or --deny-principal User:NAME.")
    for principal in (*options.allowed, *options.denied):
        if ":" not in principal:
            raise OperatorError(f"{principal!r} is not a principal", f"Use the form User:{principal}.")
    pattern = _value(PatternType, options.pattern or "literal", "--resource-pattern-type")
    made: dict[AclBinding, None] = {}
    for (kind, name), operation in _operations(options):
        if operation not in (AclOperation.ALL, *OPERATIONS[kind]):
            known = ", ".join(each.name for each in (AclOperation.ALL, *OPERATIONS[kind]))
            raise OperatorError(f"{operation.name} is not an operation of {kind.name}", f"These are: {known}.")
        for permission, principals, hosts in _principals(options):
            for principal, host in product(principals, hosts or ("*",)):
                of = PatternType.LITERAL if kind is ResourceType.CLUSTER else pattern
                made[AclBinding(kind, name, principal, operation, permission, of, host)] = None
    return list(made)


def filters(options: AclOptions) -> list[AclBindingFilter]:
    """What matches the options: one that was left out matches everything. Raises OperatorError."""
    _check_shortcuts(options)
    if not (options.resources or options.allowed or options.denied or options.operations):
        raise OperatorError(
            "Neither a resource nor a principal nor an operation is given",
            f"Give at least one of {_RESOURCES}, --allow-principal, --deny-principal and --operation.",
        )
    pattern = pattern_filter(options.pattern or "literal")
    wanted: Sequence[tuple[Resource | None, int]]
    if options.operations or options.has_shortcut:
        wanted = list(_operations(options)) or [(None, operation) for operation in _named(options.operations)]
    else:
        wanted = [(resource, ANY) for resource in options.resources or (None,)]
    principals: list[tuple[int, tuple[str | None, ...], tuple[str | None, ...]]] = [*_principals(options)]
    if not principals:
        principals = [(ANY, (None,), (None,))]
    found: dict[AclBindingFilter, None] = {}
    for (resource, operation), (permission, names, hosts) in product(wanted, principals):
        kind, name = resource if resource is not None else (ANY, None)
        of = ANY if kind in (ANY, ResourceType.CLUSTER) else pattern
        for principal, host in product(names, hosts or (None,)):
            found[AclBindingFilter(kind, name, principal, operation, permission, of, host)] = None
    return list(found)


def pattern_filter(text: str) -> int:
    """Raises OperatorError."""
    more = {"any": ANY, "match": MATCH}.get(text.lower())
    return _value(PatternType, text, "--resource-pattern-type", "any", "match") if more is None else more


_RESOURCES: Final = "--topic, --group, --cluster, --transactional-id, --delegation-token and --user-principal"


def _check_shortcuts(options: AclOptions) -> None:
    kinds = {kind for kind, _ in options.resources}
    if options.idempotent and not options.producer:
        raise OperatorError("--idempotent is given without --producer", "Add --producer.")
    if not options.has_shortcut:
        return
    if options.operations or options.denied or options.denied_hosts:
        raise OperatorError(
            "--producer and --consumer stand for operations that are allowed",
            "Leave out --operation, --deny-principal and --deny-host.",
        )
    if ResourceType.TOPIC not in kinds:
        raise OperatorError("--producer and --consumer need a topic", "Add --topic NAME.")
    if options.consumer and ResourceType.GROUP not in kinds:
        raise OperatorError("--consumer needs a group", "Add --group NAME.")
    known = {*(_PRODUCER if options.producer else ()), *(_CONSUMER if options.consumer else ())}
    if not kinds <= known:
        names = ", ".join(sorted(kind.name for kind in kinds - known))
        raise OperatorError(f"--producer and --consumer do not concern {names}", "Add these in another command.")


def _operations(options: AclOptions) -> Iterator[tuple[Resource, AclOperation]]:
    """With the resource of each."""
    if not options.has_shortcut:
        yield from product(options.resources, _named(options.operations) or (AclOperation.ALL,))
        return
    for is_given, meant in ((options.producer, _PRODUCER), (options.consumer, _CONSUMER)):
        if is_given:
            for resource in options.resources:
                for operation in meant.get(resource[0], ()):
                    yield resource, operation
    if options.idempotent:
        yield (ResourceType.CLUSTER, CLUSTER_NAME), AclOperation.IDEMPOTENT_WRITE


def _named(operations: Sequence[str]) -> tuple[AclOperation, ...]:
    return tuple(_value(AclOperation, each, "--operation") for each in operations)


def _principals(options: AclOptions) -> Iterator[tuple[Permission, tuple[str, ...], tuple[str, ...]]]:
    if options.allowed:
        yield Permission.ALLOW, options.allowed, options.allowed_hosts
    if options.denied:
        yield Permission.DENY, options.denied, options.denied_hosts


def _value(kind: type[E], text: str, option: str, *more: str) -> E:
    """By name, in any case, with or without dashes."""
    plain = {each.name.replace("_", "").lower(): each for each in kind}
    found = plain.get(text.replace("-", "").replace("_", "").lower())
    if found is None:
        known = ", ".join([*more, *(each.name.lower().replace("_", "-") for each in kind)])
        raise OperatorError(f"{text!r} is not a value of {option}", f"These are: {known}.")
    return found
