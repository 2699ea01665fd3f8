"""Definitions of config keys: type, default, bounds, and the conversion between text and value.

Owns parsing and validation of one value. Knows no particular key (see `config.topic`, `config.broker`, `config.group`).

Text is parsed as in Kafka: surrounding blanks are ignored, numbers may have a sign but neither underscores nor another
base, lists are split at commas. The messages of `InvalidConfig` are those of Kafka 4.3.1, because clients and their
tests depend on them. Rules: since_4_0.md "Defaults", controller.md C36; facts observed on a running 4.3.1.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import Final, Protocol, TypeAlias

from fenceline.errors import ErrorCode, PeerError

ConfigValue: TypeAlias = bool | int | float | str | tuple[str, ...] | None
"""A parsed value: LIST is a tuple, CLASS and PASSWORD are str; None is "not set"."""


class ConfigType(IntEnum):
    """Types with the numbers they have in DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Importance(Enum):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class UpdateMode(Enum):
    """How a running broker accepts a new value of a broker key."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


class InvalidConfig(PeerError):
    """An invalid config (error 40)."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID_CONFIG, message)


def invalid_value(name: str, shown: object, reason: str) -> InvalidConfig:
    """The error for one invalid value, with Kafka's message."""
    return InvalidConfig(f"Invalid value {shown} for configuration {name}: {reason}")


class Validator(Protocol):
    """Checks a parsed value; raises InvalidConfig."""

    def check(self, name: str, value: ConfigValue) -> None: ...


@dataclass(frozen=True, slots=True)
class Range:
    """A number with inclusive bounds; None is unbounded."""

    minimum: int | float | None = None
    maximum: int | float | None = None

    def check(self, name: str, value: ConfigValue) -> None:
        if value is None:
            raise invalid_value(name, "null", "Value must be non-null")
        assert isinstance(value, (int, float)), f"{name} is no number"
        if self.minimum is not None and value < self.minimum:
            raise invalid_value(name, render(value), f"Value must be at least {self.minimum}")
        if self.maximum is not None and value > self.maximum:
            raise invalid_value(name, render(value), f"Value must be no more than {self.maximum}")


@dataclass(frozen=True, slots=True)
class RangeOr:
    """A number within bounds, or one special value outside of them."""

    minimum: int
    maximum: int
    special: int

    def check(self, name: str, value: ConfigValue) -> None:
        assert isinstance(value, int), f"{name} is no integer"
        if not (self.minimum <= value <= self.maximum or value == self.special):
            raise invalid_value(
                name, value, f"Value must be between {self.minimum} and {self.maximum} or equal to {self.special}"
            )


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of a set of words."""

    words: tuple[str, ...]
    ignore_case: bool = False

    def check(self, name: str, value: ConfigValue) -> None:
        shown = ", ".join(self.words)
        if self.ignore_case:
            if value is None or str(value).upper() not in self.words:
                raise invalid_value(name, value, f"String must be one of (case insensitive): {shown}")
        elif value not in self.words:
            raise invalid_value(name, value, f"String must be one of: {shown}")


@dataclass(frozen=True, slots=True)
class ListRules:
    """The allowed items of a list: only some words, never blank items, an empty list if allowed."""

    words: tuple[str, ...] = ()
    allow_empty: bool = True

    def check(self, name: str, value: ConfigValue) -> None:
        if value is None:
            return
        assert isinstance(value, tuple), f"{name} is no list"
        if not value and not self.allow_empty:
            raise InvalidConfig(f"Configuration '{name}' must not be empty. Valid values include: any non-empty value")
        for item in value:
            if not item:
                raise InvalidConfig(f"Configuration '{name}' values must not be empty.")
            if self.words and item not in self.words:
                raise invalid_value(name, item, f"String must be one of: {', '.join(self.words)}")


@dataclass(frozen=True, slots=True)
class NonEmpty:
    """A string that, when set, has at least one character."""

    def check(self, name: str, value: ConfigValue) -> None:
        if value == "":
            raise invalid_value(name, "", "String must be non-empty")


@dataclass(frozen=True, slots=True)
class Pattern:
    """A list of items of one shape, or the lone item `*`."""

    item: re.Pattern[str]
    form: str

    def check(self, name: str, value: ConfigValue) -> None:
        items = value if isinstance(value, tuple) else ()
        if items == ("*",) or all(self.item.fullmatch(item) for item in items):
            return
        reason = f"{name} must be the literal '*' or a list of replicas in the following format: {self.form}"
        raise invalid_value(name, f"[{', '.join(items)}]", reason)


class Required(Enum):
    """Marks a key without default."""

    REQUIRED = "required"


REQUIRED: Final = Required.REQUIRED


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One config key as Kafka 4.3.1 defines it, with Fenceline's support for it.

    `default` is text as in a properties file (None: not set). `unsupported` is the reason why the node does not start
    with another value than the default; `inert` marks keys that are accepted and returned but have no effect.
    """

    name: str
    type: ConfigType
    default: str | Required | None
    doc: str
    importance: Importance = Importance.MEDIUM
    validator: Validator | None = None
    update_mode: UpdateMode = UpdateMode.READ_ONLY
    internal: bool = False
    inert: bool = False
    unsupported: str | None = None

    @property
    def is_sensitive(self) -> bool:
        """Its value is never returned to a client."""
        return self.type is ConfigType.PASSWORD

    @property
    def default_value(self) -> ConfigValue:
        """The parsed default; None for a key without one."""
        return None if isinstance(self.default, Required) else parse_type(self.name, self.type, self.default)

    def parse(self, text: str | None) -> ConfigValue:
        """Text to a checked value. Raises InvalidConfig."""
        value = parse_type(self.name, self.type, text)
        if self.validator is not None:
            self.validator.check(self.name, value)
        if isinstance(value, tuple) and isinstance(self.validator, ListRules):
            return tuple(dict.fromkeys(value))
        return value


