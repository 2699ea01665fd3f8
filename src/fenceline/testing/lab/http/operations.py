"""The routes and models that follow from the signatures of the Python API.

Owns the one table of what HTTP offers of faults, situations and waits: their public methods. A new method appears by
itself. Knows neither routes nor running clusters.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final, Literal, get_args, get_type_hints

from pydantic import BaseModel, Field, create_model

from fenceline.testing.lab.cluster import LabCluster
from fenceline.testing.lab.faults import ClusterFaults
from fenceline.testing.lab.http.json_values import (
    CHECKED_ONLY,
    STRICT,
    NoJsonForm,
    Wait,
    argument_of,
    bytes_view,
    view_of,
)
from fenceline.testing.lab.situations import Situations

NOT_FAULTS: Final = frozenset(
    {"active", "begin", "bootstrap_servers", "decide", "end", "forget_all", "links", "restored", "undo_all", "was_hit"}
)
"""Public names of `ClusterFaults` that inject nothing: for the cluster, or with routes of their own."""
NOT_OPTIONS: Final = frozenset({"data_dir", "port"})
"""Arguments of `LabCluster` that a client does not choose."""
_WAIT: Final = "wait_for_"
_EXAMPLES: Final[Mapping[str, Any]] = {
    "node": 1,
    "topic": "orders",
    "group": "billing",
    "api": "Produce",
    "error": "NOT_LEADER_OR_FOLLOWER",
    "share": 0.1,
    "delay_s": 0.2,
    "bytes_per_s": 10_000,
    "slower_s": 0.05,
    "by_s": 3600,
    "throttle_ms": 500,
    "times": 1,
    "lose": 20,
    "transactional_id": "payments-1",
    "offset": 100,
}
"""Values for examples, by argument."""
_SHOWN_OPTIONS: Final = ("topic", "times", "lose")
"""Optional arguments that examples have."""


@dataclass(frozen=True, slots=True)
class LabOperation:
    """A method of the Python API as a request. `returns`: the type of its answer; `left_out`: arguments without a form
    in JSON."""

    name: str
    doc: str
    model: type[BaseModel]
    returns: Any
    left_out: tuple[str, ...]
    method: Callable[..., Any]
    example: Mapping[str, Any]

    @property
    def summary(self) -> str:
        """The first sentence of the docstring."""
        return re.split(r"(?<=[.:])\s", self.doc, maxsplit=1)[0]

    def call(self, owner: object, arguments: BaseModel) -> Any:
        """Call the method of `owner`. Arguments that were not given have the defaults of the method."""
        given = {name: getattr(arguments, name) for name in arguments.model_fields_set if name != "kind"}
        return self.method(owner, **given)


def fault_operations() -> dict[str, LabOperation]:
    """By kind; the models have a field `kind`."""
    return {
        name: _operation("Fault", name, method, kind=True)
        for name, method in _methods(ClusterFaults).items()
        if name not in NOT_FAULTS
    }


def situation_operations() -> dict[str, LabOperation]:
    """By name."""
    return {name: _operation("Situation", name, method) for name, method in _methods(Situations).items()}


def wait_operations() -> dict[str, LabOperation]:
    """By what is waited for."""
    return {
        name.removeprefix(_WAIT): _operation("Wait", name.removeprefix(_WAIT), method)
        for name, method in _methods(LabCluster).items()
        if name.startswith(_WAIT)
    }


def create_topic_operation() -> LabOperation:
    """`KafkaHelpers.create_topic`, whose docstring has the defaults."""
    method = next(vars(each)["create_topic"] for each in LabCluster.__mro__[1:] if "create_topic" in vars(each))
    return _operation("Topic", "create_topic", method)


def cluster_options() -> type[BaseModel]:
    """The arguments of `LabCluster` that a client may choose."""
    fields, _ = _fields(LabCluster.__init__, NOT_OPTIONS)
    return create_model("ClusterOptions", __config__=STRICT, **fields)


def _methods(owner: type) -> dict[str, Callable[..., Any]]:
    """The public methods of a class, in the order of its source."""
    found: dict[str, Callable[..., Any]] = {}
    for base in owner.__mro__:
        for name, member in vars(base).items():
            if inspect.isfunction(member) and not name.startswith("_"):
                found.setdefault(name, member)
    return found


def _operation(prefix: str, name: str, method: Callable[..., Any], *, kind: bool = False) -> LabOperation:
    fields, left_out = _fields(method)
    if kind:
        fields = {"kind": (Literal[name], ...), **fields}
    doc = inspect.cleandoc(method.__doc__ or "")
    example: dict[str, Any] = {"kind": name} if kind else {}
    for each, (_, default) in fields.items():
        if each in _EXAMPLES and (default is ... or each in _SHOWN_OPTIONS):
            example[each] = _EXAMPLES[each]
    model = create_model(
        f"{prefix}{name.title().replace('_', '')}",
        __config__={**STRICT, "json_schema_extra": {"examples": [example]}},
        __doc__=doc,
        **fields,
    )
    returns = _hints(method).get("return", type(None))
    return LabOperation(name, doc, model, view_of(returns), tuple(left_out), method, example)


def _fields(method: Callable[..., Any], without: Collection[str] = ()) -> tuple[dict[str, Any], list[str]]:
    """Types and defaults of the arguments, for a model, and the names of those without a form in JSON."""
    fields: dict[str, Any] = {}
    left_out: list[str] = []
    hints = _hints(method)
    for name, parameter in inspect.signature(method).parameters.items():
        if name == "self" or name in without:
            continue
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            (conditions,) = get_args(hints[name])
            for each, kind in get_type_hints(conditions, localns=dict(CHECKED_ONLY)).items():
                # Absent unless given, not null.
                _add(fields, left_out, each, kind, Field(default_factory=lambda: None))
        else:
            _add(fields, left_out, name, hints[name], _default(parameter.default))
    return fields, left_out


def _add(fields: dict[str, Any], left_out: list[str], name: str, kind: Any, default: Any) -> None:
    try:
        fields[name] = (Wait if name == "wait_s" else argument_of(kind), default)
    except NoJsonForm:
        left_out.append(name)


def _default(value: Any) -> Any:
    if value is inspect.Parameter.empty:
        return ...
    if isinstance(value, bytes):
        return Field(default_factory=lambda: value, json_schema_extra={"default": bytes_view(value)})
    return list(value) if isinstance(value, tuple) else value


def _hints(method: Callable[..., Any]) -> dict[str, Any]:
    """As `get_type_hints`, with the names that are imported for type checkers only."""
    stand_in = SimpleNamespace(__annotations__=dict(inspect.get_annotations(method)))
    module = inspect.getmodule(method)
    return get_type_hints(stand_in, globalns=dict(vars(module)) if module else {}, localns=dict(CHECKED_ONLY))
