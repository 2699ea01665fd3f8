"""DescribeConfigs v1-4 (KIP-226 synonyms, KIP-569 types and documentation) for every kind of resource.

Owns the encoding of a config in a response. `config.effective` resolves the effective value. Values of passwords and of
unknown keys are never returned.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from fenceline.config.broker import ALL_CONFIGS, broker_key, is_dynamic, without_listener
from fenceline.config.definitions import ConfigKey, ConfigType, InvalidConfig, render, table
from fenceline.config.effective import (
    ConfigSource,
    Effective,
    Layer,
    describe_broker_config,
    describe_topic_config,
)
from fenceline.config.group import CLIENT_METRICS_CONFIGS, GROUP_CONFIGS, GROUP_SYNONYMS
from fenceline.config.topic import TOPIC_CONFIGS
from fenceline.controller.topic_names import name_fault
from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import METADATA_TOPIC
from fenceline.metadata.image import ConfigResourceType
from fenceline.node.api.handlers.loggers import ROOT, log_level
from fenceline.node.context import NodeView, RequestContext
from fenceline.wire.entities import request_field

if TYPE_CHECKING:
    from fenceline.wire.requests import DescribeConfigsRequest, DescribeConfigsResource

_TYPE_UNKNOWN: Final = 0
_METADATA_TOPIC_CONFIGS: Final[Mapping[str, ConfigKey]] = table(
    (
        ConfigKey(
            "cleanup.policy",
            ConfigType.LIST,
            "snapshot",
            "The log is replaced by snapshots of the state: records are not deleted by age or key.",
        ),
    )
)
"""KIP-630 "Configuration": the configs of `__cluster_metadata`, which are read-only."""
_METADATA_POLICY: Final = Effective("snapshot", ConfigSource.DEFAULT, ())
_TYPES: Final = {int(each): each for each in ConfigResourceType if each is not ConfigResourceType.UNKNOWN}


def resource_type_of(number: int) -> ConfigResourceType | None:
    """The type for a number on the wire, or None."""
    return _TYPES.get(number)


def handle_describe_configs(node: NodeView, context: RequestContext, request: DescribeConfigsRequest) -> dict[str, Any]:
    """One result per resource, in request order."""
    with_docs = request_field(request, "include_documentation", False)
    results = []
    for resource in request.resources:
        try:
            rows = _rows(node, resource, with_docs=with_docs)
            code, message = ErrorCode.NONE, ""
        except PeerError as error:
            rows, code, message = [], error.code, error.message
        if not request.include_synonyms:
            rows = [{**row, "synonyms": ()} for row in rows]
        results.append(
            {
                "error_code": code,
                "error_message": message,
                "resource_type": resource.resource_type,
                "resource_name": resource.resource_name,
                "configs": rows,
            }
        )
    return {"results": results}


def _rows(node: NodeView, resource: DescribeConfigsResource, *, with_docs: bool) -> list[dict[str, Any]]:
    name = resource.resource_name
    keys: Collection[str] | None = resource.configuration_keys or None

    def chosen(names: Iterable[str]) -> list[str]:
        return sorted(each for each in names if keys is None or each in keys)

    describe = _DESCRIBERS.get(resource_type_of(resource.resource_type) or ConfigResourceType.UNKNOWN)
    if describe is None:
        raise PeerError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type {resource.resource_type}")
    rows = describe(node, name, chosen)
    if not with_docs:
        rows = [{**row, "documentation": row["documentation"] and None} for row in rows]
    return rows


# --- one kind of resource each ----------------------------------------------------------------------------------------

_Chosen = Callable[[Iterable[str]], list[str]]


def _topic(node: NodeView, topic: str, chosen: _Chosen) -> list[dict[str, Any]]:
    fault = name_fault(topic)
    if fault is not None:
        raise PeerError(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
    if topic == METADATA_TOPIC:
        return [
            _row(each, _METADATA_TOPIC_CONFIGS[each], _METADATA_POLICY, read_only=True)
            for each in chosen(_METADATA_TOPIC_CONFIGS)
        ]
    if topic not in node.image.topics_by_name:
        raise PeerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    rows = []
    for name in chosen(TOPIC_CONFIGS):
        key = TOPIC_CONFIGS[name]
        found = describe_topic_config(node.image.configs, topic, node.config, name)
        if key.internal and found.source is not ConfigSource.DYNAMIC_TOPIC:
            continue
        rows.append(_row(name, key, found, read_only=False))
    return rows


def _broker(node: NodeView, name: str, chosen: _Chosen) -> list[dict[str, Any]]:
    configs, own = node.image.configs, node.config
    if not name:
        overrides = configs.get((ConfigResourceType.BROKER, "")) or {}  # type: ignore[call-overload]
        return [
            _broker_row(each, describe_broker_config(configs, own, each, cluster_default=True))
            for each in chosen(overrides)
        ]
    _check_broker_id(node.node_id, name, or_empty=True)
    unknown = {each for each in own.raw if each not in ALL_CONFIGS}
    for resource in ((ConfigResourceType.BROKER, ""), (ConfigResourceType.BROKER, str(node.node_id))):
        unknown |= {each for each in configs.get(resource) or {} if each not in ALL_CONFIGS}  # type: ignore[call-overload]
    listed = [each for each, key in ALL_CONFIGS.items() if not key.internal or own.is_set(each)]
    rows = []
    for each in chosen([*listed, *unknown]):
        found = describe_broker_config(configs, own, each, cluster_default=False)
        if not found.layers and each in ALL_CONFIGS:
            found = found._replace(value=own.text(each))
        rows.append(_broker_row(each, found))
    return rows


def _loggers(node: NodeView, name: str, chosen: _Chosen) -> list[dict[str, Any]]:
    if not name:
        raise PeerError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
    _check_broker_id(node.node_id, name, or_empty=False)
    return [
        {
            "name": each,
            "value": log_level(),
            "read_only": False,
            "config_source": ConfigSource.DYNAMIC_BROKER_LOGGER,
            "is_sensitive": False,
            "synonyms": (),
            "config_type": _TYPE_UNKNOWN,
            "documentation": "",
        }
        for each in chosen([ROOT])
    ]


def _client_metrics(node: NodeView, name: str, chosen: _Chosen) -> list[dict[str, Any]]:
    if not name:
        raise PeerError(ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty")
    own = _overrides(node, ConfigResourceType.CLIENT_METRICS, name)
    rows = []
    for each in chosen(CLIENT_METRICS_CONFIGS):
        key = CLIENT_METRICS_CONFIGS[each]
        layers = (Layer(each, own[each], ConfigSource.CLIENT_METRICS),) if each in own else ()
        source = ConfigSource.CLIENT_METRICS if layers else ConfigSource.DEFAULT
        rows.append(_row(each, key, Effective(own.get(each, _default(key)), source, layers), read_only=False))
    return rows


def _group(node: NodeView, name: str, chosen: _Chosen) -> list[dict[str, Any]]:
    if not name:
        raise PeerError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
    own = _overrides(node, ConfigResourceType.GROUP, name)
    rows = []
    for each in chosen(GROUP_CONFIGS):
        key = GROUP_CONFIGS[each]
        synonym = GROUP_SYNONYMS[each]
        if synonym in ALL_CONFIGS:
            below = describe_broker_config(node.image.configs, node.config, synonym, cluster_default=False)
        else:
            text = _default(key) or ""
            below = Effective(text, ConfigSource.DEFAULT, (Layer(synonym, text, ConfigSource.DEFAULT),))
        if each in own:
            layers = (Layer(each, own[each], ConfigSource.GROUP), *below.layers)
            below = Effective(own[each], ConfigSource.GROUP, layers)
        rows.append(_row(each, key, below, read_only=False))
    return rows


_DESCRIBERS: Final[Mapping[ConfigResourceType, Callable[[NodeView, str, _Chosen], list[dict[str, Any]]]]] = {
    ConfigResourceType.TOPIC: _topic,
    ConfigResourceType.BROKER: _broker,
    ConfigResourceType.BROKER_LOGGER: _loggers,
    ConfigResourceType.CLIENT_METRICS: _client_metrics,
    ConfigResourceType.GROUP: _group,
}


# --- pieces -----------------------------------------------------------------------------------------------------------


def _overrides(node: NodeView, kind: ConfigResourceType, name: str) -> Mapping[str, str]:
    return node.image.config(kind, name)


def _check_broker_id(node_id: int, name: str, *, or_empty: bool) -> None:
    try:
        asked = int(name)
    except ValueError:
        raise PeerError(ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}") from None
    if asked != node_id:
        expected = f"{node_id} or empty string," if or_empty else str(node_id)
        raise PeerError(ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {expected} but received {name}")


def _broker_row(name: str, found: Effective) -> dict[str, Any]:
    row = _row(name, broker_key(without_listener(name)), found, read_only=not is_dynamic(name))
    return row if name in ALL_CONFIGS else row | {"documentation": None}


def _row(name: str, key: ConfigKey | None, found: Effective, *, read_only: bool) -> dict[str, Any]:
    hidden = key is None or key.is_sensitive
    return {
        "name": name,
        "value": None if hidden else _shown(key, found.value),
        "read_only": read_only,
        "config_source": found.source,
        "is_sensitive": hidden,
        "synonyms": [
            {
                "name": layer.name,
                "value": None if hidden else _shown(key, layer.value) if layer.name == name else layer.value,
                "source": layer.source,
            }
            for layer in found.layers
        ],
        "config_type": _TYPE_UNKNOWN if key is None else key.type,
        "documentation": None if key is None else key.doc,
    }


def _shown(key: ConfigKey | None, text: str | None) -> str | None:
    """A value in normalised form; unchanged if it does not parse (for example, written by a newer node)."""
    if key is None:
        return text
    try:
        return render(key.parse(text)) if text is not None else None
    except InvalidConfig:
        return text


def _default(key: ConfigKey) -> str | None:
    return key.default if isinstance(key.default, str) else None
