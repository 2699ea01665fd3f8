"""Client configuration with Kafka's and librdkafka's property names.

Owns names, defaults, parsing and validation. Keyword arguments may use underscores (`linger_ms=5`). A known property
with an unsupported value is rejected with the reason; an unknown one is logged and ignored, as in Kafka's clients.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from fenceline.config.providers import PROVIDERS, resolve
from fenceline.errors import OperatorError
from fenceline.sasl.jaas import OAUTH_MODULE, PLAIN_MODULE, SCRAM_MODULE, parse_jaas

_log = logging.getLogger("fenceline.client")
_BY_DURATION: Final = "by_duration:"


class Property(NamedTuple):
    default: Any
    parse: Callable[[Any], Any]


def _integer(low: int, high: int = 2**31 - 1) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        number = int(value)
        if not low <= number <= high:
            raise ValueError(f"must be between {low} and {high}")
        return number

    return parse


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    match str(value).strip().lower():
        case "true" | "1" | "yes" | "on":
            return True
        case "false" | "0" | "no" | "off":
            return False
    raise ValueError("must be true or false")


def _one_of(*allowed: str, fold: bool = True) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        text = str(value).strip()
        text = text.lower() if fold else text.upper()
        if text not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}")
        return text

    return parse


def _acks(value: Any) -> int:
    text = str(value).strip().lower()
    if text in ("all", "-1"):
        return -1
    if text in ("0", "1"):
        return int(text)
    raise ValueError("must be all, 1 or 0")


def _text(value: Any) -> str:
    return str(value)


def _name(value: Any) -> str:
    text = str(value)
    if not text:
        raise ValueError("must not be empty")
    return text


def _names(value: Any) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else list(value)
    return tuple(str(part).strip() for part in parts if str(part).strip())


def _callable(value: Any) -> Any:
    if not callable(value):
        raise ValueError("must be a function")
    return value


def _extensions(value: Any) -> dict[str, str]:
    """`key=value,key=value`, as librdkafka has it, or a mapping."""
    if isinstance(value, Mapping):
        return {str(key): str(each) for key, each in value.items()}
    found = {}
    for part in _names(value):
        key, separator, each = part.partition("=")
        if not separator:
            raise ValueError("must have the form key=value,key=value")
        found[key] = each
    return found


def _login_handler(value: Any) -> str:
    name = str(value)
    if name.rpartition(".")[2] not in ("OAuthBearerLoginCallbackHandler", ""):
        raise ValueError("is a Java class; pass the function oauth_cb, which returns tokens")
    return name


_DURATION: Final = re.compile(
    r"P(?!$)(?:(\d+)D)?(?:T(?=\d)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:[.,](\d{1,9}))?S)?)?", re.IGNORECASE
)


def _duration_ms(text: str) -> int:
    """An ISO 8601 duration PnDTnHnMn.nS, as in Java's clients."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(
            f"must have the form by_duration:PnDTnHnMn.nS, for example by_duration:PT1H; {text!r} is not that"
        )
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups()[:4])
    fraction_ms = int((found[5] or "").ljust(9, "0")[:3])
    return (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000 + fraction_ms


def _reset(value: Any) -> str | int:
    """earliest, latest or none; for by_duration (KIP-1106) the duration in ms."""
    text = str(value).strip()
    if text.lower().startswith(_BY_DURATION):
        return _duration_ms(text[len(_BY_DURATION) :])
    text = text.lower()
    text = {"smallest": "earliest", "beginning": "earliest", "largest": "latest", "end": "latest", "error": "none"}.get(
        text, text
    )
    if text not in ("earliest", "latest", "none"):
        raise ValueError("must be earliest, latest, none or by_duration:PnDTnHnMn.nS")
    return text


def _isolation(value: Any) -> str:
    return _one_of("read_uncommitted", "read_committed")(value)


def _group_protocol(value: Any) -> str:
    return _one_of("classic", "consumer")(value)


def _on_truncation(value: Any) -> Any:
    if callable(value):
        return value
    text = str(value).strip().lower()
    if text == "callback":
        raise ValueError("pass the function itself: on_truncation=my_function")
    if text not in ("fail", "rewind", "latest", "reset"):
        raise ValueError("must be fail, rewind, latest, reset or a function")
    return text


_COMMON: Final[dict[str, Property]] = {
    "bootstrap.servers": Property((), _names),
    "client.id": Property("fenceline", _text),
    "client.rack": Property("", _text),
    "request.timeout.ms": Property(30_000, _integer(1)),
    "default.api.timeout.ms": Property(60_000, _integer(1)),
    "metadata.max.age.ms": Property(300_000, _integer(1)),
    "retry.backoff.ms": Property(100, _integer(0)),
    "retry.backoff.max.ms": Property(1_000, _integer(0)),
    "reconnect.backoff.ms": Property(50, _integer(0)),
    "reconnect.backoff.max.ms": Property(1_000, _integer(0)),
    "socket.connection.setup.timeout.ms": Property(10_000, _integer(1)),
    "send.buffer.bytes": Property(-1, _integer(-1)),
    "receive.buffer.bytes": Property(-1, _integer(-1)),
    "receive.message.max.bytes": Property(1_000_000_000, _integer(1_000)),
    "security.protocol": Property("PLAINTEXT", _one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL", fold=False)),
    "ssl.ca.location": Property(None, _text),
    "ssl.truststore.type": Property("JKS", _text),
    "ssl.truststore.location": Property(None, _text),
    "ssl.truststore.password": Property(None, _text),
    "ssl.truststore.certificates": Property(None, _text),
    "ssl.keystore.type": Property("JKS", _text),
    "ssl.keystore.location": Property(None, _text),
    "ssl.keystore.password": Property(None, _text),
    "ssl.keystore.key": Property(None, _text),
    "ssl.keystore.certificate.chain": Property(None, _text),
    "ssl.enabled.protocols": Property("TLSv1.2,TLSv1.3", _text),
    "ssl.cipher.suites": Property(None, _text),
    "ssl.certificate.location": Property(None, _text),
    "ssl.key.location": Property(None, _text),
    "ssl.key.password": Property(None, _text),
    "ssl.endpoint.identification.algorithm": Property("https", _one_of("https", "none", "")),
    "sasl.mechanism": Property("PLAIN", _one_of("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", fold=False)),
    "sasl.username": Property(None, _text),
    "sasl.password": Property(None, _text),
    "sasl.tokenauth": Property(False, _boolean),
    "sasl.login.callback.handler.class": Property(None, _login_handler),
    "sasl.oauthbearer.method": Property("default", _one_of("default", "oidc")),
    "sasl.oauthbearer.token.endpoint.url": Property(None, _text),
    "sasl.oauthbearer.client.id": Property(None, _text),
    "sasl.oauthbearer.client.secret": Property(None, _text),
    "sasl.oauthbearer.scope": Property(None, _text),
    "sasl.oauthbearer.extensions": Property(MappingProxyType({}), _extensions),
    "sasl.oauthbearer.config": Property("", _text),
    "oauth.cb": Property(None, _callable),
    "https.ca.location": Property(None, _text),
    "allow.auto.create.topics": Property(True, _boolean),
}
_PRODUCER: Final[dict[str, Property]] = {
    "acks": Property(-1, _acks),
    "enable.idempotence": Property(None, _boolean),
    "linger.ms": Property(5, _integer(0)),
    "batch.size": Property(131_072, _integer(0)),
    "buffer.memory": Property(64 * 1024 * 1024, _integer(1)),
    "max.request.size": Property(1_048_576, _integer(1)),
    "max.block.ms": Property(60_000, _integer(0)),
    "delivery.timeout.ms": Property(120_000, _integer(0)),
    "max.in.flight.requests.per.connection": Property(5, _integer(1)),
    "retries": Property(2**31 - 1, _integer(0)),
    "compression.type": Property("none", _one_of("none", "gzip", "snappy", "lz4", "zstd")),
    "compression.level": Property(None, _integer(-131_072)),
    "partitioner": Property(
        "default", _one_of("default", "murmur2", "murmur2_random", "consistent_murmur2", "round_robin")
    ),
    "transactional.id": Property(None, _name),
    "transaction.timeout.ms": Property(60_000, _integer(1)),
}
_CONSUMER: Final[dict[str, Property]] = {
    "group.id": Property(None, _text),
    "group.instance.id": Property(None, _text),
    "group.protocol": Property("classic", _group_protocol),
    "group.remote.assignor": Property(None, _name),
    "session.timeout.ms": Property(45_000, _integer(1)),
    "heartbeat.interval.ms": Property(3_000, _integer(1)),
    "max.poll.interval.ms": Property(300_000, _integer(1)),
    "max.poll.records": Property(500, _integer(1)),
    "partition.assignment.strategy": Property(("range", "cooperative-sticky"), _names),
    "enable.auto.commit": Property(True, _boolean),
    "auto.commit.interval.ms": Property(5_000, _integer(1)),
    "auto.offset.reset": Property("latest", _reset),
    "on.truncation": Property("fail", _on_truncation),
    "truncation.evidence.timeout.ms": Property(500, _integer(0)),
    "isolation.level": Property("read_uncommitted", _isolation),
    "fetch.min.bytes": Property(1, _integer(0)),
    "fetch.max.bytes": Property(50 * 1024 * 1024, _integer(0)),
    "fetch.max.wait.ms": Property(500, _integer(0)),
    "max.partition.fetch.bytes": Property(1024 * 1024, _integer(0)),
    "queued.max.bytes": Property(64 * 1024 * 1024, _integer(1024)),
    "check.crcs": Property(True, _boolean),
    "exclude.internal.topics": Property(True, _boolean),
}

_ALIASES: Final[Mapping[str, str]] = {
    "metadata.broker.list": "bootstrap.servers",
    "socket.timeout.ms": "request.timeout.ms",
    "topic.metadata.refresh.interval.ms": "metadata.max.age.ms",
    "socket.send.buffer.bytes": "send.buffer.bytes",
    "socket.receive.buffer.bytes": "receive.buffer.bytes",
    "sasl.mechanisms": "sasl.mechanism",
    "sasl.oauthbearer.client.credentials.client.id": "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.credentials.client.secret": "sasl.oauthbearer.client.secret",
    "request.required.acks": "acks",
    "queue.buffering.max.ms": "linger.ms",
    "compression.codec": "compression.type",
    "message.max.bytes": "max.request.size",
    "message.timeout.ms": "delivery.timeout.ms",
    "delivery.timeout": "delivery.timeout.ms",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "message.send.max.retries": "retries",
    "fetch.wait.max.ms": "fetch.max.wait.ms",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
}
_JAAS_OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    PLAIN_MODULE: {"username": "sasl.username", "password": "sasl.password"},
    SCRAM_MODULE: {"username": "sasl.username", "password": "sasl.password", "tokenauth": "sasl.tokenauth"},
    OAUTH_MODULE: {
        "clientId": "sasl.oauthbearer.client.id",
        "clientSecret": "sasl.oauthbearer.client.secret",
        "scope": "sasl.oauthbearer.scope",
    },
}
"""Options of login modules that are properties here."""
_OF_CLIENT_CREDENTIALS: Final = (
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.secret",
)
_SECRETS: Final = ("password", "secret", "jaas", "ssl.keystore.key", "oauth")
_JAVA_ONLY: Final[Mapping[str, str]] = {
    "key.serializer": "keys are bytes: encode them before send",
    "value.serializer": "values are bytes: encode them before send",
    "key.deserializer": "keys are bytes: decode them after poll",
    "value.deserializer": "values are bytes: decode them after poll",
    "interceptor.classes": "interceptors are not supported",
}
_KINDS: Final[Mapping[str, Mapping[str, Property]]] = {
    "producer": {**_COMMON, **_PRODUCER},
    "consumer": {**_COMMON, **_CONSUMER},
    "admin": {
        **_COMMON,
        "bootstrap.controllers": Property((), _names),
        "request.timeout.ms": Property(30_000, _integer(1)),
    },
    "reader": {
        **_COMMON,
        **_CONSUMER,
        # A reader reads known ranges: larger fetches cost less per row, and queued.max.bytes bounds the memory.
        "max.partition.fetch.bytes": Property(4 * 1024 * 1024, _integer(0)),
        "queued.max.bytes": Property(32 * 1024 * 1024, _integer(1024)),
    },
}


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Parsed settings of one client. `values` has every property of its kind by Kafka's name."""

    kind: str
    bootstrap: tuple[tuple[str, int], ...]
    values: Mapping[str, Any] = field(repr=False)

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    @property
    def asks_controllers(self) -> bool:
        """Whether `bootstrap` has listeners of controllers (KIP-919), not of brokers."""
        return bool(self.values.get("bootstrap.controllers"))

    @property
    def reads_committed(self) -> bool:
        """isolation.level=read_committed."""
        return bool(self.values["isolation.level"] == "read_committed")

    @classmethod
    def parse(
        cls, kind: str, bootstrap: str | Sequence[str] | Mapping[str, Any] | None, settings: Mapping[str, Any]
    ) -> ClientConfig:
        """Settings for `kind` (producer, consumer, admin, reader).

        `bootstrap` is "host:port,host:port", a list of addresses, or a mapping of all settings as in confluent-kafka.
        Raises OperatorError for an invalid value.
        """
        merged: dict[str, Any] = {}
        if isinstance(bootstrap, Mapping):
            merged.update(bootstrap)
        elif bootstrap is not None:
            merged["bootstrap.servers"] = bootstrap
        merged.update(settings)
        merged = _resolved(merged)
        known = _KINDS[kind]
        values: dict[str, Any] = {name: prop.default for name, prop in known.items()}
        elsewhere = {name for other in _KINDS.values() for name in other}
        for spelled, value in merged.items():
            dotted = _dotted(spelled)
            name = _ALIASES.get(dotted, dotted)
            if name == "sasl.jaas.config":
                values.update(_jaas(str(value)))
                continue
            if name in _JAVA_ONLY:
                raise OperatorError(f"The property {spelled} exists in Java's clients only", _JAVA_ONLY[name])
            prop = known.get(name)
            if prop is None:
                if name not in elsewhere:
                    _log.warning("unknown client property %s is ignored", spelled)
                continue
            if value is None:
                continue
            try:
                values[name] = prop.parse(value)
            except (TypeError, ValueError) as error:
                shown = "..." if any(part in name for part in _SECRETS) else repr(value)
                raise OperatorError(f"The property {spelled}={shown} cannot be used", str(error)) from None
        _check_combinations(kind, values, merged)
        return cls(kind, addresses(values.get("bootstrap.controllers") or values["bootstrap.servers"]), values)


def _dotted(spelled: str) -> str:
    """Keyword arguments have underscores in place of dots."""
    return spelled if "." in spelled else spelled.replace("_", ".")


def _resolved(merged: Mapping[str, Any]) -> dict[str, Any]:
    """Variables of `config.providers` replaced, which Java's clients have as well. Raises OperatorError."""
    texts = {_dotted(spelled): value for spelled, value in merged.items() if isinstance(value, str)}
    if not texts.get(PROVIDERS):
        return dict(merged)
    found = resolve(texts, os.environ)
    return {
        spelled: found[_dotted(spelled)] if isinstance(value, str) else value
        for spelled, value in merged.items()
        if not _dotted(spelled).startswith(PROVIDERS)
    }


def addresses(servers: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """Hosts and ports of bootstrap servers, in the notation of Kafka's clients. Raises OperatorError for an invalid
    address, also for one without a port: brokers have no default port."""
    found = []
    for server in servers:
        text = server.split("://", 1)[-1]
        host, colon, port = text.rpartition(":")
        if not colon or text.endswith("]"):
            raise OperatorError(
                f"{server!r} is not the address of a broker: it has no port",
                f"Write HOST:PORT, for example {text or 'localhost'}:9092.",
            )
        if not host.strip("[]") or not port.isdigit() or int(port) > 65_535:
            raise OperatorError(
                f"{server!r} is not the address of a broker",
                "Write HOST:PORT, for example localhost:9092 or [::1]:9092.",
            )
        found.append((host.strip("[]"), int(port)))
    if not found:
        raise OperatorError("No bootstrap servers are given", 'Pass bootstrap servers, for example "localhost:9092".')
    return tuple(found)


def _check_combinations(kind: str, values: dict[str, Any], given: Mapping[str, Any]) -> None:
    if kind == "producer":
        if values["enable.idempotence"] is None:
            # As in Kafka's producer: enabled unless another setting conflicts with it.
            values["enable.idempotence"] = (
                values["acks"] == -1 and values["max.in.flight.requests.per.connection"] <= 5 and values["retries"] > 0
            )
        elif values["enable.idempotence"]:
            if values["acks"] != -1:
                raise OperatorError("enable.idempotence=true requires acks=all", "Remove acks, or disable idempotence.")
            if values["max.in.flight.requests.per.connection"] > 5:
                raise OperatorError(
                    "enable.idempotence=true allows at most 5 requests in flight per connection",
                    "Lower max.in.flight.requests.per.connection to 5.",
                )
        if values["transactional.id"] is not None:
            _check_transactional(values)
    if values.get("bootstrap.controllers") and values["bootstrap.servers"]:
        raise OperatorError("bootstrap.servers and bootstrap.controllers are mutually exclusive", "Set one of the two.")
    if kind == "consumer" and values["group.protocol"] == "consumer":
        _check_consumer_protocol(given)
    if kind == "consumer" and values["heartbeat.interval.ms"] >= values["session.timeout.ms"]:
        raise OperatorError(
            "heartbeat.interval.ms must be lower than session.timeout.ms", "Use a third of session.timeout.ms."
        )
    if "SASL" in values["security.protocol"]:
        _check_login(values)


def _check_login(values: Mapping[str, Any]) -> None:
    mechanism = values["sasl.mechanism"]
    if mechanism == "OAUTHBEARER":
        missing = [name for name in _OF_CLIENT_CREDENTIALS if not values[name]]
        if missing and values["oauth.cb"] is None:
            raise OperatorError(
                f"sasl.mechanism=OAUTHBEARER requires tokens; {', '.join(missing)} not set",
                "Set these, or pass the function oauth_cb, which returns a token and its expiry.",
            )
        return
    if values["sasl.username"] is None or values["sasl.password"] is None:
        raise OperatorError(
            f"security.protocol={values['security.protocol']} requires a user", "Set sasl.username and sasl.password."
        )
    if values["sasl.tokenauth"] and not mechanism.startswith("SCRAM"):
        raise OperatorError(
            f"sasl.tokenauth=true: delegation tokens cannot log in with {mechanism}",
            "Set sasl.mechanism to SCRAM-SHA-256 or SCRAM-SHA-512.",
        )


def _check_consumer_protocol(given: Mapping[str, Any]) -> None:
    for spelled in given:
        name = _dotted(spelled)
        if name in ("session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy"):
            remedy = "group.remote.assignor chooses one of the brokers' assignors"
            if name != "partition.assignment.strategy":
                remedy = f"set consumer.{name} of the group on the brokers"
            raise OperatorError(f"{name} has no meaning with group.protocol=consumer", f"Remove it; {remedy}.")


def _check_transactional(values: Mapping[str, Any]) -> None:
    if not values["enable.idempotence"]:
        raise OperatorError(
            "transactional.id requires an idempotent producer",
            "Use acks=all, retries above 0, at most 5 requests in flight, and do not disable enable.idempotence.",
        )
    if values["transaction.timeout.ms"] < values["linger.ms"]:
        raise OperatorError(
            "transaction.timeout.ms is shorter than linger.ms: a transaction would end before its records are sent",
            "Raise transaction.timeout.ms, or lower linger.ms.",
        )


def _jaas(text: str) -> dict[str, Any]:
    """The credentials of Java's `sasl.jaas.config`."""
    module = parse_jaas(text, "sasl.jaas.config")
    names = _JAAS_OPTIONS.get(module.name)
    if names is None:
        raise OperatorError(
            f"sasl.jaas.config names the unsupported login module {module.name}",
            f"Use {', '.join(_JAAS_OPTIONS)}.",
        )
    found: dict[str, Any] = {name: module.options[option] for option, name in names.items() if option in module.options}
    if "sasl.tokenauth" in found:
        found["sasl.tokenauth"] = found["sasl.tokenauth"].lower() == "true"
    if module.name == OAUTH_MODULE:
        prefix = "extension_"
        extensions = {
            key.removeprefix(prefix): value for key, value in module.options.items() if key.startswith(prefix)
        }
        found |= {"sasl.oauthbearer.extensions": extensions} if extensions else {}
    return found
