"""Request handlers, a module for each family of APIs. `entity_apis` collects what they export.

Every module is imported when the server is built.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fenceline.node.handlers.registry import Api

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
    "offsets",
    "producers",
)


def entity_apis() -> list[Api]:
    """Every API that is answered through an entity, as registered by its module."""
    return [api for name in MODULES for api in import_module(f"fenceline.node.handlers.{name}").APIS]
