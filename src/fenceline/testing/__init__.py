"""The test kit: clusters with faults for tests of applications and of Fenceline itself, and a simulated world.

The public names are loaded on first use. docs/testing.md describes them; fixtures of pytest are in `pytest_plugin`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from fenceline.testing.connected import ConnectedCluster as ConnectedCluster
    from fenceline.testing.container import KafkaContainer as KafkaContainer
    from fenceline.testing.lab.cluster import LabCluster as LabCluster
    from fenceline.testing.lab.situations import SituationImpossible as SituationImpossible
    from fenceline.testing.processing_checks import AcknowledgedRecord as AcknowledgedRecord
    from fenceline.testing.processing_checks import assert_at_least_once as assert_at_least_once
    from fenceline.testing.processing_checks import assert_exactly_once as assert_exactly_once

_MODULES: Final = {
    "AcknowledgedRecord": "processing_checks",
    "ConnectedCluster": "connected",
    "KafkaContainer": "container",
    "LabCluster": "lab.cluster",
    "SituationImpossible": "lab.situations",
    "assert_at_least_once": "processing_checks",
    "assert_exactly_once": "processing_checks",
}
__all__ = [*_MODULES]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"fenceline.testing.{_MODULES[name]}"), name)
