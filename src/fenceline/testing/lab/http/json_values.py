"""Values of the Python API as JSON, and back.

Owns the form of bytes, dataclasses, named tuples and faults in JSON, and the models that describe them in the OpenAPI
document. Knows no route.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict
from uuid import UUID

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, create_model

from fenceline.client import ConsumerRecord, LossReceipt
from fenceline.errors import ErrorCode, OperatorError
from fenceline.testing.lab.faults import ActiveFault, api_key_of, error_code_of
from fenceline.testing.lab.partition_state import PartitionState
from fenceline.wire.apis import ApiKey

CHECKED_ONLY: Final[Mapping[str, Any]] = {
    "ConsumerRecord": ConsumerRecord,
    "LossReceipt": LossReceipt,
    "PartitionState": PartitionState,
    "Path": Path,
}
"""Names in annotations that modules of the laboratory import for type checkers only."""


class NoJsonForm(Exception):
    """A function, such as a predicate: HTTP has no form for it."""


# --- answers ----------------------------------------------------------------------------------------------------------


class BytesView(BaseModel):
    """Bytes: in base64, and as text if they are UTF-8."""

    text: str | None
    base64: str


class FaultView(BaseModel):
    """A fault. `id` is null for one that is over at once (`reset`); `count`: what the method returned, if a number.
    `hits`: requests affected so far, for faults of requests. `starts`: the node that its end starts."""

    id: int | None
    text: str
    is_active: bool
    hits: int = 0
    hits_by_node: dict[str, int] = Field(default_factory=dict)
    starts: int | None = None
    count: int | None = None


def plain(value: Any) -> Any:
    """A value in the form of its `view_of`."""
    if isinstance(value, bytes):
        return bytes_view(value)
    if isinstance(value, ActiveFault):
        return fault_view(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: plain(each) for name, each in zip(value._fields, value, strict=True)}
    if isinstance(value, UUID | Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in value]
    return value


def bytes_view(value: bytes) -> dict[str, Any]:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = None
    return {"text": text, "base64": base64.b64encode(value).decode()}


def fault_view(fault: ActiveFault) -> dict[str, Any]:
    return {
        "id": fault.fault_id,
        "text": fault.text,
        "is_active": fault.is_active,
        "hits": fault.hits,
        "hits_by_node": {str(node): count for node, count in sorted(fault.hits_by_node.items())},
        "starts": fault.starts,
        "count": None,
    }


def view_of(kind: Any) -> Any:
    """The type that describes the values of a type in the OpenAPI document."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return Union[tuple(view_of(each) for each in arguments)]  # noqa: UP007
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return list[view_of(arguments[0])]  # type: ignore[misc]
    if origin is tuple:
        return tuple[tuple(view_of(each) for each in arguments)]  # type: ignore[misc]
    if origin in (list, Sequence):
        return list[view_of(arguments[0])]  # type: ignore[misc]
    if origin in (dict, Mapping):
        return dict[str, view_of(arguments[1])]  # type: ignore[misc]
    if kind is bytes:
        return BytesView
    if kind is ActiveFault:
        return FaultView
    if kind in (UUID, Path):
        return str
    if dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"):
        return _model_of(kind)
    return kind


@functools.cache
def _model_of(kind: Any) -> type[BaseModel]:
    """Of a dataclass or a named tuple."""
    hints = get_type_hints(kind, localns=dict(CHECKED_ONLY))
    fields: dict[str, Any] = {name: (view_of(each), ...) for name, each in hints.items()}
    return create_model(kind.__name__, __doc__=kind.__doc__, **fields)


# --- arguments --------------------------------------------------------------------------------------------------------


def bytes_of(value: object) -> object:
    """Text as UTF-8, or {"base64": ...}, as in answers. Raises ValueError."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, Mapping) and isinstance(value.get("base64"), str) and set(value) <= {"text", "base64"}:
        return base64.b64decode(value["base64"], validate=True)
    if isinstance(value, bytes):
        return value
    raise ValueError('give text, or bytes as {"base64": "..."}')


def _known(check: Callable[[str], object]) -> AfterValidator:
    def validate(value: str) -> str:
        try:
            check(value)
        except OperatorError as error:
            raise ValueError(f"{error.message}. {error.advice}") from None
        return value

    return AfterValidator(validate)


_BYTES_SCHEMA: Final = {
    "anyOf": [
        {"type": "string"},
        {"type": "object", "properties": {"base64": {"type": "string"}}, "required": ["base64"]},
    ]
}
Content = Annotated[bytes, BeforeValidator(bytes_of), WithJsonSchema(_BYTES_SCHEMA)]
"""Bytes as an argument."""
ApiName = Annotated[str, _known(api_key_of)]
ErrorName = Annotated[str, _known(error_code_of)]
Wait = Annotated[float, Field(ge=0, le=600)]
"""Seconds for which a request may wait."""


def argument_of(kind: Any) -> Any:
    """The type that parses an argument of a type. Raises NoJsonForm."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if ApiKey in arguments or ErrorCode in arguments:
            name = ApiName if ApiKey in arguments else ErrorName
            left = [name if each is str else argument_of(each) for each in arguments if each not in (ApiKey, ErrorCode)]
        else:
            left = []
            for each in arguments:
                if get_origin(each) is not Callable and get_origin(each) is not _ABC_CALLABLE:
                    left.append(argument_of(each))
            if left == [type(None)] or not left:
                raise NoJsonForm
        return Union[tuple(left)]  # noqa: UP007
    if origin in (Iterable, Sequence, list, tuple):
        return list[argument_of(arguments[0])]  # type: ignore[misc]
    if origin in (Mapping, dict):
        return dict[str, argument_of(arguments[1])]  # type: ignore[misc]
    if origin is _ABC_CALLABLE:
        raise NoJsonForm
    if kind is bytes:
        return Content
    assert origin in (None, Literal), f"{kind} has no form in JSON yet"
    assert not is_typeddict(kind), f"{kind} has no form in JSON yet"
    return kind


_ABC_CALLABLE: Final = get_origin(Callable[[], None])
STRICT: Final = ConfigDict(extra="forbid", allow_inf_nan=False)
"""For models of arguments: a misspelt name is an error."""
