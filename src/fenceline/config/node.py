"""The static configuration of one node: the properties file, the environment and the overrides, checked and typed.

Owns the precedence of the sources and every configuration error at start. Never reads the metadata log (dynamic configs
are merged by `config.effective`), and reads no file but the one it is given.

A value comes from the first of these that has it: `--override key=value`, environment `FENCELINE_<KEY>` (dots become
underscores, case is ignored), the file, Kafka's default. Without a file, a few defaults are those of a single-node
cluster (`WITHOUT_FILE`), as in the server.properties that Kafka ships. `log.dirs` defaults to the XDG data directory
instead of /tmp. Unknown keys cause a warning; unsupported values cause an error with the reason.

Rules: docs/configuration.md; since_4_0.md "Defaults".
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from fenceline.config.broker import (
    ALL_CONFIGS,
    DYNAMIC_ONLY_CONFIGS,
    listener_prefix,
    topic_defaults,
    without_listener,
)
from fenceline.config.connections import check_connections
from fenceline.config.cordoned import CORDONED, cordoned_dirs
from fenceline.config.definitions import ConfigType, ConfigValue, InvalidConfig, parse_type
from fenceline.config.listeners import (
    SECURED,
    ListenerConfig,
    check_roles,
    is_any_address,
    parse_listeners,
    parse_protocol_map,
    protocol_of,
)
from fenceline.config.properties import read_properties
from fenceline.config.providers import PROVIDERS, resolve
from fenceline.config.quorum import QuorumAddress, parse_quorum_address, parse_quorum_voters
from fenceline.config.topic import validate_topic_configs
from fenceline.errors import OperatorError, PeerError

ENVIRONMENT_PREFIX: Final = "FENCELINE_"
_ENVIRONMENT_NOT_CONFIG: Final = frozenset({"FENCELINE_BOOTSTRAP", "FENCELINE_COMMAND_CONFIG", "FENCELINE_PURE_PYTHON"})
_LISTENER_PREFIX: Final = "listener.name."
_FREE_PREFIXES: Final = (_LISTENER_PREFIX, f"{PROVIDERS}.", "rsm.config.", "rlmm.config.", "controller.quorum.voter.")
_CONTROLLER_LISTENER: Final = "CONTROLLER"

WITHOUT_FILE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
    }
)
"""Defaults of a node without a file, because a single-node cluster cannot have three replicas."""

_ALWAYS: Final[Mapping[str, str]] = MappingProxyType(
    {"node.id": "1", "process.roles": "broker,controller", "controller.listener.names": _CONTROLLER_LISTENER}
)
"""Defaults of keys that Kafka requires and Fenceline does not."""


@dataclass(frozen=True, slots=True, eq=False)
class NodeConfig:
    """A node's static configuration.

    `raw` has the values that were set (text), `origins` their sources, `warnings` sentences for the log. `listeners`
    are the broker's; `advertised_listeners` are for clients, with port 0 unresolved; directories are absolute.
    """

    raw: Mapping[str, str]
    origins: Mapping[str, str]
    warnings: tuple[str, ...]
    node_id: int
    process_roles: frozenset[str]
    listeners: tuple[ListenerConfig, ...]
    controller_listeners: tuple[ListenerConfig, ...]
    """In the order of `controller_listener_names`."""
    advertised_listeners: tuple[ListenerConfig, ...]
    log_dirs: tuple[Path, ...]
    metadata_log_dir: Path
    rack: str | None
    controller_listener_names: tuple[str, ...] = ()
    """Nodes use the first to connect to controllers."""
    advertised_controller_listeners: tuple[ListenerConfig, ...] = ()
    quorum_voters: tuple[QuorumAddress, ...] = ()
    """From `controller.quorum.voters`: a static set."""
    quorum_bootstrap_servers: tuple[QuorumAddress, ...] = ()
    protocols: Mapping[str, str] = field(default_factory=dict)
    """`listener.security.protocol.map`: protocols by the names of listeners."""

    @property
    def inter_broker_listener(self) -> str:
        """The listener for communication between brokers: the configured one, or the first with the configured
        protocol (A3)."""
        named = self.text("inter.broker.listener.name")
        if named is not None:
            return named.upper()
        protocol = self.text("security.inter.broker.protocol") or "PLAINTEXT"
        return next((one.name for one in self.listeners if one.security_protocol == protocol), protocol)

    def security_protocol(self, listener: str) -> str:
        """Of a listener of this or another node: all nodes map the names alike."""
        return self.protocols.get(listener, "PLAINTEXT")

    @property
    def token_secret(self) -> bytes:
        """`delegation.token.secret.key`; empty: there are no delegation tokens."""
        return (self.text("delegation.token.secret.key") or "").encode()

    def for_listener(self, listener: str) -> Callable[[str], str | None]:
        """The values of broker keys for one listener: with its prefix, or for all listeners, or default (A2)."""
        prefix = listener_prefix(listener)
        is_sasl = self.security_protocol(listener).startswith("SASL")

        def lookup(key: str) -> str | None:
            own = self.raw.get(prefix + key)
            if own is not None:
                return own
            # Certificates of clients do not matter for SASL, unless the listener itself asks for them (A5).
            return "none" if is_sasl and key == "ssl.client.auth" else self.text(key)

        return lookup

    def of_listener_only(self, listener: str) -> Callable[[str], str | None]:
        """The values of keys that are set with the prefix of a listener; None for others."""
        prefix = f"{_LISTENER_PREFIX}{listener.lower()}."
        return lambda key: self.raw.get(prefix + key)

    @classmethod
    def load(
        cls, path: Path | None, overrides: Mapping[str, str] | None = None, environ: Mapping[str, str] | None = None
    ) -> NodeConfig:
        """Read and check all sources. Raises OperatorError with the cause and where it was set."""
        raw: dict[str, str] = dict(WITHOUT_FILE) if path is None else {}
        origins: dict[str, str] = {}
        warnings: list[str] = []
        environ = environ or {}
        file_values = read_properties(path) if path is not None else {}
        for origin, values in (
            (str(path), file_values),
            ("environment", _from_environment(environ, warnings)),
            ("--override", overrides or {}),
        ):
            raw.update(values)
            origins.update(dict.fromkeys(values, origin))
        raw = resolve(raw, environ)
        warnings += _unknown_keys(raw, origins)
        _check_values(raw, origins)
        return _typed(cls, raw, origins, warnings, environ)

    def get(self, name: str) -> ConfigValue:
        """The parsed value of a broker key: set, or default. Raises KeyError for an unknown key."""
        key = ALL_CONFIGS[name]
        text = self.text(name)
        return parse_type(name, key.type, text)

    def text(self, name: str) -> str | None:
        """The value of a broker key as text, or None if it is not set and has no default."""
        if (value := self.raw.get(name)) is not None:
            return value
        default = ALL_CONFIGS[name].default
        return default if isinstance(default, str) else _ALWAYS.get(name)

    def get_int(self, name: str) -> int:
        """An INT, SHORT or LONG that always has a value."""
        value = self.get(name)
        assert isinstance(value, int), f"{name} is no integer or not set"
        return value

    def get_bool(self, name: str) -> bool:
        value = self.get(name)
        assert isinstance(value, bool), f"{name} is neither true nor false"
        return value

    def get_str(self, name: str) -> str | None:
        value = self.get(name)
        assert value is None or isinstance(value, str), f"{name} is no string"
        return value

    def is_set(self, name: str) -> bool:
        """Whether the key was set by file, environment, override or `WITHOUT_FILE`."""
        return name in self.raw

    @property
    def is_broker(self) -> bool:
        return "broker" in self.process_roles

    @property
    def is_controller(self) -> bool:
        return "controller" in self.process_roles

    @property
    def can_reach_others(self) -> bool:
        """Whether other nodes can be part of this node's cluster: a controller needs a listener for them, a broker
        the addresses of controllers."""
        if self.is_controller:
            return bool(self.controller_listeners)
        return bool(self.quorum_voters or self.quorum_bootstrap_servers)

    @property
    def without_effect(self) -> tuple[str, ...]:
        """Keys that were set and have no effect on this node."""
        return tuple(name for name in self.origins if name in ALL_CONFIGS and ALL_CONFIGS[name].inert)


# --- sources ------------------------------------------------------------------------------------------------------


def default_data_dir(environ: Mapping[str, str]) -> Path:
    """`fenceline` in the XDG data directory."""
    base = environ.get("XDG_DATA_HOME", "")
    if not base.startswith("/"):
        base = os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".local", "share")
    return Path(base) / "fenceline"


def environment_name(key: str) -> str:
    """The environment variable of a key."""
    return ENVIRONMENT_PREFIX + key.upper().replace(".", "_")


def _from_environment(environ: Mapping[str, str], warnings: list[str]) -> dict[str, str]:
    ours = {name: value for name, value in environ.items() if name.upper().startswith(ENVIRONMENT_PREFIX)}
    if not ours:
        return {}
    keys = {environment_name(key): key for key in ALL_CONFIGS}
    found: dict[str, str] = {}
    for name, value in ours.items():
        if (key := keys.get(name.upper())) is not None:
            found[key] = value
        elif name not in _ENVIRONMENT_NOT_CONFIG:
            warnings.append(f"Environment variable {name} is not a configuration key and has no effect")
    return found


def _unknown_keys(raw: Mapping[str, str], origins: Mapping[str, str]) -> Iterator[str]:
    for name in raw:
        if name in ALL_CONFIGS or name.startswith(_FREE_PREFIXES):
            continue
        if name in DYNAMIC_ONLY_CONFIGS:
            yield f"{name} ({origins[name]}) can only be set dynamically and has no effect here"
            continue
        from difflib import get_close_matches

        close = get_close_matches(name, ALL_CONFIGS, n=1, cutoff=0.85)
        hint = f"; did you mean {close[0]}?" if close else ""
        yield f"Unknown configuration key {name} ({origins[name]}) has no effect{hint}"


# --- checks -------------------------------------------------------------------------------------------------------


def _check_values(raw: Mapping[str, str], origins: Mapping[str, str]) -> None:
    for name, text in raw.items():
        key = ALL_CONFIGS.get(without_listener(name))
        if key is None:
            continue
        where = f" ({origins[name]})" if name in origins else ""
        try:
            value = key.parse(text)
        except InvalidConfig as error:
            raise OperatorError(f"{error.message}{where}", f"{name}: {key.doc}") from error
        if key.unsupported is not None and value != key.default_value:
            shown = "..." if key.is_sensitive else text
            raise OperatorError(f"{name}={shown}{where} is not supported: {key.unsupported}", "Remove the key.")


def _typed(
    cls: type[NodeConfig],
    raw: dict[str, str],
    origins: dict[str, str],
    warnings: list[str],
    environ: Mapping[str, str],
) -> NodeConfig:
    if "log.dirs" not in raw and "log.dir" not in raw:
        raw["log.dirs"] = str(default_data_dir(environ))

    def value(name: str) -> ConfigValue:
        return parse_type(name, ALL_CONFIGS[name].type, _text(raw, name))

    def items(name: str) -> tuple[str, ...]:
        found = value(name)
        return found if isinstance(found, tuple) else ()

    node_id = _node_id(raw)
    if "node.id" in raw or "broker.id" in raw:
        raw["node.id"] = raw["broker.id"] = str(node_id)
    roles = frozenset(items("process.roles"))
    if not roles:
        raise OperatorError("process.roles is empty", "Set it to broker, controller, or broker,controller.")
    voters = parse_quorum_voters(items("controller.quorum.voters"), node_id, roles)
    servers = tuple(
        parse_quorum_address("controller.quorum.bootstrap.servers", item)
        for item in items("controller.quorum.bootstrap.servers")
    )
    if roles == {"broker"} and not voters and not servers:
        raise OperatorError(
            "process.roles=broker requires the addresses of the controllers",
            "Set controller.quorum.bootstrap.servers to a comma-separated list of host:port.",
        )
    protocols = parse_protocol_map(str(value("listener.security.protocol.map") or ""))
    names_in_order = tuple(name.upper() for name in items("controller.listener.names"))
    controller_names = set(names_in_order)
    opened = {item.partition(":")[0].strip().upper() for item in items("listeners")}
    is_plain = "listener.security.protocol.map" not in raw and not (opened | controller_names) & set(SECURED)
    for name in controller_names:
        # A listener that this node neither opens nor connects to has no protocol that matters.
        if is_plain or (name not in opened and "controller" in roles):
            protocols.setdefault(name, "PLAINTEXT")
    for name in names_in_order if roles == {"broker"} else ():
        protocol_of(name, "controller.listener.names", protocols)
    everything = parse_listeners("listeners", items("listeners"), protocols)
    listeners = tuple(one for one in everything if one.name not in controller_names)
    controller_listeners = tuple(one for name in names_in_order for one in everything if one.name == name)
    check_roles(roles, listeners, controller_listeners, "listeners" in raw)
    if roles == {"controller"}:
        listeners = ()
    if "controller" in roles and len(voters) > 1 and not controller_listeners:
        raise OperatorError(
            f"controller.quorum.voters names {len(voters)} voters, but this one has no listener for them",
            f"Add one of controller.listener.names ({', '.join(names_in_order)}) to `listeners`.",
        )
    if "inter.broker.listener.name" in raw and "security.inter.broker.protocol" in raw:
        raise OperatorError(
            "inter.broker.listener.name and security.inter.broker.protocol are both set",
            "Remove the second: the listener's protocol is in listener.security.protocol.map.",
        )
    log_dirs = tuple(Path(item).expanduser().absolute() for item in items("log.dirs") or items("log.dir"))
    if not log_dirs or len(set(log_dirs)) != len(log_dirs):
        raise OperatorError("log.dirs must name at least one directory, without duplicates")
    try:
        cordoned_dirs(",".join(items(CORDONED)), log_dirs)
    except PeerError as error:
        raise OperatorError(error.message, f"Correct {CORDONED}.") from error
    metadata_dir = value("metadata.log.dir")
    check_relations(raw)
    return cls(
        raw=MappingProxyType(raw),
        origins=MappingProxyType(origins),
        warnings=tuple(warnings),
        node_id=node_id,
        process_roles=roles,
        listeners=listeners,
        controller_listeners=controller_listeners,
        advertised_listeners=_advertised(items("advertised.listeners"), listeners, protocols, controller_names),
        log_dirs=log_dirs,
        metadata_log_dir=Path(str(metadata_dir)).expanduser().absolute() if metadata_dir else log_dirs[0],
        rack=str(rack) if (rack := value("broker.rack")) else None,
        controller_listener_names=names_in_order,
        advertised_controller_listeners=_advertised_controllers(
            items("advertised.listeners"), controller_listeners, protocols
        ),
        quorum_voters=voters,
        quorum_bootstrap_servers=servers,
        protocols=MappingProxyType(protocols),
    )


def _text(raw: Mapping[str, str], name: str) -> str | None:
    default = ALL_CONFIGS[name].default
    return raw.get(name, default if isinstance(default, str) else _ALWAYS.get(name))


def _node_id(raw: Mapping[str, str]) -> int:
    node_id, broker_id = raw.get("node.id"), raw.get("broker.id")
    if node_id is not None and broker_id is not None and int(node_id) != int(broker_id):
        raise OperatorError(f"node.id={node_id} and broker.id={broker_id} differ", "Remove broker.id.")
    chosen = int(node_id or broker_id or _ALWAYS["node.id"])
    if chosen < 0:
        raise OperatorError(f"node.id must not be negative, but is {chosen}", "Set node.id to 0 or more.")
    return chosen


def _advertised_controllers(
    items: tuple[str, ...], controllers: tuple[ListenerConfig, ...], protocols: Mapping[str, str]
) -> tuple[ListenerConfig, ...]:
    """The addresses of this controller for other nodes: advertised, else its listeners; "" is resolved to this host."""
    if not controllers:
        return ()
    advertised = {one.name: one for one in parse_listeners("advertised.listeners", items, protocols)} if items else {}
    found = [advertised.get(one.name, one) for one in controllers]
    open_hosts = [one for one in found if not one.host or is_any_address(one.host)]
    host = own_host_name() if open_hosts else ""
    return tuple(one._replace(host=host) if one in open_hosts else one for one in found)


def _advertised(
    items: tuple[str, ...],
    listeners: tuple[ListenerConfig, ...],
    protocols: Mapping[str, str],
    controller_names: set[str],
) -> tuple[ListenerConfig, ...]:
    advertised = parse_listeners("advertised.listeners", items, protocols) if items else listeners
    advertised = tuple(one for one in advertised if one.name not in controller_names)
    known = {one.name for one in listeners}
    for one in advertised:
        if one.name not in known:
            raise OperatorError(f"advertised.listeners contains {one}, but listeners has no {one.name}")
        if is_any_address(one.host):
            raise OperatorError(
                f"advertised.listeners must not use the wildcard address {one.host}",
                "Set advertised.listeners to an address that clients can reach, or clear the host in `listeners`.",
            )
    if all(one.host for one in advertised):
        return advertised
    host = own_host_name()
    return tuple(one if one.host else one._replace(host=host) for one in advertised)


def own_host_name() -> str:
    """The host name of this machine; `localhost` if it cannot be resolved."""
    import socket

    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return "localhost"
    return name


def check_relations(raw: Mapping[str, str]) -> None:
    """Check values that depend on each other; `raw` has the set values. Raises OperatorError."""

    def number(name: str) -> int | None:
        found = parse_type(name, ConfigType.LONG, _text(raw, name))
        return found if isinstance(found, int) else None

    for name in ("log.retention.ms", "log.retention.minutes", "log.retention.hours"):
        if (retention := number(name)) is not None and (retention == 0 or retention < -1):
            raise OperatorError(f"{name}={retention}: retention must be -1 (unlimited) or at least 1")
    for shorter, longer in (
        ("replica.fetch.wait.max.ms", "replica.lag.time.max.ms"),
        ("replica.fetch.wait.max.ms", "replica.socket.timeout.ms"),
        ("broker.heartbeat.interval.ms", "broker.session.timeout.ms"),
        ("group.min.session.timeout.ms", "group.max.session.timeout.ms"),
    ):
        low, high = number(shorter), number(longer)
        if low is not None and high is not None and low > high:
            raise OperatorError(f"{shorter}={low} must not exceed {longer}={high}")
    queued, largest = number("queued.max.request.bytes"), number("socket.request.max.bytes")
    if queued is not None and largest is not None and 0 < queued < largest:
        raise OperatorError(
            f"queued.max.request.bytes={queued} must be -1 or at least socket.request.max.bytes={largest}"
        )
    check_connections(raw)
    try:
        validate_topic_configs({}, topic_defaults(raw))
    except InvalidConfig as error:
        raise OperatorError(f"The defaults for topics contradict each other: {error.message}") from error
