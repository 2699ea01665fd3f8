"""Request handlers, one module per family of APIs. `entity_apis` collects the registered ones.

Every module is imported when the server is built.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fenceline.node.context import Api

MODULES: Final = (
    "metadata",
    "topics",
    "configs",
    "cluster",
    "log_dirs",
    "find_coordinator",
    "group_membership",
    "group_offsets",
    "groups",
    "consumer_groups",
    "offsets",
    "producers",
    "elect_leaders",
    "reassignments",
    "update_features",
    "unregister_broker",
    "quorum",
)
CONTROLLER_MODULES: Final = (
    "quorum",
    "envelope",
    "broker_registration",
    "partition_changes",
    "topics",
    "configs",
    "cluster",
    "elect_leaders",
    "reassignments",
    "update_features",
    "unregister_broker",
)


def entity_apis() -> list[Api]:
    """Every broker API that is decoded into an entity, as registered by its module."""
    return [api for name in MODULES for api in import_module(f"fenceline.node.api.handlers.{name}").APIS]


def controller_apis() -> list[Api]:
    """Every API of the controllers' listener: a module's `CONTROLLER_APIS` if it has them, otherwise its `APIS`."""
    found = []
    for name in CONTROLLER_MODULES:
        module = import_module(f"fenceline.node.api.handlers.{name}")
        found += getattr(module, "CONTROLLER_APIS", None) or module.APIS
    return found