def table(keys: Iterable[ConfigKey]) -> Mapping[str, ConfigKey]:
    """Keys by name, in the order given."""
    return MappingProxyType({key.name: key for key in keys})


# --- text to value and back ---------------------------------------------------------------------------------------

_BLANK: Final = "".join(map(chr, range(0x21)))
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_DOUBLE: Final = re.compile(r"[+-]?(NaN|Infinity|([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[fFdD]?)")
_COMMA: Final = re.compile(r"\s*,\s*")
_BITS: Final = {ConfigType.SHORT: 16, ConfigType.INT: 32, ConfigType.LONG: 64}


def parse_type(name: str, config_type: ConfigType, text: str | None) -> ConfigValue:
    """Parse text as a value of a type, without checking bounds. Raises InvalidConfig."""
    if text is None:
        return None
    trimmed = text.strip(_BLANK)
    match config_type:
        case ConfigType.BOOLEAN:
            if (word := trimmed.lower()) not in ("true", "false"):
                raise invalid_value(name, text, "Expected value to be either true or false")
            return word == "true"
        case ConfigType.INT | ConfigType.SHORT | ConfigType.LONG:
            bound = 1 << (_BITS[config_type] - 1)
            if _INTEGER.fullmatch(trimmed) is None or not -bound <= int(trimmed) < bound:
                raise invalid_value(name, text, f"Not a number of type {config_type.name}")
            return int(trimmed)
        case ConfigType.DOUBLE:
            if _DOUBLE.fullmatch(trimmed) is None:
                raise invalid_value(name, text, "Not a number of type DOUBLE")
            return float(trimmed if trimmed.endswith(("NaN", "Infinity")) else trimmed.rstrip("fFdD"))
        case ConfigType.LIST:
            return tuple(_COMMA.split(trimmed)) if trimmed else ()
        case ConfigType.STRING | ConfigType.CLASS | ConfigType.PASSWORD:
            return trimmed


def render(value: ConfigValue) -> str | None:
    """A value as DescribeConfigs returns it."""
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case float():
            return _render_double(value)
        case tuple():
            return ",".join(value)
        case _:
            return str(value)


def _render_double(value: float) -> str:
    """As the JVM prints a double: plain between 10^-3 and 10^7, else one digit, point, digits, E, exponent."""
    if math.isnan(value) or math.isinf(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    from decimal import Decimal

    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    assert isinstance(exponent, int), "finite"
    figures = "".join(map(str, digits)).rstrip("0")
    power = len(digits) + exponent - 1
    return f"{'-' if sign else ''}{figures[0]}.{figures[1:] or '0'}E{power}"
