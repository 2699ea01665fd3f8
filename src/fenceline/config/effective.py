"""Resolves the effective value: topic override, broker override, cluster default, static file, default (C37).

Owns the order of the layers and the record of a value's source. Never changes anything.

`configs` is the image's map of overrides: (resource type, name) -> {key: text}; types 2 TOPIC and 4 BROKER, broker
name "" for the default of all brokers.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

from fenceline.config.broker import ALL_CONFIGS, broker_synonyms, topic_defaults
from fenceline.config.definitions import ConfigKey
from fenceline.config.node import NodeConfig
from fenceline.config.topic import TOPIC_CONFIGS, TOPIC_SYNONYMS

Overrides: TypeAlias = Mapping[Any, Mapping[str, str]]

_TOPIC: Final = 2
_BROKER: Final = 4
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


class ConfigSource(IntEnum):
    """The source of a value, with the numbers of DescribeConfigs."""

    UNKNOWN = 0
    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


class Layer(NamedTuple):
    """One value of a key in one of the layers, effective or not."""

    name: str
    value: str
    source: ConfigSource


class Effective(NamedTuple):
    """An effective value, its source, and all layers, in order of precedence."""

    value: str | None
    source: ConfigSource
    layers: tuple[Layer, ...]


def effective_topic_config(configs: Overrides, topic: str, node: NodeConfig) -> Mapping[str, str]:
    """Every topic config that has a value, as text. Cheap to call for many topics."""
    defaults = _topic_defaults(node, *_broker_overrides(configs, node))
    own = configs.get((_TOPIC, topic))
    return {**defaults, **own} if own else defaults


def describe_topic_config(configs: Overrides, topic: str, node: NodeConfig, name: str) -> Effective:
    """One topic config with its layers, as DescribeConfigs returns it.

    The layers start at the first broker key that is its default (`log.roll.ms` for `segment.ms`); if only a later one
    is set, they are empty, although its value is effective.
    """
    own = configs.get((_TOPIC, topic), _NOTHING)
    layers = [Layer(name, own[name], ConfigSource.DYNAMIC_TOPIC)] if name in own else []
    if name in TOPIC_SYNONYMS:
        layers += _layers(configs, node, TOPIC_SYNONYMS[name][0].name)
    value = own[name] if name in own else _topic_defaults(node, *_broker_overrides(configs, node)).get(name)
    return Effective(value, layers[0].source if layers else ConfigSource.DEFAULT, tuple(layers))


def describe_broker_config(configs: Overrides, node: NodeConfig, name: str, *, cluster_default: bool) -> Effective:
    """One broker config with its layers; for the default of all brokers, only that layer."""
    layers = _layers(configs, node, name)
    if cluster_default:
        layers = [layer for layer in layers if layer.source is ConfigSource.DYNAMIC_DEFAULT_BROKER]
    own = [layer for layer in layers if layer.name == name]
    value = own[0].value if own else None
    return Effective(value, layers[0].source if layers else ConfigSource.DEFAULT, tuple(layers))


def describe_created_topic(configs: Overrides, own: Mapping[str, str], node: NodeConfig) -> dict[str, Effective]:
    """Every config of a new topic, by name, with its source; `own` are the overrides it was created with.

    Unlike `describe_topic_config`, any broker synonym counts as a source.
    """
    every, this = (dict(pairs) for pairs in _broker_overrides(configs, node))
    sources = (
        (this, ConfigSource.DYNAMIC_BROKER),
        (every, ConfigSource.DYNAMIC_DEFAULT_BROKER),
        (node.raw, ConfigSource.STATIC_BROKER),
    )
    found: dict[str, Effective] = {}
    for name, key in sorted(TOPIC_CONFIGS.items()):
        if name in own:
            found[name] = Effective(own[name], ConfigSource.DYNAMIC_TOPIC, ())
            continue
        found[name] = Effective(_default_text(key), ConfigSource.DEFAULT, ())
        for values, source in sources:
            set_here = [one for one in TOPIC_SYNONYMS.get(name, ()) if one.name in values]
            if set_here:
                found[name] = Effective(set_here[0].converted(values[set_here[0].name]), source, ())
                break
    return {name: value for name, value in found.items() if name in own or not TOPIC_CONFIGS[name].internal}


def effective_broker_config(configs: Overrides, node: NodeConfig, name: str) -> str | None:
    """The value of one broker key, with the dynamic overrides of this broker and of all brokers applied."""
    for override in reversed(_broker_overrides(configs, node)):
        for key, value in override:
            if key == name:
                return value
    return node.text(name)


# --- layers -------------------------------------------------------------------------------------------------------

_Pairs: TypeAlias = tuple[tuple[str, str], ...]


def _broker_overrides(configs: Overrides, node: NodeConfig) -> tuple[_Pairs, _Pairs]:
    """Overrides of all brokers, then of this one."""
    every = configs.get((_BROKER, ""), _NOTHING)
    this = configs.get((_BROKER, str(node.node_id)), _NOTHING)
    return tuple(every.items()) if every else (), tuple(this.items()) if this else ()


@lru_cache(maxsize=8)
def _topic_defaults(node: NodeConfig, every: _Pairs, this: _Pairs) -> Mapping[str, str]:
    return MappingProxyType(topic_defaults({**node.raw, **dict(every), **dict(this)}))


def _layers(configs: Overrides, node: NodeConfig, name: str) -> list[Layer]:
    names = broker_synonyms(name)
    every, this = _broker_overrides(configs, node)
    found: list[Layer] = []
    for values, source in (
        (dict(this), ConfigSource.DYNAMIC_BROKER),
        (dict(every), ConfigSource.DYNAMIC_DEFAULT_BROKER),
        (node.raw, ConfigSource.STATIC_BROKER),
        (_DEFAULTS, ConfigSource.DEFAULT),
    ):
        found += [Layer(one, values[one], source) for one in names if one in values]
    while found and found[0].name != name:
        del found[0]
    return found


def _default_text(key: ConfigKey) -> str | None:
    return key.default if isinstance(key.default, str) else None


_DEFAULTS: Final[Mapping[str, str]] = MappingProxyType(
    {name: text for name, key in ALL_CONFIGS.items() if (text := _default_text(key)) is not None}
)
