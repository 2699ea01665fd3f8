"""DescribeConfigs v1-4, IncrementalAlterConfigs v0-1, AlterConfigs v0-2, ListConfigResources v0-1.

Owns the checks that Kafka's broker does before the controller: repeated resources and keys, null values, and whether
this broker accepts a new value of its own keys. Log levels are in `loggers`, descriptions in `describe_configs`.

Rules: controller.md C36, C37, since_4_0.md K26; KIP-339, KIP-412, KIP-630 (the metadata topic is read-only),
KIP-1142.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fenceline.config.broker import ALL_CONFIGS
from fenceline.config.cordoned import CORDONED, cordoned_dirs
from fenceline.config.definitions import ConfigType, InvalidConfig
from fenceline.config.dynamic import check_broker_update
from fenceline.config.group import validate_client_metrics, validate_group_configs
from fenceline.controller.requests import (
    SUCCESS,
    AlterConfigs,
    ConfigChange,
    ConfigOperation,
    IncrementalAlterConfigs,
    RequestOutcome,
)
from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import METADATA_TOPIC
from fenceline.metadata.image import ConfigResource, ConfigResourceType
from fenceline.node.api.handlers.describe_configs import handle_describe_configs, resource_type_of
from fenceline.node.api.handlers.loggers import alter_log_level, check_node_id
from fenceline.node.context import Api, NodeView, RequestContext, Submit
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import request_field

if TYPE_CHECKING:
    from fenceline.wire.requests import (
        AlterConfigsRequest,
        IncrementalAlterConfigsAlterConfigsResource,
        IncrementalAlterConfigsRequest,
        ListConfigResourcesRequest,
    )

_FORWARDED: Final = frozenset(
    {
        ConfigResourceType.TOPIC,
        ConfigResourceType.BROKER,
        ConfigResourceType.CLIENT_METRICS,
        ConfigResourceType.GROUP,
    }
)


CheckCertificates = Callable[[Mapping[str, str], Iterable[str]], Awaitable[None]]
"""Given the new overrides of this broker and the keys of the request. Raises PeerError if it could not use them."""


async def _accept_any(overrides: Mapping[str, str], named: Iterable[str]) -> None:
    """A controller does not know the certificates of a broker."""


class _Change(NamedTuple):
    """One resource of a request, with its changes in the form of IncrementalAlterConfigs."""

    type: ConfigResourceType | None
    raw_type: int
    name: str
    changes: tuple[ConfigChange, ...]
    has_unknown_operation: bool = False
    """The request is rejected: in `changes` it is a SET."""

    @property
    def resource(self) -> ConfigResource:
        assert self.type is not None, "forwarded resources have a known type"
        return ConfigResource(self.type, self.name)


# --- IncrementalAlterConfigs and AlterConfigs -------------------------------------------------------------------------


async def handle_incremental_alter_configs(
    node: NodeView,
    submit: Submit,
    check_certificates: CheckCertificates,
    context: RequestContext,
    request: IncrementalAlterConfigsRequest,
) -> dict[str, Any]:
    """Each resource succeeds or fails alone."""
    wanted = [_incremental_change(each) for each in request.resources]

    def build(changes: Sequence[_Change]) -> IncrementalAlterConfigs:
        return IncrementalAlterConfigs(
            tuple((each.resource, each.changes) for each in changes), validate_only=request.validate_only
        )

    checks = _Checks(node, check_certificates, context, validate_only=request.validate_only, replaces=False)
    return await _alter(submit, context, wanted, build, checks)


async def handle_alter_configs(
    node: NodeView,
    submit: Submit,
    check_certificates: CheckCertificates,
    context: RequestContext,
    request: AlterConfigsRequest,
) -> dict[str, Any]:
    """The legacy request: overrides that it does not name are deleted."""
    wanted = [
        _Change(
            resource_type_of(each.resource_type),
            each.resource_type,
            each.resource_name,
            tuple(ConfigChange(config.name, ConfigOperation.SET, config.value) for config in each.configs),
        )
        for each in request.resources
    ]

    def build(changes: Sequence[_Change]) -> AlterConfigs:
        return AlterConfigs(
            tuple((each.resource, tuple((c.name, c.value) for c in each.changes)) for each in changes),
            validate_only=request.validate_only,
        )

    checks = _Checks(node, check_certificates, context, validate_only=request.validate_only, replaces=True)
    return await _alter(submit, context, wanted, build, checks)


def _incremental_change(resource: IncrementalAlterConfigsAlterConfigsResource) -> _Change:
    known = {int(operation): operation for operation in ConfigOperation}
    changes = tuple(
        ConfigChange(config.name, known.get(config.config_operation, ConfigOperation.SET), config.value)
        for config in resource.configs
    )
    return _Change(
        resource_type_of(resource.resource_type),
        resource.resource_type,
        resource.resource_name,
        changes,
        any(config.config_operation not in known for config in resource.configs),
    )


class _Checks(NamedTuple):
    """What the checks of one request need."""

    node: NodeView
    check_certificates: CheckCertificates
    context: RequestContext
    validate_only: bool
    replaces: bool


async def _alter(
    submit: Submit,
    context: RequestContext,
    wanted: Sequence[_Change],
    build: Callable[[Sequence[_Change]], IncrementalAlterConfigs | AlterConfigs],
    checks: _Checks,
) -> dict[str, Any]:
    outcomes: dict[int, RequestOutcome] = {}
    forwarded: list[int] = []
    seen = Counter((each.raw_type, each.name) for each in wanted)
    for position, change in enumerate(wanted):
        try:
            if seen[change.raw_type, change.name] > 1:
                raise PeerError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            if await _is_done_here(checks, change):
                outcomes[position] = SUCCESS
            else:
                forwarded.append(position)
        except PeerError as error:
            outcomes[position] = RequestOutcome(error.code, error.message or None)
    if forwarded:
        outcomes.update(await _submit(submit, context, build([wanted[each] for each in forwarded]), forwarded))
    return {
        "responses": [
            {
                "error_code": outcomes[position].code,
                "error_message": outcomes[position].message,
                "resource_type": change.raw_type,
                "resource_name": change.name,
            }
            for position, change in enumerate(wanted)
        ]
    }


async def _submit(
    submit: Submit,
    context: RequestContext,
    request: IncrementalAlterConfigs | AlterConfigs,
    positions: Sequence[int],
) -> dict[int, RequestOutcome]:
    try:
        answer = await submit(request, context)
    except PeerError as error:
        return dict.fromkeys(positions, RequestOutcome(error.code, error.message or None))
    return {position: each.outcome for position, each in zip(positions, answer.resources, strict=True)}


async def _is_done_here(checks: _Checks, change: _Change) -> bool:
    """Check a change; True if it needs no controller. Raises PeerError with the resource's error."""
    node, check_certificates, context, validate_only, replaces = checks
    _check_shape(change)
    if change.type is ConfigResourceType.TOPIC and change.name == METADATA_TOPIC:
        raise PeerError(
            ErrorCode.POLICY_VIOLATION,
            f"The configuration of {METADATA_TOPIC} is read-only (KIP-630). Configure its log and snapshots on the"
            " nodes: metadata.log.* and metadata.max.*.",
        )
    if context.is_forwarded and change.type in _FORWARDED:
        return False  # the broker that forwarded it has validated it
    if change.type is ConfigResourceType.BROKER_LOGGER and not replaces:
        check_node_id(node.node_id, change.name)
        for each in change.changes:
            alter_log_level(each, validate_only=validate_only)
        return True
    if change.type is None or change.type not in _FORWARDED:
        raise PeerError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {change.raw_type}")
    merged = _merged(node, change, replaces=replaces)
    match change.type:
        case ConfigResourceType.BROKER if context.listener in node.config.controller_listener_names:
            pass  # a controller accepts changes for any broker, whose static config it does not know (KIP-919)
        case ConfigResourceType.BROKER:
            if change.name:
                _check_broker_id(node.node_id, change.name)
            _check_list_changes(change, node.config.log_dirs)
            current = node.image.config(change.type, change.name)
            check_broker_update(node.config, merged, current, cluster_default=not change.name)
            if change.name:
                await check_certificates(merged, (each.name for each in change.changes))
        case ConfigResourceType.GROUP:
            if not change.name:
                raise PeerError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
            validate_group_configs(merged, node.config.get)
        case ConfigResourceType.CLIENT_METRICS:
            validate_client_metrics(change.name, merged)
    return False


