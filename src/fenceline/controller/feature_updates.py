"""Changes of finalized feature levels, and the first records of a cluster.

Rules: controller.md C6, C38, C39, C40; since_4_0.md K1, K2, K15, K20, K26 (enabling eligible leader replicas), K27 (all
voters have registered).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fenceline.controller.configs import MIN_ISR
from fenceline.controller.requests import (
    SUCCESS,
    EmptyAnswer,
    FeatureUpdate,
    NamedOutcome,
    RequestOutcome,
    UpdateFeatures,
    UpdateFeaturesAnswer,
    UpgradeType,
    WriteBootstrapRecords,
)
from fenceline.controller.state import ControllerState, Decision
from fenceline.errors import ErrorCode
from fenceline.metadata.features import (
    ELR_VERSION,
    KRAFT_VERSION,
    METADATA_VERSION,
    MV_CONTROLLER_REGISTRATION,
    MV_CORDONED_LOG_DIRS,
    MV_ELR,
    NO_LEVELS,
    SUPPORTED,
    Levels,
)
from fenceline.metadata.image import ConfigResourceType
from fenceline.metadata.records import (
    BeginTransactionRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    MetadataRecord,
)

_LEVELS_WITH_NEW_RECORDS: Final = (8, 11, 13, 14, 15, 17, 22, 23, MV_CORDONED_LOG_DIRS)
_BOOTSTRAP_NAME: Final = "Bootstrap records"
_MV_TRANSACTIONS: Final = 13
"""3.6-IV1: older levels do not have metadata transactions (C40)."""


def bootstrap_records(state: ControllerState, request: WriteBootstrapRecords) -> Decision:
    """K20: levels in the order of `bootstrap.checkpoint`, and with ELR the cluster's min.insync.replicas.

    In a metadata transaction if the level has them, and always in one batch (C6).
    """
    levels = dict(request.features)
    records: list[MetadataRecord] = [FeatureLevelRecord(name, level) for name, level in request.features]
    if levels.get(ELR_VERSION, 0) >= 1:
        minimum = state.settings.static_configs.get(MIN_ISR, "1")
        records.append(ConfigRecord(ConfigResourceType.BROKER, "", MIN_ISR, minimum))
    records += request.scram
    if levels.get(METADATA_VERSION, 0) >= _MV_TRANSACTIONS:
        records = [BeginTransactionRecord(_BOOTSTRAP_NAME), *records, EndTransactionRecord()]
    return Decision(records, EmptyAnswer())


def update_features(state: ControllerState, request: UpdateFeatures) -> Decision:
    """C38. All or nothing: the first invalid level fails the request with error 95 and a reason.

    kraft.version is not in the image: the quorum finalizes it (`Decision.kraft_version`).
    """
    records: list[MetadataRecord] = []
    kraft_version: int | None = None
    updates = {update.name: update for update in request.updates}.values()  # the last update of a feature wins
    proposed = {**state.image.features, **{update.name: update.level for update in updates}}
    for update in updates:
        fault = _fault(state, update, proposed)
        if fault is not None:
            message = f"The update failed for all features since the following feature had an error: {fault}"
            return Decision((), UpdateFeaturesAnswer(RequestOutcome(ErrorCode.INVALID_UPDATE_VERSION, message)))
        if state.finalized(update.name) == update.level:
            continue
        if update.name == KRAFT_VERSION:
            kraft_version = update.level
            continue
        records.append(FeatureLevelRecord(update.name, update.level))
        if update.name == ELR_VERSION and update.level >= 1:
            records += _min_isr_records(state)
    names = tuple(NamedOutcome(update.name, SUCCESS) for update in updates)
    answer = UpdateFeaturesAnswer(SUCCESS, names)
    return Decision((), answer) if request.validate_only else Decision(records, answer, kraft_version=kraft_version)


def _min_isr_records(state: ControllerState) -> list[MetadataRecord]:
    """K26: write the cluster's value, delete those of single brokers."""
    records: list[MetadataRecord] = []
    cluster = state.image.config(ConfigResourceType.BROKER, "")
    if MIN_ISR not in cluster:
        minimum = state.settings.static_configs.get(MIN_ISR, "1")
        records.append(ConfigRecord(ConfigResourceType.BROKER, "", MIN_ISR, minimum))
    for resource, entries in state.image.configs.items():
        if resource.type == ConfigResourceType.BROKER and resource.name and MIN_ISR in entries:
            records.append(ConfigRecord(ConfigResourceType.BROKER, resource.name, MIN_ISR, None))
    return records


