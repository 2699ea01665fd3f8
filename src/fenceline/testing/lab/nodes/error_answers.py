"""Answers with an error code to any request, and answers with a throttle time, made from the schemas of both.

Owns which part of a request an answer repeats: topics, partitions, groups. Every error code of the answer is set, at
each level that the version has, as in Kafka's own error responses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from fenceline.log.core.disk import FileSlice
from fenceline.node.net.sending import Part
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import message_schema, read_request, read_response, write_response
from fenceline.wire.schema import Field, Struct

_SAME: Final[Mapping[str, tuple[str, ...]]] = {
    "responses": ("topic_data", "topics"),
    "partition_responses": ("partition_data", "partitions"),
    "partitions": ("partition_indexes", "partition_indices"),
    "results_by_topic_v3_and_below": ("v3_and_below_topics",),
    "results_by_transaction": ("transactions",),
    "topic_results": ("topics",),
    "results_by_partition": ("partitions",),
    "coordinators": ("coordinator_keys",),
    "groups": ("group_ids", "groups_names"),
    "results": ("groups_names", "resources", "topics"),
    "members": ("members",),
    "index": ("partition_index", "partition"),
    "partition_index": ("index", "partition"),
    "partition": ("partition_index", "index"),
    "name": ("topic", "topic_name"),
    "topic": ("name", "topic_name"),
    "topic_name": ("name", "topic"),
}
"""Names in an answer, and what the request calls the same thing."""
_ANSWERED_FIRST: Final = frozenset({ApiKey.METADATA, ApiKey.DESCRIBE_CLUSTER})
"""Requests that change nothing, and whose answer has much that the request does not name."""
_MESSAGE: Final = "injected by a test"
_ABSENT: Final = object()
_THROTTLE_TIME: Final = "throttle_time"
_SIZE_BYTES: Final = 4
_TIME_BYTES: Final = 4


def is_answered_first(api: int) -> bool:
    """Whether the node's own answer is changed (`with_error`), rather than an answer made here (`error_answer`)."""
    return api in _ANSWERED_FIRST


def error_answer(api: int, version: int, request_body: bytes, error_code: int) -> bytes:
    """The body of an answer. Raises MalformedRequest for a request that cannot be read."""
    request = read_request(api, version, request_body)
    root = message_schema(api, is_request=False).root
    return write_response(api, version, _answer(root, version, request, error_code))


def with_error(api: int, version: int, answer_body: bytes, error_code: int) -> bytes:
    """The same answer, in which every error code is set. Raises MalformedRequest."""
    answer = read_response(api, version, answer_body)
    root = message_schema(api, is_request=False).root
    return write_response(api, version, _changed(root, version, answer, error_code))


def with_throttle_time(api: int, version: int, answer: Sequence[Part], body_at: int, throttle_ms: int) -> list[Part]:
    """The same answer with a throttle time, if its version has one. `body_at`: where the body begins in the frame.

    Stored records stay where they are: nearly all answers begin with the time. Raises MalformedRequest."""
    fields = message_schema(api, is_request=False).root.at(version)
    position = next((index for index, field in enumerate(fields) if field.name == _THROTTLE_TIME), -1)
    if position < 0:
        return list(answer)
    if position > 0:
        content = b"".join(bytes(part) for part in answer if not isinstance(part, FileSlice))
        read = _changed(
            message_schema(api, is_request=False).root, version, read_response(api, version, content[body_at:]), None
        )
        body = write_response(api, version, {**read, _THROTTLE_TIME: throttle_ms})
        head = (body_at - _SIZE_BYTES + len(body)).to_bytes(_SIZE_BYTES, "big") + content[_SIZE_BYTES:body_at]
        return [head + body]
    begun, rest = bytearray(), list(answer)
    while len(begun) < body_at + _TIME_BYTES:
        part = rest.pop(0)
        assert not isinstance(part, FileSlice), "records come last"
        begun += part
    begun[body_at : body_at + _TIME_BYTES] = throttle_ms.to_bytes(_TIME_BYTES, "big")
    return [bytes(begun), *rest]


def _answer(part: Struct, version: int, source: Any, error_code: int) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for field in part.at(version):
        if field.kind == "error":
            made[field.name] = error_code
        elif field.name == "error_message":
            made[field.name] = _MESSAGE
        elif field.is_array and field.struct is not None:
            made[field.name] = [_answer(field.struct, version, each, error_code) for each in _array(source, field.name)]
        elif field.struct is None and not field.is_array:
            value = source if _is_plain(source) and _is_first(part, version, field) else _value(source, field.name)
            if value is not _ABSENT:
                made[field.name] = value
    return made


def _changed(part: Struct, version: int, source: Any, error_code: int | None) -> dict[str, Any]:
    """The fields of a decoded answer; its error codes replaced, unless `error_code` is None."""
    made: dict[str, Any] = {}
    for field in part.at(version):
        value = getattr(source, field.name)
        if field.kind == "error" and error_code is not None:
            made[field.name] = error_code
        elif field.struct is None or value is None:
            made[field.name] = value
        elif field.is_array:
            made[field.name] = [_changed(field.struct, version, each, error_code) for each in value]
        else:
            made[field.name] = _changed(field.struct, version, value, error_code)
    return made


def _array(source: Any, name: str) -> Iterable[Any]:
    value = _value(source, name)
    return () if value is _ABSENT or value is None or isinstance(value, str | int) else value


def _value(source: Any, name: str) -> Any:
    for each in (name, *_SAME.get(name, ())):
        value = getattr(source, each, _ABSENT)
        if value is not _ABSENT:
            return value
    return _ABSENT


def _is_plain(source: Any) -> bool:
    """Whether the request names only the key of a thing: a partition's number, a group's id."""
    return isinstance(source, str | int)


def _is_first(part: Struct, version: int, field: Field) -> bool:
    """Whether the field is the key of its struct: the first that is neither an error nor a time."""
    keys = (each for each in part.at(version) if each.kind in ("string", "int32") and each.name != "error_message")
    return next(keys, None) is field
