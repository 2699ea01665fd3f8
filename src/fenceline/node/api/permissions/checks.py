"""What checks are made of: the question, its outcome, and requests without some of their parts.

Owns how the refused parts of a request are taken out, and how their rows come into the answer. Never knows an API.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, TypeVar

from fenceline.errors import ErrorCode
from fenceline.metadata.image import MetadataImage
from fenceline.node.context import RequestContext
from fenceline.security.rights import RequestRights
from fenceline.wire.acl_codes import AclOperation, ResourceType
from fenceline.wire.entities import Entity

_T = TypeVar("_T")

Fields: TypeAlias = dict[str, Any]
"""An answer, or a part of one, by field names."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request whose rights are checked. `request` is the entity of its API."""

    rights: RequestRights
    context: RequestContext
    request: Any
    image: MetadataImage

    @property
    def version(self) -> int:
        return self.context.api_version


class Passed(NamedTuple):
    """What is left of the request goes to its handler; `complete` adds what was refused to its answer, or removes what
    the sender may not see."""

    request: Any
    complete: Callable[[Fields], Fields] | None = None


Verdict: TypeAlias = Passed | Fields
"""Or the answer to a request of which nothing is left for its handler."""
Check: TypeAlias = Callable[[Asked], Verdict]


class Row(NamedTuple):
    """Of `PERMISSIONS`. `needs`: every right that this API asks about; with all of them a request passes unchanged.
    `check` None: nothing to check before the handler, which asks by itself if `needs` is not empty."""

    needs: tuple[tuple[AclOperation, ResourceType], ...]
    check: Check | None = None


def with_fields(entity: Entity, **changes: Any) -> Any:
    """A copy of an entity with other values of these fields."""
    values = (changes[name] if name in changes else getattr(entity, name) for name in entity.__slots__)
    return type(entity)(*values)


def split(parts: Iterable[_T], is_allowed: Callable[[_T], bool]) -> tuple[tuple[_T, ...], list[_T]]:
    """The allowed and the refused parts."""
    allowed: list[_T] = []
    refused: list[_T] = []
    for part in parts:
        (allowed if is_allowed(part) else refused).append(part)
    return tuple(allowed), refused


def without(
    asked: Asked, field: str, is_allowed: Callable[[Any], bool], refused_row: Callable[[Any], Fields], answer_field: str
) -> Verdict:
    """Take the parts of the request's array `field` out that are not allowed; their rows come at the end of the
    answer's array `answer_field`. If none is left, the handler is not asked: an empty array may mean everything."""
    allowed, refused = split(getattr(asked.request, field), is_allowed)
    if not refused:
        return Passed(asked.request)
    rows = [refused_row(part) for part in refused]
    if not allowed:
        return {answer_field: rows}
    return Passed(with_fields(asked.request, **{field: allowed}), adding(answer_field, rows))


def adding(field: str, rows: Sequence[Mapping[str, Any]]) -> Callable[[Fields], Fields]:
    """Adds rows at the end of an array of the answer."""
    return lambda answer: {**answer, field: [*answer[field], *rows]}


def keeping(field: str, is_shown: Callable[[Fields], bool]) -> Callable[[Fields], Fields]:
    """Keeps those rows of an array of the answer that the sender may see."""
    return lambda answer: {**answer, field: [row for row in answer[field] if is_shown(row)]}


def replacing(field: str, replaced: Callable[[Fields], Fields]) -> Callable[[Fields], Fields]:
    """Replaces each row of an array of the answer."""
    return lambda answer: {**answer, field: [replaced(row) for row in answer[field]]}


def both(first: Callable[[Fields], Fields] | None, second: Callable[[Fields], Fields]) -> Callable[[Fields], Fields]:
    """One after the other."""
    return second if first is None else lambda answer: second(first(answer))


def then(verdict: Verdict, complete: Callable[[Fields], Fields]) -> Verdict:
    """The verdict, with one more change of the answer of the handler, before the refused rows are added."""
    if isinstance(verdict, dict):
        return verdict
    return Passed(verdict.request, complete if verdict.complete is None else both(complete, verdict.complete))


def partition_codes(
    partitions: Iterable[Any], code: ErrorCode, index: str = "partition_index", *, error: str = "error_code"
) -> list[Fields]:
    """A row with this error for each partition, whose number is in the field `index` of both messages."""
    return [{index: getattr(each, index), error: code} for each in partitions]
