"""The checks of APIs about settings.

A change is refused before its values are looked at, so that nobody learns settings from the errors of changes that they
may not make; Kafka's brokers look at those of their own resource first.

Rules: security.md A53 to A55 (keys 32, 33, 44), A69.
"""

from __future__ import annotations

from typing import Any, Final

from fenceline.errors import ErrorCode
from fenceline.metadata.image import ConfigResourceType
from fenceline.node.api.permissions.checks import Asked, Fields, Verdict, without
from fenceline.node.api.permissions.refusals import message_of
from fenceline.wire.acl_codes import CLUSTER_NAME, AclOperation, ResourceType

_TOPIC: Final = (ResourceType.TOPIC, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
_GROUP: Final = (ResourceType.GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED)
_CLUSTER: Final = (ResourceType.CLUSTER, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
_RESOURCES: Final = {
    ConfigResourceType.TOPIC: _TOPIC,
    ConfigResourceType.GROUP: _GROUP,
    ConfigResourceType.BROKER: _CLUSTER,
    ConfigResourceType.BROKER_LOGGER: _CLUSTER,
    ConfigResourceType.CLIENT_METRICS: _CLUSTER,
}


def _may(asked: Asked, operation: AclOperation, resource: Any) -> bool:
    """Whether the sender may do this to a resource of the request; unknown types are the handler's error."""
    known = _RESOURCES.get(resource.resource_type)
    if known is None:
        return True
    kind = known[0]
    return asked.rights.may(operation, kind, CLUSTER_NAME if kind is ResourceType.CLUSTER else resource.resource_name)


def _refused(resource: Any) -> Fields:
    code = _RESOURCES[resource.resource_type][1]
    return {
        "error_code": code,
        "error_message": message_of(code),
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
    }


def describe_configs(asked: Asked) -> Verdict:
    return without(
        asked,
        "resources",
        lambda each: _may(asked, AclOperation.DESCRIBE_CONFIGS, each),
        lambda each: {**_refused(each), "configs": ()},
        "results",
    )


def alter_configs(asked: Asked) -> Verdict:
    """AlterConfigs and IncrementalAlterConfigs."""
    return without(
        asked, "resources", lambda each: _may(asked, AclOperation.ALTER_CONFIGS, each), _refused, "responses"
    )


def controller_alter_configs(asked: Asked) -> Verdict:
    """On a controller, which has loggers of its own: only nodes change their levels."""

    def is_allowed(resource: Any) -> bool:
        is_logger = resource.resource_type == ConfigResourceType.BROKER_LOGGER
        return _may(asked, AclOperation.CLUSTER_ACTION if is_logger else AclOperation.ALTER_CONFIGS, resource)

    return without(asked, "resources", is_allowed, _refused, "responses")
