"""Parses the tables of broker keys, two lines per key: the facts, then a description.

    name type default importance [bounds] [per-broker|cluster-wide] [internal] [inert|refused:reason]

`null` is "not set", `""` the empty text, `!` no default. Bounds: `>=1`, `1..9`, `1..9|-1` (or that value),
`in:a,b` (one of), `in~:A,B` (case-insensitive), `list`, `list:a,b`, `nonempty`. `inert` keys are accepted and returned
but have no effect; `refused` keys must keep their default, for the reason in `REASONS`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from fenceline.config.definitions import (
    REQUIRED,
    ConfigKey,
    ConfigType,
    Importance,
    ListRules,
    NonEmpty,
    OneOf,
    Range,
    RangeOr,
    UpdateMode,
    Validator,
)

REASONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "tiered": "tiered storage is not implemented",
        "class": "JVM plug-ins cannot be loaded",
        "unstable": "only released versions are supported",
        "2pc": "two-phase commit of transactions is not implemented",
    }
)
"""Why a key must keep its default."""

_RANGE: Final = re.compile(r"(?:>=(?P<least>-?[\d.]+)|(?P<low>-?[\d.]+)\.\.(?P<high>-?[\d.]+)(?:\|(?P<other>-?\d+))?)")
_UPDATE_MODES: Final = {mode.value: mode for mode in (UpdateMode.PER_BROKER, UpdateMode.CLUSTER_WIDE)}


def read_table(text: str) -> Iterator[ConfigKey]:
    """The keys of a table, in order."""
    lines = text.strip("\n").split("\n")
    assert len(lines) % 2 == 0, "a key is two lines"
    for facts, sentence in zip(lines[::2], lines[1::2], strict=True):
        yield _read_key(facts.split(), sentence.strip())


def _read_key(words: list[str], doc: str) -> ConfigKey:
    name, config_type, default, importance, *flags = words
    validator: Validator | None = None
    update_mode, internal, inert, unsupported = UpdateMode.READ_ONLY, False, False, None
    for flag in flags:
        if flag in _UPDATE_MODES:
            update_mode = _UPDATE_MODES[flag]
        elif flag == "internal":
            internal = True
        elif flag == "inert":
            inert = True
        elif flag.startswith("refused:"):
            unsupported = REASONS[flag.removeprefix("refused:")]
        else:
            validator = _read_bounds(flag)
    return ConfigKey(
        name,
        ConfigType[config_type.upper()],
        REQUIRED if default == "!" else None if default == "null" else "" if default == '""' else default,
        doc,
        Importance(importance),
        validator,
        update_mode,
        internal,
        inert,
        unsupported,
    )


def _read_bounds(text: str) -> Validator:
    kind, _, words = text.partition(":")
    match kind:
        case "in" | "in~":
            return OneOf(tuple(words.split(",")), ignore_case=kind == "in~")
        case "list":
            return ListRules(tuple(words.split(",")) if words else ())
        case "nonempty":
            return NonEmpty()
    found = _RANGE.fullmatch(text)
    assert found is not None, f"{text!r} is no bound"
    if found["least"] is not None:
        return Range(_number(found["least"]))
    if found["other"] is not None:
        return RangeOr(int(found["low"]), int(found["high"]), int(found["other"]))
    return Range(_number(found["low"]), _number(found["high"]))


def _number(text: str) -> int | float:
    return float(text) if "." in text else int(text)