def _check_shape(change: _Change) -> None:
    names = Counter(each.name for each in change.changes)
    if any(count > 1 for count in names.values()):
        raise PeerError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    nulls = [c.name for c in change.changes if c.value is None and c.operation != ConfigOperation.DELETE]
    if nulls:
        raise PeerError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {','.join(nulls)}")
    if change.has_unknown_operation:
        raise PeerError(ErrorCode.UNKNOWN_SERVER_ERROR)


def _check_broker_id(node_id: int, name: str) -> None:
    try:
        asked = int(name)
    except ValueError:
        raise PeerError(ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name}") from None
    if asked != node_id:
        raise PeerError(ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {node_id}, but received {name}")


def _check_list_changes(change: _Change, log_dirs: Sequence[Path]) -> None:
    for each in change.changes:
        if each.operation in (ConfigOperation.APPEND, ConfigOperation.SUBTRACT):
            key = ALL_CONFIGS.get(each.name)
            if key is None or key.type is not ConfigType.LIST:
                word = each.operation.name.lower()
                raise InvalidConfig(f"Config value {word} is not allowed for config key: {each.name}")
        if each.name == CORDONED and each.operation is ConfigOperation.APPEND:
            cordoned_dirs(each.value, log_dirs)


def _merged(node: NodeView, change: _Change, *, replaces: bool) -> Mapping[str, str]:
    """The overrides that the resource would have; list changes are left to the controller."""
    merged = {} if replaces else dict(node.image.configs.get(change.resource) or {})
    for each in change.changes:
        if each.operation is ConfigOperation.DELETE:
            merged.pop(each.name, None)
        elif each.operation is ConfigOperation.SET and each.value is not None:
            merged[each.name] = each.value
    return merged


# --- ListConfigResources ----------------------------------------------------------------------------------------------

_LISTED: Final = (
    ConfigResourceType.TOPIC,
    ConfigResourceType.BROKER,
    ConfigResourceType.BROKER_LOGGER,
    ConfigResourceType.CLIENT_METRICS,
    ConfigResourceType.GROUP,
)


def handle_list_config_resources(
    node: NodeView, context: RequestContext, request: ListConfigResourcesRequest
) -> dict[str, Any]:
    """Names of all resources with configs; v0 lists client metrics only, an empty list means every type."""
    if context.api_version == 0:
        types: set[int] = {ConfigResourceType.CLIENT_METRICS}
    else:
        types = set(request_field(request, "resource_types", ())) or set(_LISTED)
    if not types <= set(_LISTED):
        return {"error_code": ErrorCode.UNSUPPORTED_VERSION, "config_resources": ()}
    image = node.image
    names: dict[ConfigResourceType, list[str]] = {kind: [] for kind in _LISTED}
    if ConfigResourceType.TOPIC in types:
        names[ConfigResourceType.TOPIC] = list(image.topics_by_name)
    alive = [str(broker.id) for broker in sorted(image.alive_brokers(), key=lambda one: one.id)]
    names[ConfigResourceType.BROKER] = names[ConfigResourceType.BROKER_LOGGER] = alive
    for resource in image.configs:
        if resource.type in (ConfigResourceType.CLIENT_METRICS, ConfigResourceType.GROUP):
            names[resource.type].append(resource.name)
    return {
        "error_code": ErrorCode.NONE,
        "config_resources": [
            {"resource_name": name, "resource_type": kind} for kind in _LISTED if kind in types for name in names[kind]
        ],
    }


def controller_apis(
    node: NodeView, submit: Submit, check_certificates: CheckCertificates = _accept_any
) -> tuple[Api, ...]:
    """K4."""
    return (
        Api(ApiKey.DESCRIBE_CONFIGS, 1, 4, partial(handle_describe_configs, node)),
        Api(ApiKey.ALTER_CONFIGS, 0, 2, partial(handle_alter_configs, node, submit, check_certificates)),
        Api(
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            0,
            1,
            partial(handle_incremental_alter_configs, node, submit, check_certificates),
        ),
    )


def apis(node: NodeView, submit: Submit, check_certificates: CheckCertificates) -> tuple[Api, ...]:
    listed = Api(ApiKey.LIST_CONFIG_RESOURCES, 0, 1, partial(handle_list_config_resources, node))
    return (*controller_apis(node, submit, check_certificates), listed)
