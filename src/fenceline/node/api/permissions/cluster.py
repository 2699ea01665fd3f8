"""The checks of APIs that need one right on the cluster, or show it.

Rules: security.md A53 to A55.
"""

from __future__ import annotations

from fenceline.errors import ErrorCode
from fenceline.node.api.permissions.checks import Asked, Check, Fields, Passed, Row, Verdict
from fenceline.node.api.permissions.refusals import refusal
from fenceline.security.rights import RequestRights
from fenceline.wire.acl_codes import CLUSTER_NAME, AclOperation, ResourceType
from fenceline.wire.apis import ApiKey

OPERATIONS_NOT_ASKED = -(2**31)


def needs_on_cluster(key: ApiKey, operation: AclOperation) -> Row:
    """A row: this right on the cluster, or the whole request is refused."""
    return Row(((operation, ResourceType.CLUSTER),), _on_cluster(key, operation))


def _on_cluster(key: ApiKey, operation: AclOperation) -> Check:
    def check(asked: Asked) -> Verdict:
        if asked.rights.on_cluster(operation):
            return Passed(asked.request)
        return refusal(key, asked.request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)

    return check


def cluster_operations(rights: RequestRights) -> int:
    """The bits of the sender's operations on the cluster: none without DESCRIBE."""
    if not rights.on_cluster(AclOperation.DESCRIBE, quiet=True):
        return 0
    return rights.operations(ResourceType.CLUSTER, CLUSTER_NAME)


def describe_controllers(asked: Asked) -> Verdict:
    """On a controller: ALTER on the cluster, as it shows addresses that clients need not know."""
    if asked.rights.on_cluster(AclOperation.ALTER):
        return describe_cluster(asked)
    return refusal(ApiKey.DESCRIBE_CLUSTER, asked.request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


def describe_cluster(asked: Asked) -> Verdict:
    """Everybody may ask a broker; the operations are the sender's own."""

    def complete(answer: Fields) -> Fields:
        if answer["cluster_authorized_operations"] == OPERATIONS_NOT_ASKED:
            return answer
        return {**answer, "cluster_authorized_operations": cluster_operations(asked.rights)}

    return Passed(asked.request, complete)