def _fault(state: ControllerState, update: FeatureUpdate, proposed: Mapping[str, int]) -> str | None:
    """Why the level is invalid, in Kafka's words, or None. `proposed`: all levels after the request."""
    name, level, kind = update
    current = state.finalized(name)
    prefix = f"Invalid update version {level} for feature {name}. "
    if kind is UpgradeType.UNKNOWN:
        return prefix + "The controller does not support the given upgrade type."
    if name not in SUPPORTED:
        if level == 0:
            return prefix + f"Feature {name} not found."
        return prefix + f"Local controller {state.settings.node_id} does not support this feature."
    if level < 0:
        return prefix + "A feature version cannot be less than 0."
    if level not in _with_zero(name):
        levels = SUPPORTED[name]
        return (
            prefix
            + f"Local controller {state.settings.node_id} only supports versions {levels.minimum}-{levels.maximum}"
        )
    unfit = _node_without(state, name, level)
    if unfit is not None:
        return prefix + unfit
    if level > current and kind is not UpgradeType.UPGRADE:
        return prefix + "Can't downgrade to a newer version."
    if level < current and kind is UpgradeType.UPGRADE:
        return (
            prefix
            + "Can't downgrade the version of this feature without setting the upgrade type to "
            + "either safe or unsafe downgrade."
        )
    if name == KRAFT_VERSION and level != current:
        if level < current:
            return prefix + "Can't downgrade the version of this feature."
        if not state.can_finalize_kraft_version:
            return prefix + "This release does not upgrade the quorum; format a new directory to use version 1."
    if name == METADATA_VERSION and level < current:
        return _downgrade_fault(current, level, kind)
    if name == ELR_VERSION and level >= 1 and proposed.get(METADATA_VERSION, 0) < MV_ELR:
        return prefix + f"{name} could not be set to {level} because it depends on metadata.version level {MV_ELR}"
    return None


def _downgrade_fault(current: int, level: int, kind: UpgradeType) -> str | None:
    """A downgrade across a level that changed metadata records would lose their content."""
    if not any(level < boundary <= current for boundary in _LEVELS_WITH_NEW_RECORDS):
        return None
    reason = (
        "Refusing to perform the requested downgrade because it might delete metadata information."
        if kind is UpgradeType.SAFE_DOWNGRADE
        else "Unsafe metadata downgrade is not supported in this version."
    )
    return f"Unsupported metadata.version downgrade from {current} to {level}. {reason}"


def _with_zero(name: str) -> range:
    levels = SUPPORTED[name]
    return range(levels.minimum if name == METADATA_VERSION else 0, levels.maximum + 1)


def _node_without(state: ControllerState, name: str, level: int) -> str | None:
    if level == 0 and name != METADATA_VERSION:
        return None
    nodes: list[tuple[str, int, Mapping[str, Levels]]] = [
        ("Broker", broker.id, broker.features) for broker in state.image.brokers.values()
    ]
    nodes += [("Controller", controller.id, controller.features) for controller in state.image.controllers.values()]
    for kind, node, features in nodes:
        levels = features.get(name, NO_LEVELS)
        if level not in levels:
            if name not in features:
                return f"{kind} {node} does not support this feature."
            return f"{kind} {node} only supports versions {levels.minimum}-{levels.maximum}"
    if state.image.metadata_version >= MV_CONTROLLER_REGISTRATION:
        for voter in sorted(state.voter_ids - {state.settings.node_id} - set(state.image.controllers)):
            return f"controller {voter} has not registered, and may not support this feature"
    return None
