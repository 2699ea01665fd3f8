"""CreateTopics, DeleteTopics and CreatePartitions under a quota of changes (`controller_mutation_rate`).

Owns what a request costs, one for each partition, and which of its topics have to wait: those that come when the
client's bucket is overdrawn. Topics that could not be changed are given back. Counted by the active controller only.

Rules: security.md A61; KIP-599.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fenceline.errors import ErrorCode
from fenceline.node.api.permissions.checks import adding, split, with_fields
from fenceline.wire.apis import ApiKey

if TYPE_CHECKING:
    from fenceline.metadata.image import MetadataImage
    from fenceline.node.client_limits import NodeQuotas
    from fenceline.node.context import Answer, Api, Handler, RequestContext
    from fenceline.quotas.client_quotas import MutationQuota

_MESSAGE: Final = "The throttling quota has been exceeded."


class _Form(NamedTuple):
    """Where a request has its topics, what one costs, and where the answer has its rows."""

    first_strict: int
    """Older clients are throttled, and nothing is refused."""
    topics: Callable[[int], str]
    cost: Callable[[MetadataImage, Any], int]
    row: Callable[[Any], dict[str, Any]]
    rows: str


class MutationLimits(NamedTuple):
    """`is_active`: whether this node is the active controller. `default_partitions`: of a topic that does not say
    (`num.partitions`)."""

    quotas: NodeQuotas
    images: Callable[[], MetadataImage]
    is_active: Callable[[], bool]
    default_partitions: int

    def limited(self, apis: Iterable[Api]) -> tuple[Api, ...]:
        """The same APIs, those of topics with their quota."""
        forms = _forms(self.default_partitions)
        return tuple(
            api._replace(handler=self._limited(api.handler, forms[api.key])) if api.key in forms else api
            for api in apis
        )

    def _limited(self, handler: Handler, form: _Form) -> Handler:
        def handle(context: RequestContext, request: Any) -> Answer | Awaitable[Answer]:
            quota = self.quotas.mutations(context.principal, context.client_id) if self.is_active() else None
            if quota is None:
                return handler(context, request)
            version, image, costs = context.api_version, self.images(), _Costs(quota)

            def may_change(topic: Any) -> bool:
                if version >= form.first_strict and quota.is_exhausted:
                    return False
                costs.take(_key(topic), form.cost(image, topic))
                return True

            field = form.topics(version)
            allowed, refused = split(getattr(request, field), may_change)
            context.throttle_ms = max(context.throttle_ms, quota.throttle_ms)
            rows = [{**form.row(topic), "error_code": ErrorCode.THROTTLING_QUOTA_EXCEEDED} for topic in refused]
            if not allowed:
                return {form.rows: rows}
            answer = handler(context, with_fields(request, **{field: allowed}) if refused else request)

            def finish(answered: Answer) -> Answer:
                assert isinstance(answered, dict), "these handlers answer with fields"
                for row in answered[form.rows]:
                    if row["error_code"]:
                        costs.give_back(row.get("name") or row.get("topic_id"))
                return adding(form.rows, rows)(answered)

            async def later(waiting: Awaitable[Answer]) -> Answer:
                return finish(await waiting)

            return later(answer) if inspect.isawaitable(answer) else finish(answer)

        return handle


class _Costs:
    """What the topics of one request have taken."""

    def __init__(self, quota: MutationQuota) -> None:
        self._quota = quota
        self._taken: dict[Any, int] = {}

    def take(self, topic: Any, partitions: int) -> None:
        self._quota.take(partitions)
        self._taken[topic] = self._taken.get(topic, 0) + partitions

    def give_back(self, topic: Any) -> None:
        self._quota.take(-self._taken.pop(topic, 0))


def _key(topic: Any) -> Any:
    """The name, or the id of a topic that is named by it."""
    return topic if isinstance(topic, str) else topic.name or topic.topic_id


def _forms(default_partitions: int) -> Mapping[ApiKey, _Form]:
    def created(image: MetadataImage, topic: Any) -> int:
        if topic.assignments:
            return len(topic.assignments)
        return int(topic.num_partitions) if topic.num_partitions >= 0 else default_partitions

    def deleted(image: MetadataImage, topic: Any) -> int:
        name = topic if isinstance(topic, str) else topic.name
        found = image.topics_by_name.get(name) if name is not None else image.topics_by_id.get(topic.topic_id)
        return 0 if found is None else len(found.partitions)

    def added(image: MetadataImage, topic: Any) -> int:
        found = image.topics_by_name.get(topic.name)
        return 0 if found is None else max(0, int(topic.count) - len(found.partitions))

    def created_row(topic: Any) -> dict[str, Any]:
        return {"name": topic.name, "error_message": _MESSAGE, "topic_config_error_code": ErrorCode.NONE, "configs": ()}

    def deleted_row(topic: Any) -> dict[str, Any]:
        by_name = {"name": topic} if isinstance(topic, str) else {"name": topic.name, "topic_id": topic.topic_id}
        return {**by_name, "error_message": _MESSAGE}

    def added_row(topic: Any) -> dict[str, Any]:
        return {"name": topic.name, "error_message": _MESSAGE}

    def deleted_topics(version: int) -> str:
        return "topics" if version >= 6 else "topic_names"

    def topics(version: int) -> str:
        return "topics"

    return {
        ApiKey.CREATE_TOPICS: _Form(6, topics, created, created_row, "topics"),
        ApiKey.DELETE_TOPICS: _Form(5, deleted_topics, deleted, deleted_row, "responses"),
        ApiKey.CREATE_PARTITIONS: _Form(3, topics, added, added_row, "results"),
    }
